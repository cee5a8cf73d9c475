"""BestExporter exports a model only if it is strictly better than all before, also after a restart."""

from __future__ import annotations

import json
import math
from typing import Any

import numpy as np
import pytest

from torch_estimator import files
from torch_estimator.errors import InvalidTypeError, InvalidValueError
from torch_estimator.exporters import BestExporter, loss_smaller
from torch_estimator.train.evaluation import EvaluationResult

NAN = math.nan


def _receiver() -> None: ...


def _exported(exporter: BestExporter, estimator: Any, export_path: str, losses: list[float]) -> list[bool]:
    results = [{"loss": np.float32(loss), "global_step": np.int64(1)} for loss in losses]
    return [exporter.export(estimator, export_path, "ckpt", result, False) is not None for result in results]


@pytest.mark.parametrize(
    ("losses", "exported"),
    [
        ([0.5, 0.6, 0.4], [True, False, True]),
        ([0.5, 0.5], [True, False]),
        ([0.5, NAN, 0.4], [True, False, True]),
        ([NAN, NAN, 0.4], [False, False, True]),
        ([math.inf, 0.4], [True, True]),
    ],
)
def test_only_strictly_better_models_are_exported(
    estimator: Any, export_path: str, losses: list[float], exported: list[bool]
) -> None:
    exporter = BestExporter(serving_input_receiver_fn=_receiver)
    assert _exported(exporter, estimator, export_path, losses) == exported


def test_the_best_result_outlives_a_restart(estimator: Any, export_path: str) -> None:
    assert _exported(BestExporter("best", _receiver), estimator, export_path, [60, 50]) == [True, True]
    again = BestExporter("best", _receiver)
    assert _exported(again, estimator, export_path, [100, 10, 20]) == [False, True, False]
    best = json.loads(files.read_text(files.join(export_path, "best_eval_result.json")))
    assert best == {"loss": 10.0, "global_step": 1}


def test_the_newest_exports_are_kept(estimator: Any, export_path: str) -> None:
    exporter = BestExporter("best", _receiver, exports_to_keep=2)
    _exported(exporter, estimator, export_path, [5, 4, 3, 2])
    assert files.listdir(export_path) == ["1700000003", "1700000004", "best_eval_result.json"]


def test_a_failed_export_is_not_recorded_as_the_best(estimator: Any, export_path: str) -> None:
    class Failing:
        def export_saved_model(self, *args: Any, **kwargs: Any) -> str:
            raise OSError("disk full")

    exporter = BestExporter("best", _receiver)
    with pytest.raises(OSError, match="disk full"):
        _exported(exporter, Failing(), export_path, [1])
    assert _exported(exporter, estimator, export_path, [2]) == [True]


def test_another_comparison(estimator: Any, export_path: str) -> None:
    def accuracy_larger(best_eval_result: Any, current_eval_result: Any) -> bool:
        return bool(current_eval_result["accuracy"] > best_eval_result["accuracy"])

    exporter = BestExporter("best", _receiver, compare_fn=accuracy_larger)
    results = [{"accuracy": 0.5, "curve": np.ones(2), "note": b"x"}, {"accuracy": 0.4}, {"accuracy": 0.6}]
    exported = [exporter.export(estimator, export_path, "ckpt", result, False) for result in results]
    assert [path is not None for path in exported] == [True, False, True]


def test_a_missing_loss_is_reported(estimator: Any, export_path: str) -> None:
    for best, current, which in (({}, {"loss": 1}, "best"), ({"loss": 1}, {"accuracy": 1}, "current")):
        with pytest.raises(InvalidValueError, match=f"the {which} evaluation result has no 'loss'"):
            loss_smaller(best, current)
    exporter = BestExporter("best", _receiver)
    _exported(exporter, estimator, export_path, [1])
    with pytest.raises(InvalidValueError, match=r"it has \['accuracy'\]; give BestExporter a compare_fn"):
        exporter.export(estimator, export_path, "ckpt", {"accuracy": 0.5}, False)


@pytest.mark.parametrize(
    "text", ["{", "[]", '{"loss": null}', '{"loss": [1.0]}', '{"loss": "low"}', f'{{"loss": {10**400}}}']
)
def test_a_damaged_best_result_is_reported(estimator: Any, export_path: str, text: str) -> None:
    files.makedirs(export_path)
    files.write_atomic(files.join(export_path, "best_eval_result.json"), text.encode())
    with pytest.raises(InvalidValueError, match=r"best_eval_result\.json is damaged: .*remove it to begin anew"):
        _exported(BestExporter("best", _receiver), estimator, export_path, [1])


def test_the_comparison_must_take_both_results() -> None:
    with pytest.raises(InvalidValueError, match=r"compare_fn must take exactly .*, but got None"):
        BestExporter("best", _receiver, compare_fn=None)  # type: ignore[arg-type]
    with pytest.raises(InvalidTypeError, match="but got 'loss'"):
        BestExporter("best", _receiver, compare_fn="loss")  # type: ignore[arg-type]
    with pytest.raises(InvalidValueError, match=r"but got a function of \(a, b\)"):
        BestExporter("best", _receiver, compare_fn=lambda a, b: True)


def test_the_event_file_pattern_of_tf_estimator_is_accepted() -> None:
    BestExporter("best", _receiver, event_file_pattern="eval/*.tfevents.*")


def test_an_evaluation_of_nothing_is_never_the_best(
    estimator: Any, export_path: str, caplog: pytest.LogCaptureFixture
) -> None:
    exporter = BestExporter("best", _receiver)
    empty = EvaluationResult([("global_step", 1), ("loss", 0.0)], batches=0)
    assert exporter.export(estimator, export_path, "ckpt", empty, True) is None
    assert caplog.messages == ["best: nothing was exported, because the evaluation input was empty."]
    assert _exported(exporter, estimator, export_path, [0.5]) == [True]
    assert exporter.export(estimator, export_path, "ckpt", empty, True) is None
    assert _exported(exporter, estimator, export_path, [0.4]) == [True]


def _higher_auc(best_eval_result: Any, current_eval_result: Any) -> bool:
    return bool(best_eval_result["auc"] < current_eval_result.get("auc"))


def test_a_metric_of_nan_is_never_the_best(estimator: Any, export_path: str, caplog: pytest.LogCaptureFixture) -> None:
    exporter = BestExporter("best", _receiver, compare_fn=_higher_auc)

    def exported(auc: float, loss: float) -> bool:
        result = {"auc": auc, "loss": loss, "global_step": 1}
        return exporter.export(estimator, export_path, "ckpt", result, False) is not None

    assert not exported(NAN, 0.1)
    assert caplog.messages == [
        "best: nothing was exported, because a metric that decides which model is the best is NaN."
    ]
    # A metric that is not compared may be NaN.
    assert exported(0.7, NAN)
    assert not exported(NAN, 0.1)
    assert not exported(0.6, 0.1)
    assert exported(0.8, 0.1)


def test_a_best_result_of_nan_from_an_earlier_version_is_beaten(estimator: Any, export_path: str) -> None:
    files.makedirs(export_path)
    files.write_atomic(files.join(export_path, "best_eval_result.json"), b'{"loss": NaN, "global_step": 1}')
    assert _exported(BestExporter("best", _receiver), estimator, export_path, [0.5]) == [True]
