"""Results of evaluations, read back from their event files."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from torch_estimator import files
from torch_estimator.summary.event_files import events_of

Results = dict[int, dict[str, float]]


@dataclass(frozen=True, slots=True)
class _Entry:
    """One event: numbers at a step, or (None) that a run began anew there."""

    step: int
    values: dict[str, float] | None


class EvaluationReader:
    """Reads the evaluations in a directory; reading again reads only the files that are new or have grown.

    Args:
        eval_dir: A path or URL.
    """

    def __init__(self, eval_dir: files.PathLike) -> None:
        self.eval_dir = files.as_url(eval_dir)
        self._read: dict[str, tuple[int, list[_Entry]]] = {}

    def results(self) -> Results:
        """Metrics by step, in the order of steps; of several evaluations of one step the last."""
        for name, size in files.sizes(self.eval_dir).items():
            known = self._read.get(name)
            if "tfevents" in name and (known is None or known[0] != size):
                self._read[name] = (size, list(_entries(files.join(self.eval_dir, name))))
        results: Results = {}
        for name in sorted(self._read):
            for entry in self._read[name][1]:
                if entry.values is None:
                    results = {step: values for step, values in results.items() if step < entry.step}
                else:
                    results.setdefault(entry.step, {}).update(entry.values)
        return dict(sorted(results.items()))


def evaluation_since(eval_dir: files.PathLike, checkpoint: str, since: float) -> dict[str, float] | None:
    """Reads the metrics of one checkpoint back, as float32; None where none were written.

    Args:
        eval_dir: A path or URL.
        checkpoint: Its name.
        since: When the evaluation began, in seconds since 1970.
    """
    for name in files.listdir(eval_dir):
        if "tfevents" in name:
            of = ""
            for event in events_of(files.join(eval_dir, name)):
                for value in event.summary.value:
                    if value.tag == "checkpoint_path" and event.wall_time >= since:
                        of = files.basename(value.tensor.string_val[0].decode())
                metrics = {value.tag: value.simple_value for value in event.summary.value}
                if of == checkpoint and "loss" in metrics:
                    return dict(sorted({**metrics, "global_step": event.step}.items()))
    return None


def _entries(path: str) -> Iterator[_Entry]:
    for event in events_of(path):
        if event.HasField("session_log") and event.session_log.status == event.session_log.START:
            yield _Entry(event.step, None)
        values = {value.tag: value.simple_value for value in event.summary.value if value.HasField("simple_value")}
        if values:
            yield _Entry(event.step, values)
