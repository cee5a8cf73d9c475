"""The census sample in a training loop written by hand, with a DataLoader; runs in `.bench/torch`.

Sparse gradients for the wide table, the fused Adagrad for everything else, all rows encoded ahead of time and in
memory.
"""

from __future__ import annotations

import torch

from benchmarks.peers import wide_deep
from benchmarks.peers.report import Pace, Report


def main() -> None:
    """Measures what was asked for."""
    args = wide_deep.parser(__doc__).parse_args()
    rows = wide_deep.prepare(args)
    model, pace = wide_deep.WideDeep(), Pace(args.warmup)
    optimizers, batches = wide_deep.two_optimizers(model), wide_deep.loader(rows, args)
    while pace.steps < args.steps:
        for batch in batches:
            wide_deep.train_on(model, optimizers, batch)
            pace.step()
            if pace.steps == args.steps:
                break
    pace.end()
    report = Report(peer="eager loop, DataLoader", version=torch.__version__)
    report.take(pace, args.batch)
    if args.evaluate:
        wide_deep.evaluate(model, args, report)
    report.print()


if __name__ == "__main__":
    main()
