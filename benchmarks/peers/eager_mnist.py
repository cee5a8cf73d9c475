"""The network of `examples/mnist` in a training loop written by hand, with a DataLoader; runs in `.bench/torch`.

Images are converted ahead of time and in memory.
"""

from __future__ import annotations

import torch

from benchmarks.peers import convnet, mnist_digits
from benchmarks.peers.report import Pace, Report, parser


def main() -> None:
    """Measures what was asked for."""
    args = parser(__doc__).parse_args()
    train, held_out = mnist_digits.read(args.data)
    batches = convnet.loader(train, args)
    model, pace = convnet.ConvNet(), Pace(args.warmup)
    optimizer, schedule = convnet.optimizer_of(model, args.steps)
    while pace.steps < args.steps:
        for batch in batches:
            optimizer.zero_grad()
            convnet.loss_of(model, batch).backward()  # type: ignore[no-untyped-call]
            optimizer.step()
            schedule.step()
            pace.step()
            if pace.steps == args.steps:
                break
    pace.end()
    report = Report(peer="eager loop, DataLoader", version=torch.__version__)
    report.take(pace, args.batch)
    if args.evaluate:
        convnet.evaluate(model, held_out, report)
    report.print()


if __name__ == "__main__":
    main()
