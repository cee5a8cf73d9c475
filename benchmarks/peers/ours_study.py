"""A study of this package from Python, with `tune`; it reports the AUCs of each trial by step.

With `--curves` all trials run to their end and are evaluated every `--first-rung` steps: so
`tests/tuning/census_curves.json` was recorded.
"""

from __future__ import annotations

import logging
import time
from typing import Any

import torch_estimator as te
from benchmarks.peers import tuning_report
from benchmarks.peers.tuned_census import RATES, Trainer
from torch_estimator.jobs.directory import JobDirectory
from torch_estimator.tuning.directory import StudyDirectory
from torch_estimator.tuning.metrics import read_metric


def main() -> None:
    """Run the study: with early stopping if there is a first rung."""
    parser = tuning_report.parser(__doc__)
    parser.add_argument("--curves", action="store_true", help="evaluate at each checkpoint, and stop no trial early")
    args = parser.parse_args()
    logging.getLogger("torch_estimator").setLevel(logging.WARNING)

    def make(rates: dict[str, Any], job_dir: str) -> Any:
        trainer = Trainer(rates, job_dir, args.data, save_every=args.first_rung or args.steps)
        return trainer.parts(args.steps, throttle_secs=0 if args.curves else 600)

    began = time.time()
    result = te.tune(
        make,
        {name: (low, high, "log") for name, (low, high) in RATES.items()},
        metric="auc",
        directory=args.folder / "study",
        trials=args.trials,
        parallel=args.parallel,
        early_stopping=args.first_rung > 0 and not args.curves,
        seed=args.seed,
    )
    study = StudyDirectory(JobDirectory(str(args.folder), "study"))
    trials = study.trials()
    shapes = [study.shape(trial.number).read() for trial in trials]
    tuning_report.report(
        "torch-estimator",
        te.__version__,
        began,
        [],
        trials=[read_metric(trial.job_dir, "auc", study.path(trial.number, ".metrics")) for trial in trials],
        steps=int(result.frame()["step"].sum()),
        best=result.best_value,
        compiled=sum(shape is not None and shape.is_compiled for shape in shapes),
    )


if __name__ == "__main__":
    main()
