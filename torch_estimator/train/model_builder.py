"""Construction of models: calls of an Estimator's ``model_fn`` and ``input_fn``, and restoring of checkpoints."""

from __future__ import annotations

import copy
import dataclasses
import functools
import inspect
import logging
import weakref
from collections.abc import Callable, Collection, Mapping
from typing import Any

import torch
from torch import nn

from torch_estimator.checkpoint.checkpoint import Checkpoint, load_checkpoint
from torch_estimator.checkpoint.sharded_tensors import is_sharded
from torch_estimator.cluster.task import REPLICA, Task
from torch_estimator.data.dataset import Dataset
from torch_estimator.data.to_dataset import to_dataset
from torch_estimator.errors import InvalidValueError
from torch_estimator.feature_column.table import LargeTables, Table, tables_of_checkpoint
from torch_estimator.inputs.input_fn import InputContext, call_input_fn
from torch_estimator.mode_keys import ModeKeys
from torch_estimator.run_config import RunConfig
from torch_estimator.specs import EstimatorSpec, InputFn
from torch_estimator.train.device import device_of
from torch_estimator.train.forward_arguments import spread_features
from torch_estimator.train.model import Model
from torch_estimator.train.seen_rows import SeenRows
from torch_estimator.warm_start import WarmStartSettings

logger = logging.getLogger("torch_estimator")

ModelFn = Callable[..., EstimatorSpec]


class TrainedModule:
    """Weak reference to the module that was trained last. An Estimator shares it with Estimators derived from it."""

    def __init__(self) -> None:
        self.reference: weakref.ref[torch.nn.Module] | None = None


class ModelBuilder:
    """Builder of the models of one Estimator.

    `warm_start` gives the weights to start with if there is no checkpoint. `trained` (the module of the last training)
    and `seen` (the first rows of the last input) are shared with Estimators derived from this one.
    """

    def __init__(
        self,
        model_fn: ModelFn,
        params: Mapping[str, Any],
        warm_start: WarmStartSettings | None,
        trained: TrainedModule,
        seen: SeenRows,
    ) -> None:
        self.model_fn = model_fn
        self.params = copy.deepcopy(dict(params))
        self.warm_start = warm_start
        self.trained = trained
        self.seen = seen

    def spec(self, mode: str, params: dict[str, Any], config: RunConfig) -> EstimatorSpec:
        """Call the ``model_fn`` and return its `EstimatorSpec`."""
        spec = self.model_fn(**_named_in(self.model_fn, {"mode": mode, "params": params, "config": config}))
        if not isinstance(spec, EstimatorSpec):
            raise InvalidValueError(f"model_fn must return an EstimatorSpec, but returned {spec!r}.")
        return spec

    def build(
        self,
        mode: ModeKeys,
        config: RunConfig,
        device: str | None = None,
        *,
        restored: bool = False,
        moved: bool = True,
        on_servers: bool = False,
    ) -> Model:
        """Call the ``model_fn`` and return the model that it describes.

        If the caller will restore a checkpoint before it uses the model (`restored`), the initial values of large
        tables are not drawn, which saves time; to evaluate or predict, these are in a file that is mapped into memory.
        `moved` says whether to move the module to its device now, and `on_servers` whether parameter servers hold large
        tables.
        """
        device = device or device_of(config)
        in_file = restored and mode != ModeKeys.TRAIN and device == "cpu"
        large = LargeTables.IN_FILE if in_file else LargeTables.IN_MEMORY
        large = LargeTables.ON_SERVERS if on_servers else large
        logger.info("Calling model_fn.")
        with tables_of_checkpoint(restored=restored, large=large) as left_at_zero:
            spec = self.spec(mode, copy.deepcopy(self.params), config)
        logger.info("Done calling model_fn.")
        in_module = set(spec.module.modules())
        for table, draw in left_at_zero.items():
            # Draw the initial values of tables outside of the module, because checkpoints do not contain these tables.
            if table not in in_module:
                draw()
        spec = self._apart_from_training(spec)
        spread_features(spec.module)
        if on_servers:
            _check_not_tied(spec.module)
        return Model(spec, device, moved=moved, seen=self.seen)

    def dataset(self, input_fn: InputFn, mode: ModeKeys, config: RunConfig, task: Task | None = None) -> Dataset:
        """Call an ``input_fn`` and return its data as a Dataset; each replica on a machine gets a part of the batches.

        `task` has the rank of this process among those that share the input; None if this process reads all of it.
        """
        size, rank = (1, 0) if task is None else (task.num_workers, task.rank)
        in_sync = 1 if task is None or task.num_ps else size
        # Replicas on one machine all call the same input_fn, and `divided` gives each replica its part of the batches.
        # In a cluster, each process has its own input pipeline.
        shared = task is not None and task.type == REPLICA
        pipelines, pipeline = (1, 0) if shared else (size, rank)
        context = InputContext(num_input_pipelines=pipelines, input_pipeline_id=pipeline, num_replicas_in_sync=in_sync)
        given = {"mode": mode, "params": copy.deepcopy(self.params), "config": config, "input_context": context}
        dataset = to_dataset(call_input_fn(input_fn, given), repeat_single_batch=mode == ModeKeys.TRAIN)
        return dataset.divided(size, rank) if shared and size > 1 else dataset

    def restore(
        self, model: Model, source: str | None, model_dir: str, stored: Collection[Table] = ()
    ) -> Checkpoint | None:
        """Copy a checkpoint into a model and return the checkpoint, or None if the model keeps its initial weights.

        `source` is a checkpoint, or a directory, which stands for its newest checkpoint. None keeps the initial
        weights, or copies those of the warm start if there is one. `model_dir` is for the log. `stored` is as for
        `Model.restore`.
        """
        if source is None:
            if self.warm_start is None:
                logger.warning("There is no checkpoint in %s: using the initial weights.", model_dir)
            else:
                model.warm_start(load_checkpoint(self.warm_start.ckpt_to_initialize_from), self.warm_start)
            return None
        checkpoint = load_checkpoint(source)
        logger.info("Restoring parameters from %s", checkpoint.path)
        model.restore(checkpoint, stored=stored)
        return checkpoint

    def _apart_from_training(self, spec: EstimatorSpec) -> EstimatorSpec:
        """Return the spec. If its module was given to the last training, replace the module by a copy.

        A ``model_fn`` may return the same module in every mode. An evaluation works on a copy then, so that it does not
        change the training.
        """
        if any(map(is_sharded, spec.module.parameters())):
            raise InvalidValueError(
                f"model_fn returned a {type(spec.module).__name__} that FullyShardedStrategy has spread over the "
                "processes before; make the module anew in every call."
            )
        if spec.mode == ModeKeys.TRAIN:
            self.trained.reference = weakref.ref(spec.module)
        elif self.trained.reference is not None and self.trained.reference() is spec.module:
            return dataclasses.replace(spec, module=copy.deepcopy(spec.module))
        return spec


def _check_not_tied(module: nn.Module) -> None:
    """Check that no layer shares the weight of a table that is on parameter servers, since it would need all rows."""
    modules = dict(module.named_modules())
    tables = {one.weight: one for one in modules.values() if isinstance(one, Table) and one.weight.is_meta}
    for path, one in modules.items():
        shared = [] if isinstance(one, Table) else [tables[each] for each in one._parameters.values() if each in tables]
        for table in shared:
            raise InvalidValueError(
                f"The layer {path!r} has the weight of the table of {table.pieces[0].name!r}, which has {table.rows} "
                "rows and is on parameter servers; give the layer a weight of its own, or train without parameter "
                "servers."
            )


def _named_in(function: Callable[..., Any], given: Mapping[str, Any]) -> dict[str, Any]:
    parameters = inspect.signature(function).parameters
    bound = function.keywords if isinstance(function, functools.partial) else {}
    return {name: value for name, value in given.items() if name in parameters and name not in bound}
