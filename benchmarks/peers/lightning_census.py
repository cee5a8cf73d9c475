"""The census sample as a LightningModule; runs in `.bench/torch`.

Automatic optimization; no logger, no checkpoints and no progress bar, which flatters it.
"""

from __future__ import annotations

import logging
import warnings
from typing import Any

import lightning
import torch
from torch import Tensor

from benchmarks.peers import wide_deep
from benchmarks.peers.report import Pace, Report


class Census(lightning.LightningModule):
    """The model with its loss and its optimizer."""

    def __init__(self) -> None:
        super().__init__()
        self.model = wide_deep.WideDeep()

    def training_step(self, batch: tuple[Tensor, ...], _: int) -> Tensor:
        return wide_deep.loss_of(self.model, batch)

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return wide_deep.one_optimizer(self.model)


class Clock(lightning.Callback):
    """Tells the clock of every step."""

    def __init__(self, pace: Pace) -> None:
        self._pace = pace

    def on_train_batch_end(self, *_: Any) -> None:
        self._pace.step()

    def on_train_end(self, *_: Any) -> None:
        self._pace.end()


def main() -> None:
    """Measures what was asked for."""
    args = wide_deep.parser(__doc__).parse_args()
    logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)
    warnings.filterwarnings("ignore", ".*does not have many workers.*")
    rows = wide_deep.prepare(args)
    module, pace = Census(), Pace(args.warmup)
    trainer = lightning.Trainer(
        accelerator="cpu",
        max_steps=args.steps,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        callbacks=[Clock(pace)],
    )
    trainer.fit(module, wide_deep.loader(rows, args))
    report = Report(peer="Lightning", version=lightning.__version__)
    report.take(pace, args.batch)
    if args.evaluate:
        wide_deep.evaluate(module.model, args, report)
    report.print()


if __name__ == "__main__":
    main()
