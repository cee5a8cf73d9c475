"""Checkpoints that TensorFlow 2.15.1 has written evaluate and go on training here as they do there.

`tensorflow_checkpoints.py` makes the checkpoints and the expected metrics.
"""

from __future__ import annotations

import json
import logging
import shutil
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
import torch

import torch_estimator as te
from tests.checkpoint import tensorflow_checkpoints as made
from torch_estimator import feature_column as fc
from torch_estimator.checkpoint.tensor_bundle import TensorBundle, _slice_key
from torch_estimator.checkpoint.tensorflow import read_tensorflow
from torch_estimator.checkpoint.tensorflow_import import import_checkpoint
from torch_estimator.errors import CheckpointError
from torch_estimator.tfrecord.records import masked_crc32c

EXPECTED = json.loads((made.FOLDER / "expected.json").read_text())
FARMHASH = {"hash_function": "farmhash"}
FEATURES, LABELS = made.rows()
COLUMNS = made.columns(fc, FARMHASH)
WIDE, DEEP = COLUMNS["wide"], COLUMNS["deep"]
DENSE = made.dense_columns(fc, FARMHASH)
BOTH = {"linear_feature_columns": WIDE, "dnn_feature_columns": DEEP, "dnn_hidden_units": [4, 3]}
MEAN: dict[str, Any] = {"loss_reduction": "sum_over_batch_size"}
SLOW_ADAGRAD = te.optim.Adagrad(lr=0.001)


def shared() -> list[Any]:
    job, wish = (fc.categorical_column_with_vocabulary_list(key, made.JOBS) for key in ("job", "wish"))
    return [*DEEP, *fc.shared_embeddings([job, wish], 3)]


ESTIMATORS: dict[str, Callable[[str], te.Estimator]] = {
    "v1_combined": partial(te.DNNLinearCombinedClassifier, **BOTH),
    "v1_partitioned": partial(te.DNNLinearCombinedClassifier, **BOTH),
    "v1_linear": partial(te.LinearClassifier, WIDE),
    "v1_linear_dense": partial(te.LinearClassifier, DENSE, optimizer=te.optim.Adam(lr=0.1)),
    "v1_combined_dense": partial(te.DNNLinearCombinedClassifier, **{**BOTH, "linear_feature_columns": DENSE}),
    "v1_batch_norm_shared": lambda folder: te.DNNClassifier([4, 3], shared(), folder, batch_norm=True),
    "v1_adam": lambda folder: te.DNNClassifier([4], DEEP, folder, optimizer=te.optim.Adam(lr=0.01)),
    "v1_momentum": lambda folder: te.DNNRegressor(
        [4], DEEP, folder, optimizer=partial(torch.optim.SGD, lr=0.001, momentum=0.9)
    ),
    "v1_rmsprop": lambda folder: te.DNNClassifier([4], DEEP, folder, optimizer=te.optim.RMSProp(lr=0.01, momentum=0.5)),
    "v1_baseline": te.BaselineClassifier,
    "v2_combined": partial(te.DNNLinearCombinedClassifier, **BOTH, **MEAN),
    "v2_linear_dense": partial(te.LinearRegressor, DENSE, **MEAN),
    "v2_combined_dense": partial(te.v2.DNNLinearCombinedClassifier, **{**BOTH, "linear_feature_columns": DENSE}),
    "v2_linear": partial(te.LinearRegressor, WIDE, **MEAN),
    "v2_batch_norm": lambda folder: te.DNNClassifier(
        [4, 3], DEEP, folder, optimizer=SLOW_ADAGRAD, batch_norm=True, **MEAN
    ),
    "v2_shared": lambda folder: te.DNNClassifier([4], shared(), folder, optimizer=SLOW_ADAGRAD, **MEAN),
    "v2_adam": lambda folder: te.DNNEstimator(
        te.BinaryClassHead(), [4], DEEP, folder, optimizer=te.optim.Adam(lr=0.01, epsilon=1e-7)
    ),
    "v2_momentum": lambda folder: te.DNNRegressor(
        [4], DEEP, folder, optimizer=te.optim.SGD(lr=0.01, momentum=0.9), **MEAN
    ),
    "v2_rmsprop": lambda folder: te.DNNClassifier(
        [4], DEEP, folder, optimizer=partial(torch.optim.RMSprop, lr=0.01, alpha=0.9, eps=1e-7), **MEAN
    ),
    "v2_rmsprop_momentum": lambda folder: te.DNNClassifier(
        [4], DEEP, folder, optimizer=te.optim.RMSProp(lr=0.01, momentum=0.5, epsilon=1e-7), **MEAN
    ),
    "v2_baseline": partial(te.BaselineClassifier, **MEAN),
}
# TensorFlow 2.15's DNNClassifier does not train embeddings that columns share.
RESUMED = [name for name in ESTIMATORS if name != "v2_shared"]
REFUSED = ["v1_centered", "v2_amsgrad"]
CELLS = ["rnn_lstm", "rnn_gru"]
KMEANS = ["kmeans", "kmeans_batches"]


def batches(size: int) -> te.data.Dataset:
    return te.data.Dataset.from_arrays(FEATURES, LABELS).batch(size)


def check_metrics(name: str, steps: int, metrics: dict[str, float], tolerance: float) -> None:
    expected = dict(EXPECTED[name][str(steps)])
    if not name.startswith("v1"):
        # The premade classifiers have v1's formula, as docs/migrate/tf2.md says.
        expected.pop("auc_precision_recall", None)
        metrics = {key: metrics[key] for key in expected}
    assert metrics == pytest.approx(expected, rel=tolerance, abs=tolerance)


@pytest.fixture
def imported(tmp_path: Path) -> Callable[[str], str]:
    def bring(name: str) -> str:
        import_checkpoint(made.FOLDER / name, tmp_path / name)
        return str(tmp_path / name)

    return bring


def test_every_checkpoint_is_tested() -> None:
    elsewhere = {"own_v1", "own_keras", *CELLS, *KMEANS}  # the first two in test_tensorflow_modules.py
    assert set(EXPECTED) == {*ESTIMATORS, *elsewhere, "census", "tensorflow"}
    # The last one is that of a page of the documentation.
    others = {*elsewhere, *REFUSED, "census", "people"}
    assert {path.stem for path in made.FOLDER.glob("*.index")} == {*ESTIMATORS, *others}


@pytest.mark.parametrize("name", ESTIMATORS)
def test_an_imported_model_has_the_metrics_of_tensorflow(name: str, imported: Callable[[str], str]) -> None:
    metrics = ESTIMATORS[name](imported(name)).evaluate(lambda: batches(made.EVAL_BATCH_SIZE))
    check_metrics(name, made.STEPS, metrics, 1e-6)


@pytest.mark.parametrize("name", RESUMED)
def test_a_training_goes_on_as_in_tensorflow(name: str, imported: Callable[[str], str]) -> None:
    estimator = ESTIMATORS[name](imported(name))
    estimator.train(lambda: batches(made.BATCH_SIZE), max_steps=2 * made.STEPS)
    metrics = estimator.evaluate(lambda: batches(made.EVAL_BATCH_SIZE))
    check_metrics(name, 2 * made.STEPS, metrics, 1e-5)


@pytest.mark.parametrize("name", CELLS)
def test_a_recurrent_network_goes_on_as_in_tensorflow(name: str, imported: Callable[[str], str]) -> None:
    texts, labels = made.words()
    data = te.data.Dataset.from_arrays({"words": pa.array(texts)}, labels).batch(made.BATCH_SIZE)
    column = fc.sequence_categorical_column_with_vocabulary_list("words", made.JOBS)
    estimator = te.experimental.RNNClassifier(
        [fc.embedding_column(column, 3)],
        model_dir=imported(name),
        units=[5],
        cell_type=name.removeprefix("rnn_"),
        optimizer=te.optim.Adam(lr=0.01, epsilon=1e-7),
        **MEAN,
    )
    check_metrics(name, made.STEPS, estimator.evaluate(lambda: data), 1e-6)
    estimator.train(lambda: data.repeat(), max_steps=2 * made.STEPS)
    check_metrics(name, 2 * made.STEPS, estimator.evaluate(lambda: data), 1e-5)


@pytest.mark.parametrize("name", KMEANS)
def test_clusters_go_on_as_in_tensorflow(name: str, imported: Callable[[str], str]) -> None:
    estimator = te.experimental.KMeans(
        3,
        feature_columns=[fc.numeric_column("at", shape=(2,))],
        model_dir=imported(name),
        use_mini_batch=name == "kmeans_batches",
    )
    first, second = EXPECTED[name]
    np.testing.assert_allclose(estimator.cluster_centers(), first, rtol=1e-6)
    estimator.train(lambda: te.data.Dataset.from_arrays({"at": made.points()}).batch(60), steps=1)
    if name == "kmeans":
        np.testing.assert_allclose(estimator.cluster_centers(), second, rtol=1e-5)
    else:
        # TensorFlow may read a count before or after adding to it, so its second centers differ from run to run.
        assert estimator.get_variable_value("counts").sum() == 3 + 60


def test_the_census_model_has_the_metrics_of_tensorflow(shared_data: Path, imported: Callable[[str], str]) -> None:
    columns = made.census_columns(fc, FARMHASH)
    estimator = te.DNNLinearCombinedClassifier(
        imported("census"),
        linear_feature_columns=columns["wide"],
        dnn_feature_columns=columns["deep"],
        dnn_hidden_units=[8, 4],
        **MEAN,
    )
    features, labels = made.census_rows("adult.test.csv", made.CENSUS_EVAL_ROWS)
    rows = te.data.Dataset.from_arrays(features, labels).batch(made.CENSUS_EVAL_BATCH_SIZE)
    check_metrics("census", made.CENSUS_STEPS, estimator.evaluate(lambda: rows), 1e-6)


def test_a_warm_start_takes_the_weights_of_tensorflow(tmp_path: Path) -> None:
    for path in (made.FOLDER / "v2_batch_norm", model_dir_of_tensorflow(tmp_path, "v2_batch_norm")):
        estimator = te.DNNClassifier(
            [4, 3], DEEP, batch_norm=True, optimizer=te.optim.SGD(lr=0.0), warm_start_from=path
        )
        estimator.train(lambda: batches(made.BATCH_SIZE), steps=1)
        names = [name for name in estimator.get_variable_names() if name.endswith(("kernel", "bias", "weight"))]
        assert len(names) == 10
        bundle = TensorBundle(made.FOLDER / "v2_batch_norm")
        for name in names:
            theirs = name.replace("dnn/batchnorm_0/weight", "dnn/hiddenlayer_0/batchnorm_0/gamma")
            theirs = theirs.replace("dnn/batchnorm_0/bias", "dnn/hiddenlayer_0/batchnorm_0/beta")
            theirs = theirs.replace("dnn/batchnorm_1/weight", "dnn/hiddenlayer_1/batchnorm_1/gamma")
            theirs = theirs.replace("dnn/batchnorm_1/bias", "dnn/hiddenlayer_1/batchnorm_1/beta")
            np.testing.assert_array_equal(estimator.get_variable_value(name), bundle[theirs].numpy())


def test_a_warm_start_takes_indicators_and_embeddings_of_a_linear_model() -> None:
    path = made.FOLDER / "v1_linear_dense"
    estimator = te.LinearClassifier(DENSE, optimizer=te.optim.SGD(lr=0.0), warm_start_from=path)
    estimator.train(lambda: batches(made.BATCH_SIZE), steps=1)
    names = [name for name in estimator.get_variable_names() if name.startswith("linear/")]
    assert {name.split("/", 2)[2] for name in names} >= {"job_indicator/weights", "job_embedding/embedding_weights"}
    bundle = TensorBundle(path)
    for name in names:
        np.testing.assert_array_equal(estimator.get_variable_value(name), bundle[name].numpy())


def model_dir_of_tensorflow(folder: Path, name: str) -> Path:
    model_dir = folder / "tensorflow"
    model_dir.mkdir()
    for suffix in ("index", "data-00000-of-00001"):
        shutil.copy(made.FOLDER / f"{name}.{suffix}", model_dir / f"model.ckpt-20.{suffix}")
    lines = ['model_checkpoint_path: "/gone/model.ckpt-20"', 'all_model_checkpoint_paths: "/gone/model.ckpt-20"']
    (model_dir / "checkpoint").write_text("\n".join(lines) + "\n")
    return model_dir


def test_a_checkpoint_of_tensorflow_evaluates_where_it_lies() -> None:
    estimator = ESTIMATORS["v2_combined"]("memory://where_it_lies")
    path = str(made.FOLDER / "v2_combined")
    metrics = estimator.evaluate(lambda: batches(made.EVAL_BATCH_SIZE), checkpoint_path=path)
    check_metrics("v2_combined", made.STEPS, metrics, 1e-6)
    assert te.load_checkpoint(path).step == made.STEPS


def test_training_into_the_directory_of_tensorflow_is_an_error(tmp_path: Path) -> None:
    model_dir = model_dir_of_tensorflow(tmp_path, "v2_combined")
    message = r"written by TensorFlow; use another model_dir, into which `estimator import-checkpoint .*ckpt-20 --into"
    with pytest.raises(te.UserError, match=message):
        ESTIMATORS["v2_combined"](str(model_dir)).train(lambda: batches(made.BATCH_SIZE), steps=1)


def test_another_hash_than_tensorflows_is_an_error(imported: Callable[[str], str]) -> None:
    columns = made.columns(fc, {})
    estimator = te.LinearClassifier(columns["wide"], imported("v1_linear"))
    with pytest.raises(te.UserError, match=r"hashes 'job', 'wish' with murmur3; .* hash_function='farmhash'"):
        estimator.evaluate(lambda: batches(made.EVAL_BATCH_SIZE))


def test_another_optimizer_than_tensorflows_is_an_error(imported: Callable[[str], str], tmp_path: Path) -> None:
    estimator = te.DNNClassifier([4], DEEP, imported("v1_adam"))
    message = "5 optimizer variables only in the model: .*/Adagrad', .*10 optimizer variables only in the checkpoint"
    with pytest.raises(te.UserError, match=message):
        estimator.train(lambda: batches(made.BATCH_SIZE), steps=1)
    with pytest.raises(te.UserError, match=r"torch.optim.Adamax cannot go on"):
        te.DNNClassifier([4], DEEP, str(tmp_path / "v1_adam"), optimizer=torch.optim.Adamax).train(
            lambda: batches(made.BATCH_SIZE), steps=1
        )


def test_optimizers_start_anew_with_weights_only(tmp_path: Path) -> None:
    import_checkpoint(made.FOLDER / "v1_adam", tmp_path, weights_only=True)
    estimator = te.DNNClassifier([4], DEEP, str(tmp_path))
    estimator.train(lambda: batches(made.BATCH_SIZE), steps=1)
    accumulator = estimator.get_variable_value("dnn/hiddenlayer_0/bias/Adagrad")
    assert (accumulator >= 0.1).all() and estimator.get_variable_value("global_step") == made.STEPS + 1
    state = te.load_checkpoint(tmp_path).state
    assert "tensorflow" not in state


@pytest.mark.parametrize("name", REFUSED)
def test_state_that_no_optimizer_has_is_left_out_only_when_asked(name: str, tmp_path: Path) -> None:
    message = r"tensors that cannot be imported: .* \(no optimizer here has this state.*\).*; give --allow-unmatched"
    with pytest.raises(te.UserError, match=message):
        import_checkpoint(made.FOLDER / name, tmp_path)
    assert not te.latest_checkpoint(tmp_path)
    import_checkpoint(made.FOLDER / name, tmp_path / "weights", weights_only=True)
    import_checkpoint(made.FOLDER / name, tmp_path / "matched", allow_unmatched=True)
    checkpoints = [te.load_checkpoint(tmp_path / folder) for folder in ("weights", "matched")]
    assert [len(checkpoint.variables) for checkpoint in checkpoints] == [5, 5]
    assert [len(checkpoint.slots) for checkpoint in checkpoints] == [0, 0 if name == "v1_centered" else 10]


def test_an_export_needs_the_strings_that_farmhash_is_to_hash(tmp_path: Path) -> None:
    serving_input = te.serving_input.raw_features(WIDE)
    import_checkpoint(made.FOLDER / "v1_linear", tmp_path / "whole")
    with pytest.raises(te.UserError, match=r"does not know the strings of 'job', 'wish', whose farmhash .*lr=0.0"):
        te.LinearClassifier(WIDE, str(tmp_path / "whole")).export_saved_model(str(tmp_path / "export"), serving_input)
    import_checkpoint(made.FOLDER / "v1_linear", tmp_path / "weights", weights_only=True)
    estimator = te.LinearClassifier(WIDE, str(tmp_path / "weights"), optimizer=te.optim.SGD(lr=0.0))
    estimator.train(lambda: batches(made.EVAL_BATCH_SIZE), steps=made.STEPS)
    path = estimator.export_saved_model(str(tmp_path / "export"), serving_input)
    exported = te.ExportedModel.load(path).predict(FEATURES, "predict")["logits"]
    predicted = estimator.predict(lambda: batches(320), predict_keys="logits", yield_single_examples=False)
    np.testing.assert_allclose(exported, next(iter(predicted))["logits"], atol=1e-5)
    check_metrics("v1_linear", made.STEPS, {**estimator.evaluate(lambda: batches(64)), "global_step": 20}, 1e-6)


def test_an_untrained_shared_embedding_is_told(
    imported: Callable[[str], str], caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING, "torch_estimator"):
        ESTIMATORS["v2_shared"](imported("v2_shared")).train(lambda: batches(made.BATCH_SIZE), steps=1)
    assert "job_wish_shared_embedding/embedding_weights: its optimizer starts anew" in caplog.text


def test_the_slices_of_partitions_are_joined() -> None:
    name = "linear/linear_model/job/weights"
    bundle = TensorBundle(made.FOLDER / "v1_linear")
    slot = read_tensorflow(made.FOLDER / "v1_linear").checkpoint.slots[f"{name}/Ftrl"]
    parts = [key for key in bundle if key.startswith(f"{name}/part_") and key.endswith("/Ftrl")]
    assert len(parts) == 3 and slot.shape == (3, 1) and (slot > 0.1).all()
    with pytest.raises(te.UserError, match=r"has 1 of the 3 numbers of '.*/part_1/Ftrl'"):
        bundle[parts[1]]


def damaged(folder: Path) -> Iterator[tuple[str, Path]]:
    """Yield copies of a checkpoint with one byte changed each."""
    for suffix in ("index", "data-00000-of-00001"):
        content = (made.FOLDER / f"v1_partitioned.{suffix}").read_bytes()
        for place in range(0, len(content), 23):
            prefix = folder / f"{suffix[:5]}-{place}"
            for other in ("index", "data-00000-of-00001"):
                shutil.copy(made.FOLDER / f"v1_partitioned.{other}", f"{prefix}.{other}")
            changed = bytearray(content)
            changed[place] ^= 0x55
            Path(f"{prefix}.{suffix}").write_bytes(changed)
            yield f"{prefix}.{suffix}", prefix


def test_a_changed_byte_is_an_error_that_names_file_and_byte(tmp_path: Path) -> None:
    size = (made.FOLDER / "v1_partitioned.index").stat().st_size
    padding = range(size - 48, size - 8)  # Zeros in the footer, which nothing checks.
    silent = []
    for file, prefix in damaged(tmp_path):
        try:
            checkpoint = read_tensorflow(prefix).checkpoint
            for tensors in (checkpoint.variables, checkpoint.slots):
                for name in tensors:
                    tensors[name]
            silent.append(file)
        except te.UserError as error:
            assert file in str(error) and "byte " in str(error), error
    assert all(int(file.split("-")[-1].split(".")[0]) in padding for file in silent), silent


@pytest.mark.parametrize("suffix", ["index", "data-00000-of-00001"])
def test_a_truncated_or_missing_file_is_an_error(suffix: str, tmp_path: Path) -> None:
    for other in ("index", "data-00000-of-00001"):
        shutil.copy(made.FOLDER / f"v2_linear.{other}", tmp_path / f"model.ckpt-20.{other}")
    broken = tmp_path / f"model.ckpt-20.{suffix}"
    for size in (1000, 500, 50, 1, 0):
        broken.write_bytes(broken.read_bytes()[:size])
        with pytest.raises(te.UserError, match=r"truncated|damaged at byte"):
            import_checkpoint(tmp_path / "model.ckpt-20", tmp_path / "out")
    broken.unlink()
    with pytest.raises(te.UserError, match=r"missing|there is no checkpoint of TensorFlow"):
        import_checkpoint(tmp_path / "model.ckpt-20", tmp_path / "out")
    assert not (tmp_path / "out").exists()


def varint(number: int) -> bytes:
    return bytes([number]) if number < 128 else bytes([number & 127 | 128]) + varint(number >> 7)


def message(*fields: tuple[int, int | bytes]) -> bytes:
    """Return a protocol buffer with fields of numbers and bytes."""
    return b"".join(
        varint(number << 3) + varint(value)
        if isinstance(value, int)
        else varint(number << 3 | 2) + varint(len(value)) + value
        for number, value in fields
    )


def bundle_of(folder: Path, shape: list[int], slices: list[list[tuple[int, int]]]) -> TensorBundle:
    """Write and open a checkpoint with the partitioned tensor ``w`` of ones, whose slices may lie anywhere."""

    def entry(shape: list[int], *more: tuple[int, int | bytes]) -> bytes:
        return message((1, 1), (2, message(*[(2, message((1, size))) for size in shape])), *more)

    ones = np.ones(64, np.float32).tobytes()
    announced = [message(*[(1, message((1, start), (2, length))) for start, length in one]) for one in slices]
    table = {b"": message((1, 1)), b"w": entry(shape, *[(7, one) for one in announced])}
    for one in slices:
        sizes = [length for _, length in one]
        number = int(np.prod(sizes, dtype=object)) * 4 if max(sizes) < 64 else 4
        checksum = varint(6 << 3 | 5) + masked_crc32c(ones[:number]).to_bytes(4, "little")
        table[_slice_key("w", tuple(one))] = entry(sizes, (5, number)) + checksum

    def block(entries: dict[bytes, bytes]) -> bytes:
        parts = [b"\0" + varint(len(key)) + varint(len(one)) + key + one for key, one in sorted(entries.items())]
        whole = b"".join(parts) + bytes(4) + (1).to_bytes(4, "little") + b"\0"
        return whole + masked_crc32c(whole).to_bytes(4, "little")

    content, handles = b"", []
    for entries in (table, {}):
        handles.append(varint(len(content)) + varint(len(block(entries)) - 5))
        content += block(entries)
    index = block({b"x": handles[0]})
    handles.append(varint(len(content)) + varint(len(index) - 5))
    footer = (handles[1] + handles[2]).ljust(40, b"\0") + (0xDB4775248B80FB57).to_bytes(8, "little")
    (folder / "c.index").write_bytes(content + index + footer)
    (folder / "c.data-00000-of-00001").write_bytes(ones)
    return TensorBundle(folder / "c")


@pytest.mark.parametrize(
    "slices",
    [
        [[(0, 2), (0, 3)], [(2, 2), (0, 3)]],
        [[(0, 4), (0, 1)], [(0, 4), (1, 2)]],
        [[(0, 2), (0, 3)], [(2, 2), (0, 2)], [(2, 2), (2, 1)]],
    ],
)
def test_slices_along_any_dimension_make_up_a_tensor(slices: list[list[tuple[int, int]]], tmp_path: Path) -> None:
    assert torch.equal(bundle_of(tmp_path, [4, 3], slices)["w"], torch.ones(4, 3))


@pytest.mark.parametrize(
    "slices",
    [
        [[(0, 2), (0, 3)], [(1, 2), (0, 3)]],
        [[(0, 2), (0, 3)], [(0, 2), (0, 3)]],
        [[(0, 4), (0, 2)], [(0, 2), (0, 2)]],
    ],
)
def test_slices_that_overlap_are_an_error(slices: list[list[tuple[int, int]]], tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="slices of 'w' overlap, so others are missing"):
        bundle_of(tmp_path, [4, 3], slices)["w"]


@pytest.mark.parametrize(
    ("shape", "slices"),
    [
        ([2**63], [[(0, 2**63)]]),
        ([2**64 - 1], [[(0, 1)]]),
        ([0, 2**63], [[(0, 0), (0, 2**63)]]),
        ([2**40, 2**40], [[(0, 2**40), (0, 2**40)]]),
        ([4], [[(3, 2)]]),
        ([4], [[(2**63, 2)]]),
        ([4], [[(0, 2**64 - 5)]]),
        ([2**50], [[(0, 2**50)]]),
    ],
)
def test_impossible_shapes_and_slices_are_an_error(
    shape: list[int], slices: list[list[tuple[int, int]]], tmp_path: Path
) -> None:
    with pytest.raises(CheckpointError, match=r"c\.index is damaged at byte"):
        bundle_of(tmp_path, shape, slices)["w"]


@pytest.fixture
def loose(tmp_path: Path) -> Path:
    """Return a directory with the files of a checkpoint of TensorFlow, but without a file ``checkpoint``."""
    for suffix in ("index", "data-00000-of-00001"):
        shutil.copy(made.FOLDER / f"v1_linear.{suffix}", tmp_path / f"model.ckpt-20.{suffix}")
    (tmp_path / "model.ckpt-20.meta").write_bytes(b"graph")
    return tmp_path


@pytest.mark.parametrize("suffix", ["", ".index", ".meta", ".data-00000-of-00001"])
def test_each_file_of_a_checkpoint_names_it(suffix: str, loose: Path) -> None:
    assert te.load_checkpoint(loose / f"model.ckpt-20{suffix}").step == 20


def test_a_directory_without_an_index_names_its_checkpoints(loose: Path) -> None:
    (loose / "model.ckpt-9.index").write_bytes(b"")
    with pytest.raises(CheckpointError, match=r"name one of those in it: model.ckpt-9, model.ckpt-20\.$"):
        te.load_checkpoint(loose)
    with pytest.raises(CheckpointError, match=r"name one of them: model.ckpt-9, model.ckpt-20\.$"):
        import_checkpoint(loose, loose / "new")


def test_the_variables_of_a_saved_model_are_read(tmp_path: Path) -> None:
    variables = tmp_path / "3" / "variables"
    variables.mkdir(parents=True)
    for suffix in ("index", "data-00000-of-00001"):
        shutil.copy(made.FOLDER / f"v1_linear.{suffix}", variables / f"variables.{suffix}")

    assert te.load_checkpoint(tmp_path / "3").step == 20
    assert import_checkpoint(tmp_path / "3", tmp_path / "new").checkpoint.step == 20


def test_a_checkpoint_of_one_file_is_named(tmp_path: Path) -> None:
    file = tmp_path / "inception_v3.ckpt"
    file.write_bytes(b"any table")
    with pytest.raises(CheckpointError, match=r"inception_v3.ckpt is one file: .* first format \(V1\)"):
        te.load_checkpoint(file)
    with pytest.raises(CheckpointError, match=r"first format \(V1\)"):
        import_checkpoint(file, tmp_path / "new")
