"""``--config`` while a server runs: read again when it changes and at SIGHUP, and no request fails meanwhile."""

from __future__ import annotations

import asyncio
import json
import os
import pty
import re
import signal
import subprocess
import sys
import threading
import urllib.error
import urllib.request
import weakref
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from scripts.storms.load import Load
from scripts.storms.server import ServerProcess
from tests.serving.models import MANY_SECS, ROOT, app_of, ask, break_export, predict, wait_until, write_export
from torch_estimator.registry import Registry
from torch_estimator.serving.catalog import Version
from torch_estimator.serving.options import ServedModel, ServingOptions, VersionPolicy
from torch_estimator.serving.page_view import Models
from torch_estimator.serving.reload import Watch, content_of
from torch_estimator.serving.service import PredictionService
from torch_estimator.web.errors import RequestError

PROCESSES = pytest.mark.parametrize("processes", [(), ("--workers", "2")], ids=["one process", "two processes"])
BODY = json.dumps({"signature_name": "one", "instances": [{"x": 1}]}).encode()


def write(path: Path, text: str) -> None:
    """Replace a file at once, as an editor or ``mv`` does."""
    new = path.with_name("new")
    new.write_text(text)
    new.rename(path)


def models(**paths: Path | str) -> str:
    """A file of settings with these models; a path may be followed by further keys."""
    return "models:\n" + "".join(f"- {{name: {name}, path: {path}}}\n" for name, path in paths.items())


class Served:
    """A server of a file of settings, and what its clients see."""

    def __init__(self, server: ServerProcess, config: Path) -> None:
        self.server = server
        self.config = config
        self.url = f"http://127.0.0.1:{server.port}"

    def answer(self, model: str, place: str = "") -> tuple[int, Any]:
        """The status of a prediction for 1, and the factor of the version that answered or the error."""
        request = f"{self.url}/v1/models/{model}{place}:predict"
        try:
            with urllib.request.urlopen(request, BODY, timeout=MANY_SECS) as answer:
                return 200, json.load(answer)["predictions"][0]
        except urllib.error.HTTPError as error:
            with error:
                return error.code, json.load(error)["error"]

    def until(self, model: str, factor: float | None, place: str = "") -> None:
        """Wait until each process answers with a version, or with 404 if there is no factor."""
        wanted = [factor if factor is not None else 404] * 20

        def found() -> list[Any]:
            answers = [self.answer(model, place) for _ in wanted]
            return [value if status == 200 else status for status, value in answers]

        wait_until(lambda: found() == wanted)

    def refuses(self, text: str, problem: str) -> None:
        """Write a file that cannot be served, and wait for the sentence that says so."""
        write(self.config, text)
        self.server.wait_for_line(f"ERROR.*{re.escape(problem)}.*; what is served stays as it is")

    def count(self, pattern: str) -> int:
        return len(re.findall(pattern, self.server.log))


@contextmanager
def serving(config: Path, *arguments: str) -> Iterator[Served]:
    with ServerProcess("--config", str(config), *arguments) as server:
        yield Served(server, config)
        assert "Traceback" not in server.log
        assert server.end() == 0


@pytest.fixture
def config(tmp_path: Path) -> Path:
    for number in range(1, 4):
        write_export(tmp_path / "first" / str(number), number)
    write_export(tmp_path / "second" / "1", 10)
    write_export(tmp_path / "second" / "2", 20)
    return tmp_path / "server.yaml"


@PROCESSES
def test_models_and_versions_change_under_load_and_no_request_fails(config: Path, processes: tuple[str, ...]) -> None:
    first, second = config.parent / "first", config.parent / "second"
    write(config, models(first=first))
    statuses, is_over = set(), threading.Event()

    def ask_second(served: Served) -> None:
        while not is_over.is_set():
            statuses.add(served.answer("second")[0])

    async def scenario(served: Served) -> None:
        load = Load(served.server.port, "first", [{"x": 1.5}], connections=4, reconnecting=0.1, pause_secs=0.01)
        await load.until_answered(20)

        def change() -> None:
            write(config, models(first=first, second=second))
            served.until("second", 20)
            write(config, models(first=f"{first}, policy: 1", second=f"{second}, policy: all"))
            served.until("first", 1)
            served.until("second", 10, "/versions/1")
            write(config, models(first=f"{first}, policy: all, labels: {{stable: 2}}", second=second))
            served.until("first", 2, "/labels/stable")
            served.until("second", None, "/versions/1")
            write(config, models(first=f"{first}, policy: all, labels: {{stable: 3}}"))
            served.until("first", 3, "/labels/stable")
            served.until("second", None)
            # The same numbers in another directory.
            write(config, models(first=second))
            served.until("first", 20)

        asking = asyncio.create_task(asyncio.to_thread(ask_second, served))
        try:
            await asyncio.to_thread(change)
        finally:
            is_over.set()
        await asking
        await load.until_answered(20)
        await load.stop()
        assert load.record.failures == []
        assert statuses == {200, 404}

    with serving(config, *processes) as served:
        asyncio.run(scenario(served))
        assert served.count("has been read again") == 5


@PROCESSES
def test_a_file_that_cannot_be_served_changes_nothing_and_is_read_when_it_changes(
    config: Path, processes: tuple[str, ...]
) -> None:
    first, second = config.parent / "first", config.parent / "second"
    good = models(first=first)
    write(config, good)
    with serving(config, *processes) as served:
        served.refuses("models:\n- name: fir", f"{config}, line 2: the model 'fir' has no directory")
        served.refuses(f"{good}- [", f"{config} is not YAML: ")
        served.refuses(f"{good}max_batch: many", f"{config}, line 3: max_batch must be a whole number, but got 'many'")
        served.refuses(f"{good}\nmax_batch: 0", f"{config}, line 4: max_batch must be at least 1 and finite, but got 0")
        served.refuses("", f"{config}: there is nothing to serve")
        served.refuses(
            models(second=second, third="/nowhere"),
            f"{config}, line 3: the directory of model third, /nowhere, does not exist",
        )
        served.refuses(
            models(first=f"{first}, policy: 7"),
            f"{config}, line 2: the policy 7 chooses none of the versions in {first}, which are: 1, 2, 3",
        )
        served.refuses(
            models(first=f"{first}, labels: {{new: 7}}"),
            f"{config}, line 2: the label new names version 7, not one of the versions in {first}, which are: 1, 2, 3",
        )
        served.refuses(models(first=config), f"{config}: Not a directory")
        config.unlink()
        served.server.wait_for_line(f"{config} cannot be read: .*; what is served stays as it is")
        assert served.answer("first") == (200, 3)
        assert served.answer("second")[0] == 404
        assert served.count("what is served stays as it is") == 10
        write(config, models(second=second))
        served.until("second", 20)
        served.until("first", None)


def test_what_only_a_start_can_change_is_named_and_the_rest_is_applied(config: Path) -> None:
    write(config, models(first=config.parent / "first"))
    with serving(config, "--max-queue", "99") as served:
        write(config, models(second=config.parent / "second") + "port: 1\nidle_secs: 3\nmax_batch: 2\nmax_queue: 98\n")
        served.until("second", 20)
        line = served.server.wait_for_line("WARNING")
        # The command line comes before the file, so its port and queue stay the same.
        assert line.endswith(
            f"{config}: a server takes idle_secs: 3.0 and max_batch: 2 when it starts only, so restart it for that; "
            "the rest of the file is served."
        )


def test_a_file_that_is_reached_by_another_link_or_written_in_pieces_is_read(config: Path) -> None:
    # As Kubernetes changes a ConfigMap: server.yaml -> ..data/server.yaml, and ..data -> a new directory.
    first, second = config.parent / "first", config.parent / "second"
    for number, text in enumerate((models(first=first), models(first=first, second=second))):
        (config.parent / f"data{number}").mkdir()
        (config.parent / f"data{number}" / config.name).write_text(text)
    data = config.parent / "..data"
    data.symlink_to("data0")
    config.symlink_to(f"..data/{config.name}")
    with serving(config) as served:
        (config.parent / "new").symlink_to("data1")
        (config.parent / "new").rename(data)
        served.until("second", 20)
        with open(config, "w") as file:
            for line in models(third=second, first=first).splitlines(keepends=True):
                file.write(line)
                file.flush()
        served.until("third", 20)
        assert served.answer("first") == (200, 3)
        assert served.count("stays as it is") == 0


@PROCESSES
def test_sighup_reads_a_file_that_has_not_changed(config: Path, processes: tuple[str, ...]) -> None:
    late = config.parent / "late"
    write(config, models(first=config.parent / "first"))
    with serving(config, *processes) as served:
        served.refuses(models(late=late), "does not exist")
        write_export(late / "1", 5)
        served.server.process.send_signal(signal.SIGHUP)
        served.until("late", 5)
        for _ in range(20):
            served.server.process.send_signal(signal.SIGHUP)
        served.server.wait_for_line("has been read again", 2)
        assert served.answer("late") == (200, 5)


@PROCESSES
def test_sighup_without_a_file_is_a_sentence(config: Path, processes: tuple[str, ...]) -> None:
    with ServerProcess(f"--model=first={config.parent / 'first'}", *processes) as server:
        server.process.send_signal(signal.SIGHUP)
        server.wait_for_line("SIGHUP has the file of --config read again, and this server has none")
        assert Served(server, config).answer("first") == (200, 3)
        assert server.end() == 0


@PROCESSES
def test_a_server_ends_with_its_terminal(config: Path, processes: tuple[str, ...]) -> None:
    ours, theirs = pty.openpty()
    command = [sys.executable, "-m", "torch_estimator.cli", "serve", "--port", "0", *processes]
    code = "import fcntl, os, sys, termios; fcntl.ioctl(0, termios.TIOCSCTTY); os.execv(sys.argv[1], sys.argv[1:])"
    process = subprocess.Popen(
        [sys.executable, "-c", code, *command, f"--model=first={config.parent / 'first'}"],
        stdin=theirs,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
        cwd=ROOT,
        text=True,
    )
    try:
        os.close(theirs)
        assert process.stdout is not None and "Serving" in process.stdout.readline()
        os.close(ours)
        assert process.wait(MANY_SECS) == -signal.SIGHUP
    finally:
        process.kill()
        process.communicate()


def test_the_first_process_after_a_change_serves_what_the_file_says(config: Path) -> None:
    write(config, models(first=config.parent / "first"))
    with serving(config, "--min-nodes", "0", "--max-nodes", "1") as served:
        write(config, models(second=config.parent / "second"))
        served.server.wait_for_line("has been read again")
        assert served.server.nodes() == []
        assert served.answer("second") == (200, 20)
        assert served.answer("first")[0] == 404


def test_a_new_model_that_cannot_be_loaded_leaves_the_server_ready(config: Path) -> None:
    write(config, models(first=config.parent / "first"))
    break_export(config.parent / "broken" / "1")
    with serving(config) as served:
        write(config, models(first=config.parent / "first", broken=config.parent / "broken"))
        served.server.wait_for_line("Cannot load version 1 of model broken")
        with urllib.request.urlopen(f"{served.url}/v2/health/ready") as answer:
            assert answer.status == 200
        write_export(config.parent / "broken" / "2", 7)
        served.until("broken", 7)


def test_a_removed_model_answers_what_runs_and_frees_its_memory(config: Path) -> None:
    second = ServedModel(name="second", path=str(config.parent / "second"))
    began, goes_on = threading.Event(), threading.Event()

    async def ask_and_remove(service: PredictionService, version: Version) -> Any:
        run = version.batcher._run

        def slow(*arguments: Any) -> Any:
            began.set()
            goes_on.wait(MANY_SECS)
            return run(*arguments)

        # More than the event loop runs itself.
        version.batcher._run, version.batcher._fast_rows = slow, 0
        answer = asyncio.create_task(service.predict(version, "bare", {"x": [2.0]}, 1))
        await asyncio.to_thread(began.wait, MANY_SECS)
        service.apply(ServingOptions(models=(second,)))
        assert not service.catalog.has("small")
        goes_on.set()
        return (await answer).outputs["scaled"].tolist()

    with app_of(config.parent / "first", policy="latest") as app:
        held = weakref.ref(app.service.catalog.version("small").export)
        assert asyncio.run(ask_and_remove(app.service, app.service.catalog.version("small"))) == [6.0]
        wait_until(lambda: held() is None)
        assert predict(app, json.loads(BODY)).status_code == 404


def test_another_path_with_the_same_numbers_is_loaded_before_it_answers(config: Path) -> None:
    with app_of(config.parent / "first") as app:
        wanted = ServedModel(name="small", path=str(config.parent / "second"), policy=VersionPolicy(all=True))
        before = app.service.catalog.version("small", 1)
        seen = set()

        def factor() -> float:
            seen.add(float(predict(app, json.loads(BODY), "/versions/1").json()["predictions"][0]))
            return max(seen)

        app.service.apply(ServingOptions(models=(wanted,)))
        wait_until(lambda: factor() == 10)
        assert seen <= {1.0, 10.0}
        assert app.service.catalog.version("small", 1) is not before
        wait_until(lambda: predict(app, json.loads(BODY), "/versions/3").status_code == 404)


def test_an_error_of_a_path_is_forgotten_with_it(config: Path) -> None:
    break_export(config.parent / "broken" / "1")
    with app_of(config.parent / "first", policy="latest") as app:
        catalog = app.service.catalog

        def serve(name: str) -> None:
            one = ServedModel(name="small", path=str(config.parent / name))
            app.service.apply(ServingOptions(models=(one,)))
            catalog.refresh()

        serve("broken")
        assert "model.onnx" in catalog.state("small").states[1][1]
        serve("first")
        assert not any(problem for _, problem in catalog.state("small").states.values())


def test_the_models_of_a_registry_come_and_go_with_it(config: Path) -> None:
    registry = Registry(config.parent / "registry")
    registry.create_model("kept")
    registry.create_version("kept", 1, config.parent / "second" / "1")
    with app_of(config.parent / "first") as app:
        small = app.service.options.models
        app.service.apply(ServingOptions(models=small, registry=registry.url))
        wait_until(lambda: ask(app, "/v1/models/kept:predict", json.loads(BODY)).status_code == 200)
        # The page offers to change the default of a registry's model, and says why it does not for the other.
        page = Models(app.service)
        assert page.registry_of("kept").url == registry.url
        with pytest.raises(RequestError, match="small is not served from a registry"):
            page.registry_of("small")
        app.service.apply(ServingOptions(models=small, registry=registry.url, policy=VersionPolicy(all=True)))
        assert app.service.catalog.names() == ["kept", "small"]
        app.service.apply(ServingOptions(models=small))
        assert app.service.catalog.names() == ["small"]


def test_a_pipe_is_read_once(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    assert content_of(str(tmp_path / "pipe")) == ""
    assert content_of(str(tmp_path)) == ""
    assert "No such file" in content_of(str(tmp_path / "none"))


def test_a_change_counts_once_two_looks_have_found_the_same(tmp_path: Path) -> None:
    path, calls = tmp_path / "file", []
    path.write_text("old")
    watch = Watch(str(path), "older", 0.01)

    def changed() -> None:
        calls.append(path.read_text())
        raise ValueError("this ends nothing")

    watch.start(changed)
    wait_until(lambda: calls == ["old"])
    path.write_text("new")
    wait_until(lambda: calls == ["old", "new"])
    watch.wake()
    wait_until(lambda: calls == ["old", "new", "new"])
