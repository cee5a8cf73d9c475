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
    wide = torch.optim.Adagrad([model.wide.weight], lr=wide_deep.WIDE_RATE, initial_accumulator_value=wide_deep.START)
    deep = torch.optim.Adagrad(
        model.deep_parameters(), lr=wide_deep.DEEP_RATE, initial_accumulator_value=wide_deep.START, fused=True
    )
    batches = wide_deep.loader(rows, args)
    while pace.steps < args.steps:
        for batch in batches:
            wide.zero_grad()
            deep.zero_grad()
            wide_deep.loss_of(model, batch).backward()  # type: ignore[no-untyped-call]
            wide.step()
            deep.step()
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
