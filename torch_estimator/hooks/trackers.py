"""Experiment trackers that `TrackingHook` can send to: MLflow, and Weights & Biases."""

from __future__ import annotations

import contextlib
import glob
import importlib.util
import itertools
import json
import os
import re
import time
from collections.abc import Sequence
from typing import Any

from torch_estimator import files
from torch_estimator.errors import InvalidValueError
from torch_estimator.hooks.tracking import TrackedPoint, TrackedRun
from torch_estimator.runs.locks import FileLock

_MOST_METRICS, _MOST_PARAMETERS = 1000, 100  # of one request to MLflow
_RUN_TAG = "torch_estimator.run"
_LOCK_SECS = 600.0
_SENT = "torch_estimator_sent.json"


class MLflowTracker:
    """Tracker that sends to a database of MLflow or to its server; needs ``torch-estimator[mlflow]``.

    A metric that is stored twice, equal in step, time and value, is one row of MLflow's database.

    Args:
        tracking_uri: Database, such as ``"sqlite:///runs/mlflow.db"``, or address of a server; None for MLflow's own
            setting (``MLFLOW_TRACKING_URI``). MLflow no longer takes plain directories.
        experiment: Name of the experiment, which is created if there is none.
        run_name: Name of the run; None for the last part of the model directory.

    Raises:
        InvalidValueError: MLflow is not installed, or ``tracking_uri`` is a directory.

    >>> tracker = te.MLflowTracker("sqlite:///mlflow.db", experiment="census")  # doctest: +SKIP
    >>> hook = te.TrackingHook(tracker, parameters={"lr": 0.1})  # doctest: +SKIP
    """

    def __init__(
        self, tracking_uri: str | None = None, *, experiment: str = "Default", run_name: str | None = None
    ) -> None:
        _check_installed("MLflowTracker", "mlflow")
        if tracking_uri is not None and re.match(r"file:|(?!databricks)(?!.*://)", tracking_uri):
            raise InvalidValueError(
                f"tracking_uri must be a database or a server, because MLflow no longer takes directories, but got "
                f"{tracking_uri!r}; give 'sqlite:///PATH.db', for example."
            )
        self._uri = tracking_uri
        self._experiment = experiment
        self._run_name = run_name

    def send(self, run: TrackedRun, points: Sequence[TrackedPoint]) -> None:
        """Add points to a run; see `Tracker.send`."""
        from mlflow import MlflowClient
        from mlflow.entities import Metric

        client = MlflowClient(self._uri)
        run_id = self._open(client, run)
        metrics = [Metric(_mlflow_name(one.tag), one.value, round(one.time * 1000), one.step) for one in points]
        for start in range(0, len(metrics), _MOST_METRICS):
            client.log_batch(run_id, metrics=metrics[start : start + _MOST_METRICS])
        if run.ended:
            client.set_terminated(run_id)

    def _open(self, client: Any, run: TrackedRun) -> str:
        from mlflow.entities import Param

        # MLflow chooses the ids of runs. A tag has ours, so that a start after a kill finds the run.
        known = client.get_experiment_by_name(self._experiment)
        experiment = known.experiment_id if known is not None else client.create_experiment(self._experiment)
        found = client.search_runs([experiment], f"tags.`{_RUN_TAG}` = '{run.id}'", max_results=1)
        name = self._run_name or files.basename(run.model_dir)
        opened = found[0] if found else client.create_run(experiment, tags={_RUN_TAG: run.id}, run_name=name)
        run_id: str = opened.info.run_id
        if opened.info.status != "RUNNING":
            client.update_run(run_id, status="RUNNING")
        # MLflow refuses to change a parameter, so the first start's stay.
        params = [Param(_mlflow_name(key), str(value)) for key, value in run.parameters.items()]
        params = [one for one in params if one.key not in opened.data.params]
        for start in range(0, len(params), _MOST_PARAMETERS):
            client.log_batch(run_id, params=params[start : start + _MOST_PARAMETERS])
        return run_id


class WandbTracker:
    """Tracker that sends to Weights & Biases, or writes its files offline; needs ``torch-estimator[wandb]``.

    Each time that there are points to send, the run is resumed, gets them and is finished: only that makes W&B's
    background process store what it was given. Offline, each time leaves a directory ``offline-run-TIME-ID``. The
    command ``wandb sync DIR/wandb/offline-run-*-ID`` uploads them as one run.

    Args:
        project: Name of the project; None for W&B's own setting.
        dir: Local directory for W&B's files; None for the model directory, or the working directory if that is a URL.
            All restarts must find it again.
        **init: Further arguments of ``wandb.init``, such as ``entity``, ``name`` and ``mode="offline"``.

    Raises:
        InvalidValueError: W&B is not installed, or an argument is one that this class sets.

    >>> tracker = te.WandbTracker("census", mode="offline")  # doctest: +SKIP
    >>> hook = te.TrackingHook(tracker, parameters={"lr": 0.1})  # doctest: +SKIP
    """

    def __init__(self, project: str | None = None, *, dir: str | None = None, **init: Any) -> None:
        _check_installed("WandbTracker", "wandb")
        for name in ("id", "resume", "config", "reinit", "resume_from", "fork_from"):
            if name in init:
                raise InvalidValueError(f"WandbTracker sets {name!r} of wandb.init itself; leave it out.")
        self._dir = dir
        self._init = {"project": project, **init}

    def send(self, run: TrackedRun, points: Sequence[TrackedPoint]) -> None:
        """Add points to a run; see `Tracker.send`."""
        directory = self._dir or (run.model_dir if files.is_local(run.model_dir) else ".")
        os.makedirs(os.path.join(directory, "wandb"), exist_ok=True)
        with contextlib.ExitStack() as stack:
            # The evaluator of a cluster sends, too, at the end of the training. Some file systems have no locks.
            with contextlib.suppress(NotImplementedError):
                lock = os.path.join(directory, "wandb", f"torch_estimator-{run.id}.lock")
                stack.enter_context(FileLock(lock, wait_secs=_LOCK_SECS))
            sent = _sent_before(os.path.join(directory, "wandb"), run.id)
            unsent = [one for one in points if one.step > sent.get(one.tag, -1)]
            if unsent:
                self._write(directory, run, unsent)

    def _write(self, directory: str, run: TrackedRun, points: Sequence[TrackedPoint]) -> None:
        import wandb

        opened = time.time()
        settings = wandb.Settings(silent=True, console="off", x_disable_stats=True)
        init = {"settings": settings, "name": files.basename(run.model_dir), **self._init}
        session = wandb.init(
            id=run.id, resume="allow", config=dict(run.parameters), dir=directory, reinit="create_new", **init
        )
        session.define_metric("global_step", hidden=True)
        session.define_metric("*", step_metric="global_step")
        for step, several in itertools.groupby(points, lambda one: one.step):
            session.log({"global_step": step, **{one.tag: one.value for one in several}})
        session.finish()
        mark = json.dumps({one.tag: one.step for one in points}).encode()
        files.write_atomic(os.path.join(os.path.dirname(session.dir), _SENT), mark)
        # The second is in the name of the directory, and W&B ends with an error if there is one of that name.
        time.sleep(max(0.0, opened + 1 - time.time()))


def _sent_before(folder: str, run: str) -> dict[str, int]:
    """Return the last step that was stored, by tag; remove what a killed process has stored in part offline."""
    sent: dict[str, int] = {}
    for directory in glob.glob(os.path.join(glob.escape(folder), f"*run-*-{run}")):
        mark = os.path.join(directory, _SENT)
        if os.path.exists(mark):
            for tag, step in json.loads(files.read_text(mark)).items():
                sent[tag] = max(step, sent.get(tag, -1))
        elif os.path.basename(directory).startswith("offline-"):
            files.remove_tree(directory)
    return sent


def _mlflow_name(name: str) -> str:
    return re.sub(r"[^\w\-./ ]", "_", name)[:250]


def _check_installed(kind: str, package: str) -> None:
    if importlib.util.find_spec(package) is None:
        raise InvalidValueError(
            f"{kind} needs {package}, which is not installed; pip install 'torch-estimator[{package}]'."
        )
