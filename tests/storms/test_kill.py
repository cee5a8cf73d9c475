"""`scripts/storm kill`, in a small version: three kills of a short job on generated data."""

import random
import sys
from pathlib import Path

import pytest
import torch

from examples.census.trainer import sample
from scripts.storms import kill
from torch_estimator.checkpoint.checkpoint import Checkpoint


def test_a_job_killed_three_times_ends_as_the_undisturbed_one(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    data = sample.write(str(tmp_path / "data"), train_rows=3000, eval_rows=400)
    settings = {
        "--kills": 3,
        "--steps": 200,
        "--every": 50,
        "--train-file": data.train_file,
        "--eval-file": data.eval_file,
        "--work-dir": tmp_path / "storm",
    }

    status = kill.main([str(word) for setting in settings.items() for word in setting])

    printed = capsys.readouterr().out
    assert status == 0, printed
    assert "3 of 3 kills landed" in printed
    assert printed.count("/3  killed ") == 3
    assert "Bit for bit the same" in printed


ENDS_BEFORE_IT_IS_KILLED = """
import os, pathlib, signal, sys
job_dir, runs = map(pathlib.Path, sys.argv[1:])
runs.touch()
runs.write_text(runs.read_text() + "x")
assert not os.path.exists(job_dir / "finished"), "the job directory was not put back"
print("Saving checkpoints for 50 into", job_dir, flush=True)
if len(runs.read_text()) == 2:
    signal.pause()
(job_dir / "finished").touch()
"""


def test_a_kill_that_comes_too_late_is_tried_again_on_the_job_as_it_was(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    job_dir, runs = tmp_path / "job", tmp_path / "runs"
    command = [sys.executable, "-c", ENDS_BEFORE_IT_IS_KILLED, str(job_dir), str(runs)]

    landed = kill.run_killed(command, job_dir, [kill.Instant(50, 60.0)], tmp_path / "log")

    assert landed == 1
    printed = capsys.readouterr().out
    assert "had ended before 60.000 s after the save at step 50" in printed
    assert "killed 0.000 s after the save at step 50" in printed
    assert len(runs.read_text()) == 3
    assert sorted(path.name for path in tmp_path.iterdir()) == ["job", "log", "runs"]


def test_a_kill_is_tried_sooner_until_it_comes_with_the_start() -> None:
    sooner = kill.Instant(50, 0.5).sooner()

    assert sooner == kill.Instant(50, 0.0)
    assert sooner.sooner() == kill.Instant(None, 1.0)
    assert sooner.sooner().sooner() == kill.Instant(None, 0.25)


def test_one_changed_bit_is_seen() -> None:
    weights = torch.arange(6, dtype=torch.float32).reshape(2, 3)
    changed = weights.clone()
    changed.view(torch.int32)[1, 2] += 1

    found = kill.differences(_checkpoint(weights, position=7), _checkpoint(changed, position=8))

    assert found == [
        "weights: 1 of 6 values of w differ",
        "optimizer state: 1 of 6 values of w/Ftrl differ",
        "state: input is {'position': 7} and {'position': 8}",
    ]
    assert not kill.differences(_checkpoint(weights, position=7), _checkpoint(weights, position=7))


def test_up_to_rounding_a_small_difference_is_allowed_and_the_state_has_to_be_the_same() -> None:
    weights = torch.arange(6, dtype=torch.float32).reshape(2, 3)

    def differences(by: float, position: int) -> list[str]:
        changed = _checkpoint(weights + by, position=position)
        return kill.differences(_checkpoint(weights, position=7), changed, rounding=1e-5)

    assert differences(1e-5, 7) == []
    assert differences(0.5, 7) == [
        "weights: values of w, of 5 at most, differ by up to 0.5",
        "optimizer state: values of w/Ftrl, of 5 at most, differ by up to 0.5",
    ]
    assert differences(0.0, 8) == ["state: input is {'position': 7} and {'position': 8}"]
    assert differences(float("nan"), 7)


def test_a_variable_that_only_one_run_has_is_seen() -> None:
    one = Checkpoint(path="a", step=1, variables={"w": torch.zeros(1)})

    assert kill.differences(one, Checkpoint(path="b", step=1, variables={})) == ["weights: only one has w"]


def test_kills_are_spread_over_the_run_and_one_falls_at_its_end() -> None:
    timing = kill.Timing(start=4.0, save=0.2, end=2.0)

    instants = kill.plan(25, steps=4000, every=50, timing=timing, rng=random.Random(1))

    training = [instant.step for instant in instants if instant.step is not None]
    assert len(instants) == 25
    assert training == sorted(training)
    assert training[-1] == 4000
    assert 1 <= len(instants) - len(training) <= 12
    assert kill.plan(0, steps=4000, every=50, timing=timing, rng=random.Random(1)) == []


def _checkpoint(weights: torch.Tensor, *, position: int) -> Checkpoint:
    return Checkpoint(
        path="model.ckpt-1",
        step=1,
        variables={"w": weights},
        slots={"w/Ftrl": weights},
        state={"input": {"position": position}},
    )
