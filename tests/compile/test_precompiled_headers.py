"""The headers of steps are precompiled once, and what is compiled with them is the same."""

from __future__ import annotations

import subprocess
import time
from pathlib import Path

import pytest
import torch

from tests.jobs import line, points
from torch_estimator.compile import step_compiler
from torch_estimator.compile.building import STEP_LIBRARY
from torch_estimator.compile.precompiled_headers import HEADERS, PrecompiledHeaders

TORCH = Path(torch.__file__).parent
COMPILER = ["g++", "-std=c++17", f"-I{TORCH / 'include'}"]
# Seconds. This is far longer than needed; the test waits so long only if it fails.
SOON = 120.0


def test_the_compiler_reads_precompiled_headers_made_with_its_options(tmp_path: Path) -> None:
    headers = PrecompiledHeaders(tmp_path / "cache")
    assert headers.arguments(COMPILER) == []
    headers.make()
    arguments = headers.arguments(COMPILER)
    assert arguments[0] == "-include"
    source = tmp_path / "step.cpp"
    source.write_text(f'#include "{HEADERS}"\nstd::vector<float> losses;\n')
    checked = [*COMPILER, *arguments, "-H", "-fsyntax-only", str(source)]
    read = subprocess.run(checked, check=True, capture_output=True, text=True).stderr
    # With -H, the compiler marks a precompiled header that it has read with an exclamation mark.
    assert f"! {arguments[1]}.gch" in read
    assert headers.arguments([*COMPILER, "-O2"]) == []


def test_a_step_is_the_same_with_precompiled_headers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made = []

    def headers() -> PrecompiledHeaders:
        made.append(PrecompiledHeaders(tmp_path / "cache"))
        return made[-1]

    monkeypatch.setattr(step_compiler, "PrecompiledHeaders", headers)
    code = []
    for name in ("without", "with"):
        monkeypatch.setenv("TORCH_ESTIMATOR_CACHE_DIR", str(tmp_path / name))
        line(tmp_path / f"{name} model", compile=True).train(lambda: points().repeat(), steps=20)
        (library,) = (tmp_path / name).rglob(STEP_LIBRARY)
        # The library also names the temporary directory that it was compiled in.
        only_code = ["objcopy", "-O", "binary", "--only-section=.text", str(library), str(tmp_path / name / "code")]
        subprocess.run(only_code, check=True)
        code.append((tmp_path / name / "code").read_bytes())
        until = time.monotonic() + SOON
        while not list((tmp_path / "cache" / "headers").glob("[!.]*")):
            # A process of its own makes them after the first step.
            assert time.monotonic() < until
            time.sleep(0.05)
    assert len(made) == 2
    assert len(code[0]) > 1000
    assert code[0] == code[1]
