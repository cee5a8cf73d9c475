"""Versions come and go while requests are answered; a registry's default and labels are followed."""

from __future__ import annotations

import asyncio
import gc
import os
import re
import shutil
import threading
import time
import weakref
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.serving.models import (
    MANY_SECS,
    app_of,
    ask,
    break_export,
    error_of,
    predict,
    serving,
    wait_until,
    write_export,
)
from torch_estimator.errors import ExportError, InvalidValueError, RegistryError
from torch_estimator.export.signatures import MODEL_FILE, SIGNATURES_FILE
from torch_estimator.registry import Registry
from torch_estimator.serving import catalog as catalog_module
from torch_estimator.serving.app import ServingApp
from torch_estimator.serving.batcher import BatchLimits
from torch_estimator.serving.catalog import Catalog, DirectorySource, Version
from torch_estimator.serving.options import ServedModel, ServingOptions, VersionPolicy
from torch_estimator.serving.service import PredictionService

LIMITS = BatchLimits(max_batch=8, max_delay_secs=0, max_queue=100, timeout_secs=60)
CONTENT = {"signature_name": "one", "instances": [{"x": 1}]}


@pytest.fixture
def catalog() -> Iterator[Catalog]:
    """A catalog that looks for changes when it is told to."""
    # With a pause between two attempts, the one at the end of a refresh may begin another, as time goes by.
    made = Catalog(LIMITS, threads=1, poll_secs=0.01, retry_secs=0.0)
    yield made
    made.close()


@pytest.fixture
def registry(base: Path, tmp_path: Path) -> Registry:
    """A registry with the model ``small`` of versions 1 to 3, of which 1 is the default."""
    made = Registry(tmp_path / "registry")
    made.create_model("small")
    for version in (1, 2, 3):
        made.create_version("small", version, base / str(min(version, 2)))
    return made


@pytest.fixture
def served(registry: Registry) -> Iterator[ServingApp]:
    """The application of a server of the registry."""
    service = PredictionService(ServingOptions(registry=registry.url, poll_secs=0.05))
    service.start()
    yield ServingApp(service)
    service.close()


def factor(app: Any, place: str = "", model: str = "small") -> float | None:
    """What the version that answers multiplies by; None if there is none."""
    predictions = ask(app, f"/v1/models/{model}{place}:predict", CONTENT).json().get("predictions")
    return None if predictions is None else predictions[0]


def states(app: Any) -> dict[str, str]:
    answer = ask(app, "/v1/models/small").json()
    return {one["version"]: one["state"] for one in answer["model_version_status"]}


def test_a_new_version_takes_over_and_the_old_one_is_let_go(tmp_path: Path) -> None:
    write_export(tmp_path / "1", 1)
    with app_of(tmp_path, "latest") as app:
        assert factor(app) == 1
        write_export(tmp_path / "2", 2)
        wait_until(lambda: factor(app) == 2)
        assert error_of(predict(app, CONTENT, "/versions/1"))[0] == 404
        assert states(app) == {"1": "END", "2": "AVAILABLE"}


def test_a_broken_version_is_refused_and_the_old_one_goes_on(
    tmp_path: Path, catalog: Catalog, caplog: pytest.LogCaptureFixture
) -> None:
    write_export(tmp_path / "1")
    catalog.add("small", DirectorySource(str(tmp_path)), VersionPolicy())
    catalog.refresh()
    break_export(tmp_path / "2")
    for _ in range(3):
        catalog.refresh()
    state = catalog.state("small")
    assert (state.default, list(state.versions)) == (1, [1])
    word, problem = state.states[2]
    assert word == "END"
    assert "cannot be loaded" in problem
    refused = [record.message for record in caplog.records if record.levelname == "ERROR"]
    assert len(refused) == 1
    assert refused[0].startswith(f"Cannot load version 2 of model small: {tmp_path}/2/{MODEL_FILE} cannot be loaded: ")


def test_a_server_that_starts_beside_broken_versions_answers_with_the_newest_that_loads(
    tmp_path: Path, catalog: Catalog
) -> None:
    for version in (1, 2):
        write_export(tmp_path / str(version))
    for version in (3, 4):
        break_export(tmp_path / str(version))
    catalog.add("small", DirectorySource(str(tmp_path)), VersionPolicy())
    # A server takes requests after one refresh, so that it must have fallen back by then.
    catalog.refresh()
    state = catalog.state("small")
    assert (state.default, list(state.versions)) == (2, [2])
    write_export(tmp_path / "5")
    catalog.refresh()
    assert list(catalog.state("small").versions) == [5]


def test_a_version_that_could_not_be_read_for_a_while_is_tried_again(tmp_path: Path, catalog: Catalog) -> None:
    write_export(tmp_path / "1")
    (tmp_path / "1" / MODEL_FILE).rename(tmp_path / "away")
    catalog.add("small", DirectorySource(str(tmp_path)), VersionPolicy())
    catalog.refresh()
    assert catalog.state("small").default is None
    (tmp_path / "away").rename(tmp_path / "1" / MODEL_FILE)

    def is_loaded() -> bool:
        catalog.refresh()
        return catalog.state("small").default == 1

    wait_until(is_loaded)


def test_a_version_that_is_still_being_copied_is_tried_again_soon_and_a_broken_one_rarely(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("torch_estimator.serving.catalog._FIRST_RETRY_SECS", 0.01)
    attempts = []
    write_export(tmp_path / "copied" / "1")
    graph = tmp_path / "copied" / "1" / MODEL_FILE
    whole = graph.read_bytes()

    class Counting(Catalog):
        def _load(self, name: str, *given: Any) -> Version:
            attempts.append(name)
            if name == "copied":
                # The file grows between two attempts, and is whole at the fourth.
                tried = attempts.count("copied")
                graph.write_bytes(whole if tried == 4 else whole[: 10 * tried])
            return super()._load(name, *given)

    break_export(tmp_path / "broken" / "1")
    catalog = Counting(LIMITS, threads=1, poll_secs=0.01, retry_secs=MANY_SECS)
    for name in ("copied", "broken"):
        catalog.add(name, DirectorySource(str(tmp_path / name)), VersionPolicy())

    def has_loaded() -> bool:
        catalog.refresh()
        return catalog.state("copied").default == 1

    try:
        wait_until(has_loaded)
    finally:
        catalog.close()
    assert attempts.count("copied") == 4
    assert catalog.state("broken").default is None
    assert attempts.count("broken") == 2


def test_an_unfinished_export_is_not_loaded(tmp_path: Path, catalog: Catalog) -> None:
    write_export(tmp_path / "1")
    (tmp_path / "2").mkdir()
    (tmp_path / "2" / MODEL_FILE).write_bytes(b"")
    (tmp_path / "temp-3").mkdir()
    catalog.add("small", DirectorySource(str(tmp_path)), VersionPolicy(all=True))
    catalog.refresh()
    assert list(catalog.state("small").states) == [1]


@pytest.mark.parametrize(
    ("policy", "loaded"), [("latest", [3]), ("latest(2)", [2, 3]), ("all", [1, 2, 3]), ("1,v3,9", [1, 3]), ("2", [2])]
)
def test_the_policy_says_which_versions_are_loaded(
    tmp_path: Path, catalog: Catalog, policy: str, loaded: list[int]
) -> None:
    for version in (1, 2, 3):
        write_export(tmp_path / str(version))
    catalog.add("small", DirectorySource(str(tmp_path)), VersionPolicy.parse(policy))
    catalog.refresh()
    state = catalog.state("small")
    assert (sorted(state.versions), state.default) == (loaded, loaded[-1])


@pytest.mark.parametrize("text", ["", "latest(0)", "newest", "latest(x)", "1;2", "-1"])
def test_what_is_no_policy_is_refused(text: str) -> None:
    with pytest.raises(InvalidValueError):
        VersionPolicy.parse(text)


def test_a_single_export_is_a_version(tmp_path: Path, catalog: Catalog) -> None:
    for place, (name, directory) in enumerate({"named": "export", "numbered": "17"}.items()):
        catalog.add(name, DirectorySource(str(write_export(tmp_path / str(place) / directory))), VersionPolicy())
    catalog.refresh()
    assert {name: catalog.state(name).default for name in catalog.names()} == {"named": 1, "numbered": 17}


def test_the_memory_of_an_old_version_is_freed_without_garbage_collection(tmp_path: Path, catalog: Catalog) -> None:
    write_export(tmp_path / "1")
    catalog.add("small", DirectorySource(str(tmp_path)), VersionPolicy())
    catalog.refresh()
    old = weakref.ref(catalog.version("small"))
    write_export(tmp_path / "2")
    gc.disable()
    try:
        catalog.refresh()
        assert old() is None
    finally:
        gc.enable()


def test_a_directory_that_does_not_exist_is_an_error(tmp_path: Path) -> None:
    model = ServedModel(name="small", path=str(tmp_path / "none"))
    with pytest.raises(ExportError, match=r"the directory of model small, .*none, does not exist"):
        PredictionService(ServingOptions(models=(model,)))


def test_all_models_of_a_registry_are_served_and_new_ones_appear(
    served: ServingApp, registry: Registry, base: Path
) -> None:
    assert served.service.catalog.names() == ["small"]
    registry.create_model("other")
    registry.create_version("other", 1, base / "2")
    wait_until(lambda: factor(served, model="other") == 2)
    registry.delete_version("other", 1)
    registry.delete_model("other")
    wait_until(lambda: served.service.catalog.names() == ["small"])


def test_a_changed_default_answers_and_the_newest_is_there_as_well(served: ServingApp, registry: Registry) -> None:
    assert (factor(served), factor(served, "/versions/3")) == (1, 2)
    registry.set_default("small", 3)
    wait_until(lambda: factor(served) == 2)
    # It was loaded already, and the version that nobody needs any more has gone.
    wait_until(lambda: states(served) == {"1": "END", "3": "AVAILABLE"})


def test_a_changed_label_answers(served: ServingApp, registry: Registry) -> None:
    assert error_of(predict(served, CONTENT, "/labels/canary"))[0] == 400
    registry.update("small", 2, labels=["canary"])
    wait_until(lambda: factor(served, "/labels/canary") == 2)
    registry.update("small", 1, labels=["canary"])
    wait_until(lambda: factor(served, "/labels/canary") == 1)
    registry.update("small", 1, remove_labels=["canary"])
    wait_until(lambda: predict(served, CONTENT, "/labels/canary").status_code == 400)


def test_a_default_that_cannot_be_loaded_leaves_the_old_one(registry: Registry, served: ServingApp) -> None:
    (Path(registry.url) / "small" / "2" / MODEL_FILE).write_bytes(b"damaged")
    registry.set_default("small", 2)
    wait_until(lambda: served.service.catalog.state("small").states.get(2, ("", ""))[1] != "")
    assert factor(served) == 1
    registry.set_default("small", 3)
    wait_until(lambda: factor(served) == 2)


def test_some_models_of_a_registry_can_be_named(registry: Registry, base: Path) -> None:
    registry.create_model("other")
    registry.create_version("other", 1, base / "2")
    models = (ServedModel(name="other"), ServedModel(name="third", path=str(base)))
    service = PredictionService(ServingOptions(registry=registry.url, models=models))
    service.start()
    service.close()
    assert service.catalog.names() == ["other", "third"]
    with pytest.raises(RegistryError, match="there is no model 'none'"):
        PredictionService(ServingOptions(registry=registry.url, models=(ServedModel(name="none"),)))
    with pytest.raises(RegistryError, match="does not exist"):
        PredictionService(ServingOptions(registry=f"{registry.url}-none"))


@pytest.mark.parametrize("away", ["", "small"], ids=["registry", "model"])
def test_what_is_away_from_a_registry_for_a_while_is_served_on_and_logged_once(
    registry: Registry,
    catalog: Catalog,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
    away: str,
) -> None:
    monkeypatch.setattr("torch_estimator.serving.catalog._DISCOVER_SECS", 0.0)
    catalog.follow(registry, VersionPolicy())
    catalog.refresh()
    place = Path(registry.url, away)
    os.rename(place, f"{registry.url}-away")
    for _ in range(3):
        catalog.refresh()
    assert catalog.version("small").number == 1
    assert catalog.is_ready
    assert sum(record.levelname == "WARNING" for record in caplog.records) == 1
    os.rename(f"{registry.url}-away", place)
    registry.set_default("small", 3)
    catalog.refresh()
    assert catalog.version("small").number == 3


@pytest.mark.parametrize("export", ["1", ""], ids=["numbered exports", "single export"])
def test_a_directory_that_is_away_for_a_while_changes_nothing(
    tmp_path: Path, catalog: Catalog, caplog: pytest.LogCaptureFixture, export: str
) -> None:
    base = tmp_path / "models"
    write_export(base / export)
    catalog.add("small", DirectorySource(str(base)), VersionPolicy())
    catalog.refresh()
    os.rename(base, tmp_path / "away")
    # Where a mount is lost, an empty directory is left.
    base.mkdir()
    for _ in range(3):
        catalog.refresh()
    assert catalog.version("small").number == 1
    assert catalog.is_ready
    warned = [record.message for record in caplog.records if record.levelname == "WARNING"]
    assert warned == [
        f"The versions of model small cannot be read: {base} had versions and has none now; those that are loaded stay"
    ]
    base.rmdir()
    os.rename(tmp_path / "away", base)
    if export:
        write_export(base / "2")
        catalog.refresh()
        assert catalog.version("small").number == 2


def test_a_new_model_of_a_registry_is_expected_once_it_has_a_version(
    catalog: Catalog, registry: Registry, base: Path
) -> None:
    registry.create_model("new")
    catalog.follow(registry, VersionPolicy())
    catalog.refresh()
    assert catalog.has("new")
    assert catalog.is_ready
    registry.create_version("new", 1, base / "1")
    Path(registry.version_dir("new", 1), MODEL_FILE).write_bytes(b"no graph")
    catalog.refresh()
    assert not catalog.is_ready


def test_a_model_without_versions_is_named_and_the_server_is_not_ready(
    tmp_path: Path, catalog: Catalog, caplog: pytest.LogCaptureFixture
) -> None:
    write_export(tmp_path / "1")
    assert not catalog.is_ready
    catalog.add("small", DirectorySource(str(tmp_path)), VersionPolicy.parse("2,3"))
    for _ in range(2):
        catalog.refresh()
    assert not catalog.is_ready
    assert [record.message for record in caplog.records if record.levelname == "WARNING"] == [
        f"Model small has no version to serve: 2,3 chooses none of the versions in {tmp_path}, which are: 1."
    ]


def test_no_request_fails_while_versions_change_under_load(tmp_path: Path) -> None:
    base = tmp_path / "models"
    write_export(base / "1", 1)
    stop, answers = threading.Event(), []

    def load(url: str) -> None:
        with httpx.Client(base_url=url, timeout=60) as client:
            while not stop.is_set():
                answer = client.post("/v1/models/small:predict", json=CONTENT)
                answers.append((answer.status_code, answer.json()["predictions"][0]))

    with serving("--model", f"small={base}") as server, ThreadPoolExecutor(4) as threads:
        running = [threads.submit(load, server.url) for _ in range(4)]

        def version() -> int:
            return int(httpx.get(f"{server.url}/v1/models/small/metadata").json()["model_spec"]["version"])

        try:
            wait_until(lambda: len(answers) > 0)
            for number in range(2, 7):
                if number % 2:
                    break_export(base / str(number))
                    time.sleep(0.1)
                else:
                    write_export(base / str(number), number)
                    wait_until(lambda: version() == number)  # noqa: B023
        finally:
            stop.set()
        for one in running:
            one.result()
        assert server.end()[0] == 0
    assert {status for status, _ in answers} == {200}
    assert {1.0, 2.0, 4.0} <= {value for _, value in answers}


@pytest.mark.parametrize("threads", [1, 2])
def test_a_fast_large_request_runs_in_the_event_loop_of_one_core_alone(
    base: Path, threads: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows = LIMITS.max_batch + 1
    submitted: list[Any] = []

    class Noting(ThreadPoolExecutor):
        def submit(self, *call: Any, **named: Any) -> Any:
            submitted.append(call)
            return super().submit(*call, **named)

    with Noting(1) as executor:
        # However slow this machine is, it must find the model fast.
        monkeypatch.setattr("torch_estimator.serving.catalog._FAST_SECS", 3600.0)
        version = Version("small", 1, str(base / "1"), threads=threads, limits=LIMITS, executor=executor)
        columns = version.example("one", rows)
        result = asyncio.run(version.batcher.predict(columns, "one", rows))
    assert all(len(array) == rows for array in result.outputs.values())
    assert bool(submitted) == (threads > 1)


class Held:
    """A source of one version, whose load lasts until it is released."""

    def __init__(self, path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.released = threading.Event()
        init = Version.__init__

        def slow(version: Version, model: str, *arguments: Any, **settings: Any) -> None:
            if model == "held":
                self.released.wait(MANY_SECS)
            init(version, model, *arguments, **settings)

        monkeypatch.setattr(Version, "__init__", slow)


def test_a_load_that_lasts_holds_back_no_other_model(
    base: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    held = Held(base, monkeypatch)
    catalog = Catalog(LIMITS, threads=1, poll_secs=0.01, slow_secs=0.05)
    for name in ("held", "other"):
        catalog.add(name, DirectorySource(str(base)), VersionPolicy())
    # On a busy machine the other one is slow, too.
    wait_until(lambda: catalog.refresh() or catalog.state("other").default is not None)
    assert catalog.state("held").default is None
    assert not catalog.is_ready
    (state,) = set(catalog.state("held").states.values()) - {("END", "")}
    assert state[0] == "LOADING" and re.fullmatch(r"it has been loading for \d+ s", state[1])
    catalog.refresh()
    assert len([one for one in caplog.messages if one.startswith("Model held has been loading version ")]) == 1
    held.released.set()
    wait_until(lambda: catalog.refresh() or catalog.is_ready)
    assert {state for state, _ in catalog.state("held").states.values()} <= {"AVAILABLE", "END"}
    assert not catalog.close()


def test_the_end_does_not_wait_for_a_load(base: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    held = Held(base, monkeypatch)
    catalog = Catalog(LIMITS, threads=1, poll_secs=0.01, slow_secs=0.05)
    catalog.add("held", DirectorySource(str(base)), VersionPolicy())
    catalog.start()
    try:
        assert catalog.close()
    finally:
        held.released.set()


@pytest.mark.parametrize("name", [SIGNATURES_FILE, MODEL_FILE])
@pytest.mark.parametrize("kind", ["pipe", "device", "directory"])
def test_what_never_ends_is_no_file_of_an_export(name: str, kind: str, base: Path, tmp_path: Path) -> None:
    copied = tmp_path / "export"
    shutil.copytree(base / "1", copied)
    (copied / name).unlink()
    if kind == "pipe":
        os.mkfifo(copied / name)
    elif kind == "device":
        (copied / name).symlink_to("/dev/zero")
    else:
        (copied / name).mkdir()
    with pytest.raises(ExportError, match=f"{name} must be a file, but is a directory or a special file"):
        Version("small", 1, str(copied), threads=1, limits=LIMITS, executor=ThreadPoolExecutor(1))


def test_a_store_that_does_not_answer_holds_back_no_other_model(
    base: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(catalog_module, "_MOST_SECS_OF_A_LOOK", 0.05)
    answers, find = threading.Event(), DirectorySource.find

    class Stalled(DirectorySource):
        def find(self) -> Any:
            answers.wait(MANY_SECS)
            return find(self)

    made = Catalog(LIMITS, threads=1, poll_secs=0.01)
    made.add("stalled", Stalled(str(base)), VersionPolicy())
    made.add("other", DirectorySource(str(base)), VersionPolicy())
    made.refresh()
    made.refresh()
    assert made.state("other").default is not None and made.state("stalled").default is None
    assert [one for one in caplog.messages if "does not answer" in one] == [
        f"The versions of model stalled are not found: {base} does not answer."
    ]
    answers.set()
    wait_until(lambda: made.refresh() or made.is_ready)
    made.close()
