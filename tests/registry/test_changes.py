"""Changes at the same time, and changes whose writer was killed."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from tests.registry import stores
from tests.registry.conftest import filled
from torch_estimator import files
from torch_estimator.errors import RegistryError
from torch_estimator.registry import Registry
from torch_estimator.registry.changes import ModelHistory
from torch_estimator.registry.manifest import check_files

ROOT = Path(__file__).resolve().parents[2]

RACER = """
import sys
from tests.registry import stores
from torch_estimator.registry import Registry

stores.register()
url, count = sys.argv[1], int(sys.argv[2])
registry = Registry(url)
input()
for number in range(count):
    version = 1 + number % 2
    registry.set_default("census", version)
    state = registry.read_model("census")
    assert state.default in (1, 2) and state.changes > number, state
"""


def started(program: str, *arguments: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", program, *arguments],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        cwd=ROOT,
    )


@pytest.mark.parametrize("kind", ["local", "exclusive"])
def test_processes_that_race_lose_nothing_and_tear_nothing(kind: str, tmp_path: Path, export: Path) -> None:
    stores.register()
    registry = filled(Registry(stores.url(kind, tmp_path)), export)
    before = len(registry.history("census"))
    processes = [started(RACER, registry.url, "100") for _ in range(3)]
    for process in processes:
        assert process.stdin is not None
        process.stdin.write("\n")
        process.stdin.flush()
    for process in processes:
        _, errors = process.communicate()
        assert (process.returncode, errors) == (0, "")

    changes = registry.history("census")
    assert [change.number for change in changes] == list(range(1, before + 301))
    made = [change for change in changes if change.change == "set-default"]
    assert sorted(change.version or 0 for change in made) == [1] * 150 + [2] * 150
    assert all(change.after is not None and change.after.default == change.version for change in made)
    assert registry.read_model("census") == changes[-1].after


def test_threads_that_race_lose_nothing(local: Registry) -> None:
    before = len(local.history("census"))
    threads = [
        threading.Thread(target=lambda: [local.set_default("census", version) for version in (1, 2) * 10])
        for _ in range(4)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [change.number for change in local.history("census")] == list(range(1, before + 81))


def test_without_exclusive_creation_a_warning_is_logged_once(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    stores.register()
    registry = Registry(stores.url("plain", tmp_path))
    for name in ("census", "prices"):
        registry.create_model(name)
    (message,) = caplog.messages
    assert message.startswith(f"Another writer of the registry {registry.url} at the same time would not be noticed: ")


def test_a_slow_writer_of_a_store_cannot_bring_an_old_state_back(tmp_path: Path, export: Path) -> None:
    stores.register()
    registry = filled(Registry(stores.url("exclusive", tmp_path)), export)
    model_file = tmp_path / "registry" / "census" / "model.json"
    old = model_file.read_bytes()
    registry.set_default("census", 2)
    model_file.write_bytes(old)
    assert registry.read_model("census").default == 2
    registry.update("census", 1, labels=["stable"])
    assert registry.read_model("census").default == 2


KILLED = """
import os, signal, sys
from torch_estimator.registry import Registry, changes

def die(*_): os.kill(os.getpid(), signal.SIGKILL)

url, export, place, call = sys.argv[1:]
setattr(changes.ModelHistory, place, die)
registry = Registry(url)
{"create": lambda: registry.create_version("census", 3, export),
 "delete": lambda: registry.delete_version("census", 2),
 "default": lambda: registry.set_default("census", 2)}[call]()
"""


@pytest.mark.parametrize("call", ["create", "delete", "default"])
@pytest.mark.parametrize("place", ["_append", "_carry_out"])
def test_a_killed_change_is_made_as_a_whole_or_not_at_all(local: Registry, export: Path, place: str, call: str) -> None:
    before = local.read_model("census")
    count = len(local.history("census"))
    process = started(KILLED, local.url, str(export), place, call)
    process.communicate()
    assert process.returncode == -signal.SIGKILL
    assert local.read_model("census") == before

    local.update("census", 1, labels=["next"])

    happened = place == "_carry_out"
    assert [change.number for change in local.history("census")] == list(range(1, count + 2 + happened))
    assert (
        local.versions("census")
        == {
            "create": [1, 2, 3] if happened else [1, 2],
            "delete": [1] if happened else [1, 2],
            "default": [1, 2],
        }[call]
    )
    assert local.read_model("census").default == (2 if happened and call == "default" else 1)
    if call == "create" and not happened:
        local.create_version("census", 3, export)
    assert not [path for path in Path(local.url, "census").iterdir() if path.name.startswith("temp-")]
    if call == "create":
        assert sorted(path.name for path in Path(local.version_dir("census", 3)).iterdir()) == sorted(
            path.name for path in Path(local.version_dir("census", 1)).iterdir()
        )


def test_a_version_that_another_process_is_creating_is_refused(local: Registry, export: Path) -> None:
    staged = Path(ModelHistory(local.url, "census").staged(3))
    staged.mkdir()
    with pytest.raises(RegistryError, match="another process is creating version 3"):
        local.create_version("census", 3, export)
    assert staged.exists()
    local.create_version("census", 4, export)
    assert local.versions("census") == [1, 2, 4]


CREATES = """
import os, signal, sys
from tests.registry import stores
from torch_estimator.registry import Registry, registry

stores.register()
registry.copy_version = lambda *_, **__: os.kill(os.getpid(), signal.SIGKILL)
Registry(sys.argv[1]).create_version("census", 1, sys.argv[2])
"""


@pytest.mark.skipif(not os.path.exists("/proc/self/ns/pid"), reason="needs Linux to tell who has ended")
@pytest.mark.parametrize("kind", ["exclusive", "plain"])
def test_a_version_whose_writer_was_killed_can_be_created_on_a_store(kind: str, tmp_path: Path, export: Path) -> None:
    stores.register()
    registry = Registry(stores.url(kind, tmp_path))
    registry.create_model("census")
    killed = started(CREATES, registry.url, str(export))
    killed.communicate()
    assert killed.returncode == -signal.SIGKILL
    registry.create_version("census", 1, export)
    assert check_files(registry.version_dir("census", 1))
    assert sorted(files.listdir(files.join(registry.url, "census"))) == ["1", "history", "model.json"]


@pytest.mark.parametrize("kind", ["local", "exclusive"])
def test_of_those_that_create_the_same_version_one_succeeds(kind: str, tmp_path: Path, export: Path) -> None:
    stores.register()
    registry = Registry(stores.url(kind, tmp_path))
    registry.create_model("census")
    problems = []

    def create() -> None:
        try:
            registry.create_version("census", 1, export)
        except RegistryError as error:
            problems.append(str(error))

    threads = [threading.Thread(target=create) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert registry.versions("census") == [1]
    assert len(problems) == 2
    assert [change.change for change in registry.history("census")] == ["create-model", "create-version"]
    assert not [name for name in files.listdir(files.join(registry.url, "census")) if name.startswith("temp-")]
    assert check_files(registry.version_dir("census", 1))


def test_readers_of_a_folder_need_no_write_permission(local: Registry) -> None:
    for folder, _, _ in os.walk(local.url):
        os.chmod(folder, 0o555)
    assert local.read_model("census").default == 1
    assert json.loads(Path(local.url, "census", "model.json").read_text())["default"] == 1
    for folder, _, _ in os.walk(local.url):
        os.chmod(folder, 0o755)
