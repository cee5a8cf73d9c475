"""Tables of TensorFlow's names: what `estimator port` rewrites, and the advice for names that it leaves.

Names are written without ``tf.`` and ``compat.v1.``. `docs/migrate/port.md` shows both tables. A test compares the
arguments of `RENAMED` with those of TensorFlow 2.15 and of this package.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

BY_GENERATION = "{classes}"
"""Stands for ``te`` in a program for TF 1.x, and for ``te.v2`` in one for TF 2.x."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Renamed:
    """A name that is rewritten, and what becomes of the arguments if it is called.

    Arguments that are not mentioned stay as they are.

    Attributes:
        target: The name here.
        order: TensorFlow's parameters in their order, if positions mean something else here; positional arguments
            then become keywords. Empty if positions mean the same.
        positions: How many positional arguments mean the same; a call with more is left to the user.
        names: TensorFlow's name of an argument -> the name here.
        removed: Arguments that are removed -> why, or "" if there is nothing to know.
        by_hand: Arguments with which a call is left to the user -> what to do.
        added: Arguments to add where the program leaves them to their default -> their code.
        note: What the user should know about every use.
        note_on_value: What the user should know about calls whose value is used.
    """

    target: str
    order: str = ""
    positions: int | None = None
    names: Mapping[str, str] = field(default_factory=dict)
    removed: Mapping[str, str] = field(default_factory=dict)
    by_hand: Mapping[str, str] = field(default_factory=dict)
    added: Mapping[str, str] = field(default_factory=dict)
    note: str = ""
    note_on_value: str = ""


_PARTITIONER = "parameter servers hold rows of every variable, so nothing is partitioned"
_SESSION = "there are no sessions"
_NO_CHECKPOINT_OF_COLUMN = "start from a checkpoint with te.WarmStartSettings"
_HASH = (
    'strings are hashed with murmur3, TensorFlow uses farmhash; give hash_function="farmhash" to keep the ids of a '
    "trained model"
)
_ROWS_OF_BATCH = (
    "in an embedding table only the rows of a batch are updated; TensorFlow's Adam moves the other rows, too"
)
_AVERAGE = "wrap the optimizer in te.optim.moving_average(optimizer, 0.99): docs/guides/optimizers.md"
_CLIP = "wrap the optimizer in te.optim.clip_gradients_by_norm or te.optim.clip_gradients_by_value"
_EMBEDDING_ONLY_TF = {
    "ckpt_to_load_from": _NO_CHECKPOINT_OF_COLUMN,
    "tensor_name_in_ckpt": _NO_CHECKPOINT_OF_COLUMN,
    "use_safe_embedding_lookup": "leave the argument out; a row without values becomes zeros",
}
_METRIC_REMOVED = {"metrics_collections": "", "updates_collections": "", "name": ""}
_OPTIMIZER_REMOVED = {"use_locking": "", "name": ""}
_KERAS_BY_HAND = {
    "clipnorm": _CLIP,
    "clipvalue": _CLIP,
    "global_clipnorm": _CLIP,
    "weight_decay": "write te.optim.AdamW(lr=0.001, weight_decay=0.01)",
    "use_ema": _AVERAGE,
    "ema_momentum": _AVERAGE,
    "ema_overwrite_frequency": _AVERAGE,
    "decay": "use a schedule, as docs/migrate/names.md shows",
}


def _premade(kind: str, positions: int) -> Renamed:
    removed = {"input_layer_partitioner": _PARTITIONER, "partitioner": _PARTITIONER}
    return Renamed(target=f"{BY_GENERATION}.{kind}", positions=positions, removed=removed)


def _keras(target: str, order: str, rate: str, **changes: Mapping[str, str] | str) -> Renamed:
    """Return the rule of an optimizer of Keras, whose default learning rate the optimizer here need not have."""
    base = Renamed(
        target=target,
        order=f"learning_rate {order}",
        names={"lr": "learning_rate"},
        removed={"name": "", "jit_compile": ""},
        by_hand=_KERAS_BY_HAND,
        added={"learning_rate": rate},
    )
    merged = {name: {**getattr(base, name), **value} for name, value in changes.items() if isinstance(value, Mapping)}
    return replace(base, **{**changes, **merged})  # type: ignore[arg-type]


_KERAS_OPTIMIZERS = {
    "Adagrad": _keras(
        "te.optim.Adagrad",
        "initial_accumulator_value epsilon",
        "0.001",
        by_hand={"epsilon": "leave it out; te.optim.Adagrad has no epsilon, its accumulator starts above zero"},
    ),
    "Adam": _keras(
        "te.optim.Adam",
        "beta_1 beta_2 epsilon amsgrad",
        "0.001",
        names={"beta_1": "beta1", "beta_2": "beta2"},
        by_hand={"amsgrad": "write functools.partial(torch.optim.Adam, lr=0.001, eps=1e-7, amsgrad=True)"},
        added={"epsilon": "1e-07"},
        note=_ROWS_OF_BATCH,
    ),
    "Ftrl": _keras(
        "te.optim.Ftrl",
        "learning_rate_power initial_accumulator_value l1_regularization_strength l2_regularization_strength",
        "0.001",
    ),
    "SGD": _keras("te.optim.SGD", "momentum nesterov", "0.01"),
}


def _early_stopping(name: str) -> Renamed:
    return Renamed(target=f"te.experimental.{name}")


_FARMHASH = Renamed(target="te.feature_column.categorical_column_with_hash_bucket", note=_HASH)
_ADD_METRICS = Renamed(
    target="te.add_metrics", note="the metric function gets torch tensors, and returns te.metrics or numbers"
)

RENAMED: dict[str, Renamed] = {
    # Jobs.
    "estimator": Renamed(target="te"),
    "estimator.ModeKeys": Renamed(target="te.ModeKeys"),
    "estimator.RunConfig": Renamed(
        target="te.RunConfig",
        order="model_dir tf_random_seed save_summary_steps save_checkpoints_steps save_checkpoints_secs session_config "
        "keep_checkpoint_max keep_checkpoint_every_n_hours log_step_count_steps train_distribute device_fn protocol "
        "eval_distribute experimental_distribute experimental_max_worker_delay_secs session_creation_timeout_secs "
        "checkpoint_save_graph_def",
        removed={
            "session_config": _SESSION,
            "device_fn": _SESSION,
            "protocol": _SESSION,
            "checkpoint_save_graph_def": "a checkpoint has no graph",
        },
        by_hand={"experimental_distribute": "give train_distribute and eval_distribute instead"},
    ),
    "estimator.TrainSpec": Renamed(target="te.TrainSpec"),
    "estimator.EvalSpec": Renamed(target="te.EvalSpec"),
    "estimator.train_and_evaluate": Renamed(
        target="te.train_and_evaluate",
        note_on_value="it returns (None, None) in processes that do not evaluate, or if max_steps was reached before",
    ),
    "estimator.WarmStartSettings": Renamed(
        target="te.WarmStartSettings", note="checkpoints are those of this package, not TensorFlow's"
    ),
    "estimator.VocabInfo": Renamed(target="te.VocabInfo"),
    "train.latest_checkpoint": Renamed(
        target="te.latest_checkpoint",
        order="checkpoint_dir latest_filename",
        names={"checkpoint_dir": "model_dir"},
        by_hand={"latest_filename": "leave it out; the file is always named checkpoint"},
    ),
    # Estimators.
    **{f"estimator.{kind}": _premade(kind, 9) for kind in ("DNNClassifier", "DNNLinearCombinedEstimator")},
    "estimator.DNNRegressor": _premade("DNNRegressor", 8),
    "estimator.DNNEstimator": _premade("DNNEstimator", 7),
    "estimator.LinearClassifier": _premade("LinearClassifier", 7),
    "estimator.LinearRegressor": _premade("LinearRegressor", 6),
    "estimator.LinearEstimator": _premade("LinearEstimator", 5),
    "estimator.DNNLinearCombinedClassifier": _premade("DNNLinearCombinedClassifier", 11),
    "estimator.DNNLinearCombinedRegressor": _premade("DNNLinearCombinedRegressor", 10),
    "estimator.BaselineClassifier": _premade("BaselineClassifier", 7),
    "estimator.BaselineRegressor": _premade("BaselineRegressor", 6),
    "estimator.BaselineEstimator": _premade("BaselineEstimator", 4),
    "estimator.experimental.KMeans": Renamed(target="te.experimental.KMeans"),
    **{
        f"contrib.factorization.{name}": Renamed(target="te.experimental.KMeans", names={"random_seed": "seed"})
        for name in ("KMeans", "KMeansClustering")
    },
    "estimator.Estimator": Renamed(
        target="te.Estimator",
        note="its model_fn has to return a module: docs/migrate/tf1.md, A model_fn, before and after",
    ),
    "estimator.add_metrics": _ADD_METRICS,
    "contrib.estimator.add_metrics": _ADD_METRICS,
    "contrib.estimator.forward_features": Renamed(target="te.forward_features"),
    # Heads.
    **{
        f"estimator.{head}": Renamed(target=f"te.{head}")
        for head in (
            "BinaryClassHead",
            "MultiClassHead",
            "MultiLabelHead",
            "RegressionHead",
            "PoissonRegressionHead",
            "LogisticRegressionHead",
            "MultiHead",
        )
    },
    **{
        f"{place}.{reduction}": Renamed(target=f"te.LossReduction.{reduction}")
        for place in ("losses.Reduction", "keras.losses.Reduction")
        for reduction in ("SUM", "SUM_OVER_BATCH_SIZE")
    },
    "keras.losses.Reduction.AUTO": Renamed(target="te.LossReduction.SUM_OVER_BATCH_SIZE"),
    "losses.Reduction.AUTO": Renamed(target="te.LossReduction.SUM_OVER_BATCH_SIZE"),
    "losses.Reduction.MEAN": Renamed(target="te.LossReduction.MEAN"),
    "losses.Reduction.SUM_BY_NONZERO_WEIGHTS": Renamed(target="te.LossReduction.SUM_BY_NONZERO_WEIGHTS"),
    "losses.Reduction.SUM_OVER_NONZERO_WEIGHTS": Renamed(target="te.LossReduction.SUM_OVER_NONZERO_WEIGHTS"),
    # Metrics. In TF 2.x, mean_squared_error and mean_absolute_error are Keras metrics, which behave differently.
    "metrics.mean": Renamed(target="te.metrics.mean", positions=2, removed=_METRIC_REMOVED),
    **{
        f"metrics.{metric}": Renamed(target=f"te.metrics.{metric}", positions=3, removed=_METRIC_REMOVED)
        for metric in (
            "accuracy",
            "root_mean_squared_error",
            "precision",
            "recall",
            "true_positives",
            "true_negatives",
            "false_positives",
            "false_negatives",
        )
    },
    # Feature columns.
    "feature_column": Renamed(target="te.feature_column"),
    **{
        f"feature_column.{column}": Renamed(target=f"te.feature_column.{column}")
        for column in (
            "numeric_column",
            "bucketized_column",
            "categorical_column_with_vocabulary_list",
            "categorical_column_with_identity",
            "weighted_categorical_column",
            "indicator_column",
        )
    },
    "feature_column.categorical_column_with_vocabulary_file": Renamed(
        target="te.feature_column.categorical_column_with_vocabulary_file",
        positions=3,
        by_hand={"file_format": "write the vocabulary into a file of text lines, which are read always"},
    ),
    "feature_column.categorical_column_with_hash_bucket": _FARMHASH,
    "feature_column.crossed_column": replace(_FARMHASH, target="te.feature_column.crossed_column"),
    "feature_column.embedding_column": Renamed(
        target="te.feature_column.embedding_column", positions=4, by_hand=_EMBEDDING_ONLY_TF
    ),
    **{
        f"feature_column.{function}": Renamed(
            target=f"te.feature_column.{function}", positions=5, by_hand=_EMBEDDING_ONLY_TF
        )
        for function in ("shared_embeddings", "shared_embedding_columns")
    },
    # Input.
    "data.Dataset": Renamed(target="te.data.Dataset"),
    "estimator.inputs.numpy_input_fn": Renamed(target="te.inputs.numpy_input_fn"),
    "estimator.inputs.pandas_input_fn": Renamed(target="te.inputs.pandas_input_fn"),
    "feature_column.make_parse_example_spec": Renamed(target="te.feature_column.make_parse_example_spec"),
    "estimator.classifier_parse_example_spec": Renamed(target="te.classifier_parse_example_spec"),
    "estimator.regressor_parse_example_spec": Renamed(target="te.regressor_parse_example_spec"),
    **{
        f"{module}{feature}": Renamed(target=f"te.data.{feature}")
        for module in ("", "io.")
        for feature in ("FixedLenFeature", "FixedLenSequenceFeature", "VarLenFeature")
    },
    # Serving.
    "estimator.export.build_parsing_serving_input_receiver_fn": Renamed(
        target="te.serving_input.examples",
        positions=1,
        by_hand={"default_batch_size": "leave it out"},
    ),
    **{
        f"estimator.{exporter}": Renamed(
            target=f"te.{exporter}", removed={"as_text": "estimator show --dir DIR prints an export"}
        )
        for exporter in ("Exporter", "FinalExporter", "LatestExporter", "BestExporter")
    },
    # Hooks.
    **{
        f"estimator.experimental.{name}": _early_stopping(name)
        for name in (
            "stop_if_no_decrease_hook",
            "stop_if_no_increase_hook",
            "stop_if_higher_hook",
            "stop_if_lower_hook",
            "make_early_stopping_hook",
            "make_stop_at_checkpoint_step_hook",
            "InMemoryEvaluatorHook",
        )
    },
    **{
        f"{place}.{name}": rule
        for place in ("estimator", "train")
        for name, rule in {
            "StopAtStepHook": Renamed(target="te.StopAtStepHook"),
            "SecondOrStepTimer": Renamed(target="te.SecondOrStepTimer"),
            "CheckpointSaverListener": Renamed(
                target="te.CheckpointSaverListener", note="its methods get other arguments: docs/reference/hooks.md"
            ),
            "StepCounterHook": Renamed(
                target="te.StepCounterHook", positions=3, by_hand={"summary_writer": "give output_dir instead"}
            ),
            "ProfilerHook": Renamed(
                target="te.ProfilerHook",
                positions=3,
                removed={"show_dataflow": "a profile is a trace for Perfetto and TensorBoard"},
            ),
        }.items()
    },
    # Optimizers.
    "train.AdagradOptimizer": Renamed(
        target="te.optim.Adagrad",
        order="learning_rate initial_accumulator_value use_locking name",
        removed=_OPTIMIZER_REMOVED,
    ),
    "train.AdamOptimizer": Renamed(
        target="te.optim.Adam",
        order="learning_rate beta1 beta2 epsilon use_locking name",
        removed=_OPTIMIZER_REMOVED,
        note=_ROWS_OF_BATCH,
    ),
    "train.FtrlOptimizer": Renamed(
        target="te.optim.Ftrl",
        order="learning_rate learning_rate_power initial_accumulator_value l1_regularization_strength "
        "l2_regularization_strength use_locking name accum_name linear_name l2_shrinkage_regularization_strength beta",
        removed={**_OPTIMIZER_REMOVED, "accum_name": "", "linear_name": ""},
    ),
    "train.GradientDescentOptimizer": Renamed(
        target="te.optim.SGD", order="learning_rate use_locking name", removed=_OPTIMIZER_REMOVED
    ),
    "train.MomentumOptimizer": Renamed(
        target="te.optim.SGD",
        order="learning_rate momentum use_locking name use_nesterov",
        names={"use_nesterov": "nesterov"},
        removed=_OPTIMIZER_REMOVED,
    ),
    "train.RMSPropOptimizer": Renamed(
        target="te.optim.RMSProp",
        order="learning_rate decay momentum epsilon use_locking centered name",
        removed=_OPTIMIZER_REMOVED,
        by_hand={"centered": "write functools.partial(torch.optim.RMSprop, lr=0.1, centered=True)"},
    ),
    **{
        f"{place}.{name}": rule
        for place in ("keras.optimizers", "keras.optimizers.legacy", "optimizers", "optimizers.legacy")
        for name, rule in _KERAS_OPTIMIZERS.items()
    },
    # Strategies.
    "distribute.MirroredStrategy": Renamed(
        target="te.distribute.MirroredStrategy",
        positions=1,
        removed={"cross_device_ops": "torch.distributed chooses how gradients are exchanged"},
        note="without GPUs it has one replica; replicas=2 gives two on the CPU",
    ),
    "distribute.MultiWorkerMirroredStrategy": Renamed(
        target="te.distribute.MultiWorkerMirroredStrategy",
        positions=0,
        removed={"cluster_resolver": "TF_CONFIG describes the cluster"},
        by_hand={"communication_options": 'give communication="AUTO", "RING" or "NCCL" instead'},
    ),
    "distribute.experimental.MultiWorkerMirroredStrategy": Renamed(
        target="te.distribute.MultiWorkerMirroredStrategy",
        positions=1,
        removed={"cluster_resolver": "TF_CONFIG describes the cluster"},
    ),
    **{
        f"distribute.experimental.{place}.{name}": Renamed(target=f'"{name}"')
        for place in ("CollectiveCommunication", "CommunicationImplementation")
        for name in ("AUTO", "RING", "NCCL")
    },
    "distribute.experimental.ParameterServerStrategy": Renamed(
        target="te.distribute.ParameterServerStrategy",
        positions=0,
        removed={"cluster_resolver": "TF_CONFIG describes the cluster", "variable_partitioner": _PARTITIONER},
    ),
    # Log output.
    **{f"logging.{level}": Renamed(target=f"logging.{level}") for level in ("DEBUG", "INFO", "ERROR", "FATAL")},
    "logging.WARN": Renamed(target="logging.WARNING"),
    "logging.set_verbosity": Renamed(target='logging.getLogger("torch_estimator").setLevel', positions=1),
    "get_logger": Renamed(target='logging.getLogger("torch_estimator")', positions=0),
    **{
        f"logging.{function}": Renamed(target=f'logging.getLogger("torch_estimator").{function}')
        for function in ("debug", "info", "warning", "error", "fatal")
    },
    "logging.warn": Renamed(target='logging.getLogger("torch_estimator").warning'),
}

ATTRIBUTES = {"estimator.ModeKeys": ("TRAIN", "EVAL", "PREDICT")}
"""Names whose attributes have the same names here."""

ACTIVATIONS = {
    "nn.relu": "torch.relu",
    "nn.tanh": "torch.tanh",
    "tanh": "torch.tanh",
    "math.tanh": "torch.tanh",
    "nn.sigmoid": "torch.sigmoid",
    "sigmoid": "torch.sigmoid",
    "math.sigmoid": "torch.sigmoid",
    "nn.elu": "torch.nn.functional.elu",
    "nn.selu": "torch.selu",
    "nn.relu6": "torch.nn.functional.relu6",
    "nn.softplus": "torch.nn.functional.softplus",
    "nn.swish": "torch.nn.functional.silu",
    "nn.silu": "torch.nn.functional.silu",
}
"""Functions that are rewritten where a premade model gets them as activation."""

TYPES = {name: f'"{name}"' for name in ("string", "int32", "int64", "float32", "float64")}
"""Types that are rewritten where a feature column or a feature of a tf.Example gets them as ``dtype``."""

DELETED = {
    "summary.FileWriterCache.clear",
    "disable_v2_behavior",
    "enable_v2_behavior",
    "disable_eager_execution",
    "enable_eager_execution",
    "reset_default_graph",
    "keras.backend.clear_session",
}
"""Calls that do nothing that is needed here: statements with them are deleted."""

_MODEL_FN = "a model_fn returns te.EstimatorSpec with a module and functions: docs/migrate/tf1.md"
_MODULE = "write it in a torch module: docs/migrate/tf1.md, Layers and losses"
_FROM_CSV = "te.data.Dataset.from_csv(files, column_names=[…], defaults=[…], label=…) reads and parses the lines"
_MAKE_CSV = (
    "its defaults are te.data.Dataset.from_csv(files, label=…).shuffle(10_000).repeat().batch(n); na_value is the same"
)
_TFRECORD = "te.data.Dataset.from_tfrecord(files, schema=…, label=…) reads and parses the records, many at once"
_SEQUENCES = "te.data.Dataset.from_tfrecord(files, schema=context, sequence_schema=lists) reads and parses the records"
_BYTES = 'give the feature the type "bytes", and decode it with numpy in a map: docs/guides/input/tfrecord.md, Images'
_WRITE_TFRECORD = "te.data.write_tfrecord(path, rows) writes them, from dicts or columns of rows"
_SCHEDULE = "give a function of the named parameters: docs/migrate/names.md, Learning-rate schedules"
SERVING_EXAMPLES = (
    "write its body as: return te.serving_input.examples(feature_spec); clients call the input examples, and inputs in "
    "classify and regress"
)
SERVING_CSV = "write its body as: return te.serving_input.csv(column_names, columns)"
SERVING_DEFAULTS = "write its body as: return te.serving_input.json(columns, defaults={name: value})"
SERVING_JSON = (
    "write its body as: return te.serving_input.json(columns), or .raw_features(columns) for inputs [N, 1], or "
    ".like(features) without columns"
)
COMPUTES = "; for what it computes give transform=, or write .receiver(inputs, function): docs/migrate/tf1.md, Serving"
OTHER_LOSS = "; loss= of te.EstimatorSpec is what is trained: {}; give {}, which is reported, in eval or as a metric"
_SERVING = (
    "a serving input is te.serving_input.raw_features(columns), .json(columns), .csv(names, columns), .like(features), "
    "or .receiver(inputs, transform), which computes features"
)
_STRINGS = "te.strings has operations for Dataset.map and te.serving_input.receiver; an export has no others"
_LOGGING_HOOK = 'write te.LoggingTensorHook({"loss": "loss"}, every_n_iter=100): names of variables or layers'
_PATHS = "wherever a path is taken, globs and fsspec URLs (s3://, gs://) work; else use os, glob or fsspec"
_GLOB = "write the pattern itself; te.data.Dataset.from_csv and others take globs and fsspec URLs (s3://, gs://)"
_FLAGS = "use argparse; or install absl-py: from absl import flags, app has the same functions"
_LOOKUP = (
    "give the strings as they are: label_vocabulary=[…] of a classifier, or Dataset.label(column, {string: number})"
)
_METRIC = (
    "a metric is a function (labels, predictions) of torch tensors; te.metrics has many: docs/migrate/names.md, Metrics"
)
_TRAINING = "te.Estimator.train runs the training; there are no sessions"
_MISSING = "there is no counterpart: docs/migrate/names.md"
TENSOR = "input functions compute with numpy, modules and losses with torch"

BYTE_DECODERS = (
    "decode_raw",
    *(f"{place}.decode_{kind}" for place in ("io", "image") for kind in ("raw", "image", "jpeg", "png", "bmp", "gif")),
)
"""Names in functions that make numbers of the bytes of a record."""

_GRAPH_VALUES = """
    cast constant concat expand_dims squeeze stack reshape shape size zeros ones zeros_like ones_like fill
    argmax equal where one_hot reduce_sum reduce_mean reduce_max matmul multiply add log exp abs sqrt square
    math to_float to_int32 to_int64 identity stop_gradient random random_uniform random_normal random_shuffle
    truncated_normal sparse SparseTensor SparseTensorValue RaggedTensor Tensor convert_to_tensor
    string_to_number gather slice split tile transpose
"""

ADVICE: dict[str, str] = {
    # Models of one's own.
    "estimator.EstimatorSpec": _MODEL_FN,
    "estimator.tpu": "use te.Estimator and te.RunConfig; there is no TPU",
    "contrib.tpu": "use te.Estimator and te.RunConfig; there is no TPU",
    "tpu": "use te.Estimator and te.RunConfig; there is no TPU",
    "estimator.export.PredictOutput": "delete it; an export has the signatures predict and serving_default",
    "estimator.export.ClassificationOutput": "delete it; an export has the signatures predict and serving_default",
    "estimator.export.RegressionOutput": "delete it; an export has the signatures predict and serving_default",
    "train.get_or_create_global_step": "delete it; a hook reads context.global_step",
    "train.get_global_step": "delete it; a hook reads context.global_step",
    "train.create_global_step": "delete it; a hook reads context.global_step",
    "get_variable": "write an nn.Parameter of a torch module",
    "Variable": "write an nn.Parameter or a buffer of a torch module",
    "variable_scope": "delete it; attributes of a torch module name its variables",
    "name_scope": "delete it",
    "layers": _MODULE,
    "keras": "write a torch module; a compiled Keras 3 model on torch becomes an Estimator by te.model_to_estimator",
    "keras.layers.DenseFeatures": "use te.feature_column.DenseFeatures: docs/guides/columns_in_your_model.md",
    "keras.estimator.model_to_estimator": "use te.model_to_estimator with a Keras 3 model on torch (import keras)",
    "keras.optimizers.RMSprop": "write functools.partial(torch.optim.RMSprop, lr=0.001, alpha=0.9, eps=1e-7)",
    "keras.optimizers.schedules": _SCHEDULE,
    "keras.metrics": _METRIC,
    "keras.losses": _MODULE,
    "keras.losses.Reduction.NONE": "a training loss is one number: te.LossReduction.SUM or another",
    "contrib.layers": _MODULE,
    "contrib.layers.optimize_loss": "give an optimizer, a schedule around it, and te.optim.clip_gradients_by_norm",
    "contrib.slim": "use torchvision or timm for networks, and torch modules for layers",
    "nn": _MODULE,
    "nn.embedding_lookup": "use an fc.embedding_column in front of the module, or nn.Embedding",
    "nn.embedding_lookup_sparse": "use an fc.embedding_column in front of the module, or nn.EmbeddingBag",
    "losses": _MODULE,
    "metrics": _METRIC,
    "GraphKeys": "delete it; batch normalization updates itself, and a loss adds regularization itself",
    "get_collection": "delete it; batch normalization updates itself, and a loss adds regularization itself",
    "control_dependencies": "delete it; torch computes in the order of the program",
    "group": "give optimizer= a function that returns a list of optimizers",
    "gradients": "use te.optim.clip_gradients_by_norm, or torch.autograd.grad in a loss",
    "clip_by_global_norm": "use te.optim.clip_gradients_by_norm(optimizer, norm)",
    "clip_by_value": "use te.optim.clip_gradients_by_value for gradients, torch.clamp for tensors",
    "summary": "use te.summary.scalar, histogram or image in a module's forward or in a loss",
    "summary.FileWriter": "use context.summary_writer() of a hook",
    "contrib.summary": "use te.summary.scalar, histogram or image in a module's forward or in a loss",
    "train.Scaffold": "delete it: docs/migrate/tf1.md, Hooks and scaffolds",
    "train.init_from_checkpoint": "use te.WarmStartSettings, or load_state_dict in the model_fn",
    "train.ExponentialMovingAverage": _AVERAGE,
    "contrib.estimator": "use the class or head of the same kind in te: docs/migrate/names.md, Estimators",
    "contrib.crf": _MISSING,
    "contrib.rnn": "use nn.LSTM or nn.GRU in a torch module",
    "contrib.metrics": _METRIC,
    # Columns.
    "feature_column.input_layer": "use te.feature_column.DenseFeatures: docs/guides/columns_in_your_model.md",
    "feature_column.linear_model": "use te.feature_column.LinearModel: docs/guides/columns_in_your_model.md",
    "feature_column.shared_embedding_columns": "use fc.shared_embeddings",
    **{
        f"feature_column.sequence_{kind}": f"write te.feature_column.sequence_{kind}"
        for kind in (
            "numeric_column",
            "categorical_column_with_identity",
            "categorical_column_with_hash_bucket",
            "categorical_column_with_vocabulary_list",
            "categorical_column_with_vocabulary_file",
        )
    },
    **{
        f"estimator.experimental.{name}": f"write te.experimental.{name}: docs/guides/feature_columns.md, Sequences"
        for name in ("RNNClassifier", "RNNEstimator")
    },
    # Input.
    **dict.fromkeys(BYTE_DECODERS, _BYTES),
    "data.TextLineDataset": f"{_FROM_CSV}; te.data.Dataset.from_text(files) gives other lines as they are",
    "decode_csv": _FROM_CSV,
    "io.decode_csv": _FROM_CSV,
    "data.experimental.CsvDataset": _FROM_CSV,
    "data.experimental.make_csv_dataset": _MAKE_CSV,
    "data.TFRecordDataset": _TFRECORD,
    "io.TFRecordWriter": _WRITE_TFRECORD,
    "python_io": _WRITE_TFRECORD,
    "parse_example": _TFRECORD,
    "parse_single_example": _TFRECORD,
    "io.parse_example": _TFRECORD,
    "io.parse_single_example": _TFRECORD,
    "parse_single_sequence_example": _SEQUENCES,
    "io.parse_sequence_example": _SEQUENCES,
    "io.parse_single_sequence_example": _SEQUENCES,
    "train.SequenceExample": "te.data.write_tfrecord(path, rows, sequence_columns=[…]) writes them",
    "train.Example": _WRITE_TFRECORD,
    "train.Features": _WRITE_TFRECORD,
    "train.Feature": _WRITE_TFRECORD,
    "data.experimental.make_batched_features_dataset": _TFRECORD,
    "contrib.data": "use the methods of te.data.Dataset: docs/migrate/names.md, Operations of a Dataset",
    "data.Dataset": "use the methods of te.data.Dataset: docs/migrate/names.md, Sources of data",
    "data.Dataset.from_tensor_slices": "write te.data.Dataset.from_arrays(features, labels)",
    "data.Dataset.from_tensors": "write te.data.Dataset.from_arrays(features, labels)",
    "data.Dataset.from_generator": "write te.data.Dataset.from_generator(function), without types and shapes",
    "data.Dataset.list_files": "give the glob to te.data.Dataset.from_csv, from_parquet or from_json",
    "data.Dataset.zip": "write te.data.Dataset.zip((features, labels)), or from_arrays({…}, labels)",
    "data.AUTOTUNE": "delete it; parsing runs on many rows at once, ahead of the training",
    "data.experimental.AUTOTUNE": "delete it; parsing runs on many rows at once, ahead of the training",
    "data": "use the methods of te.data.Dataset: docs/migrate/names.md, Operations of a Dataset",
    "train.string_input_producer": _FROM_CSV,
    "train.shuffle_batch": "use Dataset.shuffle and Dataset.batch",
    "train.batch": "use Dataset.batch",
    "train.match_filenames_once": "give the glob to te.data.Dataset.from_csv",
    "TextLineReader": _FROM_CSV,
    "contrib.lookup": _LOOKUP,
    "lookup": _LOOKUP,
    "py_func": "call the function; Dataset.map runs Python anyway",
    "py_function": "call the function; Dataset.map runs Python anyway",
    "numpy_function": "call the function; Dataset.map runs Python anyway",
    **dict.fromkeys(("gfile.Glob", "io.gfile.glob"), _GLOB),
    "gfile": _PATHS,
    "io.gfile": _PATHS,
    "io.read_file": "read images in a torch Dataset, and give its DataLoader to te.data.Dataset.from_iterable",
    "image": "read images in a torch Dataset, and give its DataLoader to te.data.Dataset.from_iterable",
    "string_split": _STRINGS,
    "strings": _STRINGS,
    # Serving.
    "estimator.export": _SERVING,
    "placeholder": _SERVING,
    "placeholder_with_default": "an optional input is te.serving_input.json(columns, defaults={name: value})",
    "saved_model": "te.ExportedModel.load(path).predict({…}) runs an export; estimator show describes it",
    "contrib.predictor": "te.ExportedModel.load(path).predict({…}) runs an export",
    # Jobs.
    "Session": _TRAINING,
    "InteractiveSession": _TRAINING,
    "Graph": _TRAINING,
    "get_default_graph": _TRAINING,
    "get_default_session": _TRAINING,
    "global_variables_initializer": _TRAINING,
    "local_variables_initializer": _TRAINING,
    "tables_initializer": _TRAINING,
    "train.MonitoredTrainingSession": _TRAINING,
    "train.Supervisor": _TRAINING,
    "train.Saver": "delete it; te.RunConfig says how often checkpoints are saved, and how many are kept",
    "ConfigProto": "delete it; there are no sessions",
    "GPUOptions": "delete it; there are no sessions",
    "OptimizerOptions": "delete it; there are no sessions",
    "device": "delete it; te.distribute says where a model trains",
    "train.replica_device_setter": "delete it; parameter servers hold rows of every variable",
    "train.SyncReplicasOptimizer": "give the optimizer itself; without parameter servers, workers train in step",
    "train.ClusterSpec": "set TF_CONFIG; te.RunConfig().cluster_spec reads it",
    "train.Server": "start a process for each task with TF_CONFIG, or estimator local train --distributed",
    "distribute": "te.distribute has MirroredStrategy, MultiWorkerMirroredStrategy, ParameterServerStrategy",
    "contrib.distribute": "te.distribute has MirroredStrategy, MultiWorkerMirroredStrategy, ParameterServerStrategy",
    "contrib.learn": "use te.train_and_evaluate with a te.TrainSpec and te.EvalSpec, and the premade classes in te",
    "contrib.training.HParams": "give a dict as params of te.Estimator",
    "app": _FLAGS,
    "flags": _FLAGS,
    "compat.v1.flags": _FLAGS,
    "set_random_seed": "give random_seed=… to te.RunConfig",
    "random.set_seed": "give random_seed=… to te.RunConfig",
    "logging": 'use logging.getLogger("torch_estimator")',
    # Hooks.
    "train.SessionRunHook": "derive from te.Hook: docs/migrate/tf1.md, Hooks and scaffolds",
    "train.SessionRunArgs": "read context.loss or context.variables() in after_step",
    "train.SessionRunContext": "a hook gets a te.RunContext",
    "estimator.SessionRunHook": "derive from te.Hook: docs/migrate/tf1.md, Hooks and scaffolds",
    "estimator.SessionRunArgs": "read context.loss or context.variables() in after_step",
    "train.LoggingTensorHook": _LOGGING_HOOK,
    "estimator.LoggingTensorHook": _LOGGING_HOOK,
    "train.NanTensorHook": "write te.NanTensorHook(), which watches the training loss",
    "estimator.NanTensorHook": "write te.NanTensorHook(), which watches the training loss",
    "train.SummarySaverHook": "use te.SummarySaverHook: docs/reference/hooks.md",
    "estimator.SummarySaverHook": "use te.SummarySaverHook: docs/reference/hooks.md",
    "train.FinalOpsHook": "use te.FinalOpsHook: docs/reference/hooks.md",
    "estimator.FinalOpsHook": "use te.FinalOpsHook: docs/reference/hooks.md",
    "train.CheckpointSaverHook": "delete it; te.RunConfig says how often checkpoints are saved",
    "estimator.CheckpointSaverHook": "delete it; te.RunConfig says how often checkpoints are saved",
    "train.FeedFnHook": "delete it; use te.data.Dataset.from_iterable",
    # Optimizers and schedules.
    "train.AdadeltaOptimizer": "write functools.partial(torch.optim.Adadelta, lr=0.001, rho=0.95, eps=1e-8)",
    "train.ProximalAdagradOptimizer": "write te.optim.Ftrl(lr=0.1, l1_regularization_strength=0.01)",
    "train.exponential_decay": _SCHEDULE,
    "train.polynomial_decay": _SCHEDULE,
    "train.cosine_decay": _SCHEDULE,
    "train.piecewise_constant": _SCHEDULE,
    "train.inverse_time_decay": _SCHEDULE,
    "contrib.opt": "use an optimizer of te.optim or torch.optim: docs/migrate/names.md, Optimizers",
    # Values of graphs.
    **dict.fromkeys(_GRAPH_VALUES.split(), TENSOR),
    **dict.fromkeys((*TYPES, "bool", "uint8", "float16"), "use numpy's type in an input function, torch's in a module"),
}

DECODES_RECORDS = f"{_TFRECORD}; {_BYTES}"
"""What becomes of a function that parses a record, and decodes its bytes."""

RECEIVERS = ("estimator.export.ServingInputReceiver", "estimator.export.TensorServingInputReceiver")
"""Names in functions that define the inputs of an export."""

CSV_PARSERS = ("decode_csv", "io.decode_csv")
"""Names in functions that parse lines of CSV."""

RECORD_PARSERS = ("parse_example", "parse_single_example", "io.parse_example", "io.parse_single_example")
"""Names in functions that parse tf.Examples."""

WHOLE = {
    **dict.fromkeys(CSV_PARSERS, "delete it; te.data.Dataset.from_csv parses the lines"),
    **dict.fromkeys(RECORD_PARSERS, f"delete it; {_TFRECORD}"),
    **dict.fromkeys(
        ("contrib.lookup.index_table_from_tensor", "contrib.lookup.index_table_from_file", "lookup.StaticHashTable"),
        f"delete it; {_LOOKUP}",
    ),
}
"""Names that make the whole function around them superfluous -> what to do with it."""

ANYTHING_ELSE = "estimator port does not know this name; docs/migrate/names.md may"

METHODS = {
    "export_savedmodel": "write export_saved_model(directory, serving_input)",
    "minimize": "delete it; the optimizer= of te.EstimatorSpec is a function of the named parameters",
    "compute_gradients": "use te.optim.clip_gradients_by_norm or _by_value, or an optimizer of your own",
    "apply_gradients": "delete it; the optimizer= of te.EstimatorSpec is a function of the named parameters",
    "create_estimator_spec": "write te.EstimatorSpec(mode=mode, module=…, head=head, optimizer=…)",
    "make_one_shot_iterator": "return the Dataset itself from the input_fn",
    "make_initializable_iterator": "return the Dataset itself from the input_fn",
    "get_next": "return the Dataset itself from the input_fn",
    "flat_map": "prepare the rows before, or use te.data.Dataset.from_iterable",
    "interleave": "give all files to one te.data.Dataset, which mixes them in shuffle",
    "padded_batch": "Dataset.padded_batch(size, padding_values) needs no shapes",
    "with_options": "delete it",
    "map_and_batch": "use map and batch",
}
"""Methods of TensorFlow's objects that are missing here -> what to write instead."""

ONLY_1 = (
    "contrib",
    "placeholder",
    "placeholder_with_default",
    "Session",
    "ConfigProto",
    "logging",
    "gfile",
    "app",
    "flags",
    "layers",
    "get_variable",
    "variable_scope",
    "set_random_seed",
    "decode_csv",
    "parse_example",
    "parse_single_example",
    "FixedLenFeature",
    "FixedLenSequenceFeature",
    "VarLenFeature",
    "parse_single_sequence_example",
    "global_variables_initializer",
    "truncated_normal",
    "random_uniform",
    "random_normal",
    "to_float",
    "to_int32",
    "to_int64",
    "string_split",
    "read_file",
    "TextLineReader",
    "python_io",
    "estimator.inputs",
    "feature_column.input_layer",
    "feature_column.linear_model",
    "feature_column.shared_embedding_columns",
    "train.AdagradOptimizer",
    "train.AdamOptimizer",
    "train.FtrlOptimizer",
    "train.GradientDescentOptimizer",
    "train.MomentumOptimizer",
    "train.RMSPropOptimizer",
    "train.get_or_create_global_step",
    "train.get_global_step",
    "train.string_input_producer",
    "train.exponential_decay",
    "train.SessionRunHook",
    "train.LoggingTensorHook",
    "train.StopAtStepHook",
    "train.Scaffold",
    "train.Saver",
    "metrics.accuracy",
    "metrics.auc",
    "metrics.mean",
    "metrics.precision",
    "metrics.recall",
    "metrics.root_mean_squared_error",
    "losses.sparse_softmax_cross_entropy",
    "losses.softmax_cross_entropy",
    "losses.sigmoid_cross_entropy",
    "summary.FileWriter",
    "summary.FileWriterCache",
    "summary.merge_all",
)
"""Names, with all below them, that TF 2.x has under ``tf.compat.v1`` only."""

ONLY_2 = (
    "keras.optimizers.legacy",
    "optimizers",
    "data.AUTOTUNE",
    "random.set_seed",
    "feature_column.shared_embeddings",
    "distribute.MultiWorkerMirroredStrategy",
)
"""Names that TF 1.x does not have, as far as programs with tf.estimator use them."""
