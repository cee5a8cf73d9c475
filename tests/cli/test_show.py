from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from tests.export.models import model_of
from torch_estimator import feature_column as fc
from torch_estimator import serving_input
from torch_estimator.cli import main
from torch_estimator.export.writer import write_export

PREDICT = """\
The given SavedModel SignatureDef contains the following input(s):
  inputs['key'] tensor_info:
      dtype: DT_STRING
      shape: (-1, 1)
      name: key
      default: 'nokey'
  inputs['word'] tensor_info:
      dtype: DT_STRING
      shape: (-1, 1)
      name: word
      default: ''
  inputs['x'] tensor_info:
      dtype: DT_FLOAT
      shape: (-1, 1)
      name: x
The given SavedModel SignatureDef contains the following output(s):
  outputs['all_class_ids'] tensor_info:
      dtype: DT_INT32
      shape: (-1, 2)
      name: all_class_ids
  outputs['all_classes'] tensor_info:
      dtype: DT_STRING
      shape: (-1, 2)
      name: all_classes
  outputs['class_ids'] tensor_info:
      dtype: DT_INT64
      shape: (-1, 1)
      name: class_ids
  outputs['classes'] tensor_info:
      dtype: DT_STRING
      shape: (-1, 1)
      name: classes
  outputs['logistic'] tensor_info:
      dtype: DT_FLOAT
      shape: (-1, 1)
      name: logistic
  outputs['logits'] tensor_info:
      dtype: DT_FLOAT
      shape: (-1, 1)
      name: logits
  outputs['probabilities'] tensor_info:
      dtype: DT_FLOAT
      shape: (-1, 2)
      name: probabilities
Method name is: tensorflow/serving/predict
"""


def test_a_signature_is_printed_as_saved_model_cli_does(exports: Path, capsys: pytest.CaptureFixture[str]) -> None:
    directory = exports / "raw" / "1700000000"
    assert main(["show", "--dir", str(directory), "--tag_set", "serve", "--signature_def", "predict"]) == 0
    captured = capsys.readouterr()
    assert captured.out == PREDICT
    assert captured.err == ""


def test_the_newest_export_is_taken_and_named(
    exports: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for name in ("1700000000", "1700000009"):
        shutil.copytree(exports / "raw" / "1700000000", tmp_path / name)
    assert main(["show", "--dir", str(tmp_path), "--signature_def", "predict"]) == 0
    captured = capsys.readouterr()
    assert captured.out == PREDICT
    assert captured.err == f"Using {tmp_path}/1700000009, the newest of 2 in {tmp_path}.\n"


@pytest.mark.parametrize("option", [[], ["--all"]])
def test_all_signatures(exports: Path, capsys: pytest.CaptureFixture[str], option: list[str]) -> None:
    assert main(["show", "--model-dir", str(exports / "csv"), *option]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line for line in lines if line.startswith("signature_def")] == [
        "signature_def['classification']:",
        "signature_def['predict']:",
        "signature_def['regression']:",
        "signature_def['serving_default']:",
    ]
    assert "    inputs['inputs'] tensor_info:" in lines
    assert "        shape: (-1)" in lines
    assert "  Method name is: tensorflow/serving/classify" in lines
    assert "CSV fields: id, word, x; not used: id." in lines
    assert "Hashed with murmur3: word." in lines
    assert any("at global step 12" in line for line in lines)


def test_farmhash_is_reported(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    built = model_of([fc.categorical_column_with_hash_bucket("word", 10, hash_function="farmhash")], [])
    built.transform.restore_seen_strings({"word": ["a", "b"]})
    write_export(
        tmp_path,
        module=built.module,
        transform=built.transform,
        head=built.head,
        receiver=serving_input.raw_features(built.transform),
    )
    assert main(["show", "--dir", str(tmp_path)]) == 0
    out = capsys.readouterr().out
    assert "Hashed with farmhash: word." in out
    assert "The graph knows the farmhash of 2 strings of 'word', those seen in training; others" in out


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        (["--dir", "{}/nothing"], "there is no export in {}/nothing: it does not exist."),
        (
            ["--dir", "{}/raw/1700000000", "--signature_def", "x"],
            "the signature 'x' is not in {}/raw/1700000000, which has predict, serving_default.",
        ),
    ],
)
def test_errors_are_one_sentence_and_status_2(
    exports: Path, capsys: pytest.CaptureFixture[str], arguments: list[str], problem: str
) -> None:
    assert main(["show", *(argument.format(exports) for argument in arguments)]) == 2
    captured = capsys.readouterr()
    assert captured.err == f"estimator: error: {problem.format(exports)}\n"
    assert captured.out == ""


def test_control_characters_are_escaped(exports: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    shutil.copytree(exports / "raw" / "1700000000", tmp_path / "1")
    path = tmp_path / "1" / "signatures.json"
    content = json.loads(path.read_text())
    content["producer"] = "\x1b]0;pwned\x07\x9b31m\ud800é\n"
    content["signatures"]["\x1b[2J"] = content["signatures"]["predict"]
    path.write_text(json.dumps(content))
    assert main(["show", "--dir", str(tmp_path)]) == 0
    out, _ = capsys.readouterr()
    assert "\\x1b]0;pwned\\x07\\x9b31m\\ud800é\n" in out
    assert "signature_def['\\x1b[2J']" in out
    assert main(["show", "--dir", str(tmp_path), "--signature_def", "nothing"]) == 2
    _, err = capsys.readouterr()
    assert ", predict, " in err
    assert not {*"\x1b\x07\x9b"} & {*out, *err}
