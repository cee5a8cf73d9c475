"""Lines of the log: where a cluster is named they begin with the time and the role."""

from __future__ import annotations

import json
import logging
import re

import pytest

from torch_estimator.log import LOG_FORMAT, _Formatter

_TIME = r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}[+-]\d{4}"
_TORCHRUN = {"RANK": "1", "WORLD_SIZE": "2", "MASTER_ADDR": "host", "MASTER_PORT": "29500"}
_BY_HAND = {"TF_CONFIG": json.dumps({"cluster": {"chief": ["a:1"], "ps": ["b:1"]}, "task": {"type": "ps", "index": 0}})}
_SLURM = {"SLURM_PROCID": "0", "SLURM_STEP_NUM_TASKS": "2", "SLURM_JOB_ID": "1", "SLURM_STEP_NODELIST": "node[1-2]"}


def line(monkeypatch: pytest.MonkeyPatch, **environ: str) -> str:
    for name, value in environ.items():
        monkeypatch.setenv(name, value)
    return _Formatter().format(logging.LogRecord("torch_estimator", logging.INFO, "", 0, "step %d", (7,), None))


@pytest.mark.parametrize(("environ", "role"), [(_TORCHRUN, "worker 0"), (_BY_HAND, "ps 0"), (_SLURM, "chief 0")])
def test_lines_of_a_cluster_begin_with_time_and_role(
    environ: dict[str, str], role: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert re.fullmatch(f"{_TIME} {role} INFO:torch_estimator:step 7", line(monkeypatch, **environ))


@pytest.mark.parametrize("environ", [{}, {**_TORCHRUN, LOG_FORMAT: "plain"}, {"TF_CONFIG": "{"}])
def test_other_lines_are_plain(environ: dict[str, str], monkeypatch: pytest.MonkeyPatch) -> None:
    assert line(monkeypatch, **environ) == "INFO:torch_estimator:step 7"


@pytest.mark.parametrize(("environ", "role"), [({}, ""), (_TORCHRUN, "worker 0"), (_BY_HAND, "ps 0")])
def test_lines_may_be_json(environ: dict[str, str], role: str, monkeypatch: pytest.MonkeyPatch) -> None:
    found = json.loads(line(monkeypatch, **environ, **{LOG_FORMAT: "json"}))
    assert re.fullmatch(_TIME, found.pop("time"))
    assert found == {"level": "INFO", "process": role, "message": "step 7"}
