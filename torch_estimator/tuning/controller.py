"""The controller of a study: starts trials, reads their metrics, promotes those that paused, and settles after kills.

``python -m torch_estimator.tuning.controller JOBS/NAME`` is started by a target in place of the launcher of other jobs.
What is true is on disk. A controller that was killed leaves its trials running, and the next one takes them up again.
"""

from __future__ import annotations

import contextlib
import json
import math
import os
import signal
import sys
import time
from collections.abc import Callable, Iterator

from torch_estimator import files
from torch_estimator.errors import RESTART_ME, InvalidValueError, UserError
from torch_estimator.jobs.directory import JobDirectory, JobSpec
from torch_estimator.jobs.launcher import ended_after
from torch_estimator.jobs.launcher import main as launch
from torch_estimator.jobs.logs import RoleLogs
from torch_estimator.jobs.request import SECRETS
from torch_estimator.launch.job import describe_status
from torch_estimator.processes.events import Events
from torch_estimator.run_config import COMPILE
from torch_estimator.runs.locks import Holder, held
from torch_estimator.tuning.asha import Standing, next_move
from torch_estimator.tuning.directory import StudyDirectory, Trial, best_trial, rank
from torch_estimator.tuning.job_trials import Submitted
from torch_estimator.tuning.metrics import Measured, read_metric
from torch_estimator.tuning.requests import Answer, Request, Requests, refusal
from torch_estimator.tuning.samplers import Sampler, sampler_of
from torch_estimator.tuning.starters import Adopted, Forked, Fresh, Process, Start, send
from torch_estimator.tuning.study import Study
from torch_estimator.tuning.submission import add_earlier_trials

_POLL_SECS = 0.05
_FACTOR = 4
# More rungs than any training has: 4 ** 30 steps. A trial that ends before its rung is not sent further.
_RUNGS = 30
_LAST_LINE_BYTES = 4096


class Controller:
    """Runs the trials of a study with `start`; `say` takes sentences for the user."""

    def __init__(self, directory: StudyDirectory, start: Start, say: Callable[[str], object], *, threads: int) -> None:
        self._directory = directory
        self._spec = directory.job.spec()
        self._study = directory.study()
        self._start_process = start
        self._say = say
        self._threads = threads
        self._sampler: Sampler = sampler_of(self._study, files.join(directory.job.url, "optuna.journal"))
        self._trials = {trial.number: trial for trial in directory.trials()}
        self._order = 0
        self._requests = Requests(directory)
        self._running: dict[int, Process] = {}
        # When trials that were asked to end are killed.
        self._kill_one_at: dict[int, float] = {}
        # Trials whose process died, or was never started, in the order in which they are started again.
        self._waiting: list[int] = []
        self._is_exhausted = False
        self._failed = 0
        self._has_said_of_pauses = False
        self._events = Events()
        self._kill_at = math.inf
        self._reason = ""
        self._status = 0
        self.was_interrupted = False

    def run(self) -> tuple[int, str]:
        """Run the study; return its exit status and the reason for it."""
        with self._events.on_signals(self._on_signal), _woken_by_children():
            self._repeat_to_sampler()
            self._settle()
            while True:
                for number in [one for one, process in self._running.items() if process.has_ended()]:
                    self._kill_one_at.pop(number, None)
                    self._on_end(self._trials[number], self._running.pop(number).status)
                self._answer_requests()
                while not self._status and len(self._running) < self._study.parallel and self._go_on():
                    pass
                if not self._running:
                    break
                self._events.handle_one(_POLL_SECS)
                if time.monotonic() >= self._kill_at:
                    self._signal_all(signal.SIGKILL)
                for number, at in self._kill_one_at.items():
                    if time.monotonic() >= at:
                        send(self._running[number], signal.SIGKILL)
        if not self._status:
            self._finish()
            self._answer_requests()
        return self._status, self._reason

    def _repeat_to_sampler(self) -> None:
        """Tell the sampler again what it was asked and told before, in the same order."""
        add_earlier_trials(self._sampler, self._study, self._directory.job.jobs)
        calls = []
        for trial in self._trials.values():
            calls.append((trial.asked, trial, -1))
            calls += [(order, trial, index) for index, order in enumerate(trial.told)]
        for order, trial, index in sorted(calls, key=lambda one: one[0]):
            self._order = order
            if index < 0:
                self._sampler.ask(trial.parameters)
            else:
                self._tell(trial, index)

    def _tell(self, trial: Trial, index: int) -> None:
        """Tell the sampler the result of a rung, or that the trial failed."""
        if index == len(trial.results):
            self._sampler.tell(trial.number - 1, None)
            return
        step, value = trial.results[index]
        is_end = trial.state == "SUCCEEDED" and index == len(trial.results) - 1
        self._sampler.tell(trial.number - 1, value, None if is_end else step)

    def _settle(self) -> None:
        """Take up the trials that run, and those that ended or died while there was no controller."""
        for trial in list(self._trials.values()):
            if trial.state == "STOPPED" and trial.by_hand != "STOP":
                trial.state = "PAUSED"
            if trial.state != "RUNNING":
                continue
            process = self._start_process.adopt(trial)
            if process is not None:
                where = "as a job" if process.pid is None else f"pid {process.pid}"
                self._say(f"trial {trial.number} still runs ({where}); going on with it.")
                self._running[trial.number] = process
            elif trial.starts:
                self._on_end(trial, None, is_counted=False)
            else:
                self._waiting.append(trial.number)

    def _go_on(self) -> bool:
        """Start a trial: one that died, else one to promote, else a new one; return False if there is none."""
        if self._waiting:
            self._start(self._trials[self._waiting.pop(0)])
            return True
        for trial in self._trials.values():
            if trial.state == "PAUSED" and trial.by_hand == "PROMOTE":
                if len(trial.results) > trial.rung:
                    self._promote(trial, trial.rung + 1, _steps_of(trial, trial.rung + 1))
                else:
                    self._promote(trial, trial.rung, trial.pauses_at)
                return True
        can_start = not self._is_exhausted and len(self._trials) < self._study.max_trials
        if self._study.early_stopping:
            standings = {number: _standing(trial) for number, trial in self._trials.items()}
            is_best_high = self._study.goal == "MAXIMIZE"
            move = next_move(standings, _RUNGS, maximize=is_best_high, can_start=can_start, factor=_FACTOR)
            if move is None:
                return self._finish_best()
            if move.trial is not None:
                trial, rung = self._trials[move.trial], move.rung
                self._promote(trial, rung, _steps_of(trial, rung))
                return True
        if not can_start:
            return False
        parameters = self._sampler.ask()
        if parameters is None:
            self._is_exhausted = True
            return self._go_on()
        self._begin(parameters)
        return True

    def _begin(self, parameters: dict[str, str]) -> None:
        number = max(self._trials, default=0) + 1
        where = self._directory.path(number)
        trial = Trial(
            number=number,
            parameters=parameters,
            job_dir=where if self._spec.job_dir is None else files.join(self._spec.job_dir, str(number)),
            # The roles of a cluster do not settle this, and time must not.
            compile={"true": True, "false": False}.get(
                os.environ.get(COMPILE, ""), None if self._study.target is None else False
            ),
            threads=self._threads,
            asked=self._next_order(),
            # The first rung is the first checkpoint that is evaluated, wherever that is.
            pauses_at=1 if self._study.early_stopping else None,
            began=time.time(),
        )
        self._trials[number] = trial
        self._start(trial)

    def _promote(self, trial: Trial, rung: int, pauses_at: int | None) -> None:
        where = "its end" if pauses_at is None else f"step {pauses_at}"
        come = "goes on" if trial.step is None else f"is promoted from step {trial.step}"
        self._say(f"trial {trial.number} {come} to {where}.")
        trial.state, trial.rung, trial.pauses_at = "RUNNING", rung, pauses_at
        trial.by_hand, trial.reason = "", ""
        self._start(trial)

    def _finish_best(self) -> bool:
        """Send a trial to its end where nothing else is left to do; return False if enough have got there.

        Only there a model is exported. Of trials that did as well before, one does best there, so that all of the
        highest rung go on, best first, until a quarter of all trials have ended. A trial that ended by itself before
        that rung says nothing of them.
        """
        trials = list(self._trials.values())
        paused = [trial for trial in trials if trial.state == "PAUSED" and not trial.by_hand]
        if any(not _goes_to_its_end(self._trials[number]) for number in self._running) or not paused:
            return False
        ended = [trial for trial in trials if trial.state == "SUCCEEDED" or _goes_to_its_end(trial)]
        highest = max([trial.rung for trial in paused] + [trial.rung - 1 for trial in ended])
        there = [trial for trial in paused if trial.rung == highest]
        ended = [trial for trial in ended if trial.rung > highest]
        best = best_trial(there, self._study)
        if best is None or len(ended) >= max(1, len(trials) // _FACTOR):
            return False
        self._promote(best, highest + 1, None)
        return True

    def _start(self, trial: Trial) -> None:
        trial.starts += 1
        self._directory.write(trial)
        process = self._start_process(trial)
        self._running[trial.number] = process
        given = " ".join(f"--{name}={value}" for name, value in trial.parameters.items())
        where = "as a job" if process.pid is None else f"pid {process.pid}"
        self._say(f"trial {trial.number} started ({where}): {given}")

    def _on_end(self, trial: Trial, status: int | None, *, is_counted: bool = True) -> None:
        """Read what a trial has reached, now that its process has ended, and write what becomes of it.

        A death counts as one of the trial's restarts, unless it is that of the controller, or of the whole study.
        """
        holder = self._directory.holder(trial.number)
        if holder is not None:
            # A process that a killed controller started came first.
            self._running[trial.number] = Adopted(self._directory, trial.number, holder)
            return
        end, paused_at = self._directory.end(trial.number).read(), None
        if end is not None and end.start == trial.starts:
            status, paused_at = end.status, end.paused_at
        died = status is None or status < 0 or status >= 128
        measured, problem = self._measured(trial)
        if paused_at is None and died and self._study.target is not None:
            # A job is ended at its rung, and does not say so itself.
            paused_at = max((step for step in measured.values if step >= (trial.pauses_at or math.inf)), default=None)
        if paused_at is not None:
            step = measured.rung(trial.pauses_at or 0, paused_at)
            if step is None:
                self._fail(trial, problem or f"it has no {self._study.metric!r} at step {paused_at}.")
            else:
                self._reach(trial, step, measured.values, "PAUSED")
                if trial.by_hand == "STOP":
                    self._hold(trial)
        elif status == 0 and measured.values:
            self._reach(trial, max(measured.values), measured.values, "SUCCEEDED")
            if trial.pauses_at is not None and trial.starts == 1:
                self._say_of_pauses(trial)
        elif status == 0:
            self._fail(trial, problem)
        elif trial.by_hand and not self._status:
            self._hold(trial)
        elif died and (self._status or not is_counted or trial.restarts < self._spec.max_restarts):
            trial.restarts += is_counted and not self._status
            self._waiting.append(trial.number)
            self._directory.write(trial)
            how = _how(status) if is_counted else "has no process any more"
            self._say(f"trial {trial.number} {how}; it goes on from its last checkpoint.")
        else:
            self._fail(trial, " ".join(filter(None, [f"it {_how(status)}.", self._last_line(trial)])))

    def _answer_requests(self) -> None:
        for number, request in self._requests.unanswered():
            answer = self._carry_out(request)
            self._say(f"asked to {request.action.lower()} trial {request.trial}: {answer.text}")
            # Last: a controller that is killed before, and started again, finds the request, and what it has done.
            self._requests.answer_file(number).write(answer)

    def _carry_out(self, request: Request) -> Answer:
        trial = self._trials.get(request.trial)
        problem = f"there is no trial {request.trial}." if trial is None else refusal(trial, request.action)
        if trial is None or problem or self._status:
            return Answer(text=problem or "the study is about to end.", is_refused=True)
        trial.by_hand = request.action
        self._directory.write(trial)
        if request.action == "PROMOTE":
            return Answer(text="it goes on as soon as there is a place for it.")
        if trial.number in self._running:
            self._kill_one_at[trial.number] = time.monotonic() + self._spec.stop_secs
            self._send_end(trial.number)
            return Answer(text="its process is told to end.")
        if trial.number in self._waiting:
            self._waiting.remove(trial.number)
        self._hold(trial)
        return Answer(text=trial.reason)

    def _hold(self, trial: Trial) -> None:
        """Write that a trial has ended because somebody asked for it. Its results are those of the rungs it reached."""
        trial.state = "STOPPED" if trial.by_hand == "STOP" else "PAUSED"
        trial.reason = f"it was {trial.state.lower()} by request."
        trial.ended = time.time()
        self._directory.write(trial)
        self._say(f"trial {trial.number} has ended: {trial.reason}")

    def _measured(self, trial: Trial) -> tuple[Measured, str]:
        """Return the metric; without one, the reason in a sentence."""
        try:
            return read_metric(trial.job_dir, self._study.metric, self._directory.path(trial.number, ".metrics")), ""
        except UserError as error:
            return Measured({}, True), str(error)

    def _reach(self, trial: Trial, step: int, values: dict[int, float], state: str) -> None:
        """Write that a trial has paused or ended at a step."""
        known = {at: one for at, one in values.items() if at <= step}
        value = known[max(known)]
        if self._study.measurement == "BEST":
            value = min(known.values(), key=lambda one: rank(one, self._study))
        trial.state = "SUCCEEDED" if state == "SUCCEEDED" else "PAUSED"
        trial.results.append((step, value))
        trial.restarts = 0
        if len(trial.results) == 1:
            # Only here, as it imports PyTorch, which `Forked` does better.
            from torch_estimator.summary.event_writer import EventWriter

            with EventWriter(trial.job_dir) as events:
                events.parameters(self._study.space.values(trial.parameters), str(trial.number))
        self._conclude(trial)
        verb = "paused" if state == "PAUSED" else "ended"
        self._say(f"trial {trial.number} {verb} at step {step}: {self._study.metric} = {value:g}")

    def _fail(self, trial: Trial, reason: str) -> None:
        trial.state, trial.reason = "FAILED", reason
        self._conclude(trial)
        self._failed += 1
        self._say(f"trial {trial.number} failed: {reason}")
        has_value = any(one.results for one in self._trials.values())
        if self._study.has_failed(self._failed, has_value=has_value) and not self._status:
            self._end(1, f"{self._failed} trials have failed, the last one, {trial.number}, because {reason}")

    def _conclude(self, trial: Trial) -> None:
        trial.told.append(self._next_order())
        trial.ended = time.time()
        self._directory.write(trial)
        self._tell(trial, len(trial.told) - 1)

    def _next_order(self) -> int:
        self._order += 1
        return self._order

    def _finish(self) -> None:
        """Write the end of the study, after its last trial."""
        for trial in self._trials.values():
            if trial.state == "PAUSED":
                trial.state = "STOPPED"
                self._directory.write(trial)
        self._sampler.close()
        best = best_trial(list(self._trials.values()), self._study)
        if best is None:
            last = max(self._trials.values(), key=lambda trial: trial.ended)
            how = "failed because" if last.state == "FAILED" else f"is {last.state}:"
            self._status, self._reason = 1, f"no trial has a value; trial {last.number} {how} {last.reason}"
        else:
            self._say(f"the best of {len(self._trials)} trials is {best.number}: {self._study.metric} = {best.value:g}")

    def _on_signal(self, number: int) -> None:
        if self.was_interrupted:
            self._signal_all(signal.SIGKILL)
            return
        self.was_interrupted = True
        self._end(RESTART_ME, "it was interrupted.")

    def _end(self, status: int, reason: str) -> None:
        """Have all trials end. Those that go to a rung do not save, which would move that step and all later ones."""
        self._status, self._reason = status, reason
        self._kill_at = time.monotonic() + self._spec.stop_secs
        for number in self._running:
            self._send_end(number)

    def _send_end(self, number: int) -> None:
        send(self._running[number], signal.SIGTERM if self._trials[number].pauses_at is None else signal.SIGKILL)

    def _signal_all(self, number: int) -> None:
        for process in self._running.values():
            send(process, number)

    def _last_line(self, trial: Trial) -> str:
        with contextlib.suppress(OSError), open(self._directory.log(trial.number), "rb") as log:
            log.seek(max(0, os.stat(log.fileno()).st_size - _LAST_LINE_BYTES))
            lines = [line for line in log.read().decode(errors="replace").splitlines() if line.strip()]
            return f"It said: {lines[-1].strip()}" if lines else ""
        return ""

    def _say_of_pauses(self, trial: Trial) -> None:
        if not self._has_said_of_pauses:
            self._has_said_of_pauses = True
            self._say(
                f"trial {trial.number} ended without a pause: a trial pauses at a checkpoint that train_and_evaluate "
                "evaluates before the last one."
            )


@contextlib.contextmanager
def _woken_by_children() -> Iterator[None]:
    """End waits for events when a child process ends. Without a handler, its signal would wake nobody."""
    before = signal.signal(signal.SIGCHLD, lambda number, frame: None)
    try:
        yield
    finally:
        signal.signal(signal.SIGCHLD, before)


def _standing(trial: Trial) -> Standing:
    is_over = trial.state in ("SUCCEEDED", "FAILED") or bool(trial.by_hand)
    return Standing([value for _, value in trial.results], _RUNGS if is_over else trial.rung)


def _steps_of(trial: Trial, rung: int) -> int:
    steps: int = max(1, trial.results[0][0]) * _FACTOR**rung
    return steps


def _goes_to_its_end(trial: Trial) -> bool:
    return trial.state == "RUNNING" and trial.pauses_at is None


def _how(status: int | None) -> str:
    return "was killed" if status is None else describe_status(status)


def only_controller(job: JobDirectory) -> contextlib.AbstractContextManager[object]:
    """Keep other controllers away from a study; raise an InvalidValueError if there is one."""

    def in_use(holder: Holder) -> UserError:
        return InvalidValueError(f"another controller is at work in {job.url}: {holder}; end that first.")

    return held(files.join(job.url, "controller.lock"), in_use)


def run_controller(
    directory: StudyDirectory,
    starter: Callable[[Callable[[str], object]], Start],
    threads: int,
    say: Callable[[str], object] = lambda text: None,
) -> tuple[int, str, bool]:
    """Run a study as its `only_controller`; return exit status, reason, and whether a signal was the reason.

    What happens goes to the launcher's log, and to `say`. ``starter(say)`` returns what starts the trials.
    """
    job = directory.job
    spec = job.spec()

    def write(text: str) -> None:
        logs.write(None, text.encode(), True)
        say(text)

    with contextlib.ExitStack() as stack:
        logs = RoleLogs(job.logs, [])
        stack.callback(logs.close)
        controller = Controller(directory, starter(write), write, threads=threads)
        job.add("started", "RUNNING", pid=os.getpid())
        is_over: list[bool] = []
        stack.enter_context(ended_after(spec.max_running_secs, lambda: is_over.append(True)))
        try:
            status, reason = controller.run()
        except OSError as error:
            raise InvalidValueError(
                f"the study in {job.url} cannot be written: {files.reason(error)}; mend that, and jobs resume "
                f"{job.name} goes on."
            ) from error
    if is_over:
        reason = f"it has run for its scheduling.maxRunningTime of {spec.max_running_secs:g} s."
    return status, reason, controller.was_interrupted and not is_over


def run_program(job: JobDirectory, spec: JobSpec, secrets: list[str]) -> tuple[int, str, bool]:
    """Run a study of the job's program. It implements `torch_estimator.jobs.launcher.Body`."""
    if not spec.package:
        raise InvalidValueError(f"the trials of {job.name} run a function; call tune again with the same directory.")
    directory = StudyDirectory(job)
    environ = {SECRETS: json.dumps(secrets)} if secrets else {}

    def starter(say: Callable[[str], object]) -> Start:
        fresh = Fresh(directory, {**os.environ, **environ})
        # Forks cannot use the system libraries of macOS.
        return Forked(directory, environ=environ, instead=fresh, say=say) if sys.platform == "linux" else fresh

    study = directory.study()
    as_jobs = study.target is not None
    with only_controller(job):
        return run_controller(
            directory, (lambda say: Submitted(directory, secrets)) if as_jobs else starter, threads_of(study)
        )


def threads_of(study: Study) -> int:
    """Return on how many threads each trial computes: one if several run side by side."""
    if study.parallel > 1:
        return 1
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return int(os.environ.get("OMP_NUM_THREADS") or cores)


if __name__ == "__main__":
    sys.exit(launch(sys.argv[1:], run_program))
