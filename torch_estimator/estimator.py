"""The Estimator: a model, a directory, and the calls that train, evaluate, predict and export it."""

from __future__ import annotations

import copy
import inspect
import logging
import math
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from torch_estimator import files
from torch_estimator.checkpoint.saved_tensors import saved_shape
from torch_estimator.errors import CheckpointError, InvalidTypeError, InvalidValueError
from torch_estimator.estimator_job import EstimatorJob, ShortTraceback
from torch_estimator.export.warmup import MOST_INSTANCES
from torch_estimator.hooks.hook import CheckpointSaverListener, Hook, checked_hooks
from torch_estimator.mode_keys import ModeKeys
from torch_estimator.run_config import RunConfig
from torch_estimator.specs import (
    EstimatorSpec,
    EvalSpec,
    InputFn,
    check_input_fn,
    check_positive,
)
from torch_estimator.train.model_builder import ModelBuilder, ModelFn, TrainedModule
from torch_estimator.train.prediction import run_prediction
from torch_estimator.train.seen_rows import SeenRows
from torch_estimator.warm_start import WarmStart, as_settings

if TYPE_CHECKING:
    from torch_estimator.feature_column.transform import FeatureTransform
    from torch_estimator.from_module.optimizers import ModuleOptimizer
    from torch_estimator.heads.base import Head
    from torch_estimator.heads.serving import Signature
    from torch_estimator.serving_input import ServingInput
    from torch_estimator.summary.history import History

logger = logging.getLogger("torch_estimator")

_FINAL_MEMBERS = (
    *("train", "evaluate", "predict", "export_saved_model", "export", "model_dir", "config", "params", "eval_dir"),
    *("get_variable_names", "get_variable_value", "trained_module"),
)


class Estimator:
    """Trains, evaluates, predicts with and exports the model that ``model_fn`` describes.

    Args:
        model_fn: Function that returns an `EstimatorSpec`. It may take any of ``mode``, ``params`` and ``config``.
        model_dir: Directory of checkpoints, summaries and exports: a path or an fsspec URL. None stands for the
            ``model_dir`` of ``config``, or for a temporary directory if ``config`` has none either.
        config: Settings of the job.
        params: Values to pass to ``model_fn`` as ``params``.
        warm_start_from: A checkpoint of another job, or its directory, or `WarmStartSettings`. If ``model_dir`` has no
            checkpoint yet, the model starts with the parameters of that job; its steps count from 0.

    Raises:
        InvalidValueError: Arguments contradict each other, or ``model_fn`` takes an argument of another name.
        InvalidTypeError: ``model_fn`` is not a function, or ``config`` is not a `RunConfig`.

    >>> def model_fn(mode, params):
    ...     return te.EstimatorSpec(
    ...         mode=mode,
    ...         module=torch.nn.Linear(2, params["units"]),
    ...         loss=torch.nn.MSELoss(),
    ...         optimizer=te.optim.SGD(lr=0.1),
    ...     )
    >>> estimator = te.Estimator(model_fn, "memory://Estimator", params={"units": 1})
    >>> data = np.array([[0, 1], [1, 0], [1, 1]], np.float32), np.array([[1], [2], [3]], np.float32)
    >>> metrics = estimator.train(lambda: data, steps=200).evaluate(lambda: data)
    >>> metrics["global_step"], metrics["loss"] < 0.01
    (200, True)
    >>> [round(float(one["output"][0])) for one in estimator.predict(lambda: data)]
    [1, 2, 3]
    """

    def __init__(
        self,
        model_fn: ModelFn,
        model_dir: str | None = None,
        config: RunConfig | None = None,
        params: Mapping[str, Any] | None = None,
        warm_start_from: WarmStart | None = None,
    ) -> None:
        if config is not None and not isinstance(config, RunConfig):
            raise InvalidTypeError(f"config must be a RunConfig, but got {config!r}.")
        _check_not_overridden(type(self))
        _check_model_fn(model_fn, params)
        # What the methods use; for the package itself and its tests.
        self.job = EstimatorJob(
            ModelBuilder(model_fn, params or {}, as_settings(warm_start_from), TrainedModule(), SeenRows()),
            _with_model_dir(config or RunConfig(), model_dir),
            holds_weights=getattr(model_fn, "holds_weights", False),
        )

    @staticmethod
    def from_module(
        module: torch.nn.Module,
        *,
        head: Head | None = None,
        loss: Callable[..., torch.Tensor] | None = None,
        predictions: Callable[[Any], Mapping[str, torch.Tensor]] | None = None,
        metrics: Mapping[str, Any] | None = None,
        optimizer: ModuleOptimizer | None = None,
        columns: Iterable[Any] | None = None,
        transform: FeatureTransform | None = None,
        weight_column: str | None = None,
        export_outputs: Mapping[str, Signature] | None = None,
        model_dir: str | None = None,
        config: RunConfig | None = None,
        warm_start_from: WarmStart | None = None,
    ) -> Estimator:
        """Return an Estimator of any module.

        The given module holds the initial weights and is never changed: every training, evaluation, prediction and
        export works on a copy. `trained_module` returns the trained copy.

        Args:
            module: The module. It is called with the features of one batch in the structure that the input gives them:
                a tensor, or a dict or tuple of tensors. Floating-point features are converted to the dtype of the
                module's parameters. If ``forward`` has several arguments, it is called with the members of the tuple,
                or with the members of the dict that have the names of its arguments.
            head: One of `torch_estimator.heads`; give either a head or a ``loss``.
            loss: ``loss(outputs, labels)`` -> scalar, such as ``nn.CrossEntropyLoss()``. For torch's own losses, labels
                are converted to the shape and dtype that the loss takes. Other functions may also name ``weights``,
                ``features`` and ``module``; see `EstimatorSpec`.
            predictions: ``predictions(outputs)`` -> dict of tensors ``[N, ...]``; by default the outputs themselves.
            metrics: Name -> ``metric(labels, predictions)`` -> number, or a torchmetrics object; see `EstimatorSpec`.
            optimizer: A name (``"Adam"`` with a learning rate of 0.001, ``"SGD"`` with 0.01), or a function from named
                parameters to an optimizer, or optimizers and schedules of torch that were made with the module's
                parameters. The groups, options and state of such optimizers are copied. Needed for training.
            columns: Feature columns in front of the module. The module is then called with the columns' output, float32
                ``[N, width]``.
            transform: The part of the columns that runs in the input thread, for a module with its own
                `feature_column.InputLayer` or `LinearModel`.
            weight_column: Name of the feature that holds a weight for each row, for a loss or metrics that name
                ``weights``.
            export_outputs: Signatures of exports by name; see `EstimatorSpec`.
            model_dir: The same as in the constructor.
            config: The same as in the constructor.
            warm_start_from: The same as in the constructor.

        Returns:
            The Estimator.

        Raises:
            InvalidValueError: Arguments contradict each other.
            InvalidTypeError: An argument is of the wrong type, or the module cannot be copied.

        >>> net = torch.nn.Linear(2, 1)
        >>> estimator = te.Estimator.from_module(
        ...     net, loss=torch.nn.MSELoss(), optimizer="SGD", model_dir="memory://from_module"
        ... )
        >>> data = np.array([[0, 1], [1, 0]], np.float32), np.array([1, 2], np.float32)
        >>> estimator.train(lambda: data, steps=3).evaluate(lambda: data)["global_step"]
        3
        >>> np.array_equal(estimator.get_variable_value("weight"), net.weight.detach().numpy())
        False
        """
        from torch_estimator.from_module.module_model import ModuleModel

        model_fn = ModuleModel(
            module,
            head=head,
            loss=loss,
            predictions=predictions,
            metrics=metrics,
            optimizer=optimizer,
            columns=columns,
            transform=transform,
            weight_column=weight_column,
            export_outputs=export_outputs,
        )
        return Estimator(model_fn, model_dir, config, warm_start_from=warm_start_from)

    def trained_module(self, checkpoint_path: str | None = None) -> torch.nn.Module:
        """Return a new module with a checkpoint's weights, in evaluation mode.

        A Keras model also gets the optimizer's state, so that its ``fit`` continues from the checkpoint.

        Args:
            checkpoint_path: The checkpoint; None for the newest one.

        Raises:
            CheckpointError: There is no checkpoint.

        >>> estimator = te.Estimator.from_module(
        ...     torch.nn.Linear(2, 1), loss=torch.nn.MSELoss(), optimizer="SGD", model_dir="memory://trained_module"
        ... )
        >>> data = np.array([[0, 1], [1, 0]], np.float32), np.array([1, 2], np.float32)
        >>> estimator.train(lambda: data, steps=1).trained_module()
        Linear(in_features=2, out_features=1, bias=True)
        """
        model, checkpoint = self.job.restored_model(checkpoint_path, "take the module from")
        module: torch.nn.Module = getattr(model.module, "unwrapped", model.module)
        if checkpoint is not None and module is not model.module:
            model.restore_carried(checkpoint)
        return module

    @property
    def model_dir(self) -> str:
        """Directory of the job: checkpoints, summaries and exports."""
        return self.job.model_dir

    @property
    def config(self) -> RunConfig:
        """Settings of the job."""
        return self.job.config

    @property
    def params(self) -> dict[str, Any]:
        """Copy of the ``params`` that the constructor was called with."""
        return copy.deepcopy(self.job.builder.params)

    def eval_dir(self, name: str | None = None) -> str:
        """Return the directory for the summaries of evaluations: ``<model_dir>/eval``, or ``<model_dir>/eval_<name>``.

        Args:
            name: Name of the evaluations, as in `evaluate` or `EvalSpec`; None for evaluations without a name.

        >>> te.BaselineRegressor("memory://eval_dir").eval_dir("holdout")
        'memory://eval_dir/eval_holdout'
        """
        return self.job.evaluator.eval_dir(name)

    def latest_checkpoint(self) -> str | None:
        """Return the path of the newest checkpoint, or None.

        >>> estimator = te.BaselineRegressor("memory://latest_checkpoint")
        >>> estimator.latest_checkpoint() is None
        True
        >>> estimator.train(lambda: ({"x": [1.0]}, [2.0]), steps=3).latest_checkpoint()
        'memory://latest_checkpoint/model.ckpt-3'
        """
        return self.job.latest_checkpoint()

    def history(self) -> History:
        """Return the curves of the training and its evaluations, from the event files in ``model_dir``.

        Names are those of the summaries, such as ``loss``; those of evaluations follow ``eval/``, or ``eval_<name>/``.
        `RunConfig` says how often the training writes (``save_summary_steps``).

        Returns:
            A dict from name to a pair of arrays: ``steps``, int64, and ``values``, float64. Its method ``frame()``
            makes a pandas DataFrame with a row for each step and a column for each curve. The dict is empty before the
            first training.

        >>> estimator = te.BaselineRegressor("memory://history")
        >>> estimator = estimator.train(lambda: ({"x": [1.0]}, [2.0]), steps=2)
        >>> _ = estimator.evaluate(lambda: ({"x": [1.0]}, [2.0]))
        >>> curve = estimator.history()["eval/label/mean"]
        >>> curve.steps.tolist(), curve.values.tolist()
        ([2], [2.0])
        """
        from torch_estimator.summary.history import read_history

        return read_history(self.model_dir)

    def summary(self) -> str:
        """Return a table of the variables in the newest checkpoint: names, shapes and how many numbers they hold.

        Raises:
            CheckpointError: The model is not trained yet.

        >>> estimator = te.LinearRegressor([fc.numeric_column("x", shape=3)], "memory://summary")
        >>> print(estimator.train(lambda: ({"x": [[1.0, 2.0, 3.0]]}, [2.0]), steps=1).summary())
        variable                           shape   numbers
        linear/linear_model/bias_weights   [1]           1
        linear/linear_model/x/weights      [3, 1]        3
        4 numbers in 2 variables, and 8 of the optimizer, at global step 1
        """
        checkpoint = self.job.checkpoint()
        shapes = {name: saved_shape(checkpoint.variables, name) for name in sorted(checkpoint.variables)}
        slots = sum(math.prod(saved_shape(checkpoint.slots, name)) for name in checkpoint.slots)
        rows = [("variable", "shape", "numbers")]
        rows += [(name, str(shape), f"{math.prod(shape):,}") for name, shape in shapes.items()]
        wide = [max(len(row[place]) for row in rows) for place in range(3)]
        lines = [f"{name:<{wide[0]}}   {shape:<{wide[1]}}  {count:>{wide[2]}}" for name, shape, count in rows]
        total = sum(map(math.prod, shapes.values()))
        lines.append(
            f"{total:,} numbers in {len(shapes)} variables, and {slots:,} of the optimizer, at global step "
            f"{checkpoint.step}"
        )
        return "\n".join(lines)

    def __repr__(self) -> str:
        latest = self.latest_checkpoint()
        state = "not trained yet" if latest is None else f"global step {latest.rpartition('-')[2]}"
        return f"<{type(self).__name__} in {self.model_dir!r}: {state}>"

    def get_variable_names(self) -> list[str]:
        """Return the names of all variables in the newest checkpoint, including optimizer slots and ``global_step``.

        Raises:
            CheckpointError: The model is not trained yet.

        >>> estimator = te.LinearRegressor([fc.numeric_column("x")], "memory://get_variable_names")
        >>> for name in estimator.train(lambda: ({"x": [1.0]}, [2.0]), steps=1).get_variable_names():
        ...     print(name)
        global_step
        linear/linear_model/bias_weights
        linear/linear_model/bias_weights/Ftrl
        linear/linear_model/bias_weights/Ftrl_1
        linear/linear_model/x/weights
        linear/linear_model/x/weights/Ftrl
        linear/linear_model/x/weights/Ftrl_1
        """
        checkpoint = self.job.checkpoint()
        return sorted([*checkpoint.variables, *checkpoint.slots, "global_step"])

    def get_variable_value(self, name: str) -> np.ndarray:
        """Return the value of a variable in the newest checkpoint.

        Args:
            name: Name of the variable; `get_variable_names` lists them.

        Returns:
            The value as a numpy array in the shape of the variable. ``global_step`` is an integer without dimensions.
            A bfloat16 variable is returned as float32, because numpy does not have bfloat16.

        Raises:
            CheckpointError: The model is not trained yet, or has no such variable.

        >>> estimator = te.LinearRegressor([fc.numeric_column("x", shape=3)], "memory://get_variable_value")
        >>> estimator = estimator.train(lambda: ({"x": [[1.0, 2.0, 3.0]]}, [2.0]), steps=1)
        >>> estimator.get_variable_value("linear/linear_model/x/weights").shape
        (3, 1)
        """
        checkpoint = self.job.checkpoint()
        if name == "global_step":
            return np.array(checkpoint.step)
        for variables in (checkpoint.variables, checkpoint.slots):
            if name in variables:
                value = variables[name]
                return np.asarray((value.float() if value.dtype == torch.bfloat16 else value).numpy())
        raise CheckpointError(
            f"The checkpoint {checkpoint.path} has no variable {name!r}; get_variable_names() lists them."
        )

    def train(
        self,
        input_fn: InputFn,
        hooks: Iterable[Hook] | None = None,
        steps: int | None = None,
        max_steps: int | None = None,
        saving_listeners: Iterable[CheckpointSaverListener] | None = None,
    ) -> Estimator:
        """Train from the newest checkpoint, or from the initial weights.

        Args:
            input_fn: Function that returns the training data (see `torch_estimator.data.to_dataset`). It may take any
                of ``mode``, ``params``, ``config`` and ``input_context`` (an `InputContext`).
            hooks: Hooks that are called while training runs.
            steps: Number of steps to take.
            max_steps: Global step to stop at. If a checkpoint has already reached it, nothing is trained. With neither
                ``steps`` nor ``max_steps``, training ends with the input.
            saving_listeners: Listeners that are called before and after each checkpoint.

        Returns:
            The Estimator itself.

        Raises:
            NanLossDuringTrainingError: The loss or a trained variable became NaN or infinite.
            DataError: The input cannot be read.
            CheckpointError: The directory holds another model's checkpoints, or cannot be written.
            ModelDirInUseError: Another training writes into the directory.
            KeyboardInterrupt: Ctrl-C was pressed. Training finishes the current step and saves a checkpoint before it
                raises this error, and the next call of ``train`` continues from that checkpoint. A second Ctrl-C raises
                the error at once. This does not apply if the program has its own SIGINT handler, nor in threads
                other than the main thread.

        >>> estimator = te.LinearRegressor([fc.numeric_column("x")], "memory://train")
        >>> data = {"x": [1.0, 2.0]}, [2.0, 4.0]
        >>> estimator = estimator.train(lambda: data, steps=3).train(lambda: data, steps=2)
        >>> estimator.get_variable_value("global_step")
        array(5)
        """
        if steps is not None and max_steps is not None:
            raise InvalidValueError(f"Give steps or max_steps, not both, but got steps={steps}, max_steps={max_steps}.")
        with ShortTraceback():
            self.job.train(input_fn, hooks, saving_listeners, steps=steps, max_steps=max_steps)
        return self

    def evaluate(
        self,
        input_fn: InputFn,
        steps: int | None = None,
        hooks: Iterable[Hook] | None = None,
        checkpoint_path: str | None = None,
        name: str | None = None,
    ) -> dict[str, float]:
        """Evaluate a checkpoint.

        With ``eval_distribute=MultiWorkerMirroredStrategy()``, all processes that train together must call this method.
        Each process evaluates a part of the batches, and all of them return the chief's results.

        Args:
            input_fn: Function that returns the evaluation data; see `train`.
            steps: Number of batches to evaluate, or None for all.
            hooks: Hooks that are called while the evaluation runs.
            checkpoint_path: The checkpoint; None for the newest one, or for the initial weights if there is none.
            name: Name that distinguishes several evaluations; summaries go to ``<model_dir>/eval_<name>``.

        Returns:
            Metric name -> value, with ``loss`` and ``global_step``.

        Raises:
            DataError: The input cannot be read.
            CheckpointError: ``checkpoint_path`` does not exist, or is of another model.

        >>> estimator = te.LinearRegressor([fc.numeric_column("x")], "memory://evaluate")
        >>> data = {"x": [1.0, 2.0]}, [2.0, 4.0]
        >>> metrics = estimator.train(lambda: data, steps=3).evaluate(lambda: data, name="holdout")
        >>> sorted(metrics)
        ['average_loss', 'global_step', 'label/mean', 'loss', 'prediction/mean']
        >>> metrics["global_step"], metrics["label/mean"]
        (3, 3.0)
        """
        check_input_fn(input_fn)
        check_positive("steps", steps)
        with ShortTraceback():
            return self.job.evaluate(EvalSpec(input_fn, steps, name, checked_hooks(hooks)), checkpoint_path)

    def predict(
        self,
        input_fn: InputFn,
        predict_keys: str | Sequence[Any] | None = None,
        hooks: Iterable[Hook] | None = None,
        checkpoint_path: str | None = None,
        yield_single_examples: bool = True,
    ) -> Iterator[dict[str, Any]]:
        """Yield predictions lazily.

        Args:
            input_fn: Function that returns features, or features and labels; labels are ignored.
            predict_keys: Keys of the predictions to yield (pairs ``(head, key)`` with a `MultiHead`); None for all.
            hooks: Hooks that are called while predicting.
            checkpoint_path: The checkpoint; None for the newest one, or for the weights of ``warm_start_from`` if there
                is no checkpoint.
            yield_single_examples: Whether to yield single examples (arrays without the batch dimension) or batches.

        Raises:
            InvalidValueError: None of ``predict_keys`` is among the predictions.
            CheckpointError: There is no checkpoint.

        >>> estimator = te.LinearClassifier([fc.numeric_column("x")], "memory://predict")
        >>> estimator = estimator.train(lambda: ({"x": [-1.0, 1.0]}, [0, 1]), steps=5)
        >>> [one["class_ids"] for one in estimator.predict(lambda: {"x": [-3.0, 2.0]}, predict_keys="class_ids")]
        [array([0]), array([1])]
        """
        check_input_fn(input_fn)
        hooks = checked_hooks(hooks)
        model, checkpoint = self.job.restored_model(checkpoint_path, "predict with")
        dataset = self.job.builder.dataset(input_fn, ModeKeys.PREDICT, self.config)
        keys = [predict_keys] if isinstance(predict_keys, str) else predict_keys
        return run_prediction(
            model,
            dataset,
            global_step=0 if checkpoint is None else checkpoint.step,
            keys=keys,
            hooks=hooks,
            single_examples=yield_single_examples,
            model_dir=self.model_dir,
        )

    def export_saved_model(
        self,
        export_dir_base: str,
        serving_input_receiver_fn: ServingInput | Callable[[], ServingInput],
        assets_extra: Mapping[str, str] | None = None,
        as_text: bool = False,
        checkpoint_path: str | None = None,
        strip_default_attrs: bool | None = None,
        *,
        warmup_instances: int = MOST_INSTANCES,
        dtype: str = "float32",
        quality_input_fn: InputFn | None = None,
    ) -> str:
        """Write the model with its preprocessing as one ONNX graph into a new ``<export_dir_base>/<unix seconds>``.

        `ExportedModel` runs the export. ``export`` is another name of this method.

        Args:
            export_dir_base: Directory of exports: a path or URL.
            serving_input_receiver_fn: Inputs of the export: one of `torch_estimator.serving_input`, or a function that
                returns one.
            assets_extra: Files to add to the export: name below ``assets.extra`` -> source.
            as_text: Has no effect; the argument exists because tf.estimator has it.
            checkpoint_path: The checkpoint; None for the newest one, or for the weights of ``warm_start_from`` if there
                is no checkpoint.
            strip_default_attrs: Has no effect, as ``as_text``.
            warmup_instances: Number of input rows to record in the export, with their predictions: 8 at most, 0 to copy
                no data into it. They are the first rows of the input that this Estimator has trained or evaluated on
                last. A server warms up with them, and ``estimator check`` compares the export with them.
            dtype: How tables are stored, of which the model only looks up rows: ``"float32"``, or ``"float16"``, which
                takes half the bytes. The log says how far that moves their numbers.
            quality_input_fn: Input to evaluate on with both dtypes, for ``"float16"``: the log shows how much each
                metric changes. The summaries are those of evaluations called ``float32`` and ``float16``.

        Returns:
            Path of the export.

        Raises:
            CheckpointError: There is no checkpoint.
            ExportError: The model cannot be exported.
            InvalidValueError: ``warmup_instances`` is not a number from 0 to 8, there is no such ``dtype``, or
                ``quality_input_fn`` has nothing to compare.

        >>> x = fc.numeric_column("x")
        >>> estimator = te.LinearRegressor([x], "memory://export_saved_model")
        >>> estimator = estimator.train(lambda: ({"x": [1.0, 2.0]}, [2.0, 4.0]), steps=1)
        >>> path = estimator.export_saved_model("memory://exports", te.serving_input.raw_features([x]))
        >>> te.ExportedModel.load(path).predict({"x": [3.0]})["predictions"].shape
        (1, 1)
        """
        from torch_estimator.export.half_tables import log_quality, rounded_lookups
        from torch_estimator.export.network import tables_read_by_block
        from torch_estimator.export.recording import check_dtype
        from torch_estimator.export.writer import write_export

        if as_text:
            logger.info("as_text has no effect: an ONNX export has no text form. 'estimator show' prints an export.")
        if strip_default_attrs:
            logger.info("strip_default_attrs has no effect: an ONNX export has no such attributes.")
        if serving_input_receiver_fn is None:
            raise InvalidValueError(
                "export_saved_model needs a serving_input_receiver_fn, such as te.serving_input.raw_features(columns)."
            )
        check_dtype(dtype)
        if quality_input_fn is not None:
            if dtype != "float16":
                raise InvalidValueError(
                    "quality_input_fn compares dtype='float16' with 'float32'; give that dtype, too."
                )
            exact = self.evaluate(quality_input_fn, checkpoint_path=checkpoint_path, name="float32")
            with rounded_lookups():
                rounded = self.evaluate(quality_input_fn, checkpoint_path=checkpoint_path, name="float16")
            log_quality(exact, rounded)
        model, checkpoint = self.job.restored_model(checkpoint_path, "export", "cpu", tables_read_by_block)
        if checkpoint is not None:
            model.check_strings_seen(checkpoint)
        receiver = serving_input_receiver_fn() if callable(serving_input_receiver_fn) else serving_input_receiver_fn
        path = write_export(
            export_dir_base,
            module=model.module,
            transform=model.spec.transform,
            head=model.head,
            receiver=receiver,
            assets_extra=assets_extra,
            global_step=0 if checkpoint is None else checkpoint.step,
            forward=model.spec.forward_features,
            layers=model.spec.forward_layers,
            export_outputs=model.spec.export_outputs,
            structure=model.structure,
            rows=self.job.builder.seen.rows,
            warmup_instances=warmup_instances,
            dtype=dtype,
        )
        logger.info("Exported to %s.", path)
        return path

    export = export_saved_model

    def with_changed_spec(self, change: Callable[[EstimatorSpec], EstimatorSpec]) -> Estimator:
        """Return another Estimator of the same job that applies ``change`` to each `EstimatorSpec` of this one.

        Args:
            change: Function that takes an `EstimatorSpec` and returns the one to use instead.

        >>> import dataclasses
        >>> estimator = te.BaselineRegressor("memory://with_changed_spec")
        >>> stopping = estimator.with_changed_spec(
        ...     lambda spec: dataclasses.replace(spec, training_hooks=[te.StopAtStepHook(num_steps=2)])
        ... )
        >>> stopping.train(lambda: ({"x": [1.0]}, [2.0]), steps=10).get_variable_value("global_step")
        array(2)
        """
        builder = self.job.builder

        def model_fn(mode: str, params: dict[str, Any], config: RunConfig) -> EstimatorSpec:
            return change(builder.spec(mode, params, config))

        changed = Estimator(model_fn, config=self.config, params=builder.params)
        changed.job = self.job.with_builder(
            ModelBuilder(model_fn, builder.params, builder.warm_start, builder.trained, builder.seen)
        )
        return changed


def _check_not_overridden(kind: type[Estimator]) -> None:
    for name in _FINAL_MEMBERS:
        if getattr(kind, name) is not getattr(Estimator, name):
            raise InvalidValueError(
                f"{kind.__name__} must not override Estimator.{name}; what differs belongs into its model_fn."
            )


def _check_model_fn(model_fn: object, params: Mapping[str, Any] | None) -> None:
    if not callable(model_fn):
        raise InvalidTypeError(f"model_fn must be callable, but got {model_fn!r}.")
    parameters = inspect.signature(model_fn).parameters
    known = ("mode", "params", "config")
    for name, parameter in parameters.items():
        optional = parameter.default is not parameter.empty or parameter.kind in (
            parameter.VAR_POSITIONAL,
            parameter.VAR_KEYWORD,
        )
        if name not in known and not optional:
            raise InvalidValueError(
                f"model_fn may take {', '.join(known)}, but takes {name!r}; features and labels go to the module "
                "and the loss of the EstimatorSpec that it returns."
            )
    if params is not None and "params" not in parameters:
        raise InvalidValueError("params are given, but model_fn does not take an argument called params.")


def _with_model_dir(config: RunConfig, model_dir: str | None) -> RunConfig:
    given = None if model_dir is None else files.as_url(model_dir)
    configured = None if config.model_dir is None else files.as_url(config.model_dir)
    if given and configured and given != configured:
        raise InvalidValueError(
            f"model_dir is {given!r}, but {configured!r} in config; make them the same or remove one of them."
        )
    chosen = given or configured
    if chosen is None and config.task.is_of_cluster:
        raise InvalidValueError(
            f"{config.task.source} names a cluster, whose processes need one model_dir that all of them see, but none "
            "is given; set it in RunConfig or TF_CONFIG."
        )
    if chosen is None:
        chosen = tempfile.mkdtemp(prefix="torch_estimator_")
        logger.warning("No model_dir given: using the temporary directory %s.", chosen)
    return config.replace(model_dir=chosen)
