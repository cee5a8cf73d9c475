"""The headers of steps are precompiled once, and what is compiled with them is the same."""

from __future__ import annotations

import subprocess
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from tests.line_jobs import line, points
from torch_estimator.compile import generated_code, precompiled_headers, step_compiler
from torch_estimator.compile.building import STEP_LIBRARY
from torch_estimator.compile.environment import machine
from torch_estimator.compile.precompiled_headers import PrecompiledHeaders, precompile

COMPILER = ["g++", "-std=c++17", f"-I{Path(torch.__file__).parent / 'include'}"]
# Seconds. This is far longer than needed; the test waits so long only if it fails.
SOON = 120.0


def wait_for_headers(cache: Path) -> None:
    until = time.monotonic() + SOON
    while not list((cache / "headers").glob("[!.]*")):
        assert time.monotonic() < until
        time.sleep(0.05)


def test_a_step_is_the_same_with_precompiled_headers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def compile_noting(command: list[str], **settings: Any) -> subprocess.CompletedProcess[str]:
        # With -H, the compiler lists the headers that it reads.
        done: subprocess.CompletedProcess[str] = subprocess.run([*command, "-H"], **settings)
        (tmp_path / "read").write_text(done.stderr)
        return done

    monkeypatch.setattr(generated_code, "subprocess", SimpleNamespace(run=compile_noting))
    monkeypatch.setattr(
        step_compiler, "PrecompiledHeaders", lambda facts: PrecompiledHeaders(facts, tmp_path / "cache")
    )
    code = []
    for name in ("without", "with"):
        monkeypatch.setenv("TORCH_ESTIMATOR_CACHE_DIR", str(tmp_path / name))
        line(tmp_path / f"{name} model", compile=True).train(lambda: points().repeat(), steps=20)
        (library,) = (tmp_path / name).rglob(STEP_LIBRARY)
        # The library also names the temporary directory that it was compiled in.
        only_code = ["objcopy", "-O", "binary", "--only-section=.text", str(library), str(tmp_path / name / "code")]
        subprocess.run(only_code, check=True)
        code.append((tmp_path / name / "code").read_bytes())
        # An exclamation mark stands before precompiled headers.
        assert ("! " in (tmp_path / "read").read_text()) == (name == "with")
        wait_for_headers(tmp_path / "cache")
    assert len(code[0]) > 1000
    assert code[0] == code[1]


def test_headers_are_of_a_machine_and_options(tmp_path: Path) -> None:
    headers = PrecompiledHeaders(machine(), tmp_path)
    assert headers.arguments(COMPILER) == []
    process = headers.make(COMPILER)
    assert process is not None
    assert process.wait(SOON) == 0
    assert headers.arguments(COMPILER)[0] == "-include"
    assert headers.arguments([*COMPILER, "-O2"]) == []
    assert PrecompiledHeaders((), tmp_path).arguments(COMPILER) == []


def test_headers_that_cannot_be_made_leave_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(subprocess.CalledProcessError):
        precompile(str(tmp_path), "key", [*COMPILER, "--no-such-option"])
    # Then there is no room.
    monkeypatch.setattr(precompiled_headers, "_LEAST_FREE", 2**60)
    precompile(str(tmp_path), "key", COMPILER)
    assert [one.name for one in (tmp_path / "headers").iterdir()] == [".key.lock"]


def test_where_the_compiler_refuses_headers_the_step_is_compiled_without(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Other(PrecompiledHeaders):
        def arguments(self, command: Any) -> list[str]:
            return ["-include", str(tmp_path / "missing.h")]

    calls = tmp_path / "calls"

    def compile_noting(command: list[str], **settings: Any) -> subprocess.CompletedProcess[str]:
        done: subprocess.CompletedProcess[str] = subprocess.run(command, **settings)
        with calls.open("a") as file:
            print(done.returncode, "-std=c++17" in command, file=file)
        return done

    monkeypatch.setattr(generated_code, "subprocess", SimpleNamespace(run=compile_noting))
    monkeypatch.setattr(step_compiler, "PrecompiledHeaders", lambda facts: Other(facts, tmp_path / "cache"))
    line(tmp_path / "model", compile=True).train(lambda: points().repeat(), steps=20)
    assert calls.read_text().splitlines() == ["1 True", "0 True"]
