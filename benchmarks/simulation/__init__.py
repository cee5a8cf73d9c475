"""Clusters on paper: a simulation of events, fed with costs that were measured."""

from __future__ import annotations

from benchmarks.simulation.costs import Exchange, Machine, Network, Worker

__all__ = ["Exchange", "Machine", "Network", "Worker"]
