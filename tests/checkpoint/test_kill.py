"""A process killed at any file operation, or at a random moment, always leaves a readable checkpoint."""

from __future__ import annotations

import pathlib
import subprocess
import sys

import pytest

_COMMON = """
import os, pathlib, random, select, signal, sys
import torch
from torch_estimator import files
from torch_estimator.checkpoint.checkpoint import checkpoint_paths, latest_checkpoint, load_checkpoint
from torch_estimator.checkpoint.writer import CheckpointWriter

torch.set_num_threads(1)  # a forked process cannot use its parent's threads

def save(writer, step, size=64):
    variables = {"w": torch.full((size,), float(step)), "v": torch.full((size,), float(step))}
    writer.save(step, variables, {"s": torch.full((size,), float(step))}, {"step": step})

def check(model_dir):
    checkpoint = load_checkpoint(model_dir)
    tensors = [*checkpoint.variables.values(), *checkpoint.slots.values()]
    assert all((tensor == checkpoint.step).all() for tensor in tensors)
    assert checkpoint.state == {"step": checkpoint.step}
    assert checkpoint_paths(model_dir)[-1] == checkpoint.path
    return checkpoint.step

def recover(model_dir):
    with CheckpointWriter(model_dir, keep_checkpoint_max=2) as writer:
        save(writer, 100)
    assert check(model_dir) == 100
    CheckpointWriter(model_dir).close()
    names = [files.basename(path) for path in checkpoint_paths(model_dir)]
    assert files.listdir(model_dir) == sorted(["checkpoint", *names]), files.listdir(model_dir)
"""

_EVERY_OPERATION = """
CHANGES = {"os.rename", "os.remove", "os.rmdir", "os.mkdir"}

def run(model_dir, kill_at, report):
    done = 0
    def hook(event, arguments):
        nonlocal done
        if event in CHANGES or (event == "open" and (arguments[1] is None or arguments[2] & os.O_WRONLY)):
            done += 1
            if done == kill_at:
                os._exit(9)
    sys.addaudithook(hook)
    with CheckpointWriter(model_dir, keep_checkpoint_max=1) as writer:
        for step in (1, 2, 2, 3):
            save(writer, step)
            writer.wait()
            os.write(report, b".")
    os._exit(0)

for kill_at in range(1, 1000):
    model_dir = os.path.join(sys.argv[1], str(kill_at))
    reader, report = os.pipe()
    child = os.fork()
    if child == 0:
        run(model_dir, kill_at, report)
    os.close(report)
    status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    saved = len(os.read(reader, 100))
    os.close(reader)
    if saved or latest_checkpoint(model_dir):
        assert check(model_dir) >= (0, 1, 2, 2, 3)[saved]
    recover(model_dir)
    if status == 0:
        break
print(kill_at)
"""

_RANDOM_INSTANTS = """
model_dir = sys.argv[1]
random.seed(7)
last = 0
for kill in range(12):
    reader, report = os.pipe()
    child = os.fork()
    if child == 0:
        with CheckpointWriter(model_dir, keep_checkpoint_max=2) as writer:
            step = load_checkpoint(model_dir).step if latest_checkpoint(model_dir) else 0
            while True:
                save(writer, step, size=200_000)
                writer.wait()
                os.write(report, b".")
                step += 1
    os.close(report)
    for _ in range(random.randint(1, 2)):
        assert os.read(reader, 1)
    select.select([], [], [], random.uniform(0.0, 0.06))
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    os.close(reader)
    step = check(model_dir)
    assert step >= last
    last = step
recover(model_dir)
print(last)
"""


def _run(script: str, directory: pathlib.Path) -> int:
    root = pathlib.Path(__file__).parents[2]
    result = subprocess.run(
        [sys.executable, "-c", _COMMON + script, str(directory)], cwd=root, capture_output=True, text=True
    )
    if result.returncode:
        pytest.fail(result.stderr)
    return int(result.stdout)


def test_killed_at_every_file_operation(tmp_path: pathlib.Path) -> None:
    assert _run(_EVERY_OPERATION, tmp_path) > 50


def test_killed_at_random_instants(tmp_path: pathlib.Path) -> None:
    assert _run(_RANDOM_INSTANTS, tmp_path) > 0
