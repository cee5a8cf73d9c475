"""How all of Lightning's sides train: on the CPU, without logger, checkpoints and progress bar."""

from __future__ import annotations

import logging
import warnings
from typing import Any

import lightning

from benchmarks.peers.report import Pace


class Clock(lightning.Callback):
    """Tells the clock of every step."""

    def __init__(self, pace: Pace) -> None:
        self._pace = pace

    def on_train_batch_end(self, *_: Any) -> None:
        self._pace.step()

    def on_train_end(self, *_: Any) -> None:
        self._pace.end()


def trainer_of(steps: int, pace: Pace) -> lightning.Trainer:
    """Trains so many steps and tells the clock."""
    logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)
    warnings.filterwarnings("ignore", ".*does not have many workers.*")
    return lightning.Trainer(
        accelerator="cpu",
        max_steps=steps,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        callbacks=[Clock(pace)],
    )
