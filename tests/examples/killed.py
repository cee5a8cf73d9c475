"""Runs an example as a process of its own, and kills it where its log says that it saves a checkpoint."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from torch_estimator.checkpoint.checkpoint import load_checkpoint

ROOT = Path(__file__).resolve().parents[2]

# A process that is still there after so long hangs.
_PATIENCE = 240.0


def run(module: str, arguments: Sequence[str]) -> str:
    """Runs ``python -m module`` to its end; returns what it printed."""
    return subprocess.run(
        [sys.executable, "-m", module, *arguments],
        cwd=ROOT,
        check=True,
        text=True,
        stdout=subprocess.PIPE,
        timeout=_PATIENCE,
    ).stdout


def run_killed(module: str, arguments: Sequence[str], *, when_saving: int) -> None:
    """Kills ``python -m module`` with SIGKILL as soon as it logs that it saves the checkpoint of a step."""
    process = subprocess.Popen(
        [sys.executable, "-m", module, *arguments],
        cwd=ROOT,
        text=True,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        env={**os.environ, "PYTHONUNBUFFERED": "1"},
    )
    watch = threading.Timer(_PATIENCE, process.kill)
    watch.start()
    assert process.stderr is not None
    with process.stderr as log:
        seen = any(f"Saving checkpoints for {when_saving} " in line for line in log)
        process.kill()
    watch.cancel()
    assert process.wait(_PATIENCE) == -signal.SIGKILL
    assert seen, f"the process ended before it saved step {when_saving}"


def assert_same_checkpoints(one: Path, other: Path) -> None:
    """Same step, weights and optimizer state, bit for bit."""
    ours, theirs = load_checkpoint(str(one)), load_checkpoint(str(other))
    assert ours.step == theirs.step
    for mine, others in ((ours.variables, theirs.variables), (ours.slots, theirs.slots)):
        assert mine.keys() == others.keys()
        for name, value in mine.items():
            np.testing.assert_array_equal(value.numpy(), others[name].numpy(), err_msg=name)
