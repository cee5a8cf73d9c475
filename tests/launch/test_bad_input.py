"""Every mistake on the command line gives one sentence, and starts no process."""

from __future__ import annotations

import contextlib
import socket
from pathlib import Path

import pytest

from torch_estimator.cli import main

NAMED = ["--module-name", "trainer.task"]


@pytest.fixture(autouse=True)
def _trainer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "trainer").mkdir()
    (tmp_path / "trainer" / "task.py").write_text("raise SystemExit('this should not have been started')")
    (tmp_path / "file").touch()
    monkeypatch.chdir(tmp_path)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (
            [*NAMED, "--package-path", "nowhere"],
            "package_path 'nowhere' does not exist; name the folder of the package",
        ),
        ([*NAMED, "--package-path", "file"], "package_path 'file' is no folder; name the folder of the package"),
        (["--module-name", "trainer.tasks"], "there is no module trainer.tasks in {}: neither {}/trainer/tasks.py nor"),
        (
            ["--module-name", "trainer"],
            "there is no module trainer in {}: neither {}/trainer.py nor {}/trainer/__main__",
        ),
        (["--module-name", "trainer/task.py"], "module_name must be a name with dots, such as trainer.task, but got"),
        (["--module-name", "trainer..task"], "module_name must be a name with dots, such as trainer.task, but got"),
        ([*NAMED, "--worker-count", "0"], "--worker-count can be given together with --distributed only; add it."),
        ([*NAMED, "--evaluator", "--start-port", "1"], "--evaluator, --start-port can be given together with"),
        ([*NAMED, "--distributed", "--worker-count", "-1"], "worker_count must be 0 or more, but got -1."),
        (
            [*NAMED, "--distributed", "--parameter-server-count", "-2"],
            "parameter_server_count must be 0 or more, but got -2.",
        ),
        ([*NAMED, "--distributed", "--start-port", "65534"], "start_port must leave room for 3 ports from 1 to 65535"),
        ([*NAMED, "--distributed", "--start-port", "0"], "start_port must leave room for 3 ports from 1 to 65535"),
        ([*NAMED, "--max-restarts", "-1"], "max_restarts must be 0 or more, but got -1."),
        ([*NAMED, "--finish-secs", "nan"], "finish_secs must be 0 or more, but got nan."),
        ([*NAMED, "--stop-secs", "-0.5"], "stop_secs must be 0 or more, but got -0.5."),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_a_misuse_is_one_sentence(
    options: list[str], said: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["local", "train", *options]) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith(f"estimator: error: {said.replace('{}', str(tmp_path))}")
    assert err.count("\n") == 1


def test_a_port_in_use_is_named(capsys: pytest.CaptureFixture[str]) -> None:
    # Another test may use the port before.
    with contextlib.ExitStack() as servers:
        port, is_alone = 0, False
        while not is_alone:
            port = servers.enter_context(socket.create_server(("", 0))).getsockname()[1]
            with contextlib.suppress(OSError), socket.create_server(("", port - 1)):
                is_alone = True
        assert main(["local", "train", *NAMED, "--distributed", "--start-port", str(port - 1)]) == 2
    assert capsys.readouterr().err == (
        f"estimator: error: port {port}, of those from start_port {port - 1} on, cannot be used: "
        "Address already in use; name another start_port, or leave it out.\n"
    )


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ([], "the following arguments are required: --module-name"),
        ([*NAMED, "--worker-count", "many"], "argument --worker-count: invalid int value: 'many'"),
        ([*NAMED, "--steps", "3"], "unrecognized arguments: --steps; put arguments of the program after --"),
    ],
)
def test_options_that_cannot_be_are_shown_with_the_usage(
    options: list[str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as stopped:
        main(["local", "train", *options])
    assert stopped.value.code == 2
    assert said in capsys.readouterr().err
