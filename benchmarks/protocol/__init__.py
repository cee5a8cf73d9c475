"""How the benchmarks measure: sides in processes of their own, in turn, and verdicts on medians of paired ratios."""

from __future__ import annotations

from benchmarks.protocol.cluster import free_ports, run_cluster
from benchmarks.protocol.machine import machine_line
from benchmarks.protocol.memory_watch import ROLE, MemoryWatch
from benchmarks.protocol.results import keep, show, show_machine
from benchmarks.protocol.rounds import Measured, alternate
from benchmarks.protocol.side import ROOT, Side, SideError, ready
from benchmarks.protocol.table import Table, table
from benchmarks.protocol.verdict import Verdict, at_least, at_most, conclude

__all__ = [
    "ROLE",
    "ROOT",
    "Measured",
    "MemoryWatch",
    "Side",
    "SideError",
    "Table",
    "Verdict",
    "alternate",
    "at_least",
    "at_most",
    "conclude",
    "free_ports",
    "keep",
    "machine_line",
    "ready",
    "run_cluster",
    "show",
    "show_machine",
    "table",
]
