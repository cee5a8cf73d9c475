"""Checkpoints of TensorFlow as `Checkpoint` objects: which tensor is a weight, which is state of an optimizer.

tf.estimator's premade models save weights under the names that the premade models have here, with few exceptions. The
state of optimizers has two sets of names: ``<variable>/Adagrad`` in TF 1.x and the v1 classes, and
``training/Adagrad/<variable>/accumulator`` in the v2 classes, whose optimizers are Keras's. Here it gets v1's names.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from torch_estimator import files
from torch_estimator.checkpoint.checkpoint import Checkpoint, latest_checkpoint
from torch_estimator.checkpoint.index import WrittenByTensorFlow, checkpoints_in, prefix_of
from torch_estimator.checkpoint.saved_tensors import SavedTensors
from torch_estimator.checkpoint.tensor_bundle import TensorBundle
from torch_estimator.errors import CheckpointError
from torch_estimator.optim.companions import AVERAGE

IMPORTED = "tensorflow"
"""Key in the state of a checkpoint that was read from TensorFlow's files and not trained on since."""

UNTRAINED = "untrained"
"""Key in that entry: variables without optimizer state, which start with a new one."""

WEIGHTS_ONLY = "weights_only"
"""Key in that entry of a checkpoint that was imported without the state of its optimizers, which start anew."""

_STEP = "global_step"

_OBJECT = "/.ATTRIBUTES/VARIABLE_VALUE"
# A slot of a partitioned variable has the number of the partition in its name.
_PARTITION = re.compile(r"/(?:part|t)_\d+$")
_BETA_POWER = re.compile(r"(?:.*/)?beta[12]_power(?:_\d+)?")
_BATCH_NORM = re.compile(r"(dnn)/hiddenlayer_(\d+)/(batchnorm_\2)/(gamma|beta|moving_mean|moving_variance)")
_BATCH_NORM_NAMES = {
    "gamma": "weight",
    "beta": "bias",
    "moving_mean": "running_mean",
    "moving_variance": "running_var",
}
_INPUT_LAYER = "dnn/input_from_feature_columns/input_layer"
_V1_SLOTS = ("Adagrad", "Adam", "Adam_1", "Ftrl", "Ftrl_1", "Momentum", "RMSProp", "RMSProp_1", AVERAGE)
_KERAS = re.compile(r"(?:training/)?((Adadelta|Adagrad|Adamax|Adam|Ftrl|Nadam|RMSprop|SGD)(?:_\d+)?)/(.+)")
_KERAS_SLOTS = {
    ("Adagrad", "accumulator"): "Adagrad",
    ("Adam", "m"): "Adam",
    ("Adam", "v"): "Adam_1",
    ("Ftrl", "accumulator"): "Ftrl",
    ("Ftrl", "linear"): "Ftrl_1",
    ("RMSprop", "rms"): "RMSProp",
    ("RMSprop", "momentum"): "RMSProp_1",
    ("SGD", "momentum"): "Momentum",
}
_KERAS_SETTINGS = (
    *("learning_rate", "decay", "iter", "beta", "beta_1", "beta_2", "epsilon", "momentum", "rho"),
    *("l1_regularization_strength", "l2_regularization_strength", "learning_rate_power", "momentum_cache"),
)
# Variables of the training loop.
_CONTROL = ("save_counter", "signal_early_stopping/STOP")
# Text that `tf.train.Checkpoint` saves about its own structure.
_GRAPH = "_CHECKPOINTABLE_OBJECT_GRAPH"


@dataclass(frozen=True, slots=True, kw_only=True)
class Found:
    """What one tensor of a TensorFlow checkpoint is.

    Attributes:
        name: Its name there; that of the first partition if it has several names.
        kind: ``"weight"``; ``"optimizer"``; ``"setting"``, such as a learning rate, which is not imported because the
            program gives it; or ``"text"``, which a checkpoint here cannot hold.
        target: Its name here, or None if it is not imported.
        shape: Its shape there.
        note: What is to be said about it.
    """

    name: str
    kind: str
    target: str | None
    shape: list[int]
    note: str = ""


@dataclass(slots=True)
class _Source:
    """Names of the tensors that make up one tensor here, and the factor that they are multiplied by.

    A factor makes floating point numbers of integers; None leaves the tensors as they are.
    """

    names: list[str]
    factor: float | None = None


class _Renamed(Mapping[str, Tensor]):
    """Tensors of a `TensorBundle` by their names here."""

    def __init__(self, bundle: TensorBundle, sources: Mapping[str, _Source]) -> None:
        self._bundle, self._sources = bundle, sources

    def __getitem__(self, name: str) -> Tensor:
        source = self._sources[name]
        tensor = self._bundle.joined(source.names)
        return tensor if source.factor is None else tensor * source.factor

    def __iter__(self) -> Iterator[str]:
        return iter(self._sources)

    def __len__(self) -> int:
        return len(self._sources)

    def shape(self, name: str) -> list[int]:
        """Return the shape of a tensor without reading it."""
        return self._bundle.shape(self._sources[name].names[0])


@dataclass(frozen=True, slots=True, kw_only=True)
class TensorFlowCheckpoint:
    """A TensorFlow checkpoint under the names here, with what each tensor is, sorted by name."""

    checkpoint: Checkpoint
    found: list[Found]


def tensorflow_prefix(path: files.PathLike) -> str:
    """Return the path of a checkpoint of TensorFlow without the suffixes of its files.

    `path` is that path, or one of the files, or the directory of a SavedModel, or another directory, which stands for
    its newest checkpoint.
    """
    prefix = prefix_of(files.as_url(path))
    if not files.is_dir(prefix):
        return prefix
    try:
        latest = latest_checkpoint(prefix)
    except WrittenByTensorFlow as found:
        return found.prefix
    if latest is None:
        names = checkpoints_in(prefix)
        advice = f"; name one of them: {names}" if names else ", and no checkpoint"
        raise CheckpointError(f"{prefix} has no file 'checkpoint' that names the newest checkpoint{advice}.")
    raise CheckpointError(f"{prefix} holds checkpoints of this package already; there is nothing to import.")


def read_tensorflow(prefix: files.PathLike) -> TensorFlowCheckpoint:
    """Read the index of a TensorFlow checkpoint; its tensors are read when they are first used.

    `prefix` is as in `TensorBundle`.
    """
    bundle = TensorBundle(prefix)
    sorting = _Sorting(bundle)
    for name in sorted(bundle):
        sorting.add(name)
    texts = [name for name in bundle.texts if name != _GRAPH]
    found = [*sorting.found, *(Found(name=name, kind="text", target=None, shape=[]) for name in texts)]
    checkpoint = Checkpoint(
        path=bundle.prefix,
        step=sorting.step,
        variables=SavedTensors([_Renamed(bundle, sorting.variables), sorting.counts()]),
        slots=SavedTensors([_Renamed(bundle, sorting.slots)]),
        state={IMPORTED: sorting.about()},
    )
    return TensorFlowCheckpoint(checkpoint=checkpoint, found=found)


def variable_name(name: str) -> str:
    """Return the name of a variable, given its name in a checkpoint; those of ``tf.train.Checkpoint`` have a suffix."""
    return name.removesuffix(_OBJECT)


class _Sorting:
    """Sorting of the tensors of one checkpoint into weights, optimizer state, settings and the rest."""

    def __init__(self, bundle: TensorBundle) -> None:
        self._bundle = bundle
        self._has_network = any(name.startswith("dnn/") for name in bundle)
        self._is_kmeans = all(name in bundle for name in ("clusters", "initialized"))
        self.found: list[Found] = []
        self.variables: dict[str, _Source] = {}
        self.slots: dict[str, _Source] = {}
        self.step = 0

    def add(self, name: str) -> None:
        """Classify one tensor."""
        is_number = not self._bundle.shape(name)
        if name == _STEP:
            if not is_number or not 0 <= (step := int(self._bundle[name])) < 2**63:
                raise CheckpointError(f"{self._bundle.prefix} has a {_STEP} that is not a number of steps.")
            self.step = step
            self._note(name, "setting", None, str(step))
        elif (keras := _KERAS.fullmatch(name)) and self._is_of_keras(name, keras[3]):
            self._add_of_keras(name, keras[1], keras[2], keras[3])
        elif is_number and _BETA_POWER.fullmatch(name):
            self._note_setting(name)
        elif (variable := _variable_of(name.rpartition("/")[0])) in self._bundle:
            self._add_of_v1(name, variable)
        elif self._is_kmeans and name != "clusters":
            self._add_of_kmeans(name)
        elif ".OPTIMIZER_SLOT/" in name or name.startswith("optimizer/"):
            self._note(name, "optimizer", None, "optimizer of a tf.train.Checkpoint")
        elif variable_name(name) in _CONTROL:
            self._note(name, "setting", None)
        else:
            target = self._renamed(variable_name(name))
            self.variables[target] = _Source([name])
            self._note(name, "weight", target)

    def about(self) -> dict[str, Any]:
        """Return the entry `IMPORTED` of the checkpoint's state."""
        # The clusters of `KMeans` are moved without any state of an optimizer.
        return {UNTRAINED: self._untrained(), **({WEIGHTS_ONLY: True} if self._is_kmeans else {})}

    def _untrained(self) -> list[str]:
        """Return the embeddings that the v2 classes share among columns; TensorFlow 2.15 does not train them."""
        trained = {slot.rpartition("/")[0] for slot in self.slots}
        moved = [target for target, source in self.variables.items() if target != variable_name(source.names[0])]
        shared = [target for target in moved if target.startswith(_INPUT_LAYER)]
        return [target for target in shared if target not in trained] if trained else []

    def counts(self) -> dict[str, Tensor]:
        """Return the counts that models here keep, and TensorFlow does not.

        These are the batches that a batch normalization has seen, and the points of the clusters of `KMeans`, which
        TensorFlow counts in mini-batches only.
        """
        if self._is_kmeans and "counts" not in self.variables:
            return {"counts": torch.zeros(self._bundle.shape("clusters")[0])}
        names = [name for name, source in self.variables.items() if _BATCH_NORM.fullmatch(source.names[0])]
        layers = {name.rpartition("/")[0] for name in names}
        return {f"{layer}/num_batches_tracked": torch.tensor(self.step) for layer in sorted(layers)}

    def _is_of_keras(self, name: str, rest: str) -> bool:
        return (
            name.startswith("training/")
            or _variable_of(rest.rpartition("/")[0]) in self._bundle
            or (rest in _KERAS_SETTINGS and not self._bundle.shape(name))
        )

    def _add_of_keras(self, name: str, optimizer: str, kind: str, rest: str) -> None:
        variable, _, slot = rest.rpartition("/")
        if rest in _KERAS_SETTINGS:
            self._note_setting(name)
            return
        canonical = _KERAS_SLOTS.get((kind, slot))
        if canonical is None or not variable:
            self._note(name, "optimizer", None, f"no optimizer here has this state of {kind}")
        elif canonical == "Momentum":
            # Keras keeps -learning_rate times the sum of gradients that torch.optim.SGD and v1 keep.
            rate_name = f"{name.removesuffix(rest)}learning_rate"
            rate = float(self._bundle[rate_name]) if rate_name in self._bundle else 0.0
            if rate == 0.0:
                self._note(name, "optimizer", None, f"needs the learning rate of {optimizer}, which was not saved")
            else:
                self._add_slot(name, _variable_of(variable), canonical, factor=-1.0 / rate)
        else:
            self._add_slot(name, _variable_of(variable), canonical)

    def _add_of_v1(self, name: str, variable: str) -> None:
        head, _, slot = name.rpartition("/")
        # Of a centered RMSProp the second slot is the mean of gradients, and the third is the momentum.
        is_centered = slot.startswith("RMSProp") and f"{head}/RMSProp_2" in self._bundle
        if slot in _V1_SLOTS and not is_centered:
            self._add_slot(name, variable, slot)
        else:
            self._note(name, "optimizer", None, "no optimizer here has this state")

    def _add_of_kmeans(self, name: str) -> None:
        """Classify a tensor of `KMeans` other than the clusters."""
        if name == "Variable":
            self.variables["counts"] = _Source([name], factor=1.0)
            self._note(name, "weight", "counts")
        elif name == "initialized":
            self._note(name, "setting", None)
        else:
            self._note(name, "optimizer", None, "state of an iteration of several mini-batches")

    def _add_slot(self, name: str, variable: str, slot: str, *, factor: float | None = None) -> None:
        target = f"{self._renamed(variable)}/{slot}"
        self.slots.setdefault(target, _Source([], factor)).names.append(name)
        self._note(name, "optimizer", target)

    def _note_setting(self, name: str) -> None:
        self._note(name, "setting", None, f"{float(self._bundle[name]):g}")

    def _note(self, name: str, kind: str, target: str | None, note: str = "") -> None:
        self.found.append(Found(name=name, kind=kind, target=target, shape=self._bundle.shape(name), note=note))

    def _renamed(self, name: str) -> str:
        if match := _BATCH_NORM.fullmatch(name):
            return f"{match[1]}/{match[3]}/{_BATCH_NORM_NAMES[match[4]]}"
        # `tf.feature_column.shared_embeddings` names its variable without a scope.
        if self._has_network and "/" not in name and len(self._bundle.shape(name)) == 2:
            return f"{_INPUT_LAYER}/{name}/embedding_weights"
        return name


def _variable_of(name: str) -> str:
    """Return the name of a variable whose partition has the given name."""
    return _PARTITION.sub("", name)
