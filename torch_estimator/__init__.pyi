# Every public name, once: __init__.py loads them from here when they are first used.
from . import (
    data as data,
)
from . import (
    distribute as distribute,
)
from . import (
    errors as errors,
)
from . import (
    experimental as experimental,
)
from . import (
    export as export,
)
from . import (
    exporters as exporters,
)
from . import (
    feature_column as feature_column,
)
from . import (
    heads as heads,
)
from . import (
    hooks as hooks,
)
from . import (
    inputs as inputs,
)
from . import (
    metrics as metrics,
)
from . import (
    nn as nn,
)
from . import (
    optim as optim,
)
from . import (
    registry as registry,
)
from . import (
    serving_input as serving_input,
)
from . import (
    strings as strings,
)
from . import (
    summary as summary,
)
from . import (
    v2 as v2,
)
from .checkpoint.checkpoint import (
    latest_checkpoint as latest_checkpoint,
)
from .checkpoint.checkpoint import (
    load_checkpoint as load_checkpoint,
)
from .checkpoint.tensorflow_modules import (
    import_tf_checkpoint as import_tf_checkpoint,
)
from .errors import (
    NanLossDuringTrainingError as NanLossDuringTrainingError,
)
from .errors import (
    UserError as UserError,
)
from .estimator import Estimator as Estimator
from .estimator_wrappers import (
    add_metrics as add_metrics,
)
from .estimator_wrappers import (
    forward_features as forward_features,
)
from .estimator_wrappers import (
    forward_layers as forward_layers,
)
from .executors.evaluation import ContinuousEvalListener as ContinuousEvalListener
from .executors.train_and_evaluate import train_and_evaluate as train_and_evaluate
from .export.exported_model import ExportedModel as ExportedModel
from .exporters import (
    BestExporter as BestExporter,
)
from .exporters import (
    Exporter as Exporter,
)
from .exporters import (
    FinalExporter as FinalExporter,
)
from .exporters import (
    LatestExporter as LatestExporter,
)
from .feature_column.parse_example_spec import (
    classifier_parse_example_spec as classifier_parse_example_spec,
)
from .feature_column.parse_example_spec import (
    regressor_parse_example_spec as regressor_parse_example_spec,
)
from .heads import (
    BinaryClassHead as BinaryClassHead,
)
from .heads import (
    LogisticRegressionHead as LogisticRegressionHead,
)
from .heads import (
    LossReduction as LossReduction,
)
from .heads import (
    MultiClassHead as MultiClassHead,
)
from .heads import (
    MultiHead as MultiHead,
)
from .heads import (
    MultiLabelHead as MultiLabelHead,
)
from .heads import (
    PoissonRegressionHead as PoissonRegressionHead,
)
from .heads import (
    RegressionHead as RegressionHead,
)
from .hooks import (
    CheckpointSaverListener as CheckpointSaverListener,
)
from .hooks import (
    FinalOpsHook as FinalOpsHook,
)
from .hooks import (
    Hook as Hook,
)
from .hooks import (
    InMemoryEvaluatorHook as InMemoryEvaluatorHook,
)
from .hooks import (
    LoggingTensorHook as LoggingTensorHook,
)
from .hooks import (
    MLflowTracker as MLflowTracker,
)
from .hooks import (
    NanTensorHook as NanTensorHook,
)
from .hooks import (
    ProfilerHook as ProfilerHook,
)
from .hooks import (
    RunContext as RunContext,
)
from .hooks import (
    SecondOrStepTimer as SecondOrStepTimer,
)
from .hooks import (
    StepCounterHook as StepCounterHook,
)
from .hooks import (
    StopAtStepHook as StopAtStepHook,
)
from .hooks import (
    SummarySaverHook as SummarySaverHook,
)
from .hooks import (
    TrackedPoint as TrackedPoint,
)
from .hooks import (
    TrackedRun as TrackedRun,
)
from .hooks import (
    Tracker as Tracker,
)
from .hooks import (
    TrackingHook as TrackingHook,
)
from .hooks import (
    WandbTracker as WandbTracker,
)
from .hooks import (
    make_early_stopping_hook as make_early_stopping_hook,
)
from .hooks import (
    make_stop_at_checkpoint_step_hook as make_stop_at_checkpoint_step_hook,
)
from .hooks import (
    read_eval_metrics as read_eval_metrics,
)
from .hooks import (
    stop_if_higher_hook as stop_if_higher_hook,
)
from .hooks import (
    stop_if_lower_hook as stop_if_lower_hook,
)
from .hooks import (
    stop_if_no_decrease_hook as stop_if_no_decrease_hook,
)
from .hooks import (
    stop_if_no_increase_hook as stop_if_no_increase_hook,
)
from .inputs.input_fn import InputContext as InputContext
from .mode_keys import ModeKeys as ModeKeys
from .models.baseline import (
    BaselineClassifier as BaselineClassifier,
)
from .models.baseline import (
    BaselineEstimator as BaselineEstimator,
)
from .models.baseline import (
    BaselineRegressor as BaselineRegressor,
)
from .models.dnn import (
    DNNClassifier as DNNClassifier,
)
from .models.dnn import (
    DNNEstimator as DNNEstimator,
)
from .models.dnn import (
    DNNRegressor as DNNRegressor,
)
from .models.dnn_linear_combined import (
    DNNLinearCombinedClassifier as DNNLinearCombinedClassifier,
)
from .models.dnn_linear_combined import (
    DNNLinearCombinedEstimator as DNNLinearCombinedEstimator,
)
from .models.dnn_linear_combined import (
    DNNLinearCombinedRegressor as DNNLinearCombinedRegressor,
)
from .models.keras.model_to_estimator import model_to_estimator as model_to_estimator
from .models.linear import (
    LinearClassifier as LinearClassifier,
)
from .models.linear import (
    LinearEstimator as LinearEstimator,
)
from .models.linear import (
    LinearRegressor as LinearRegressor,
)
from .run_config import RunConfig as RunConfig
from .specs import (
    EstimatorSpec as EstimatorSpec,
)
from .specs import (
    EvalSpec as EvalSpec,
)
from .specs import (
    TrainSpec as TrainSpec,
)
from .tuning.tune import (
    TuningResult as TuningResult,
)
from .tuning.tune import (
    tune as tune,
)
from .warm_start import (
    VocabInfo as VocabInfo,
)
from .warm_start import (
    WarmStartSettings as WarmStartSettings,
)

__version__: str
