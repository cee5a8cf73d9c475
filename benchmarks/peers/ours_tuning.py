"""A study of this package from a YAML file, as `estimator jobs submit` runs it."""

from __future__ import annotations

import datetime
import re
import subprocess
import sys
import time

import torch_estimator as te
from benchmarks.peers import tuning_report
from benchmarks.peers.tuned_census import RATES

_YAML = """\
trainingInput:
  hyperparameters:
    goal: MAXIMIZE
    hyperparameterMetricTag: auc
    maxTrials: {trials}
    maxParallelTrials: {parallel}
    enableTrialEarlyStopping: {stops}
    params:
"""
_PARAMETER = """\
    - parameterName: {name}
      type: DOUBLE
      minValue: {low}
      maxValue: {high}
      scaleType: UNIT_LOG_SCALE
"""
_REACHED = re.compile(r"(\S+) .*trial \d+ (?:paused|ended) at step (\d+): auc = (\S+)")


def main() -> None:
    """Submit the study, and wait for its end."""
    args = tuning_report.parser(__doc__).parse_args()
    trainer = args.folder / "trainer"
    trainer.mkdir()
    (trainer / "task.py").write_text("from benchmarks.peers.tuned_census import main\n\nmain()\n")
    text = _YAML.format(trials=args.trials, parallel=args.parallel, stops=str(args.first_rung > 0).lower())
    text += "".join(_PARAMETER.format(name=name, low=low, high=high) for name, (low, high) in RATES.items())
    (args.folder / "hptuning.yaml").write_text(text)
    tuning_report.adopt_children()
    began = time.time()
    command = [sys.executable, "-m", "torch_estimator.cli", "jobs"]
    options = ["--config", "hptuning.yaml", "--job-dir", "out", "--module-name", "trainer.task"]
    program = ["--data", str(args.data), "--steps", str(args.steps), "--save-every", str(args.first_rung or args.steps)]
    line = [*command, "submit", "training", "study", *options, "--package-path", "trainer", "--stream-logs"]
    subprocess.run([*line, "--", *program], cwd=args.folder, check=True, stdout=sys.stderr)
    cpu = tuning_report.children_cpu()
    log = (args.folder / "jobs" / "study" / "logs" / "launcher.log").read_text()
    reached = []
    for at, step, auc in _REACHED.findall(log):
        reached.append([datetime.datetime.fromisoformat(at).timestamp() - began, int(step), float(auc)])
    shown = subprocess.run([*command, "trials", "study"], cwd=args.folder, check=True, capture_output=True, text=True)
    print(shown.stdout, file=sys.stderr)
    tuning_report.report("torch-estimator", te.__version__, began, reached, cpu=cpu)


if __name__ == "__main__":
    main()
