"""Files with every n-th row of variables: what is written is read, and damage is noticed where it is read."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
import torch

from torch_estimator import files
from torch_estimator.checkpoint import row_file
from torch_estimator.checkpoint.checkpoint import load_checkpoint
from torch_estimator.checkpoint.row_file import RowFile, RowFileName, RowFileWriter, SomeRows
from torch_estimator.checkpoint.saved_tensors import SavedTensors
from torch_estimator.checkpoint.writer import CheckpointWriter, NotWhole
from torch_estimator.errors import CheckpointError

ROWS, WIDTH = 100_003, 8


def whole(seed: int = 0, rows: int = ROWS) -> np.ndarray:
    return np.random.default_rng(seed).normal(size=(rows, WIDTH)).astype(np.float32)


def write(path: str, variables: dict[str, np.ndarray], first: int, step: int) -> int:
    described = [
        SomeRows(name=name, count=len(one[first::step]), width=WIDTH, dtype=one.dtype, first=first % step, step=step)
        for name, one in variables.items()
    ]
    with files.opened_to_write(path) as file:
        writer = RowFileWriter(file, described)
        for one in variables.values():
            part = one[first::step]
            for start in range(0, len(part), 1234):
                writer.write(part[start : start + 1234])
        return writer.finish()


def save(model_dir: str, step: int, servers: int, seed: int = 0) -> dict[str, np.ndarray]:
    """Save a checkpoint as the chief does, with files of servers; return the variables that are in these."""
    variables = {"a": whole(seed), "b": whole(seed + 1, 17)}
    with CheckpointWriter(model_dir) as writer:
        directory = writer.reserve(step)

        def of_servers() -> Sequence[RowFileName]:
            names = [f"variables-of-ps-{server}.safetensors" for server in range(servers)]
            return [
                RowFileName(name, "variables", write(files.join(directory, name), variables, server, servers))
                for server, name in enumerate(names)
            ]

        writer.save(step, {"bias": torch.ones(3)}, row_files=of_servers)
    return variables


@pytest.mark.parametrize("servers", [1, 2, 3])
@pytest.mark.parametrize("remote", [False, True])
def test_a_checkpoint_joins_the_rows_of_any_number_of_servers(tmp_path: Path, servers: int, remote: bool) -> None:
    model_dir = f"memory://row_files{servers}" if remote else str(tmp_path)
    variables = save(model_dir, 7, servers)

    checkpoint = load_checkpoint(model_dir)

    assert (checkpoint.step, set(checkpoint.variables)) == (7, {"a", "b", "bias"})
    for name, value in variables.items():
        np.testing.assert_array_equal(checkpoint.variables[name].numpy(), value)
    target = torch.zeros(ROWS + 1, WIDTH)
    checkpoint.variables.copy_into(target[:-1], "a")  # type: ignore[attr-defined]
    np.testing.assert_array_equal(target[:-1].numpy(), variables["a"])
    assert not target[-1].any()


def test_any_reader_of_safetensors_reads_the_rows_of_a_server(tmp_path: Path) -> None:
    import safetensors.numpy

    value = whole()
    write(str(tmp_path / "rows.safetensors"), {"a": value}, 1, 3)
    found = safetensors.numpy.load_file(tmp_path / "rows.safetensors")
    np.testing.assert_array_equal(found["a"], value[1::3])


def test_a_flipped_byte_is_noticed_where_its_block_is_read(tmp_path: Path) -> None:
    path = tmp_path / "rows.safetensors"
    digest = write(str(path), {"a": whole()}, 0, 1)
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)

    file = RowFile(str(path), digest)

    np.testing.assert_array_equal(file.rows("a", 0, 10), whole()[:10])
    with pytest.raises(
        CheckpointError, match=r"damaged: the checksum of bytes \d+ to \d+ of its data, in 'a', differs"
    ):
        file["a"]


@pytest.mark.parametrize("remote", [False, True])
def test_any_flipped_byte_and_any_cut_is_one_sentence(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, remote: bool
) -> None:
    monkeypatch.setattr(row_file, "_CHECKED_BYTES", 64)
    path, value = "memory://flipped/rows" if remote else str(tmp_path / "rows"), whole(rows=11)
    digest = write(path, {"a": value}, 1, 2)
    good = files.read_bytes(path)
    np.testing.assert_array_equal(RowFile(path, digest)["a"], value[1::2])
    flipped = [good[:at] + bytes([good[at] ^ 0x81]) + good[at + 1 :] for at in range(len(good))]
    for content in (*flipped, *(good[:end] for end in range(len(good)))):
        files.write_file(path, [content], synced=False)
        with pytest.raises(CheckpointError):
            RowFile(path, digest)["a"]


@pytest.mark.parametrize("remote", [False, True])
def test_a_checkpoint_of_one_process_is_read_by_rows_and_checked(tmp_path: Path, remote: bool) -> None:
    model_dir = "memory://whole_file" if remote else str(tmp_path)
    values = {"a": torch.from_numpy(whole()), "b": torch.from_numpy(whole(1, 17))}
    with CheckpointWriter(model_dir) as writer:
        writer.save(3, values)
    checkpoint = load_checkpoint(model_dir)
    assert isinstance(checkpoint.variables, SavedTensors)
    (saved,) = checkpoint.variables.files_of("a")
    np.testing.assert_array_equal(RowFile(saved.path).rows("a", 50_001, 50_003), whole()[50_001:50_003])
    content = bytearray(files.read_bytes(saved.path))
    content[len(content) // 2] ^= 1
    files.write_file(saved.path, [bytes(content)])
    with pytest.raises(CheckpointError, match="damaged: the checksum of 'a' differs"):
        RowFile(saved.path).rows("a", 0, 1)


def test_a_file_that_is_missing_cut_or_of_another_checkpoint_is_one_sentence(tmp_path: Path) -> None:
    save(str(tmp_path), 1, 2)
    folder = tmp_path / "model.ckpt-1"
    path, other = folder / "variables-of-ps-0.safetensors", folder / "variables-of-ps-1.safetensors"
    good = path.read_bytes()
    path.write_bytes(other.read_bytes())
    with pytest.raises(CheckpointError, match="damaged, or belongs to another checkpoint"):
        load_checkpoint(tmp_path)
    path.write_bytes(good[: len(good) // 2])
    with pytest.raises(CheckpointError, match="truncated or damaged"):
        load_checkpoint(tmp_path)
    path.unlink()
    with pytest.raises(CheckpointError, match=r"variables-of-ps-0\.safetensors is missing, so its checkpoint is not"):
        load_checkpoint(tmp_path)


def test_a_lost_part_leaves_the_checkpoint_before_and_the_next_one_is_whole(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    def lost() -> Sequence[RowFileName]:
        raise NotWhole("ps 1 was started again while it wrote its rows.")

    with CheckpointWriter(tmp_path) as writer:
        writer.save(1, {"w": torch.ones(2)})
        writer.reserve(2)
        writer.save(2, {"w": torch.ones(2)}, row_files=lost)
        writer.wait()
        assert load_checkpoint(tmp_path).step == 1
        writer.save(3, {"w": torch.ones(2)})
    assert load_checkpoint(tmp_path).step == 3
    assert "model.ckpt-2 is not saved: ps 1 was started again" in caplog.text
    assert sorted(one.name for one in tmp_path.iterdir()) == ["checkpoint", "model.ckpt-1", "model.ckpt-3"]
