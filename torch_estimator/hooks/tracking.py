"""`TrackingHook`: curves of a training and its evaluations in an experiment tracker, as one run over all restarts.

A tracker cannot take a point back, and a killed job repeats the steps after its last checkpoint. So points are first
written into event files of their own, which drop the repeated steps, and only those up to the newest checkpoint on disk
are sent. The id of the run is in the checkpoint. What a kill may have left half sent is sent again, the same points to
the last bit, which a tracker must recognize.
"""

from __future__ import annotations

import logging
import re
import threading
import time
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from torch_estimator import files
from torch_estimator.checkpoint.checkpoint import latest_checkpoint
from torch_estimator.checkpoint.format import read_state
from torch_estimator.checkpoint.index import checkpoint_step
from torch_estimator.errors import InvalidTypeError, InvalidValueError
from torch_estimator.hooks.checkpoint_saver import restore_hooks
from torch_estimator.hooks.hook import Hook, RunContext
from torch_estimator.hooks.schedule import check_seconds_or_steps
from torch_estimator.hooks.summary_saver import SummarySaverHook, learning_rate_summary, loss_summary
from torch_estimator.mode_keys import ModeKeys
from torch_estimator.summary.scalar_reader import read_scalars

logger = logging.getLogger("torch_estimator")

_FOLDER = "tracking"
# A client of a server that is down may try for minutes.
_RETRY_SECS = 300.0
# SIGKILL follows SIGTERM within seconds. The next start sends what is left.
_PREEMPTED_SECS = 10.0


@dataclass(frozen=True, slots=True, kw_only=True)
class TrackedRun:
    """Run of a tracker: one training job, over all of its restarts.

    Attributes:
        id: Identifier of the run, 32 hexadecimal digits.
        model_dir: Path or URL of the job's directory.
        parameters: Parameters of the job, as given to the `TrackingHook`.
        ended: Whether the job has ended, and these points are its last.

    >>> te.TrackedRun(id="7d6f", model_dir="runs/census", parameters={"lr": 0.1}).ended
    False
    """

    id: str
    model_dir: str
    parameters: Mapping[str, Any]
    ended: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class TrackedPoint:
    """Point of a curve. `time` is when it was recorded, in seconds since 1970; evaluations have tags ``eval/…``.

    >>> te.TrackedPoint(tag="loss", step=100, value=0.25, time=1.8e9).step
    100
    """

    tag: str
    step: int
    value: float
    time: float


class Tracker(Protocol):
    """Protocol of an experiment tracker; implement `send` to connect one.

    >>> class Printer:
    ...     def send(self, run, points):
    ...         print([(one.tag, one.step) for one in points], run.ended)
    >>> run = te.TrackedRun(id="7d6f", model_dir="runs/census", parameters={}, ended=True)
    >>> Printer().send(run, [te.TrackedPoint(tag="loss", step=100, value=0.25, time=1.8e9)])
    [('loss', 100)] True
    """

    def send(self, run: TrackedRun, points: Sequence[TrackedPoint]) -> None:
        """Add points to a run, which is created if there is none with its id; return when they are stored.

        A thread calls this. An error is logged, and the same points are sent again later.

        Args:
            run: The run.
            points: Points in the order of their steps. The run may have some of them already, equal in all numbers,
                because a process was killed while it sent them; they must not be added twice.
        """


class TrackingHook(SummarySaverHook):
    """Hook that sends a training's curves, and those of its evaluations, to an experiment tracker.

    They are the loss, the learning rate and what the model records with `torch_estimator.summary.scalar`, each at the
    global steps that are multiples of ``every_n_steps``. A point is sent once a
    checkpoint of its step or a later one is saved. So a job that was killed is one run, without any point of steps that
    had to be repeated. Only the chief sends. If the tracker fails, training logs a warning and goes on.

    Args:
        tracker: Where to send: an `MLflowTracker`, a `WandbTracker` or an own `Tracker`.
        parameters: Parameters of the job, such as its arguments, for the tracker's tables.
        every_n_steps: Steps from one point to the next.

    Raises:
        InvalidTypeError: ``tracker`` has no method ``send``, or another argument has the wrong type.
        InvalidValueError: ``every_n_steps`` is not positive; at the start of a run: it is not a training.

    Attributes:
        send_every_secs: Least number of seconds between two looks for points to send.

    >>> class Printer:
    ...     def send(self, run, points):
    ...         print(run.parameters, [(one.tag, one.step) for one in points if one.tag == "loss"])
    >>> estimator = te.BaselineRegressor("memory://TrackingHook")
    >>> hook = te.TrackingHook(Printer(), parameters={"lr": 0.1}, every_n_steps=2)
    >>> estimator = estimator.train(lambda: ({"x": [1.0]}, [2.0]), steps=5, hooks=[hook])
    {'lr': 0.1} [('loss', 2), ('loss', 4)]
    """

    send_every_secs: float = 10.0

    def __init__(
        self,
        tracker: Tracker,
        *,
        parameters: Mapping[str, Any] | None = None,
        every_n_steps: int = 100,
    ) -> None:
        if isinstance(tracker, type) or not callable(getattr(tracker, "send", None)):
            raise InvalidTypeError(f"tracker must be an object with a method send, but got {tracker!r}.")
        if parameters is not None and not isinstance(parameters, Mapping):
            raise InvalidTypeError(f"parameters must be a dict, but got {parameters!r}.")
        check_seconds_or_steps("TrackingHook", every_n_steps=every_n_steps)
        super().__init__(every_n_steps, summaries=[loss_summary, learning_rate_summary], of_model=True)
        self._tracker = tracker
        self._parameters = dict(parameters or {})
        self._every = every_n_steps
        self._run: str | None = None
        self._sent: dict[str, int] = {}  # the last step that was sent, by tag
        self._restored = self._is_chief = self._failed = False
        self._model_dir = ""
        self._begun_at: int | None = None  # step of the checkpoint, without this hook's state, that training began from
        self._next_at = 0.0
        self._seen: object = None
        self._thread: threading.Thread | None = None

    def restore(self, state: Mapping[str, Any]) -> None:
        self._run, self._sent, self._restored = state["run"], dict(state["sent"]), True

    def state(self) -> dict[str, Any] | None:
        if not self._is_chief:
            return None
        self._flush()
        return {"run": self._run, "sent": self._sent}

    def begin(self, context: RunContext) -> None:
        if context.mode != ModeKeys.TRAIN or context.model_dir is None:
            raise InvalidValueError(
                f"TrackingHook is for trainings, but this run's mode is {context.mode!s}; give the hook to train or "
                "TrainSpec, which track the evaluations, too."
            )
        super().begin(context)
        self._is_chief = context.output_dir == context.model_dir
        # Other processes of a cluster have the same hooks, and nothing to do with them.
        self.every_n_steps = self._every if self._is_chief else None
        self.first_step = self._every - context.global_step % self._every
        self._model_dir = context.model_dir
        self._output_dir = files.join(context.model_dir, _FOLDER)
        self._begun_at = None
        if not self._restored:
            self._run, self._sent = uuid.uuid4().hex, {}
            self._begun_at = _saved_step(self._model_dir)
        self._restored, self._failed, self._seen = False, False, None
        self._next_at = time.monotonic() + self.send_every_secs
        if self._is_chief:
            writer = context.summary_writer(self._output_dir)
            self._flush = writer.flush
            # A start without a checkpoint begins anew, and must not find the points of an earlier one.
            writer.session_start(context.global_step + 1)

    def after_step(self, context: RunContext) -> None:
        scalars = [one for one in self._summaries(context) if one.kind == "scalar"]
        context.summary_writer(self._output_dir).summaries(scalars, context.global_step)
        if time.monotonic() >= self._next_at and not (self._thread is not None and self._thread.is_alive()):
            self._start(ended=False)

    def end(self, context: RunContext) -> None:
        if not self._is_chief:
            return
        self._flush()
        most_secs = _PREEMPTED_SECS if context.preempted else None
        failed = False
        if self._thread is not None and self._thread.is_alive():
            self._thread.join(most_secs)
            failed = self._failed or self._thread.is_alive()
        if not failed:
            self._start(ended=not context.preempted).join(most_secs)

    def _start(self, *, ended: bool) -> threading.Thread:
        self._thread = threading.Thread(target=self._send, kwargs={"ended": ended}, name="tracking", daemon=True)
        self._thread.start()
        return self._thread

    def _send(self, *, ended: bool) -> None:
        try:
            saved = _saved_step(self._model_dir)
            if not ended and (saved is None or saved == self._begun_at):
                return  # No checkpoint has the run's id yet.
            evaluations = [name for name in files.listdir(self._model_dir) if re.match("eval(_|$)", name)]
            seen = saved, [files.sizes(files.join(self._model_dir, name)) for name in evaluations]
            if seen == self._seen and not ended:
                return
            points = self._unsent(saved, evaluations)
            if points or ended:
                run = TrackedRun(id=str(self._run), model_dir=self._model_dir, parameters=self._parameters, ended=ended)
                self._tracker.send(run, points)
            self._sent = {**self._sent, **{point.tag: point.step for point in points}}
            self._seen, self._failed = seen, False
        except Exception as error:
            if not self._failed:
                logger.warning(
                    "%s has failed: %s: %s. Training goes on; what is not sent is sent later, at the latest when "
                    "training goes on after a restart.",
                    type(self._tracker).__name__,
                    type(error).__name__,
                    error,
                )
            self._failed = True
        finally:
            self._next_at = time.monotonic() + (_RETRY_SECS if self._failed else self.send_every_secs)

    def _unsent(self, saved: int | None, evaluations: Sequence[str]) -> list[TrackedPoint]:
        """Return the points up to the step of a checkpoint; all of them if there are no checkpoints."""
        points: dict[tuple[int, str], TrackedPoint] = {}
        for folder, prefix in [(_FOLDER, ""), *((name, f"{name}/") for name in evaluations)]:
            directory = files.join(self._model_dir, folder)
            for tag, curve in read_scalars(directory).items() if files.is_dir(directory) else ():
                for step, value, at in zip(*(numbers.tolist() for numbers in curve), strict=True):
                    if self._sent.get(prefix + tag, -1) < step and (saved is None or step <= saved):
                        # An evaluation that was repeated after a kill is sent as it was written first.
                        point = TrackedPoint(tag=prefix + tag, step=step, value=value, time=at)
                        points.setdefault((step, prefix + tag), point)
        return [points[key] for key in sorted(points)]


def send_rest(hooks: Sequence[Hook], model_dir: str) -> None:
    """Send what was evaluated after the end of a training with these hooks; called where checkpoints are evaluated."""
    tracking = [hook for hook in hooks if isinstance(hook, TrackingHook)]
    latest = latest_checkpoint(model_dir) if tracking else None
    if latest is None:
        return
    if tracking[0]._run is None:  # This process has not trained.
        restore_hooks(tracking, read_state(latest)["state"].get("hooks", {}))
    for hook in tracking:
        hook._model_dir, hook._restored = model_dir, False
        if hook._run is not None and not hook._failed:
            hook._send(ended=True)


def _saved_step(model_dir: str) -> int | None:
    latest = latest_checkpoint(model_dir)
    return None if latest is None else checkpoint_step(files.basename(latest))
