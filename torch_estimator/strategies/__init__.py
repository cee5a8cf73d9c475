"""Strategies: how a training is spread over devices and processes, one file each."""
