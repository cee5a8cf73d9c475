"""The reader of scalars finds what the protocol buffers say, however the files grow, tear, restart and go."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tensorboard.compat.proto import event_pb2, summary_pb2, tensor_pb2
from tensorboard.util.tensor_util import make_ndarray, make_tensor_proto

from torch_estimator.summary.event_reader import read_events
from torch_estimator.summary.event_writer import EventWriter
from torch_estimator.summary.recorder import Summary
from torch_estimator.summary.scalar_file import last_scalars
from torch_estimator.summary.scalar_reader import ScalarReader, read_scalars
from torch_estimator.tfrecord.records import record

Curves = dict[str, list[tuple[int, float, float]]]


def expected(logdir: Any) -> Curves:
    """The curves, by the protocol buffers."""
    curves: Curves = {}
    for event in read_events(logdir):
        if event.HasField("session_log") and event.session_log.status == event.session_log.START:
            curves = {tag: [point for point in points if point[0] < event.step] for tag, points in curves.items()}
        for value in event.summary.value:
            if value.HasField("simple_value"):
                curves.setdefault(value.tag, []).append((event.step, value.simple_value, event.wall_time))
            elif value.metadata.plugin_data.plugin_name == "scalars":
                curves.setdefault(value.tag, []).append(
                    (event.step, float(make_ndarray(value.tensor)), event.wall_time)
                )
    return {tag: points for tag, points in curves.items() if points}


def found(reader: ScalarReader) -> Curves:
    reader.read()
    curves = reader.curves()
    assert all(one.steps.dtype == np.int64 and one.values.dtype == np.float64 for one in curves.values())
    return {tag: list(zip(*(part.tolist() for part in points), strict=True)) for tag, points in curves.items()}


def write_anything(events: EventWriter, choice: random.Random, step: int) -> None:
    """Write one event of a kind that some framework writes."""
    kind = choice.randrange(8)
    if kind == 0:
        events.scalars({f"metric_{place}": choice.random() for place in range(choice.choice((1, 3, 20)))}, step)
    elif kind == 1:
        events.scalar(choice.choice(("loss", "cost", "a/much/longer/tag", "ünïcode")), choice.random(), step)
    elif kind == 2:
        events.summaries(
            [
                Summary("scalar", "loss", np.float32(choice.random())),
                Summary("histogram", "weights", np.random.default_rng(step).normal(size=100)),
            ],
            step,
        )
    elif kind == 3:
        dtype = choice.choice((np.float32, np.float64, np.float16, np.int32, np.int64))
        tensor = make_tensor_proto(np.array(choice.randrange(9), dtype))
        metadata = {"plugin_data": {"plugin_name": "scalars"}}
        events._write(step, {"value": [{"tag": "epoch_auc", "tensor": tensor, "metadata": metadata}]})
    elif kind == 4:
        events.text("note", "x" * choice.randrange(50), step)
    elif kind == 5:
        tensor = tensor_pb2.TensorProto(dtype="DT_DOUBLE", double_val=[choice.random()])
        metadata = {"plugin_data": {"plugin_name": "scalars"}}
        events._write(step, {"value": [{"tag": "by_value", "tensor": tensor, "metadata": metadata}]})
    elif kind == 6:
        events._write(step, {"value": [{"tag": "twice", "simple_value": one} for one in (0.0, float("nan"))]})
        events._write(step, {"value": []})
    else:
        events.scalar("loss", choice.choice((0.0, float("inf"), -1e-30)), choice.choice((0, 127, 128, 2**40, -1)))


def same(left: Curves, right: Curves) -> bool:
    # NaN differs from itself, but not as text.
    return repr(dict(sorted(left.items()))) == repr(dict(sorted(right.items())))


@pytest.mark.parametrize("seed", range(5))
def test_a_reader_that_goes_on_finds_at_each_time_what_the_protocol_buffers_say(tmp_path: Path, seed: int) -> None:
    choice = random.Random(seed)
    whole, growing = tmp_path / "whole", tmp_path / "growing"
    growing.mkdir()
    for run in range(3):
        with EventWriter(whole) as events:
            if run:
                events.session_start(choice.randrange(100))
            for step in range(100):
                write_anything(events, choice, step)
    reader = ScalarReader(growing)
    paths = sorted(whole.iterdir())
    for path in paths:
        content, end = path.read_bytes(), 0
        while end < len(content):
            # A copy may end within a record.
            end += choice.randrange(1, 3000)
            (growing / path.name).write_bytes(content[:end])
            assert same(found(reader), expected(growing))
    assert same(found(reader), expected(whole))
    assert same(found(ScalarReader(whole)), expected(whole))


def test_many_events_of_several_blocks_are_read(tmp_path: Path) -> None:
    with EventWriter(tmp_path) as events:
        for step in range(3000):
            events.scalars({f"metric_{place:02}": step + place / 32 for place in range(20)}, step)
            # Of one length, but not of one tag.
            for place in range(20):
                events.scalar(f"{place:02}", step, step)
    assert same(found(ScalarReader(tmp_path)), expected(tmp_path))


def test_the_last_values_are_read_from_the_end(tmp_path: Path) -> None:
    with EventWriter(tmp_path) as events:
        for step in range(5000):
            events.scalars({"loss": 1 / (step + 1), "auc": 0.5}, step)
    with EventWriter(tmp_path) as later:
        later.session_start(4990)
        last = last_scalars(str(tmp_path), 2**12).points
        whole = expected(tmp_path)
        assert list(last) == ["auc", "loss"]
        assert 10 < len(last["loss"]) < 100
        assert last["loss"] == whole["loss"][-len(last["loss"]) :]
        assert last["loss"][-1][0] == 4989
        later.scalars({"loss": 7.0}, 4990)
        assert [point[:2] for point in last_scalars(str(tmp_path), 2**12).points["loss"]] == [(4990, 7.0)]
    assert last_scalars(str(tmp_path / "none"), 2**12) == ({}, True)


def test_an_end_without_points_is_read_from_further_back_and_an_older_file_does_not_stand_for_it(
    tmp_path: Path,
) -> None:
    for start in (0, 100):
        with EventWriter(tmp_path / "cut") as events:
            events.scalars({"loss": 1.0}, start)
            events.text("note", "x" * 100_000, start)
    last = last_scalars(str(tmp_path / "cut"), 2**12)
    assert [point[0] for point in last.points["loss"]] == [100]
    assert not last.are_all
    assert [point[0] for point in last_scalars(str(tmp_path / "cut"), 2**12, most_files=2).points["loss"]] == [0, 100]
    with EventWriter(tmp_path / "cut") as events:
        events.text("note", "x" * 9 * 2**20, 200)
    assert last_scalars(str(tmp_path / "cut"), 2**12) == ({}, False)


@pytest.mark.parametrize("seed", range(5))
def test_ends_of_any_length_have_what_the_protocol_buffers_say(tmp_path: Path, seed: int) -> None:
    choice = random.Random(seed)
    with EventWriter(tmp_path) as events:
        for step in range(300):
            if not choice.randrange(40):
                events.session_start(max(0, step - choice.randrange(50)))
            write_anything(events, choice, step)
    whole = expected(tmp_path)
    for _ in range(50):
        last = last_scalars(str(tmp_path), choice.randrange(2**12, 2**17)).points
        assert last
        assert same({tag: whole[tag][-len(points) :] for tag, points in last.items()}, last)
    assert same(last_scalars(str(tmp_path), 2**24).points, whole)


def test_a_file_with_other_content_is_read_anew_and_a_removed_one_is_forgotten(tmp_path: Path) -> None:
    path = tmp_path / "events.out.tfevents.1"
    reader = ScalarReader(tmp_path)

    def write(*events: Any) -> None:
        path.write_bytes(b"".join(record(one.SerializeToString()) for one in events))

    def scalar(tag: str, step: int) -> Any:
        return event_pb2.Event(wall_time=1.0, step=step, summary=summary_pb2.Summary(value=[{"tag": tag}]))

    one, other = scalar("a", 1), scalar("b", 2)
    for event in (one, other):
        event.summary.value[0].simple_value = 0.5
    write(one)
    assert found(reader) == {"a": [(1, 0.5, 1.0)]}
    write(other, one)
    assert found(reader) == {"a": [(1, 0.5, 1.0)], "b": [(2, 0.5, 1.0)]}
    write(other)
    assert found(reader) == {"b": [(2, 0.5, 1.0)]}
    path.unlink()
    assert found(reader) == {}


def test_a_record_that_is_no_event_ends_the_reading_of_its_file(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    event = event_pb2.Event(step=3, summary=summary_pb2.Summary(value=[{"tag": "a", "simple_value": 1.0}]))
    good = record(event.SerializeToString())
    path = tmp_path / "events.out.tfevents.1"
    path.write_bytes(good + record(b"\xff" * 9) + good)
    reader = ScalarReader(tmp_path)
    assert found(reader) == expected(tmp_path) == {"a": [(3, 1.0, 0.0)]}
    assert any("is damaged at byte" in message for message in caplog.messages)
    path.write_bytes(path.read_bytes() + good)
    assert found(reader) == {"a": [(3, 1.0, 0.0)]}


def test_records_that_are_too_large_are_skipped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("torch_estimator.summary.scalar_file._MOST_RECORD_BYTES", 2**21)
    with EventWriter(tmp_path) as events:
        events.scalar("a", 1.0, 1)
        events.text("large", "x" * 2**22, 2)
        events.text("not so large", "x" * 3 * 2**19, 2)
        events.scalar("a", 2.0, 3)
    curves = read_scalars(tmp_path)
    assert curves["a"].by_step() == {1: 1.0, 3: 2.0}
    assert list(curves) == ["a"]


def test_reading_in_short_turns_finds_everything(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("torch_estimator.summary.scalar_file._BLOCK_BYTES", 2**16)
    for _ in range(3):
        with EventWriter(tmp_path) as events:
            for step in range(2000):
                events.scalars({f"metric_{place}": step / 8 for place in range(4)}, step)
    reader = ScalarReader(tmp_path)
    turns, counts = 0, []
    while not turns or reader.is_behind:
        # Each turn has no time at all, and reads on nevertheless.
        assert reader.read(0.0)
        counts.append(sum(len(one.steps) for one in reader.curves().values()))
        turns += 1
    assert turns > 6
    assert counts == sorted(set(counts))
    assert not reader.read(0.0)
    assert same(found(reader), expected(tmp_path))


def test_a_stretch_of_zeros_ends_the_reading_of_its_file_at_once(tmp_path: Path) -> None:
    event = event_pb2.Event(step=3, summary=summary_pb2.Summary(value=[{"tag": "a", "simple_value": 1.0}]))
    path = tmp_path / "events.out.tfevents.1"
    path.write_bytes(record(b"") + record(event.SerializeToString()))
    with path.open("ab") as file:
        file.truncate(20 * 2**30)
    reader = ScalarReader(tmp_path)
    assert found(reader) == {"a": [(3, 1.0, 0.0)]}
    assert not reader.is_behind


def test_tags_that_are_written_together_share_their_steps_and_times(tmp_path: Path) -> None:
    with EventWriter(tmp_path) as events:
        for step in range(5000):
            events.scalars({f"metric_{place}": step + place for place in range(20)}, step)
    reader = ScalarReader(tmp_path)
    assert same(found(reader), expected(tmp_path))
    assert reader.nbytes < 5000 * (20 * 8 + 16) * 1.05


@pytest.mark.parametrize("order", ["ascending", "equal", "falling"])
def test_thinned_curves_keep_their_extremes_their_ends_and_an_even_density(tmp_path: Path, order: str) -> None:
    reader = ScalarReader(tmp_path)
    choice = np.random.default_rng(0)
    values: list[float] = []
    steps = {"ascending": lambda at: at, "equal": lambda at: 7, "falling": lambda at: 10**6 - at}[order]
    with EventWriter(tmp_path) as events:
        for _ in range(6):
            for value in choice.normal(size=2000).astype(np.float32).tolist():
                events.scalar("loss", value, steps(len(values)))
                values.append(value)
            events.flush()
            reader.read()
            while len(reader.curves()["loss"].steps) > 1200:
                assert reader.thin()
    curve = reader.curves()["loss"]
    assert (curve.values.max(), curve.values.min()) == (max(values), min(values))
    assert (curve.values[0], curve.values[-1]) == (values[0], values[-1])
    assert (np.diff(curve.times) >= 0).all()
    if order == "ascending":
        assert np.diff(curve.steps).max() < 100
    while reader.thin():
        assert len(reader.curves()["loss"].steps) > 200
    assert not reader.thin()


def test_any_bytes_are_read_without_an_error(tmp_path: Path) -> None:
    choice = random.Random(0)
    path = tmp_path / "events.out.tfevents.1"
    with EventWriter(tmp_path / "whole") as events:
        for step in range(20):
            write_anything(events, choice, step)
    (whole,) = (tmp_path / "whole").iterdir()
    for _ in range(300):
        content = bytearray(whole.read_bytes())
        for _ in range(choice.randrange(1, 20)):
            content[choice.randrange(len(content))] = choice.randrange(256)
        path.write_bytes(content)
        read_scalars(tmp_path)
        last_scalars(str(tmp_path), 500)
