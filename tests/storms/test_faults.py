"""`scripts/storm faults`, in a small version: a kill of every role; and what it would find."""

from __future__ import annotations

import random
from pathlib import Path

import numpy as np
import pytest
import torch

from examples.census.trainer import sample
from scripts.storms import faults, large_job
from scripts.storms.checks import Rows, Told, problems, seen
from scripts.storms.cluster import LAUNCHER, Line
from scripts.storms.job import SEEN
from scripts.storms.times import SERVED, TOGETHER, Kill, table, verdicts
from torch_estimator.checkpoint.writer import CheckpointWriter
from torch_estimator.summary.event_writer import EventWriter


def test_a_cluster_survives_a_kill_of_each_role(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    names = ["chief 0", "worker 0", "ps 0", "evaluator 0"]
    data = sample.write(str(tmp_path / "data"), train_rows=2000, eval_rows=200)
    settings = {
        "--kills": len(names),
        "--steps": 600,
        "--every": 40,
        "--workers": 1,
        "--servers": 1,
        "--train-file": data.train_file,
        "--eval-file": data.eval_file,
        "--work-dir": tmp_path / "storm",
    }

    status = faults.main([str(word) for setting in settings.items() for word in setting])

    printed = capsys.readouterr().out
    assert status == 0, printed
    assert f"{len(names)} of {len(names)} kills landed" in printed
    for name in names:
        assert f"killed {name} at step " in printed
    assert "A quick run, too short to judge by:\nseconds from a kill of ps to the next step, " in printed
    assert "killed evaluator 0 at step " in printed.partition("; training had ended")[0].splitlines()[-1]


def test_every_row_of_a_large_table_is_whole_after_kills(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    large = ["--large", "1048576", "--roles", "ps", "chief", "--workers", "0", "--servers", "2"]

    status = faults.main([*large, "--kills", "2", "--steps", "300", "--every", "50", "--work-dir", str(tmp_path)])

    printed = capsys.readouterr().out
    assert status == 0, printed
    assert "2 of 2 kills landed" in printed
    assert printed.count(", 0 rows wrong") == 2


def test_a_row_that_no_number_of_updates_makes_is_found(tmp_path: Path) -> None:
    values, totals = large_job.replayed(5)
    value, total = (torch.from_numpy(one[[0, 2, 5]])[:, None].repeat(1, large_job.DIM) for one in (values, totals))
    slot = f"{large_job.NAME}/Adagrad"
    with CheckpointWriter(str(tmp_path)) as writer:
        writer.save(1, {large_job.NAME: value}, {slot: total})
        (found,) = large_job.problems_of_rows(_settled(writer, tmp_path))
        assert "was not written by servers" in found
        value[1, 3] += 1e-6
        writer.save(2, {large_job.NAME: value}, {slot: total})
        *_, found = large_job.problems_of_rows(_settled(writer, tmp_path))
    assert found.startswith("1 rows of ")


def _settled(writer: CheckpointWriter, model_dir: Path) -> Path:
    writer.wait()
    return model_dir


def test_a_checkpoint_that_a_kill_cuts_off_does_not_count_as_saved() -> None:
    told = Told()
    for text in (
        "INFO:torch_estimator:Saving checkpoints for 100 into m.",
        "INFO:torch_estimator:Saving checkpoints for 200 into m.",
        "WARNING:torch_estimator:ps 0 has lost what it held; restoring it from the checkpoint of global step 100. Tr",
        "INFO:torch_estimator:Saving checkpoints for 150 into m.",
    ):
        told.see(Line(0.0, "chief 0", text))
    assert told.saved == [100, 150]


def test_the_seed_says_whom_to_kill_and_every_role_has_its_turn() -> None:
    names = ["chief 0", "worker 0", "worker 1", "evaluator 0", "ps 0", "ps 1"]

    strikes = faults.plan(100, names, faults.ROLES, random.Random(3))

    assert strikes == faults.plan(100, names, faults.ROLES, random.Random(3))
    assert strikes != faults.plan(100, names, faults.ROLES, random.Random(4))
    struck = [strike.name for strike in strikes]
    assert set(struck) == set(names)
    assert [sum(name.startswith(role) for name in struck) for role in faults.ROLES] == [25] * 4
    assert [strike.late for strike in strikes] == [False] * 99 + [True]
    assert 5 <= sum(strike.early for strike in strikes) <= 40
    assert faults.plan(0, names, faults.ROLES, random.Random(3)) == []


def test_times_are_those_of_the_first_step_that_a_kill_does_not_hinder() -> None:
    worker = Kill("worker 0", 10.0, together=False)
    for at, name, text in (
        (9.9, "chief 0", "step 6"),  # read late
        (10.1, "worker 0", "step 7"),  # said before it was killed
        (10.2, "chief 0", "step 8"),
        (10.3, LAUNCHER, "worker 0 was killed by SIGKILL; started worker 0 (pid 71) again, restart 1 of 9."),
        (12.5, "worker 0", "step 300"),
    ):
        worker.see(Line(at, name, text))
    assert (worker.step_secs, worker.back_secs) == pytest.approx((0.2, 2.5))

    server = Kill("ps 1", 10.0, together=False)
    for at, name, text in (
        (10.1, "chief 0", "step 8"),  # needed nothing of it any more
        (10.2, LAUNCHER, "ps 1 was killed by SIGKILL; started ps 1 (pid 71) again, restart 1 of 9."),
        (10.9, "ps 0", "INFO:torch_estimator:ps 0 holds 5 numbers, from global step 0 on."),
        (11.0, "ps 1", "INFO:torch_estimator:ps 1 holds 5 numbers, from global step 0 on."),
        (11.5, "worker 1", "step 5"),
    ):
        assert not server.is_over
        server.see(Line(at, name, text))
    assert (server.step_secs, server.back_secs) == pytest.approx((1.5, 1.0))

    chief = Kill("chief 0", 10.0, together=True, alone=False)
    for at, name, text in (
        (10.1, "worker 0", "step 8"),
        (
            10.4,
            LAUNCHER,
            "chief 0 was killed by SIGKILL; started chief 0 (pid 71), worker 0 (pid 72) again, restart 1 of 9.",
        ),
        (14.0, "worker 0", "step 5"),
        (14.5, "chief 0", "step 5"),
    ):
        chief.see(Line(at, name, text))
    assert (chief.step_secs, chief.back_secs) == pytest.approx((4.0, 4.5))
    lines = table([worker, server, chief]).splitlines()
    assert lines[1].split() == ["worker", "1", "1", "0.20,", "worst", "0.20", "2.50,", "worst", "2.50"]
    assert lines[3].split() == ["chief", "1", "0", "-", "-"]


def test_the_worst_kill_of_a_role_that_came_alone_is_judged() -> None:
    def kill(name: str, secs: float | None, *, alone: bool = True) -> Kill:
        return Kill(name, 10.0, together=False, alone=alone, step_secs=secs)

    kills = [kill("ps 0", 0.5), kill("ps 1", 1.9), kill("ps 0", 2.4, alone=False), kill("worker 0", 8.5)]

    (served,) = verdicts(kills, SERVED)
    (late,) = verdicts([*kills, kill("ps 1", 2.1)], SERVED)
    (without_a_step,) = verdicts([*kills, kill("ps 1", None)], SERVED)
    (together,) = verdicts(kills, TOGETHER)
    (none,) = verdicts([], TOGETHER)

    of_servers = "seconds from a kill of ps to the next step"
    of_others = "(0 of 1 that overlapped with another)"
    assert str(served) == f"{of_servers}, 2 of 2 in time {of_others}; the worst: at most 2: 1.90, holds"
    assert str(late) == f"{of_servers}, 2 of 3 in time {of_others}; the worst: at most 2: 2.10, DOES NOT HOLD"
    assert without_a_step.holds is False
    assert together.holds is False
    assert none.holds is None


def test_rows_are_counted_by_what_was_written_down(tmp_path: Path) -> None:
    note(tmp_path / "chief 0, 1", [-2, 1, 2, -2, 3, 1])
    note(tmp_path / "worker 0, 2", [-1, 2])

    times, batches = seen(tmp_path, 4)

    assert times.tolist() == [2, 2, 1, 0]
    assert batches == 3


def test_what_a_job_has_lost_is_named(tmp_path: Path) -> None:
    note(tmp_path / SEEN / "chief 0, 1", [-2, 1, 2] * 5)
    told = Told()
    for name, text in (
        ("chief 0", "Saving checkpoints for 4 into there."),
        ("chief 0", "Saving checkpoints for 2 into there."),
        ("chief 0", "Training ended at global step 6: the input ended."),
        ("worker 0", "Going on with the input where it stood 1 batches ago; these are trained on again."),
        ("worker 0", "step 5"),
        ("ps 0", "INFO:torch_estimator:ps 0 holds 5 numbers, from global step 4 on."),
    ):
        told.see(Line(0.0, name, text))

    with EventWriter(tmp_path / "eval_storm") as events:
        events.scalar("loss", 0.5, 2)
        events.scalar("loss", 0.5, 2)

    found = "\n".join(problems(tmp_path, told, Rows(count=3, epochs=1, batch=2), [], served=True))

    assert "checkpoints were saved out of order: [4, 2]." in found
    assert "training ended at global step 6, but the checkpoints are of steps []." in found
    assert "there is no final export." in found
    assert "the last checkpoint, of step 6, was not evaluated." in found
    assert "1 evaluations were of checkpoints that were evaluated before: [2, 2]." in found
    assert "1 of 3 rows were seen less than 1 times, row 3 the first of them." in found
    assert "7 rows were seen again, but the log told of 2 batches of 2 only." in found
    assert "6 steps were counted for 5 batches." in found


def test_roles_that_are_not_there_are_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        faults.parse(["--synchronous", "--roles", "ps"])
    assert "must be of those that there are, chief, worker, evaluator, but got ps" in capsys.readouterr().err


def note(file: Path, numbers: list[int]) -> None:
    file.parent.mkdir(exist_ok=True)
    file.write_bytes(np.array(numbers, np.int64).tobytes())
