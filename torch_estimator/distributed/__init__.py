"""Plumbing for processes that train one model: rendezvous, process group, heartbeat, peer recovery."""
