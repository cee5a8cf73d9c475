"""The trials of the tuning benchmark one after the other in one process, which is as cheap as they can be."""

from __future__ import annotations

import logging
import time

import torch_estimator as te
from benchmarks.peers import tuning_report
from benchmarks.peers.tuned_census import RATES, Trainer


def main() -> None:
    """Train several times; report the CPU seconds of one training after the first."""
    args = tuning_report.parser(__doc__).parse_args()
    logging.getLogger("torch_estimator").setLevel(logging.WARNING)
    began, used = time.time(), []
    for number in range(args.trials):
        before = time.process_time()
        rates = {name: low * (high / low) ** ((number + 1) / (args.trials + 1)) for name, (low, high) in RATES.items()}
        Trainer(rates, str(args.folder / str(number)), args.data, save_every=args.steps).run(args.steps)
        used.append(time.process_time() - before)
    tuning_report.report("one process", te.__version__, began, [], cpu=sum(used[1:]) / len(used[1:]))


if __name__ == "__main__":
    main()
