"""Evaluation of checkpoints, in one process or in several that share the batches."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from contextlib import ExitStack, nullcontext

import torch

from torch_estimator import files
from torch_estimator.errors import InvalidValueError
from torch_estimator.hooks.hook import Hook, checked_hooks
from torch_estimator.mode_keys import ModeKeys
from torch_estimator.run_config import RunConfig
from torch_estimator.specs import EvalSpec, InputFn
from torch_estimator.strategy import EvaluationShare
from torch_estimator.train.evaluation import EvaluationResult, run_evaluation, write_evaluation
from torch_estimator.train.model import Model
from torch_estimator.train.model_builder import ModelBuilder
from torch_estimator.train.random_state import drawing_alike, isolated


class CheckpointEvaluator:
    """Evaluator of the checkpoints of one model directory. Consecutive evaluations reuse one model object.

    `specs` are the evaluations of the `train_and_evaluate` call that is running; empty if none is.
    """

    def __init__(self, builder: ModelBuilder, config: RunConfig, model_dir: str) -> None:
        self.specs: tuple[EvalSpec, ...] = ()
        self._builder = builder
        self._config = config
        self._model_dir = model_dir
        self._model: Model | None = None

    def evaluate(
        self, spec: EvalSpec, path: str | None, share: EvaluationShare | None = None, *, is_in_job: bool = False
    ) -> EvaluationResult:
        """Evaluate a checkpoint and write its metrics as summaries.

        `path` is a checkpoint, or a directory, which stands for its newest checkpoint; None for the initial weights.
        `is_in_job` says that these processes train the model together. They have compared it already, so it is not
        compared again.
        """
        with isolated(self._config.random_seed), ExitStack() as stack:
            stack.enter_context(nullcontext() if share is None else share.working())
            model = self._model_for(path)
            if share is not None:
                agreed, seed = share.agree_on_source(self.relative(path), torch.initial_seed())
                path = agreed if agreed is None or "/" in agreed else files.join(self._model_dir, agreed)
                # Use the first process's seed, because every process must shuffle the input in the same order.
                stack.enter_context(drawing_alike(seed))
            checkpoint = self._builder.restore(model, path, self._model_dir)
            if share is not None and not is_in_job:
                settings = {"the evaluation": {"name": spec.name, "steps": spec.steps}}
                share.check_model(model, settings, broadcast=path is None)
            results = run_evaluation(
                model,
                self._builder.dataset(spec.input_fn, ModeKeys.EVAL, self._config),
                global_step=0 if checkpoint is None else checkpoint.step,
                steps=spec.steps,
                hooks=checked_hooks(spec.hooks),
                model_dir=self._model_dir,
                eval_dir=self.eval_dir(spec.name),
                share=share,
            )
        if share is None or share.is_first:
            write_evaluation(self.eval_dir(spec.name), results, "" if checkpoint is None else checkpoint.path)
        return results

    def evaluate_live(
        self,
        model: Model | None,
        weights: Mapping[str, torch.Tensor],
        input_fn: InputFn,
        *,
        global_step: int,
        steps: int | None,
        hooks: Sequence[Hook],
        eval_dir: str,
    ) -> tuple[Model, EvaluationResult]:
        """Evaluate weights in memory, without reading or writing a checkpoint; return the model and the metrics.

        `model` is what the previous call returned, or None.
        """
        with isolated(self._config.random_seed):
            model = model or self._builder.build(ModeKeys.EVAL, self._config, restored=True)
            model.copy_variables(weights)
            results = run_evaluation(
                model,
                self._builder.dataset(input_fn, ModeKeys.EVAL, self._config),
                global_step=global_step,
                steps=steps,
                hooks=hooks,
                model_dir=self._model_dir,
                eval_dir=eval_dir,
            )
        return model, results

    def request(self, spec: EvalSpec, path: str | None) -> str | None:
        """Return the text by which the chief asks the other processes to share an evaluation, or None if they cannot.

        They cannot if the evaluation is not one of `specs`, because then it does not exist in the other processes.
        """
        known = [(one.name, one.input_fn, one.steps, one.hooks) for one in self.specs]
        if (spec.name, spec.input_fn, spec.steps, spec.hooks) not in known:
            return None
        return json.dumps([spec.name, self.relative(path)])

    def evaluate_with_chief(self, share: EvaluationShare, request: str) -> None:
        """Run this process's part of an evaluation. The chief has sent ``request`` to start it."""
        name, path = json.loads(request)
        specs = [one for one in self.specs if one.name == name]
        if not specs:
            with share.working():
                raise InvalidValueError(f"The chief evaluates {name!r}, but here there is no EvalSpec of that name.")
        self.evaluate(specs[0], path, share, is_in_job=True)

    def eval_dir(self, name: str | None = None) -> str:
        """Return the directory for the summaries of the evaluation that is called ``name``."""
        return files.join(self._model_dir, f"eval_{name}" if name else "eval")

    def forget_model(self) -> None:
        """Make the next evaluation build a new model."""
        self._model = None

    def relative(self, path: str | None) -> str | None:
        """Return the path of a checkpoint for other processes, even if they have another path to the model directory.

        The result is the name of a checkpoint in the model directory, and the absolute path of any other checkpoint.
        """
        if path is None or files.parent(path) == files.as_url(self._model_dir):
            return path and files.basename(path)
        return os.path.abspath(files.as_url(path)) if files.is_local(path) else path

    def _model_for(self, path: str | None) -> Model:
        # Reuse the model of the previous evaluation, because building a model can take longer than an evaluation.
        # But build a new model if training uses the same module now, since an evaluation would change the training.
        # Also build a new model if there is no checkpoint, to draw new initial weights.
        trained = self._builder.trained.reference
        if self._model is not None and trained is not None and trained() is self._model.module:
            self._model = None
        if path is None or self._model is None:
            self._model = self._builder.build(ModeKeys.EVAL, self._config, restored=path is not None)
        return self._model
