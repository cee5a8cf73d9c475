"""Exports of modules that take sequences of any length: recurrent networks, and taggers."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from tests.serving.models import app_of, ask_all
from torch_estimator import serving_input
from torch_estimator.errors import InvalidTypeError, InvalidValueError
from torch_estimator.export.exported_model import ExportedModel
from torch_estimator.export.torch_callable import describe_problem
from torch_estimator.export.warmup import read_warmup
from torch_estimator.export.writer import write_export
from torch_estimator.heads.function_head import FunctionHead
from torch_estimator.serving.tensors import InputTensor, read_columns
from torch_estimator.web.errors import RequestError

DRAW = np.random.default_rng(0)


class Frames(nn.Module):
    """Model that takes vectors, convolves and reads them with a two-way LSTM, and gives one row of logits."""

    def __init__(self) -> None:
        super().__init__()
        self.convolution = nn.Conv1d(2, 4, 3, padding=1)
        self.recurrent = nn.LSTM(4, 5, num_layers=2, batch_first=True, bidirectional=True)
        self.logits = nn.Linear(10, 3)

    def forward(self, features: dict[str, Tensor]) -> Tensor:
        outputs, _ = self.recurrent(self.convolution(features["frames"].transpose(1, 2)).transpose(1, 2))
        last = torch.arange(outputs.shape[0]), features["frames_length"] - 1
        return self.logits(outputs[last]) + features["bias"]


class Tagger(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.words = nn.Embedding(20, 4)
        self.recurrent = nn.GRU(4, 5, batch_first=True)

    def forward(self, features: dict[str, Tensor]) -> dict[str, Tensor]:
        outputs, last = self.recurrent(self.words(features["words"]))
        return {"tags": outputs.argmax(-1), "last": last[0]}


def export(base: Path, module: nn.Module, like: Any, rows: Sequence[Any] = (), **options: Any) -> ExportedModel:
    return ExportedModel.load(
        write_export(
            base,
            module=module,
            transform=None,
            head=FunctionHead(None, None, None),
            receiver=serving_input.like(like, **options),
            rows=rows,
        )
    )


@pytest.fixture(scope="module")
def frames(tmp_path_factory: pytest.TempPathFactory) -> tuple[Frames, ExportedModel]:
    module = Frames()
    like = {
        "frames": np.zeros((1, 5, 2), np.float32),
        "frames_length": np.array([5]),
        "bias": np.zeros((1, 1), np.float32),
    }
    base = tmp_path_factory.mktemp("frames")
    return module, export(base, module, like, variable=["frames"])


@pytest.fixture(scope="module")
def tagger(tmp_path_factory: pytest.TempPathFactory) -> tuple[Tagger, ExportedModel]:
    module = Tagger()
    module({"words": torch.tensor([[1, 2]])})
    rows = [{"words": [1, 2, 3]}, {"words": [4]}, {"words": [5, 6, 7]}]
    base = tmp_path_factory.mktemp("tagger")
    return module, export(base, module, {"words": np.array([[1, 2]])}, rows, variable=("words",))


def test_rows_of_any_length_get_the_answer_that_each_gets_alone(frames: tuple[Frames, ExportedModel]) -> None:
    module, model = frames
    assert list(model.signature("predict").inputs) == ["frames", "bias"]
    rows = [DRAW.normal(size=(length, 2)).astype(np.float32) for length in (3, 1, 40, 3, 2)]
    bias = np.arange(5, dtype=np.float32)
    answer = model.predict({"frames": [row.tolist() for row in rows], "bias": bias})["output"]
    for row, number, given in zip(rows, bias, answer, strict=True):
        features = {"frames": torch.from_numpy(row)[None], "frames_length": torch.tensor([len(row)])}
        with torch.no_grad():
            expected = module({**features, "bias": torch.tensor([[number]])})
        np.testing.assert_allclose(given, expected[0].numpy(), atol=1e-6)
    together = model.predict({"frames": np.stack([rows[0], rows[3]]), "bias": bias[[0, 3]]})["output"]
    np.testing.assert_allclose(together, answer[[0, 3]], atol=1e-6)


class Plain(nn.Module):
    """RNNs with each setting, called with and without first states."""

    def __init__(self) -> None:
        super().__init__()
        self.words = nn.Embedding(20, 3)
        self.first = nn.RNN(3, 4, num_layers=2, batch_first=True, bidirectional=True, dropout=0.5)
        self.second = nn.RNN(8, 4, nonlinearity="relu", bias=False)

    def forward(self, features: dict[str, Tensor]) -> Tensor:
        outputs, last = self.first(self.words(features["words"]))
        return self.second(outputs.transpose(0, 1), last[:1])[1][0]


def test_an_rnn_is_exported_for_any_length(tmp_path: Path) -> None:
    module = Plain()
    model = export(tmp_path, module, {"words": np.array([[1, 2]])}, variable=["words"])
    module.eval()
    for length in (1, 2, 17):
        words = DRAW.integers(0, 20, (3, length))
        with torch.no_grad():
            expected = module({"words": torch.from_numpy(words)}).numpy()
        np.testing.assert_allclose(model.predict({"words": words})["output"], expected, atol=1e-5)


def test_requests_of_different_lengths_that_arrive_together(tagger: tuple[Tagger, ExportedModel]) -> None:
    model = tagger[1]
    rows = [[1, 2, 3], [4], [5, 6]] * 3
    with app_of(Path(model.directory).parent) as app:
        requests = [("/v1/models/small:predict", {"instances": [{"words": row}]}) for row in rows]
        answers = [answer.json()["predictions"][0] for answer in ask_all(app, requests)]
    for row, answer in zip(rows, answers, strict=True):
        expected = model.predict({"words": [row]})
        assert answer["tags"] == expected["tags"][0].tolist()
        np.testing.assert_allclose(answer["last"], expected["last"][0], atol=1e-6)


@pytest.mark.parametrize("length", [1, 2, 17])
def test_an_output_may_be_as_long_as_its_sequence(tagger: tuple[Tagger, ExportedModel], length: int) -> None:
    module, model = tagger
    words = DRAW.integers(0, 20, (3, length))
    answer = model.predict({"words": words.tolist()})
    with torch.no_grad():
        expected = module({"words": torch.from_numpy(words)})
    assert answer["tags"].tolist() == expected["tags"].tolist()
    np.testing.assert_allclose(answer["last"], expected["last"].numpy(), atol=1e-6)
    assert model.signature("predict").outputs["tags"].shape == (-1, -1)


def test_warmup_instances_are_rows_that_can_be_predicted_together(tagger: tuple[Tagger, ExportedModel]) -> None:
    recorded = [one for one in read_warmup(tagger[1].directory) if one.signature_name == "predict"]
    assert [one.instance["words"] for one in recorded] == [[1, 2, 3], [5, 6, 7]]


@pytest.mark.parametrize(
    ("words", "problem"),
    [
        ([[1], []], r"has the empty list in row 1 \(from 0\)"),
        ([[1], [None]], "takes integers, but has None"),
        ([[[1]]], "takes a list of values per row, but has lists of lists"),
        ([[1], [1, 2]], "has 1 values in row 0 and 2 in row 1, but the output tags is as long as its row"),
    ],
)
def test_bad_sequences_are_refused(tagger: tuple[Tagger, ExportedModel], words: Any, problem: str) -> None:
    with pytest.raises(InvalidValueError, match=f"^Input words {problem}"):
        tagger[1].check({"words": words})


def test_frames_of_another_width_are_refused(frames: tuple[Frames, ExportedModel]) -> None:
    signature = frames[1].signature("predict")
    with pytest.raises(InvalidValueError, match=r"^Input frames must have the shape \[rows, 2\], but has \[1, 3\]"):
        frames[1].check({"frames": [[[1, 2, 3]]], "bias": [0]})
    bias = InputTensor("bias", "FP32", [1, 1], [0.0])
    columns, _ = read_columns([InputTensor("frames", "FP32", [1, 3, 2], [0.0] * 6), bias], signature)
    assert np.shape(columns["frames"]) == (1, 3, 2)
    with pytest.raises(RequestError, match=r"must have the shape \[rows, any, 2\]"):
        read_columns([InputTensor("frames", "FP32", [1, 2, 3], [0.0] * 6), bias], signature)


@pytest.mark.parametrize(
    ("variable", "error", "problem"),
    [
        ("words", InvalidTypeError, r"must be a list of names, such as \['words'\], but got 'words'"),
        (["word"], InvalidValueError, r"has 'word', which is no feature; the features are \['words', 'bias'\]"),
        (["bias"], InvalidValueError, "has 'bias', which has one value per row"),
    ],
)
def test_bad_names_of_sequences(variable: Any, error: type[Exception], problem: str) -> None:
    with pytest.raises(error, match=f"^variable {problem}"):
        serving_input.like({"words": torch.zeros(1, 9), "bias": torch.zeros(1)}, variable=variable)


def test_a_module_that_fixes_the_length_is_told_what_to_write() -> None:
    error = ValueError("tracing inferred a static shape of 4 for dimension inputs['x'].shape[1].")
    problem = describe_problem(error, nn.Linear(2, 3), lambda: None)
    assert problem.endswith("the length of a sequence: take x.shape[0], not len(x)")
