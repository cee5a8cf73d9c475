"""tf.estimator's train-and-evaluate system on PyTorch.

Everything public is an attribute of this module, imported when it is first used: the command line and the server need
no torch.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from torch_estimator.log import set_up_logging

if TYPE_CHECKING:
    from torch_estimator import (
        data,
        distribute,
        errors,
        experimental,
        exporters,
        feature_column,
        heads,
        hooks,
        inputs,
        optim,
        serving_input,
        summary,
    )
    from torch_estimator.canned.baseline import BaselineClassifier, BaselineEstimator, BaselineRegressor
    from torch_estimator.canned.dnn import DNNClassifier, DNNEstimator, DNNRegressor
    from torch_estimator.canned.dnn_linear_combined import (
        DNNLinearCombinedClassifier,
        DNNLinearCombinedEstimator,
        DNNLinearCombinedRegressor,
    )
    from torch_estimator.canned.linear import LinearClassifier, LinearEstimator, LinearRegressor
    from torch_estimator.engine.checkpoint import latest_checkpoint, load_checkpoint
    from torch_estimator.errors import NanLossDuringTrainingError, UserError
    from torch_estimator.estimator import Estimator
    from torch_estimator.export.exported_model import ExportedModel
    from torch_estimator.exporters import BestExporter, Exporter, FinalExporter, LatestExporter
    from torch_estimator.extenders import add_metrics, forward_features, forward_layers
    from torch_estimator.heads import (
        BinaryClassHead,
        LogisticRegressionHead,
        LossReduction,
        MultiClassHead,
        MultiHead,
        MultiLabelHead,
        PoissonRegressionHead,
        RegressionHead,
    )
    from torch_estimator.hooks import (
        CheckpointSaverListener,
        FinalOpsHook,
        Hook,
        InMemoryEvaluatorHook,
        LoggingTensorHook,
        NanTensorHook,
        ProfilerHook,
        RunContext,
        SecondOrStepTimer,
        StepCounterHook,
        StopAtStepHook,
        SummarySaverHook,
        make_early_stopping_hook,
        make_stop_at_checkpoint_step_hook,
        read_eval_metrics,
        stop_if_higher_hook,
        stop_if_lower_hook,
        stop_if_no_decrease_hook,
        stop_if_no_increase_hook,
    )
    from torch_estimator.inputs.input_context import InputContext
    from torch_estimator.keras.model_to_estimator import model_to_estimator
    from torch_estimator.mode_keys import ModeKeys
    from torch_estimator.roles.continuous_eval_listener import ContinuousEvalListener
    from torch_estimator.roles.train_and_evaluate import train_and_evaluate
    from torch_estimator.run_config import RunConfig
    from torch_estimator.specs import EstimatorSpec, EvalSpec, TrainSpec
    from torch_estimator.warm_start import VocabInfo, WarmStartSettings

__version__ = "0.1.0"

_MODULES = (
    "data",
    "distribute",
    "errors",
    "experimental",
    "exporters",
    "feature_column",
    "heads",
    "hooks",
    "inputs",
    "optim",
    "serving_input",
    "summary",
)
_HOMES = {
    "BaselineClassifier": "canned.baseline",
    "BaselineEstimator": "canned.baseline",
    "BaselineRegressor": "canned.baseline",
    "BestExporter": "exporters",
    "BinaryClassHead": "heads",
    "CheckpointSaverListener": "hooks",
    "ContinuousEvalListener": "roles.continuous_eval_listener",
    "DNNClassifier": "canned.dnn",
    "DNNEstimator": "canned.dnn",
    "DNNLinearCombinedClassifier": "canned.dnn_linear_combined",
    "DNNLinearCombinedEstimator": "canned.dnn_linear_combined",
    "DNNLinearCombinedRegressor": "canned.dnn_linear_combined",
    "DNNRegressor": "canned.dnn",
    "Estimator": "estimator",
    "EstimatorSpec": "specs",
    "EvalSpec": "specs",
    "ExportedModel": "export.exported_model",
    "Exporter": "exporters",
    "FinalExporter": "exporters",
    "FinalOpsHook": "hooks",
    "Hook": "hooks",
    "InMemoryEvaluatorHook": "hooks",
    "InputContext": "inputs.input_context",
    "LatestExporter": "exporters",
    "LinearClassifier": "canned.linear",
    "LinearEstimator": "canned.linear",
    "LinearRegressor": "canned.linear",
    "LoggingTensorHook": "hooks",
    "LogisticRegressionHead": "heads",
    "LossReduction": "heads",
    "ModeKeys": "mode_keys",
    "MultiClassHead": "heads",
    "MultiHead": "heads",
    "MultiLabelHead": "heads",
    "NanLossDuringTrainingError": "errors",
    "NanTensorHook": "hooks",
    "ProfilerHook": "hooks",
    "PoissonRegressionHead": "heads",
    "RegressionHead": "heads",
    "RunConfig": "run_config",
    "RunContext": "hooks",
    "SecondOrStepTimer": "hooks",
    "StepCounterHook": "hooks",
    "StopAtStepHook": "hooks",
    "SummarySaverHook": "hooks",
    "TrainSpec": "specs",
    "UserError": "errors",
    "VocabInfo": "warm_start",
    "WarmStartSettings": "warm_start",
    "add_metrics": "extenders",
    "forward_features": "extenders",
    "forward_layers": "extenders",
    "latest_checkpoint": "engine.checkpoint",
    "load_checkpoint": "engine.checkpoint",
    "make_early_stopping_hook": "hooks",
    "make_stop_at_checkpoint_step_hook": "hooks",
    "read_eval_metrics": "hooks",
    "stop_if_higher_hook": "hooks",
    "stop_if_lower_hook": "hooks",
    "stop_if_no_decrease_hook": "hooks",
    "stop_if_no_increase_hook": "hooks",
    "model_to_estimator": "keras.model_to_estimator",
    "train_and_evaluate": "roles.train_and_evaluate",
}

__all__ = [
    "BaselineClassifier",
    "BaselineEstimator",
    "BaselineRegressor",
    "BestExporter",
    "BinaryClassHead",
    "CheckpointSaverListener",
    "ContinuousEvalListener",
    "DNNClassifier",
    "DNNEstimator",
    "DNNLinearCombinedClassifier",
    "DNNLinearCombinedEstimator",
    "DNNLinearCombinedRegressor",
    "DNNRegressor",
    "Estimator",
    "EstimatorSpec",
    "EvalSpec",
    "ExportedModel",
    "Exporter",
    "FinalExporter",
    "FinalOpsHook",
    "Hook",
    "InMemoryEvaluatorHook",
    "InputContext",
    "LatestExporter",
    "LinearClassifier",
    "LinearEstimator",
    "LinearRegressor",
    "LoggingTensorHook",
    "LogisticRegressionHead",
    "LossReduction",
    "ModeKeys",
    "MultiClassHead",
    "MultiHead",
    "MultiLabelHead",
    "NanLossDuringTrainingError",
    "NanTensorHook",
    "PoissonRegressionHead",
    "ProfilerHook",
    "RegressionHead",
    "RunConfig",
    "RunContext",
    "SecondOrStepTimer",
    "StepCounterHook",
    "StopAtStepHook",
    "SummarySaverHook",
    "TrainSpec",
    "UserError",
    "VocabInfo",
    "WarmStartSettings",
    "add_metrics",
    "data",
    "distribute",
    "errors",
    "experimental",
    "exporters",
    "feature_column",
    "forward_features",
    "forward_layers",
    "heads",
    "hooks",
    "inputs",
    "latest_checkpoint",
    "load_checkpoint",
    "make_early_stopping_hook",
    "make_stop_at_checkpoint_step_hook",
    "model_to_estimator",
    "optim",
    "read_eval_metrics",
    "serving_input",
    "stop_if_higher_hook",
    "stop_if_lower_hook",
    "stop_if_no_decrease_hook",
    "stop_if_no_increase_hook",
    "summary",
    "train_and_evaluate",
]

set_up_logging()


def __getattr__(name: str) -> Any:
    if name in _MODULES:
        return importlib.import_module(f"{__name__}.{name}")
    if name in _HOMES:
        value = getattr(importlib.import_module(f"{__name__}.{_HOMES[name]}"), name)
        globals()[name] = value
        return value
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted([*globals(), *__all__])
