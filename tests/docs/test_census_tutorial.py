"""The census tutorial: its code runs, the model is good, and its server answers."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys

import pytest

import torch_estimator as te
from examples.census.trainer import sample
from tests.docs.pages import ROOT, blocks, run_page
from torch_estimator import cli

PAGE = ROOT / "docs" / "tutorials" / "census.md"


@pytest.mark.usefixtures("readers_directory")
def test_the_census_tutorial_runs_learns_and_serves(
    census_sample: sample.Sample, capsys: pytest.CaptureFixture[str]
) -> None:
    run_page(PAGE)

    accuracy = te.read_eval_metrics("runs/census/eval")[3000]["accuracy"]
    assert census_sample.best_accuracy - 0.05 < accuracy <= census_sample.best_accuracy + 0.01
    lines = [line for block in blocks(PAGE) for line in block.code.replace("\\\n", " ").splitlines()]
    commands = [shlex.split(line) for line in lines if line.startswith("estimator ")]
    serve = next(words for words in commands if words[1] == "serve")
    ask = next(words for words in commands if "--server" in words)
    local = next(words for words in commands if words[1] == "predict" and "--model-dir" in words)
    # The server runs in a process of its own, at a port that is free on any machine.
    command = [sys.executable, "-m", "torch_estimator.cli", *serve[1:], "--port", "0"]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment) as server:
        assert server.stdout is not None
        address = re.search(r"at (http://\S+)", server.stdout.readline())
        try:
            assert address is not None
            assert cli.main([word.replace("http://127.0.0.1:8501", address[1]) for word in ask[1:]]) == 0
        finally:
            server.terminate()
    assert server.returncode == 0
    answers = capsys.readouterr().out
    assert cli.main(local[1:]) == 0
    assert capsys.readouterr().out == answers
