"""Runs of `benchmarks.pages.curves` in a database for MLflow: ``python -m benchmarks.peers.mlflow_runs FILE RUNS``.

Runs, their parameters and their last points are written by MLflow's client, a batch for each run. The points before go
into the table `metrics` as the client would write them, which takes it two seconds for each run.
"""

from __future__ import annotations

import json
import sqlite3
import sys
from pathlib import Path

import mlflow
from mlflow import MlflowClient
from mlflow.entities import Metric, Param

from benchmarks.pages import curves

EXPERIMENT = "console"


def write(file: Path, count: int) -> str:
    """Write the runs, and return the id of their experiment."""
    client = MlflowClient(tracking_uri=f"sqlite:///{file}")
    experiment = client.create_experiment(EXPERIMENT, artifact_location=str(file.parent / "artifacts"))
    with sqlite3.connect(file) as database:
        # The file is written once and for a benchmark alone.
        database.execute("pragma synchronous=off")
        for number in range(count):
            ms = [1000 * (curves.began(number) + curves.SECS_BETWEEN_POINTS * point) for point in range(curves.POINTS)]
            run = client.create_run(experiment, start_time=ms[0], run_name=curves.run_name(number)).info.run_id
            rows = curves.values(number).tolist()
            last = curves.POINTS * curves.STEPS_BETWEEN_POINTS
            metrics = [Metric(tag, value, ms[-1], last) for tag, value in zip(curves.TAGS, rows[-1], strict=True)]
            params = [Param(name, f"{value:g}") for name, value in curves.parameters(number).items()]
            client.log_batch(run, metrics=metrics, params=params)
            client.set_terminated(run, end_time=ms[-1])
            database.executemany(
                "insert into metrics (key, value, timestamp, run_uuid, step, is_nan) values (?, ?, ?, ?, ?, 0)",
                (
                    (tag, row[column], ms[point], run, (point + 1) * curves.STEPS_BETWEEN_POINTS)
                    for column, tag in enumerate(curves.TAGS)
                    for point, row in enumerate(rows[:-1])
                ),
            )
            database.commit()
    return str(experiment)


if __name__ == "__main__":
    target = Path(sys.argv[1])
    print(json.dumps({"experiment": write(target, int(sys.argv[2])), "version": mlflow.__version__}))
