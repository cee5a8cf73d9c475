"""Optuna as its documentation shows it for several processes: one for each trial, a journal, and its ASHA pruner."""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import optuna
from optuna.storages.journal import JournalFileBackend

from benchmarks.peers import tuning_report


def study_of(args: Any) -> optuna.Study:
    """The study that all processes share."""
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    pruner: optuna.pruners.BasePruner = optuna.pruners.NopPruner()
    if args.first_rung:
        pruner = optuna.pruners.SuccessiveHalvingPruner(min_resource=args.first_rung, reduction_factor=4)
    return optuna.create_study(
        storage=optuna.storages.JournalStorage(JournalFileBackend(str(args.folder / "journal"))),
        sampler=optuna.samplers.TPESampler(),
        pruner=pruner,
        study_name="study",
        direction="maximize",
        load_if_exists=True,
    )


def run_one(args: Any) -> None:
    """Run one trial in this process."""
    import logging

    from benchmarks.peers.tuned_census import RATES, Trainer, rungs

    logging.getLogger("torch_estimator").setLevel(logging.WARNING)

    def objective(trial: optuna.Trial) -> float:
        rates = {name: trial.suggest_float(name, low, high, log=True) for name, (low, high) in RATES.items()}
        folder = args.folder / str(trial.number)
        trainer = Trainer(rates, str(folder), args.data, save_every=args.first_rung or args.steps)
        auc = 0.0
        for step in rungs(args.first_rung or args.steps, args.steps):
            auc = trainer.auc_at(step)
            tuning_report.Progress(args.folder).add(step, auc)
            trial.report(auc, step)
            if step < args.steps and trial.should_prune():
                raise optuna.TrialPruned
        trainer.export()
        return auc

    study = study_of(args)
    study.sampler = optuna.samplers.TPESampler(seed=args.seed * 1000 + len(study.trials))
    study.optimize(objective, n_trials=1)


def main() -> None:
    """Run one trial, or all of them, some at a time."""
    parser = tuning_report.parser(__doc__)
    parser.add_argument("--one", action="store_true", help="run one trial in this process")
    args = parser.parse_args()
    run_one(args) if args.one else run_all(args)


def run_all(args: Any) -> None:
    """Run all trials in processes of their own."""
    began = time.time()
    study = study_of(args)
    command = [sys.executable, "-m", "benchmarks.peers.optuna_tuning", *sys.argv[1:], "--one"]
    running: list[subprocess.Popen[bytes]] = []
    started = 0
    while running or started < args.trials:
        while started < args.trials and len(running) < args.parallel:
            running.append(subprocess.Popen(command, cwd=Path.cwd(), stdout=sys.stderr))
            started += 1
        time.sleep(0.02)
        for one in [one for one in running if one.poll() is not None]:
            if one.returncode:
                sys.exit(f"a trial ended with status {one.returncode}.")
            running.remove(one)
    assert study.best_value
    cpu = tuning_report.children_cpu()
    reached = tuning_report.Progress(args.folder).since(began)
    tuning_report.report("Optuna", optuna.__version__, began, reached, cpu=cpu)


if __name__ == "__main__":
    main()
