"""The network of `examples/mnist` as a LightningModule; runs in `.bench/torch`.

Images are converted ahead of time and in memory; no logger, no checkpoints and no progress bar, which flatters it.
"""

from __future__ import annotations

from typing import Any

import lightning
from torch import Tensor

from benchmarks.peers import convnet, mnist_digits
from benchmarks.peers.lightning_clock import trainer_of
from benchmarks.peers.report import Pace, Report, parser


class Digits(lightning.LightningModule):
    """The network with its loss, optimizer and schedule."""

    def __init__(self, steps: int) -> None:
        super().__init__()
        self.network = convnet.ConvNet()
        self._steps = steps

    def training_step(self, batch: tuple[Tensor, ...], _: int) -> Tensor:
        return convnet.loss_of(self.network, batch)

    def configure_optimizers(self) -> Any:
        optimizer, schedule = convnet.optimizer_of(self.network, self._steps)
        return [optimizer], [{"scheduler": schedule, "interval": "step"}]


def main() -> None:
    """Measures what was asked for."""
    args = parser(__doc__).parse_args()
    train, held_out = mnist_digits.read(args.data)
    batches = convnet.loader(train, args)
    module, pace = Digits(args.steps), Pace(args.warmup)
    trainer_of(args.steps, pace).fit(module, batches)
    report = Report(peer="Lightning", version=lightning.__version__)
    report.take(pace, args.batch)
    if args.evaluate:
        convnet.evaluate(module.network, held_out, report)
    report.print()


if __name__ == "__main__":
    main()
