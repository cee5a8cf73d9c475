"""Old exports are removed, and nothing else."""

from __future__ import annotations

from torch_estimator import files
from torch_estimator.exporters.exporter import remove_old_exports


def _make(export_path: str, names: list[str]) -> None:
    for name in names:
        files.makedirs(files.join(export_path, name))
        files.write_file(files.join(export_path, name, "model.onnx"), [b"onnx"])


def test_the_newest_are_kept_also_with_a_trailing_slash(export_path: str) -> None:
    _make(export_path, ["1700000002", "1700000001", "0900000000", "1700000003"])
    remove_old_exports(f"{export_path}/", 2)
    assert files.listdir(export_path) == ["1700000002", "1700000003"]


def test_other_names_are_left_alone(export_path: str) -> None:
    others = ["170000000", "17000000010", "temp-1700000000", "best", "170000000a"]
    _make(export_path, [*others, "1700000001", "1700000002"])
    remove_old_exports(export_path, 1)
    assert files.listdir(export_path) == sorted([*others, "1700000002"])


def test_none_keeps_all_and_an_absent_directory_is_no_error(export_path: str) -> None:
    remove_old_exports(export_path, 1)
    _make(export_path, ["1700000001", "1700000002"])
    remove_old_exports(export_path, None)
    remove_old_exports(export_path, 5)
    assert files.listdir(export_path) == ["1700000001", "1700000002"]
