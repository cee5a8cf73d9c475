from __future__ import annotations

import io
import json
import math
import shutil
from pathlib import Path
from typing import Any

import pytest

from torch_estimator.cli import main
from torch_estimator.cli.predict import table


@pytest.fixture
def instances(tmp_path: Path) -> Any:
    """Writes a file of instances and returns its path."""

    def write(content: str | bytes) -> str:
        path = tmp_path / "instances"
        path.write_bytes(content if isinstance(content, bytes) else content.encode())
        return str(path)

    return write


def run(capsys: pytest.CaptureFixture[str], *arguments: str | Path) -> tuple[int, str, str]:
    status = main(["predict", *map(str, arguments)])
    captured = capsys.readouterr()
    return status, captured.out, captured.err


def test_json_instances_give_gclouds_table(exports: Path, instances: Any, capsys: pytest.CaptureFixture[str]) -> None:
    path = instances('{"word": "a", "x": 1}\n{"x": [2.5], "word": ["é"], "key": "k"}\n')
    status, out, err = run(capsys, "--model-dir", exports / "raw" / "1700000000", "--json-instances", path)
    assert (status, err) == (0, "")
    lines = out.splitlines()
    assert lines[0].split() == [
        *("ALL_CLASS_IDS", "ALL_CLASSES", "CLASS_IDS", "CLASSES", "LOGISTIC", "LOGITS", "PROBABILITIES")
    ]
    assert len(lines) == 3
    assert lines[1].startswith("[0, 1]         ['<=50K', '>50K']  [")
    assert all(line == line.rstrip() for line in lines)


def test_the_json_format(exports: Path, instances: Any, capsys: pytest.CaptureFixture[str]) -> None:
    path = instances('{"word": "a", "x": 1}\n')
    _, out, _ = run(capsys, "--model-dir", exports / "raw", "--json-instances", path, "--format", "json")
    (prediction,) = json.loads(out)["predictions"]
    assert prediction["all_classes"] == ["<=50K", ">50K"]
    assert prediction["classes"] == [prediction["all_classes"][prediction["class_ids"][0]]]
    assert isinstance(prediction["logistic"][0], float)


def test_nan_and_infinity_are_written_as_tensorflow_serving_does(
    exports: Path, tmp_path: Path, instances: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    # The export of an earlier version does not say that a premade head made its outputs, which must not be NaN then.
    shutil.copytree(exports / "raw", tmp_path / "raw")
    (signatures,) = (tmp_path / "raw").rglob("signatures.json")
    content = json.loads(signatures.read_text())
    del content["head_outputs"]
    signatures.write_text(json.dumps(content))
    path = instances('{"word": "a", "x": NaN}\n')
    _, out, _ = run(capsys, "--model-dir", tmp_path / "raw", "--json-instances", path, "--format", "json")
    assert '"logits": [\n        NaN\n      ]' in out
    assert math.isnan(json.loads(out)["predictions"][0]["logits"][0])


def test_receivers_agree(exports: Path, instances: Any, capsys: pytest.CaptureFixture[str]) -> None:
    objects = instances('{"word": "a", "x": 1}\n')
    answers = [run(capsys, "--model-dir", exports / name, "--json-instances", objects)[1] for name in ("raw", "json")]
    rows = instances("17,a,1\n")
    predict = ("--signature-name", "predict")
    answers.append(run(capsys, "--model-dir", exports / "csv", "--text-instances", rows, *predict)[1])
    assert answers[0] == answers[1] == answers[2] != ""


def test_text_instances_are_rows(exports: Path, instances: Any, capsys: pytest.CaptureFixture[str]) -> None:
    path = instances('17,a,1\r\n18,"b,c",2')
    status, out, _ = run(capsys, "--model-dir", exports / "csv", "--text-instances", path)
    assert status == 0
    assert [line.split()[0] for line in out.splitlines()] == ["CLASSES", "['<=50K',", "['<=50K',"]


def test_a_bare_value_will_do_for_a_single_input(
    exports: Path, instances: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    path = instances('"17,a,1"\n{"b64": "MTcsYSwx"}\n{"inputs": "17,a,1"}\n')
    status, out, _ = run(capsys, "--model-dir", exports / "csv", "--json-instances", path, "--format", "json")
    assert status == 0
    first, *others = json.loads(out)["predictions"]
    assert others == [first, first]


def test_a_request_names_its_signature(exports: Path, instances: Any, capsys: pytest.CaptureFixture[str]) -> None:
    path = instances(json.dumps({"signature_name": "regression", "instances": ["1,a,2"]}))
    status, out, _ = run(capsys, "--model-dir", exports / "csv", "--json-request", path)
    assert status == 0
    assert out.splitlines()[0] == "OUTPUTS"


def test_a_byte_order_mark_is_skipped(exports: Path, instances: Any, capsys: pytest.CaptureFixture[str]) -> None:
    path = instances(b'\xef\xbb\xbf{"word": "a", "x": 1}')
    assert run(capsys, "--model-dir", exports / "raw", "--json-instances", path)[0] == 0


def test_the_standard_input(exports: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(b'{"word": "a", "x": 1}\n')))
    assert run(capsys, "--model-dir", exports / "raw", "--json-instances", "-")[0] == 0


@pytest.mark.parametrize(
    ("model", "option", "content", "problem"),
    [
        ("raw", "json-instances", "", "No valid instance was found in input file."),
        ("raw", "json-instances", '{"word": "a", "x": 1}\n\n', "line 2: an instance must not be an empty line."),
        ("raw", "json-instances", "{word: 1}\n", "line 1: input instances are not in JSON format"),
        ("raw", "json-instances", b"\xff\n", "is not UTF-8 text: byte 0 is 0xff."),
        (
            "raw",
            "json-instances",
            '{"word": "a", "x": 1, "k": 2}',
            "line 1: Unexpected tensor name: k; the inputs are word, x, key.\n",
        ),
        (
            *("raw", "json-instances", '{"word": "a", "x": 1}\n{"word": "a"}'),
            "instances, line 2: Input x was missing in at least one input instance.\n",
        ),
        ("raw", "json-instances", '{"word": "a", "x": "1"}', "Input x takes numbers, but has '1' (str)."),
        ("raw", "json-instances", '{"word": "a", "x": null}', "Input x takes numbers, but has None (NoneType)."),
        (
            "raw",
            "json-instances",
            '{"word": "a", "x": [1, 2]}',
            "Input x must be a single value, but has the shape [2].",
        ),
        ("raw", "json-instances", '{"word": {"a": 1}, "x": 1}', "Input word takes values, but has the object"),
        ("raw", "json-instances", '{"word": {"b64": "?"}, "x": 1}', "Input word has '?', which is not base64."),
        ("raw", "json-instances", "3", "an instance must be an object with the inputs"),
        ("raw", "text-instances", "a,1", "an instance must be an object with the inputs"),
        ("raw", "json-request", "{", "is not JSON"),
        ("raw", "json-request", "[]", "must be an object with a list called 'instances'."),
        ("raw", "json-request", '{"instances": [], "signature_name": 3}', "has the signature_name 3"),
        ("csv", "text-instances", "1,a\n", "line 1: the CSV row has 2 fields where 3 are expected"),
        ("nothing", "json-instances", '{"x": 1}', "there is no export in"),
    ],
)
def test_bad_input_is_one_sentence_and_status_2(
    exports: Path,
    instances: Any,
    capsys: pytest.CaptureFixture[str],
    model: str,
    option: str,
    content: str | bytes,
    problem: str,
) -> None:
    directory = exports / model
    if directory.exists():
        directory /= "1700000000"
    status, out, err = run(capsys, "--model-dir", directory, f"--{option}", instances(content))
    assert (status, out) == (2, "")
    assert err.startswith("estimator: error: ")
    assert err.count("\n") == 1
    assert problem in err


@pytest.mark.parametrize(
    ("model", "option", "good", "bad", "problem"),
    [
        ("raw", "json-instances", '{"word": "a", "x": 1}', '{"word": "a", "x": "y"}', "Input x takes numbers, but has"),
        ("raw", "json-instances", '{"word": "a", "x": 1}', '{"word": 3, "x": 1}', "Input word takes strings, but has"),
        (
            "json",
            "json-instances",
            '{"word": "a", "x": 1}',
            '{"word": "a", "x": [1, 2]}',
            "Input x must be a single value, but has the shape [2].",
        ),
        (
            "csv",
            "text-instances",
            "1,a,2",
            "1,a",
            "the CSV row has 2 fields where 3 are expected (id, word, x): '1,a'.",
        ),
        ("csv", "text-instances", "1,a,2", "1,a,old", "the CSV row has 'old' in the column 'x', which takes a number."),
        ("csv", "text-instances", '1,"a",2', '1,"a,2', "the CSV row is not quoted properly"),
        ("csv", "json-instances", '"1,a,2"', '{"inputs": "1,a"}', "the CSV row has 2 fields where 3 are expected"),
    ],
)
# The second place lies behind the first batch.
@pytest.mark.parametrize("line", [3, 5000])
def test_an_instance_that_does_not_fit_is_named_by_file_and_line(
    exports: Path,
    instances: Any,
    capsys: pytest.CaptureFixture[str],
    model: str,
    option: str,
    good: str,
    bad: str,
    problem: str,
    line: int,
) -> None:
    path = instances("\n".join([*[good] * (line - 1), bad, good]))
    status, out, err = run(capsys, "--model-dir", exports / model / "1700000000", f"--{option}", path)
    assert (status, out) == (2, "")
    assert err.startswith(f"estimator: error: {path}, line {line}: {problem}")


def test_an_instance_of_a_request_is_named_by_its_number(
    exports: Path, instances: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    path = instances('{"instances": [{"word": "a", "x": 1}, {"word": "a", "x": null}]}')
    _, _, err = run(capsys, "--model-dir", exports / "raw" / "1700000000", "--json-request", path)
    assert err == f"estimator: error: {path}, instance 2: Input x takes numbers, but has None (NoneType).\n"


def test_a_file_that_is_not_there(exports: Path, capsys: pytest.CaptureFixture[str]) -> None:
    status, _, err = run(capsys, "--model-dir", exports / "raw" / "1700000000", "--json-instances", "/nothing")
    assert (status, err) == (2, "estimator: error: /nothing cannot be read: No such file or directory.\n")


@pytest.mark.parametrize("arguments", [[], ["--json-instances", "a", "--text-instances", "b"], ["--format", "xml"]])
def test_usage_errors_are_status_2(exports: Path, capsys: pytest.CaptureFixture[str], arguments: list[str]) -> None:
    with pytest.raises(SystemExit) as stopped:
        main(["predict", "--model-dir", str(exports), *arguments])
    assert stopped.value.code == 2
    assert "usage: estimator predict" in capsys.readouterr().err


def test_columns_of_a_table_are_sorted_and_aligned() -> None:
    rows = [{"b": [1.5], "a": ["x"]}, {"b": [0.25], "a": ["long text"]}]
    assert table(rows) == "A              B\n['x']          [1.5]\n['long text']  [0.25]"


def test_rows_that_are_not_objects_have_no_heading() -> None:
    assert table([[1, 2], "x"]) == "[1, 2]\nx"
