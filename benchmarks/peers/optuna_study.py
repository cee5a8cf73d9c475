"""Trials of Optuna with its ASHA pruner, one after the other in one process, until a number of steps is used up.

The trial that uses them up goes on to its end or until it is pruned. `--trials` is the most that there may be.
"""

from __future__ import annotations

import logging
import time

import optuna

from benchmarks.peers import tuning_report
from benchmarks.peers.tuned_census import RATES, Trainer, rungs


def main() -> None:
    """Run the study; report the AUCs of each trial by step."""
    parser = tuning_report.parser(__doc__)
    parser.add_argument("--budget", type=int, required=True, help="steps of all trials together")
    args = parser.parse_args()
    logging.getLogger("torch_estimator").setLevel(logging.WARNING)
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    used = 0

    def objective(trial: optuna.Trial) -> float:
        nonlocal used
        rates = {name: trial.suggest_float(name, low, high, log=True) for name, (low, high) in RATES.items()}
        trainer = Trainer(rates, str(args.folder / str(trial.number)), args.data, save_every=args.first_rung)
        auc, before = 0.0, 0
        for step in rungs(args.first_rung, args.steps):
            auc = trainer.auc_at(step)
            used, before = used + step - before, step
            trial.report(auc, step)
            if step < args.steps and trial.should_prune():
                raise optuna.TrialPruned
        return auc

    def end_of_budget(study: optuna.Study, trial: optuna.trial.FrozenTrial) -> None:
        if used >= args.budget:
            study.stop()

    began = time.time()
    study = optuna.create_study(
        sampler=optuna.samplers.TPESampler(seed=args.seed),
        pruner=optuna.pruners.SuccessiveHalvingPruner(min_resource=args.first_rung, reduction_factor=4),
        direction="maximize",
    )
    study.optimize(objective, n_trials=args.trials, callbacks=[end_of_budget])
    trials = [one.intermediate_values for one in study.trials]
    tuning_report.report("Optuna", optuna.__version__, began, [], trials=trials, steps=used, best=study.best_value)


if __name__ == "__main__":
    main()
