"""What a registry does, on every kind of store, and what it refuses."""

from __future__ import annotations

import json
import os
import shutil
import stat
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.registry.conftest import filled
from torch_estimator import files
from torch_estimator.errors import ExportError, InvalidTypeError, InvalidValueError, RegistryError, UserError
from torch_estimator.export.exported_model import ExportedModel
from torch_estimator.registry import Registry
from torch_estimator.registry.manifest import check_files


def test_the_life_of_a_model(registry: Registry, export: Path) -> None:
    assert registry.models() == []

    registry.create_model("census", description="income above 50,000 dollars")
    assert registry.models() == ["census"]
    assert registry.versions("census") == []
    assert registry.read_model("census").default is None

    registry.create_version("census", "v1", export, description="the first one")
    registry.create_version("census", 10, export.parent)
    registry.create_version("census", "2", export)
    assert registry.versions("census") == [1, 2, 10]
    assert registry.read_model("census").default == 1
    assert [info.description for info in registry.read_versions("census")] == ["the first one", "", ""]
    for version in (1, 2, 10):
        model = ExportedModel.load(registry.version_dir("census", version))
        assert model.predict({"word": ["a"], "x": [1.0]})["probabilities"].shape == (1, 2)

    registry.set_default("census", "v2")
    registry.update("census", 10, labels=["canary", "newest"])
    registry.update("census", 1, labels=["canary"])
    info = registry.read_model("census")
    assert (info.description, info.default, info.labels) == (
        "income above 50,000 dollars",
        2,
        {"canary": 1, "newest": 10},
    )

    registry.update("census", 10, remove_labels=["newest"])
    registry.delete_version("census", 1)
    assert registry.versions("census") == [2, 10]
    assert registry.read_model("census").labels == {}
    registry.delete_version("census", 10)
    registry.delete_version("census", 2)
    assert registry.read_model("census").default is None

    registry.delete_model("census")
    assert registry.models() == []
    changes = registry.history("census")
    assert [(change.number, change.change, change.version) for change in changes] == [
        (1, "create-model", None),
        (2, "create-version", 1),
        (3, "create-version", 10),
        (4, "create-version", 2),
        (5, "set-default", 2),
        (6, "update-labels", 10),
        (7, "update-labels", 1),
        (8, "update-labels", 10),
        (9, "delete-version", 1),
        (10, "delete-version", 10),
        (11, "delete-version", 2),
        (12, "delete-model", None),
    ]
    assert all("@" in change.who and change.time.endswith("Z") for change in changes)

    registry.create_model("census")
    assert (registry.models(), registry.versions("census")) == (["census"], [])
    assert registry.history("census")[-1].number == 13


def test_a_manifest_has_the_checksums_and_the_origin(local: Registry, export: Path) -> None:
    info = local.read_version("census", 1)
    assert set(info.files) == {str(path.relative_to(export)) for path in export.rglob("*") if path.is_file()}
    assert (info.model, info.version, info.origin, info.global_step, info.run) == ("census", 1, str(export), 12, None)
    assert info.bytes == sum(path.stat().st_size for path in export.rglob("*") if path.is_file())
    assert check_files(local.version_dir("census", 1))
    assert not check_files(str(export))


@pytest.mark.parametrize("damage", ["change", "remove", "add"])
def test_a_version_that_was_changed_is_noticed(local: Registry, damage: str) -> None:
    directory = Path(local.version_dir("census", 1))
    if damage == "change":
        (directory / "signatures.json").write_text((directory / "signatures.json").read_text() + " ")
    elif damage == "remove":
        (directory / "signatures.json").unlink()
    else:
        (directory / "more.txt").write_text("")
    with pytest.raises(ExportError, match="more.txt" if damage == "add" else r"signatures\.json"):
        check_files(str(directory))


def test_a_version_of_another_registry_keeps_its_run_and_metrics(
    local: Registry, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    manifest = Path(local.version_dir("census", 1), "manifest.json")
    content = json.loads(manifest.read_text())
    content.update(run="/runs/census", metrics={"eval": {"auc": 0.9}})
    manifest.write_text(json.dumps(content))

    other = Registry(tmp_path / "production")
    other.create_model("census")
    monkeypatch.chdir(tmp_path)
    info = other.create_version("census", 5, "registry/census/1")

    assert (info.run, info.metrics, info.origin) == (
        "/runs/census",
        {"eval": {"auc": 0.9}},
        local.version_dir("census", 1),
    )
    (Path(local.version_dir("census", 1)) / "signatures.json").write_text("{}")
    with pytest.raises(ExportError):
        other.create_version("census", 6, local.version_dir("census", 1))
    assert other.versions("census") == [5]


REFUSED: dict[str, tuple[Callable[[Registry, Path], object], str]] = {
    "unknown model": (lambda r, e: r.set_default("wine", 1), "there is no model 'wine' in the registry"),
    "unknown model's versions": (lambda r, e: r.versions("wine"), "which has census; 'estimator models create'"),
    "unknown model's history": (lambda r, e: r.history("wine"), "there is no model 'wine'"),
    "model there already": (lambda r, e: r.create_model("census"), "the model 'census' exists already"),
    "model with versions": (lambda r, e: r.delete_model("census"), "has the versions 1, 2; delete them first"),
    "unknown version": (lambda r, e: r.set_default("census", 3), "has no version 3; it has the versions 1, 2"),
    "directory of an unknown version": (lambda r, e: r.version_dir("census", 3), "has no version 3"),
    "version there already": (lambda r, e: r.create_version("census", 2, e), "choose another number, such as 3"),
    "default of several": (
        lambda r, e: r.delete_version("census", 1),
        "version 1 is the default of the model 'census'",
    ),
    "label of another version": (lambda r, e: r.update("census", 2, remove_labels=["x"]), "has no label 'x'"),
    "no label": (lambda r, e: r.update("census", 2), "no label to add or to remove"),
    "label like a version": (lambda r, e: r.update("census", 2, labels=["v1"]), "a label must be a letter"),
    "label with a slash": (lambda r, e: r.update("census", 2, labels=["a/b"]), "a label must be a letter"),
    "no export": (lambda r, e: r.create_version("census", 3, e.parent.parent / "nothing"), "there is no export in"),
    "long description": (lambda r, e: r.create_version("census", 3, e, description="x" * 10_001), "has 10001"),
}


@pytest.mark.parametrize(("call", "problem"), REFUSED.values(), ids=list(REFUSED))
def test_what_is_refused_changes_nothing(
    local: Registry, export: Path, call: Callable[[Registry, Path], object], problem: str
) -> None:
    def content() -> dict[str, bytes]:
        return {name: files.read_bytes(files.join(local.url, name)) for name in files.all_files(local.url)}

    before = content()
    with pytest.raises(UserError) as raised:
        call(local, export)
    assert problem in str(raised.value)
    assert str(raised.value).endswith(".")
    assert content() == before


@pytest.mark.parametrize(
    "name", ["", ".", "..", "a/b", "../a", "a..b", "1", "-a", "a b", "é", "a\n", "x" * 129, "a\0b"]
)
def test_names_that_are_no_names(tmp_path: Path, name: str) -> None:
    registry = Registry(tmp_path / "registry")
    for call in (registry.create_model, registry.read_model, registry.versions, registry.delete_model):
        with pytest.raises(InvalidValueError, match="the name of a model must be a letter"):
            call(name)
    with pytest.raises(InvalidTypeError):
        registry.create_model(None)  # type: ignore[arg-type]
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    "version", ["", "v", "0", 0, -1, "-1", "1.5", "../1", "latest", "1/..", 2**63, "9" * 400, "v1 "]
)
def test_versions_that_are_no_versions(local: Registry, version: int | str) -> None:
    with pytest.raises(InvalidValueError, match="a version must be a whole number from 1"):
        local.version_dir("census", version)
    with pytest.raises(InvalidTypeError, match="a version must be a number"):
        local.version_dir("census", 1.0)  # type: ignore[arg-type]


def test_an_export_that_does_not_load_is_refused(registry: Registry, export: Path, tmp_path: Path) -> None:
    registry.create_model("census")
    broken = tmp_path / "broken"
    shutil.copytree(export, broken)
    (broken / "model.onnx").write_bytes(b"no model")
    with pytest.raises(ExportError, match=r"model\.onnx cannot be loaded"):
        registry.create_version("census", 1, broken)
    assert registry.versions("census") == []
    assert [change.change for change in registry.history("census")] == ["create-model"]


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("model.json", "{"),
        ("model.json", "[]"),
        ("model.json", '{"format_version": 1}'),
        ("model.json", '{"format_version": 99, "name": "census"}'),
        ("model.json", '{"format_version": 1, "name": "census", "default": "1"}'),
        ("model.json", '{"format_version": 1, "name": "census", "labels": {"a": null}}'),
        ("1/manifest.json", '{"format_version": 1, "model": "census", "version": 1, "files": {"a": {"bytes": 1}}}'),
        ("1/manifest.json", "\udcff"),
        ("history/00000001.json", "{}"),
    ],
)
def test_damaged_files_are_named(local: Registry, name: str, content: str) -> None:
    path = Path(local.url, "census", name)
    path.write_bytes(content.encode(errors="surrogateescape"))
    with pytest.raises(RegistryError, match="is damaged: ") as raised:
        local.read_model("census")
        local.read_versions("census")
        local.history("census")
    assert str(raised.value).startswith(f"{path} is damaged")


def test_what_is_no_model_and_no_version_is_left_alone(local: Registry, export: Path) -> None:
    for name in ("notes", "census/03", "census/3", "census/latest", "census/temp-notes"):
        Path(local.url, name).mkdir()
    Path(local.url, "README").write_text("")
    assert local.models() == ["census"]
    assert local.versions("census") == [1, 2]


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
def test_a_registry_that_may_not_be_written(local: Registry) -> None:
    os.chmod(Path(local.url, "census"), stat.S_IRUSR | stat.S_IXUSR)
    try:
        with pytest.raises(RegistryError, match="cannot be written: Permission denied"):
            local.set_default("census", 2)
    finally:
        os.chmod(Path(local.url, "census"), stat.S_IRWXU)


def test_a_registry_that_is_a_file(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_text("")
    registry = Registry(path)
    with pytest.raises(RegistryError, match=r"/file cannot be (read|written): "):
        registry.create_model("census")


def test_metrics_of_the_training_are_found(tmp_path: Path, export: Path) -> None:
    from torch_estimator.summary.event_writer import EventWriter

    run = tmp_path / "run"
    shutil.copytree(export, run / "export" / "census" / "1700000000")
    (run / "checkpoint").write_text("{}")
    with EventWriter(str(run / "eval")) as events:
        events.scalars({"auc": 0.75, "loss": float("nan")}, 12)
        events.scalars({"auc": 0.5}, 11)
    registry = Registry(tmp_path / "registry")
    registry.create_model("census")
    info = registry.create_version("census", 1, run / "export" / "census")
    assert (info.run, info.metrics) == (str(run), {"eval": {"auc": 0.75}})
    assert registry.read_version("census", 1) == info
    filled(Registry(tmp_path / "other"), export)
