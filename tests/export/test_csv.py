from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.export.models import Built, Raw, assert_same, model_of
from tests.programs import CENSUS_NAMES as NAMES
from torch_estimator import feature_column as fc
from torch_estimator import serving_input
from torch_estimator.errors import InvalidValueError
from torch_estimator.export.exported_model import ExportedModel

FIELDS = ["id", "word", "x", "count", "y"]


@pytest.fixture(scope="module")
def built() -> Built:
    columns = [
        fc.categorical_column_with_hash_bucket("word", 1000),
        fc.categorical_column_with_hash_bucket("count", 1000, dtype="int64"),
        fc.numeric_column("x"),
        fc.numeric_column("y", default_value=2.5),
    ]
    return model_of(columns, [])


@pytest.fixture(scope="module")
def model(built: Built, tmp_path_factory: pytest.TempPathFactory) -> ExportedModel:
    receiver = serving_input.csv(FIELDS, built.transform, defaults={"count": 7})
    return built.export(tmp_path_factory.mktemp("csv"), receiver)


def expected(built: Built, word: str, x: float, count: int, y: float) -> Any:
    raw = {
        "word": np.array([word], object),
        "x": np.array([x], np.float32),
        "count": np.array([count]),
        "y": np.array([y], np.float32),
    }
    return built.predict(raw)["logits"]


@pytest.mark.parametrize(
    ("row", "values"),
    [
        ("1,a,1,2,3", ("a", 1, 2, 3)),
        ("1,,-1.5e1,-3,.5", ("", -15, -3, 0.5)),
        (",héllo, 1 ,2,", ("héllo", 1, 2, 2.5)),
        ("1,a,1,,", ("a", 1, 7, 2.5)),
        ('1,"a,b ""c""",1,2,3', ('a,b "c"', 1, 2, 3)),
        ('"1","","1","2","3"', ("", 1, 2, 3)),
        ("1, a ,inf,2,3", (" a ", float("inf"), 2, 3)),
    ],
)
def test_rows(built: Built, model: ExportedModel, row: str, values: Any) -> None:
    answer = model.predict({"csv_row": [row]})
    np.testing.assert_allclose(answer["logits"], expected(built, *values), atol=1e-6)


def test_the_input_may_have_any_name(built: Built, tmp_path: Path) -> None:
    model = built.export(tmp_path, serving_input.csv(FIELDS, built.transform, input_name="line"))
    assert list(model.signature("predict").inputs) == ["line"]
    answer = model.predict({"line": ['1,"a",1,2,3', "1,a,1,2,3"]})
    np.testing.assert_allclose(answer["logits"], np.repeat(expected(built, "a", 1, 2, 3), 2, 0), atol=1e-6)
    with pytest.raises(InvalidValueError, match=r"^input_name must not be empty"):
        serving_input.csv(FIELDS, built.transform, input_name="")


def test_quoted_and_plain_rows_in_one_batch(model: ExportedModel) -> None:
    answer = model.predict({"csv_row": ['1,"a",1,2,3', "1,a,1,2,3"]})["logits"]
    assert answer[0] == answer[1]


@pytest.mark.parametrize(
    ("row", "problem"),
    [
        ("1,a,1,2", "row 2 of the CSV input has 4 fields where 5 are expected"),
        ("1,a,1,2,3,4", "row 2 of the CSV input has 6 fields where 5 are expected"),
        ("", "row 2 of the CSV input has 1 fields where 5 are expected"),
        ('1,"a,1,2,3', "row 2 of the CSV input is not quoted properly"),
        ("1,a,12abc,2,3", "row 2 of the CSV input has '12abc' in the column 'x', which takes a number"),
        ("1,a,1,2.5,3", "row 2 of the CSV input has '2.5' in the column 'count', which takes an integer"),
        ("1,a,,2,3", "row 2 of the CSV input has nothing in the column 'x', which takes a number and has no default"),
    ],
)
def test_bad_rows_are_one_sentence(model: ExportedModel, row: str, problem: str) -> None:
    with pytest.raises(InvalidValueError, match=f"^{problem}") as error:
        model.predict({"csv_row": ["1,a,1,2,3", row]})
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("row", ["1,a,1,2", "1,a,1,2,3,4", '1,"a",1,2,3', "1,a,12abc,2,3", "1,a,1,2.5,3", "1,a,,2,3"])
def test_other_servers_fail_on_bad_rows_rather_than_answer(model: ExportedModel, row: str) -> None:
    """Return the predictions of the graph alone, without `ExportedModel`, as Triton runs it."""
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    session = onnxruntime.InferenceSession(f"{model.directory}/model.onnx", options, providers=["CPUExecutionProvider"])
    assert [value.name for value in session.get_inputs()] == ["csv_row"]
    good = "1,a,1,2,3"
    session.run(None, {"csv_row": np.array([good, good], object)})
    with pytest.raises(Exception, match="ONNXRuntimeError"):
        session.run(None, {"csv_row": np.array([good, row], object)})


def test_census_rows(census_model: Built, census_rows: Raw, shared_data: Path, tmp_path: Path) -> None:
    receiver = serving_input.csv(NAMES, census_model.transform)
    lines = (shared_data / "census" / "adult.test.csv").read_text().splitlines()
    answer = census_model.export(tmp_path, receiver).predict({"csv_row": lines})
    assert_same(census_model.predict(census_rows), answer)
