"""Ctrl-C in a training of one process: a checkpoint is saved, nothing else is done, and training goes on from there."""

from __future__ import annotations

import os
import re
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

import torch_estimator as te
from tests.cluster_jobs import Process, ended
from tests.line_jobs import assert_same_variables, checkpoint_steps, line, points

PROGRAM = """
import logging, os, signal, sys, threading, time
import torch_estimator as te
from tests.line_jobs import WritingExporter, line, points

logging.basicConfig(level=logging.INFO, format="%(message)s")
signal.signal(signal.SIGINT, signal.default_int_handler)
model_dir = sys.argv[1]
exporter = WritingExporter()


def job(**settings):
    return line(model_dir, log_step_count_steps=10, **settings)


def train_and_evaluate(estimator, max_steps):
    return te.train_and_evaluate(
        estimator,
        te.TrainSpec(lambda: points().repeat(), max_steps=max_steps),
        te.EvalSpec(points, steps=2, start_delay_secs=0, throttle_secs=0, exporters=exporter),
    )


"""


@pytest.fixture
def processes() -> Iterator[list[Process]]:
    """Those that the test has started; none of them outlives it."""
    started: list[Process] = []
    yield started
    for one in started:
        one.kill()


def start(processes: list[Process], program: str, *arguments: object) -> Process:
    processes.append(Process(PROGRAM + program, [str(one) for one in arguments], {"OMP_NUM_THREADS": "1"}))
    return processes[-1]


def read_until(process: Process, text: str) -> str:
    """Returns what comes before."""
    lines: list[str] = []
    for told in process.stdout:
        if text in told:
            return "".join(lines)
        lines.append(told)
    raise AssertionError("".join(lines))


def press_ctrl_c(process: Process) -> None:
    os.kill(process.pid, signal.SIGINT)


def test_ctrl_c_saves_the_last_step_and_the_same_estimator_goes_on_with_the_same_bits(
    processes: list[Process], tmp_path: Path
) -> None:
    program = """
estimator = job(compile=False)
try:
    estimator.train(lambda: points().repeat(), max_steps=10**7)
except KeyboardInterrupt:
    step = int(estimator.get_variable_value("global_step"))
    print("saved", step)
    assert signal.getsignal(signal.SIGINT) == signal.default_int_handler
    estimator.train(lambda: points().repeat(), max_steps=step + 20)
    print("went on")
"""
    process = start(processes, program, tmp_path / "parts")
    read_until(process, "step = 20")
    press_ctrl_c(process)
    told = process.wait()
    assert process.status == 0, told
    saved = int(re.search(r"^saved (\d+)$", told, re.M)[1])  # type: ignore[index]
    assert f"Training ended at global step {saved}: Ctrl-C asked for it; train again to go on.\n" in told
    assert f"The last checkpoint is {tmp_path / 'parts'}/model.ckpt-{saved}.\n" in told
    assert (
        "Ctrl-C: training ends after the step or evaluation at hand, and saves a checkpoint; press Ctrl-C again to end "
        "at once.\n"
    ) in told
    assert told.endswith("went on\n")
    assert checkpoint_steps(tmp_path / "parts") == [0, saved, saved + 20]
    whole = line(tmp_path / "whole", compile=False)
    whole.train(lambda: points().repeat(), max_steps=saved + 20)
    assert_same_variables(line(tmp_path / "parts"), whole)


def test_an_input_that_fails_of_the_same_ctrl_c_loses_no_step(processes: list[Process], tmp_path: Path) -> None:
    program = """
def input_fn():
    features, labels = next(iter(points()))
    while True:
        if stopping:
            raise RuntimeError("a worker process of this input has ended")
        yield features, labels


stopping = []
estimator = job(compile=False)
try:
    estimator.train(input_fn, hooks=[Stop()], max_steps=10**7)
except KeyboardInterrupt:
    print("saved", int(estimator.get_variable_value("global_step")))
"""
    hook = """
class Stop(te.Hook):
    every_n_steps = 1

    def after_step(self, context):
        if context.global_step == 25:
            # Before the loop sees the signal, the next batch is asked for.
            stopping.append(True)
            context.preempted = context.interrupted = True


"""
    process = start(processes, hook + program, tmp_path)
    told = process.wait()
    assert process.status == 0, told
    assert "The input has failed after Ctrl-C: RuntimeError: a worker process of this input has ended" in told
    assert told.endswith("saved 25\n"), told
    assert checkpoint_steps(tmp_path) == [0, 25]


def test_ctrl_c_says_where_nothing_is_saved(processes: list[Process], tmp_path: Path) -> None:
    program = """
estimator = job(compile=False, save_checkpoints_steps=None, save_checkpoints_secs=None)
estimator.train(lambda: points().repeat(), max_steps=10**7)
"""
    process = start(processes, program, tmp_path)
    read_until(process, "step = 20")
    press_ctrl_c(process)
    told = process.wait()
    assert "at hand, and saves nothing, since checkpoints are switched off; press Ctrl-C again" in told
    assert checkpoint_steps(tmp_path) == []


def test_ctrl_c_ends_steps_that_are_taken_in_machine_code(processes: list[Process], tmp_path: Path) -> None:
    program = """
with te.errors.exit_on_user_error():
    job(compile=True).train(lambda: points().repeat(), max_steps=10**9)
"""
    process = start(processes, program, tmp_path)
    read_until(process, "Compiled the training step")
    read_until(process, "step = ")
    press_ctrl_c(process)
    (result,) = ended([process])
    assert result.status == 130, result.output
    assert f"Training ended at global step {max(checkpoint_steps(tmp_path))}: Ctrl-C" in result.output


@pytest.mark.parametrize(("number", "status"), [(signal.SIGINT, 130), (signal.SIGTERM, te.errors.RESTART_ME)])
def test_a_stopped_job_neither_evaluates_nor_exports_and_the_next_start_ends_it(
    processes: list[Process], tmp_path: Path, number: signal.Signals, status: int
) -> None:
    program = """
with te.errors.exit_on_user_error():
    train_and_evaluate(job(compile=False), int(sys.argv[2]))
"""
    process = start(processes, program, tmp_path, 10**7)
    read_until(process, "step = 20")
    os.kill(process.pid, number)
    (result,) = ended([process])
    assert result.status == status
    assert result.output.endswith("\ninterrupted\n") == (number == signal.SIGINT)
    assert "Traceback" not in result.output
    saved = max(checkpoint_steps(tmp_path))
    assert saved >= 20
    assert not (tmp_path / "export").exists()
    assert not (tmp_path / "eval").exists()
    (again,) = ended([start(processes, program, tmp_path, saved + 20)])
    assert again.status == 0, again.output
    assert max(checkpoint_steps(tmp_path)) == saved + 20
    assert [path.name for path in (tmp_path / "export" / "writing").iterdir()] == [str(saved + 20)]


def test_a_program_without_more_ends_with_pythons_own_traceback(processes: list[Process], tmp_path: Path) -> None:
    process = start(processes, "job(compile=False).train(lambda: points().repeat(), max_steps=10**7)", tmp_path)
    read_until(process, "step = 20")
    press_ctrl_c(process)
    told = process.wait()
    assert process.status == 1
    assert told.endswith("KeyboardInterrupt\n")
    assert max(checkpoint_steps(tmp_path)) >= 20


def test_a_second_ctrl_c_ends_a_training_whose_input_hangs(processes: list[Process], tmp_path: Path) -> None:
    program = """
def batches():
    for number, batch in enumerate(iter(points())):
        if number == 5:
            print("hangs", flush=True)
            # Not a wait without end: Python misses a signal that comes just before the main thread begins one.
            while True:
                time.sleep(0.05)
        yield batch


with te.errors.exit_on_user_error():
    job(compile=False).train(batches)
"""
    process = start(processes, program, tmp_path)
    read_until(process, "hangs")
    press_ctrl_c(process)
    read_until(process, "press Ctrl-C again to end at once.")
    press_ctrl_c(process)
    (result,) = ended([process])
    assert result.status == 130, result.output
    assert "Traceback" not in result.output
    assert checkpoint_steps(tmp_path) == [0]


def test_ctrl_c_after_the_last_step_is_not_lost(processes: list[Process], tmp_path: Path) -> None:
    program = """
class Interrupts(te.Hook):
    def end(self, context):
        os.kill(os.getpid(), signal.SIGINT)


hooks = [Interrupts()]
try:
    job(compile=False).train(lambda: points(), max_steps=10, hooks=hooks)
except KeyboardInterrupt:
    print("interrupted")
"""
    (result,) = ended([start(processes, program, tmp_path)])
    assert result.status == 0, result.output
    assert result.output.endswith("interrupted\n")
    assert checkpoint_steps(tmp_path) == [0, 10]


def test_a_training_in_another_thread_and_a_handler_of_the_users_are_left_alone(
    processes: list[Process], tmp_path: Path
) -> None:
    program = """
came = []
signal.signal(signal.SIGINT, lambda number, frame: came.append(number))


class Interrupts(te.Hook):
    def after_step(self, context):
        os.kill(os.getpid(), signal.SIGINT)


job(compile=False).train(lambda: points(), max_steps=3, hooks=[Interrupts()])
assert came == [signal.SIGINT] * 3
signal.signal(signal.SIGINT, signal.default_int_handler)


class Tells(te.Hook):
    def after_step(self, context):
        trains.set()
        interrupted.wait()


trains, interrupted = threading.Event(), threading.Event()
thread = threading.Thread(
    target=lambda: job(compile=False).train(lambda: points(), max_steps=6, hooks=[Tells()])
)
thread.start()
trains.wait()
try:
    os.kill(os.getpid(), signal.SIGINT)
    threading.Event().wait()
except KeyboardInterrupt:
    interrupted.set()
    thread.join()
    print("joined")
"""
    (result,) = ended([start(processes, program, tmp_path)])
    assert result.status == 0, result.output
    assert result.output.endswith("joined\n")
    assert max(checkpoint_steps(tmp_path)) == 6


@pytest.mark.parametrize("name", ["SIGINT", "SIGTERM"])
@pytest.mark.parametrize("rows", ["points().repeat()", "points().batch(2).repeat()", "points().repeat(2).repeat()"])
def test_a_signal_ends_an_evaluation_without_end_between_two_batches_and_keeps_nothing_of_it(
    processes: list[Process], tmp_path: Path, rows: str, name: str
) -> None:
    program = f"""
class CtrlC(te.Hook):
    def after_step(self, context):
        os.kill(os.getpid(), signal.{name})

# The second Ctrl-C would raise in the middle of a batch.
te.train_and_evaluate(
    job(),
    te.TrainSpec(lambda: points().repeat(), max_steps=5),
    te.EvalSpec(lambda: {rows}, steps=None, hooks=[CtrlC()], start_delay_secs=0, throttle_secs=0),
)
"""
    process = start(processes, program, tmp_path)
    said = read_until(process, "A signal has ended the evaluation after 1 batches; its metrics are not kept.")
    assert "The evaluation input does not end, since it is repeated, and steps=None sets no limit" in said
    (result,) = ended([process])
    assert ("KeyboardInterrupt" in result.output) == (name == "SIGINT")
    assert "Saving dict" not in said + result.output
    assert result.status == (1 if name == "SIGINT" else 143)
    assert not list(tmp_path.glob("**/eval/events*"))
