"""The census sample as a LightningModule; runs in `.bench/torch`.

Automatic optimization; no logger, no checkpoints and no progress bar, which flatters it.
"""

from __future__ import annotations

import lightning
import torch
from torch import Tensor

from benchmarks.peers import wide_deep
from benchmarks.peers.lightning_clock import trainer_of
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


def main() -> None:
    """Measures what was asked for."""
    args = wide_deep.parser(__doc__).parse_args()
    rows = wide_deep.prepare(args)
    module, pace = Census(), Pace(args.warmup)
    trainer_of(args.steps, pace).fit(module, wide_deep.loader(rows, args))
    report = Report(peer="Lightning", version=lightning.__version__)
    report.take(pace, args.batch)
    if args.evaluate:
        wide_deep.evaluate(module.model, args, report)
    report.print()


if __name__ == "__main__":
    main()
