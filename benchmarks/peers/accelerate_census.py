"""The census sample in a loop around Hugging Face Accelerate; runs in `.bench/torch`."""

from __future__ import annotations

import accelerate
from accelerate import Accelerator

from benchmarks.peers import wide_deep
from benchmarks.peers.report import Pace, Report


def main() -> None:
    """Measures what was asked for."""
    args = wide_deep.parser(__doc__).parse_args()
    rows = wide_deep.prepare(args)
    model, pace = wide_deep.WideDeep(), Pace(args.warmup)
    accelerator = Accelerator(cpu=True)
    prepared, optimizer, batches = accelerator.prepare(
        model, wide_deep.one_optimizer(model), wide_deep.loader(rows, args)
    )
    while pace.steps < args.steps:
        for batch in batches:
            optimizer.zero_grad()
            accelerator.backward(wide_deep.loss_of(prepared, batch))
            optimizer.step()
            pace.step()
            if pace.steps == args.steps:
                break
    pace.end()
    report = Report(peer="Accelerate", version=accelerate.__version__)
    report.take(pace, args.batch)
    if args.evaluate:
        wide_deep.evaluate(model, args, report)
    report.print()


if __name__ == "__main__":
    main()
