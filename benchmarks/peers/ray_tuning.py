"""Ray Tune with Optuna's search and its ASHA scheduler."""

from __future__ import annotations

import time
from typing import Any

import ray
from ray import tune
from ray.tune.schedulers import ASHAScheduler
from ray.tune.search.optuna import OptunaSearch

from benchmarks.peers import tuning_report


def main() -> None:
    """Run all trials, some at a time."""
    args = tuning_report.parser(__doc__).parse_args()
    began = time.time()
    ray.init(num_cpus=args.parallel, include_dashboard=False, log_to_driver=False)

    def train(rates: dict[str, Any]) -> None:
        import logging

        from benchmarks.peers.tuned_census import Trainer, rungs

        logging.getLogger("torch_estimator").setLevel(logging.WARNING)
        folder = args.folder / tune.get_context().get_trial_id()
        trainer = Trainer(rates, str(folder), args.data, save_every=args.first_rung or args.steps)
        for step in rungs(args.first_rung or args.steps, args.steps):
            auc = trainer.auc_at(step)
            tuning_report.Progress(args.folder).add(step, auc)
            if step == args.steps:
                trainer.export()
            tune.report({"auc": auc, "step": step})

    from benchmarks.peers.tuned_census import RATES

    scheduler = None
    if args.first_rung:
        scheduler = ASHAScheduler(time_attr="step", max_t=args.steps, grace_period=args.first_rung, reduction_factor=4)
    tuner = tune.Tuner(
        train,
        param_space={name: tune.loguniform(low, high) for name, (low, high) in RATES.items()},
        tune_config=tune.TuneConfig(
            metric="auc",
            mode="max",
            search_alg=OptunaSearch(seed=args.seed),
            scheduler=scheduler,
            num_samples=args.trials,
            max_concurrent_trials=args.parallel,
        ),
        run_config=tune.RunConfig(storage_path=str(args.folder / "ray"), verbose=0),
    )
    results = tuner.fit()
    assert not results.errors
    reached = tuning_report.Progress(args.folder).since(began)
    tuning_report.report("Ray Tune", ray.__version__, began, reached)


if __name__ == "__main__":
    main()
