from __future__ import annotations

import json
from pathlib import Path

import pytest

from torch_estimator.cli import main
from torch_estimator.registry import Registry


@pytest.fixture
def registry(exports: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """The path of a registry with the versions 1 and 2 of ``census``, which the environment names."""
    path = tmp_path / "registry"
    filled = Registry(path)
    filled.create_model("census", description="income")
    filled.create_version("census", 1, exports / "raw", description="the first one\nof two")
    filled.create_version("census", 2, exports / "raw")
    monkeypatch.setenv("TORCH_ESTIMATOR_REGISTRY", str(path))
    return str(path)


def test_a_version_is_created_found_and_deleted(
    exports: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    registry = ["--registry", str(tmp_path / "new")]
    assert main(["models", "create", "census", *registry]) == 0
    assert main(["versions", "create", "v1", "--model", "census", "--origin", str(exports / "raw"), *registry]) == 0
    captured = capsys.readouterr()
    assert f"Created version 1 of census in {tmp_path}/new/census/1 (" in captured.out
    assert captured.out.endswith("It is the default.\n")
    assert "the newest of 1 in" in captured.err
    assert main(["versions", "delete", "v1", "--model", "census", *registry]) == 0
    assert main(["models", "delete", "census", *registry]) == 0
    assert main(["models", "list", *registry]) == 0
    assert capsys.readouterr().out.endswith(f"There are no models in {tmp_path}/new.\n")


def test_lists_for_people(registry: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["versions", "update", "2", "--model", "census", "--update-labels", "canary,next"]) == 0
    assert capsys.readouterr().out == "Labels of the model census: canary=2, next=2.\n"
    assert main(["versions", "update", "2", "--model", "census", "--remove-labels", "next"]) == 0
    assert main(["versions", "set-default", "v2", "--model", "census"]) == 0
    assert "Version 2 is the default of the model census.\n" in capsys.readouterr().out

    assert main(["models", "list"]) == 0
    assert capsys.readouterr().out == (
        "NAME    DEFAULT  VERSIONS  LABELS    DESCRIPTION\ncensus  2        2         canary=2  income\n"
    )
    assert main(["versions", "list", "--model", "census"]) == 0
    lines = [line.split() for line in capsys.readouterr().out.splitlines()]
    created = [str(info.created) for info in Registry(registry).read_versions("census")]
    assert lines == [
        ["VERSION", "DEFAULT", "LABELS", "STEP", "CREATED", "DESCRIPTION"],
        ["1", "12", created[0], "the", "first", "one", "…"],
        ["2", "yes", "canary", "12", created[1]],
    ]
    assert main(["models", "describe", "census"]) == 0
    out = capsys.readouterr().out
    assert "default: 2\nversions: 1, 2\nlabels: canary=2\n" in out
    assert "set-default     2        2\n" in out
    assert main(["versions", "describe", "v2", "--model", "census"]) == 0
    out = capsys.readouterr().out
    assert "default: yes\nlabels: canary\n" in out
    signatures = next(line.split() for line in out.splitlines() if line.startswith("signatures.json"))
    assert int(signatures[1]) == Path(registry, "census", "2", "signatures.json").stat().st_size


def test_lists_for_programs(registry: str, capsys: pytest.CaptureFixture[str]) -> None:
    def answer(*arguments: str) -> object:
        assert main([*arguments, "--format", "json"]) == 0
        return json.loads(capsys.readouterr().out)

    models = answer("models", "list")
    assert models == [
        {
            "name": "census",
            "description": "income",
            "created": Registry(registry).read_model("census").created,
            "default": 1,
            "labels": {},
            "versions": [1, 2],
        }
    ]
    model = answer("models", "describe", "census")
    assert isinstance(model, dict) and [change["change"] for change in model["history"]] == [
        "create-model",
        "create-version",
        "create-version",
    ]
    versions = answer("versions", "list", "--model", "census")
    assert isinstance(versions, list) and [(one["version"], one["default"]) for one in versions] == [
        (1, True),
        (2, False),
    ]
    assert answer("versions", "describe", "1", "--model", "census") == versions[0]


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        (["models", "create", "../x"], "the name of a model must be a letter, then letters"),
        (["models", "describe", "wine"], "there is no model 'wine' in the registry {}, which has census;"),
        (["models", "delete", "census"], "the model 'census' has the versions 1, 2; delete them first."),
        (["versions", "delete", "1", "--model", "census"], "1 is the default of the model 'census', which has"),
        (["versions", "set-default", "v7", "--model", "census"], "the model 'census' in {} has no version 7;"),
        (["versions", "set-default", "new", "--model", "census"], "a version must be a whole number from 1"),
        (["versions", "update", "1", "--model", "census"], "no label to add or to remove is given"),
        (["versions", "create", "3", "--model", "census", "--origin", "{}/no"], "there is no export in {}/no"),
    ],
)
def test_errors_are_one_sentence_and_status_2(
    registry: str, capsys: pytest.CaptureFixture[str], arguments: list[str], problem: str
) -> None:
    assert main([argument.format(registry) for argument in arguments]) == 2
    captured = capsys.readouterr()
    assert captured.err.startswith("estimator: error: ") and captured.err.count("\n") == 1
    assert problem.format(registry) in captured.err
    assert captured.out == ""


def test_a_registry_must_be_named(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.delenv("TORCH_ESTIMATOR_REGISTRY", raising=False)
    assert main(["models", "list"]) == 2
    assert capsys.readouterr().err == (
        "estimator: error: no registry is given; name its directory with --registry, or set TORCH_ESTIMATOR_REGISTRY.\n"
    )


def test_control_characters_are_escaped(registry: str, capsys: pytest.CaptureFixture[str]) -> None:
    Registry(registry).create_model("odd", description="\x1b[31mred \udcff")
    for arguments in (["models", "list"], ["models", "describe", "odd"]):
        assert main(arguments) == 0
        assert "\\x1b[31mred ?" in capsys.readouterr().out
