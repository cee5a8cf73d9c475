"""The documentation is true: the README's program and commands run, and what is named is there."""

import functools
import importlib.util
import os
import re
import shlex
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest

import torch_estimator as te
from examples.census import sample
from examples.census.trainer import task
from torch_estimator import cli

ROOT = Path(__file__).resolve().parent.parent
README = (ROOT / "README.md").read_text(encoding="utf-8")
DOCUMENTS = (
    "README.md",
    "CONTRIBUTING.md",
    *(str(path.relative_to(ROOT)) for path in sorted(ROOT.glob("examples/*/README.md"))),
)
# Named where the lines before install them, or are themselves the way to do so.
INSTALLED_BY_HAND = {"build", "pip"}

OWN_PROGRAMS = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]["scripts"]


def commands(document: str) -> Iterator[list[str]]:
    """The words of every shell command in a document: in blocks line by line, in the text between backquotes."""
    text = (ROOT / document).read_text(encoding="utf-8")
    for block in re.findall(r"```bash\n(.*?)```", text, flags=re.DOTALL):
        for line in block.replace("\\\n", " ").splitlines():
            yield shlex.split(line, comments=True)
    prose = re.sub(r"```.*?```", "", text, flags=re.DOTALL)
    for code in re.findall(r"`([^`\n]+)`", prose):
        # Bare names of tools, such as `estimator show`, are names there; python and pip are meant to be typed.
        if re.match(r"([A-Z_]+=\S+ )?(scripts/|\.venv/|(python|pip)[0-9.]*( |$))", code):
            yield shlex.split(code)


COMMANDS = sorted({(document, *words) for document in DOCUMENTS for words in commands(document)})


def test_the_census_program_trains_evaluates_and_exports(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    program, _ = re.findall(r"```python\n(.*?)```", README, flags=re.DOTALL)
    monkeypatch.chdir(tmp_path)
    best = sample.write("runs/census-sample")

    names: dict[str, object] = {}
    exec(compile(program, "README.md", "exec"), names)

    metrics, (export,) = names["metrics"], names["exports"]  # type: ignore[misc]
    assert metrics["global_step"] == 5000
    assert best.best_accuracy - 0.05 < metrics["accuracy"] <= best.best_accuracy + 0.01
    assert te.ExportedModel.load(export).signatures
    assert "accuracy 0." in capsys.readouterr().out

    (tmp_path / "examples").symlink_to(ROOT / "examples")
    all_commands = [words[1:] for words in commands("README.md") if words[0] == ".venv/bin/estimator"]
    serve, ask = (words for words in all_commands if words[0] == "serve" or "--server" in words)
    about_it = [words for words in all_commands if words not in (serve, ask)]
    of_registry = ["check", "models", "versions", "versions", "versions", "manifest"]
    assert [words[0] for words in about_it] == ["show", "predict", "predict-batch", *of_registry, "local", "make-key"]
    assert [cli.main(words) for words in about_it if words[0] != "local"] == [0] * 10
    capsys.readouterr()
    # The server runs in a process of its own, at a port that is free on any machine.
    server = [sys.executable, "-m", "torch_estimator.cli", *serve, "--port", "0"]
    with subprocess.Popen(
        server, stdout=subprocess.PIPE, text=True, env={**os.environ, "PYTHONPATH": str(ROOT)}
    ) as served:
        assert served.stdout is not None
        address = re.search(r"at (http://\S+)", served.stdout.readline())
        try:
            assert address is not None
            assert cli.main([word.replace("http://127.0.0.1:8501", address[1]) for word in ask]) == 0
        finally:
            served.terminate()
    assert served.returncode == 0
    answers = capsys.readouterr().out
    local = next(words for words in about_it if words[0] == "predict")
    assert cli.main(local) == 0
    assert capsys.readouterr().out == answers


def test_the_program_of_an_own_module_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    _, program = re.findall(r"```python\n(.*?)```", README, flags=re.DOTALL)
    monkeypatch.chdir(tmp_path)

    names: dict[str, object] = {}
    exec(compile(program, "README.md", "exec"), names)

    assert names["metrics"]["rmse"] < 0.3  # type: ignore[index]
    prediction = names["model"].predict({"size": [[1.0]], "color": [["red"]], "key": [[7]]})  # type: ignore[attr-defined]
    assert prediction["predictions"].item() == pytest.approx(8.0, abs=0.5)
    assert prediction["key"].item() == 7


@pytest.mark.parametrize("program", re.findall(r"```python\n(.*?)```", README, flags=re.DOTALL), ids=["census", "own"])
def test_a_cluster_that_cannot_be_ends_the_programs_with_one_sentence_and_status_2(
    program: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("TF_CONFIG", "{")
    with pytest.raises(SystemExit) as raised:
        exec(compile(program, "README.md", "exec"), {})
    assert raised.value.code == 2
    assert capsys.readouterr().err.startswith("error: TF_CONFIG is not JSON (")


@pytest.mark.parametrize("command", COMMANDS, ids=" ".join)
def test_every_command_can_be_run_without_activating_anything(command: tuple[str, ...]) -> None:
    _, *words = command
    while re.fullmatch(r"[A-Z_]+=.*", words[0]):
        del words[0]
    program, *arguments = words
    if program.startswith(("scripts/", "examples/")):
        assert os.access(ROOT / program, os.X_OK)
        return
    assert program.startswith(".venv/bin/")
    name = Path(program).name
    if name != "python":
        assert name in OWN_PROGRAMS or (Path(sys.executable).parent / name).exists()
    elif not arguments:
        return
    elif arguments[0] == "-m":
        module = arguments[1]
        assert module in INSTALLED_BY_HAND or importlib.util.find_spec(module)
        if module == "examples.census.trainer.task":
            task.parse(arguments[2:])
    else:
        # A program of the README's own, which says where to save it.
        assert f"Save it as `{arguments[0]}`" in README


def test_the_documents_have_commands() -> None:
    for document in DOCUMENTS:
        assert any(command[0] == document for command in COMMANDS)


@pytest.mark.parametrize("document", DOCUMENTS)
def test_every_script_and_file_that_is_named_is_there(document: str) -> None:
    text = (ROOT / document).read_text(encoding="utf-8")
    for script in set(re.findall(r"scripts/[a-z-]+", text)):
        assert os.access(ROOT / script, os.X_OK), script
    for link in re.findall(r"\]\(([^)]+)\)", text):
        assert (ROOT / document).parent.joinpath(link).exists(), link


def test_every_benchmark_can_be_found_in_contributing() -> None:
    text = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
    for benchmark in (ROOT / "benchmarks").glob("[!_]*.py"):
        assert f"`scripts/bench {benchmark.stem}`" in text


def test_what_the_port_table_says_differs_does_differ() -> None:
    row = next(line for line in README.splitlines() if line.startswith("| `tf.estimator.RunConfig`"))
    dropped = re.findall(r"`([a-z_]+)`", row.partition("graphs needed")[2])
    assert len(dropped) == 5
    for setting in dropped:
        with pytest.raises(TypeError, match=setting):
            te.RunConfig(**{setting: None})
    for name in ("begin", "before_step", "after_step", "end"):
        assert callable(getattr(te.Hook, name))
        assert f"`{name}`" in README
    optimizer = functools.partial(te.optim.Ftrl, lr=0.1)
    assert "`optimizer=functools.partial(te.optim.Ftrl, lr=0.1)`" in README
    age = te.feature_column.numeric_column("age")
    ages = te.data.Dataset.from_arrays({"age": [20.0, 60.0]}, labels=["<=50K", ">50K"]).batch(2)
    model = te.LinearClassifier([age], optimizer=optimizer, label_vocabulary=["<=50K", ">50K"])
    model.train(lambda: ages, steps=1)
    assert {type(prediction["classes"][0]) for prediction in model.predict(lambda: ages)} == {str}
