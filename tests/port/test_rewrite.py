"""What `estimator port` makes of single lines: what it rewrites, and what it leaves to the user and lists."""

from __future__ import annotations

import textwrap

import pytest

from torch_estimator.errors import InvalidValueError
from torch_estimator.port.program import PortedFile, port

IMPORT = "import tensorflow as tf\n"


def ported(code: str, generation: int | None = 1) -> PortedFile:
    (file,), _ = port({"program.py": textwrap.dedent(code)}, generation)
    return file


def todo(file: PortedFile) -> list[str]:
    return [one.name for one in file.findings if not one.is_note]


@pytest.mark.parametrize(
    ("before", "after"),
    [
        # Arguments.
        (
            "tf.estimator.RunConfig('runs', 1, save_checkpoints_steps=5, session_config=None)",
            "te.RunConfig(model_dir='runs', tf_random_seed=1, save_checkpoints_steps=5)",
        ),
        ("tf.train.AdamOptimizer(0.1, 0.8, name='adam')", "te.optim.Adam(learning_rate=0.1, beta1=0.8)"),
        ("tf.keras.optimizers.SGD()", "te.optim.SGD(learning_rate=0.01)"),
        (
            "tf.keras.optimizers.Adam(lr=0.1, beta_1=0.8)",
            "te.optim.Adam(learning_rate=0.1, beta1=0.8, epsilon=1e-07)",
        ),
        (
            "tf.estimator.LinearClassifier([], optimizer=lambda: tf.train.FtrlOptimizer(0.1))",
            "te.LinearClassifier([], optimizer=te.optim.Ftrl(learning_rate=0.1))",
        ),
        (
            "tf.estimator.DNNClassifier([8], [], activation_fn=tf.nn.tanh, input_layer_partitioner=None)",
            "te.DNNClassifier([8], [], activation_fn=torch.tanh)",
        ),
        (
            "tf.estimator.FinalExporter('final', serving, as_text=True)",
            "te.FinalExporter('final', serving)",
        ),
        # Feature columns and their types.
        (
            "tf.feature_column.numeric_column('x', dtype=tf.float64)",
            "te.feature_column.numeric_column('x', dtype=\"float64\")",
        ),
        # Names that are not called.
        ("tf.estimator.ModeKeys.TRAIN", "te.ModeKeys.TRAIN"),
        ("tf.losses.Reduction.SUM", "te.LossReduction.SUM"),
        # tf.data.
        (
            "tf.data.Dataset.from_tensor_slices((x, y)).shuffle(buffer_size=9).batch(batch_size=3).prefetch(1)",
            "te.data.Dataset.from_arrays(x, y).shuffle(buffer=9).batch(size=3)",
        ),
        (
            "tf.data.Dataset.from_tensor_slices({'x': x}).map(scale, num_parallel_calls=tf.data.AUTOTUNE)",
            "te.data.Dataset.from_arrays({'x': x}).map(scale)",
        ),
        ("tf.data.Dataset.from_tensor_slices((x, y)).map(scale, 4)", "te.data.Dataset.from_arrays(x, y).map(scale)"),
        ("dataset.prefetch(tf.data.experimental.AUTOTUNE)", "dataset"),
        # Log output.
        ("tf.logging.set_verbosity(tf.logging.WARN)", 'logging.getLogger("torch_estimator").setLevel(logging.WARNING)'),
        # tf.Examples.
        (
            "{'x': tf.io.FixedLenFeature([], tf.int64, default_value=0), 'ids': tf.VarLenFeature(tf.string)}",
            "{'x': te.data.FixedLenFeature([], \"int64\", default_value=0), 'ids': te.data.VarLenFeature(\"string\")}",
        ),
        # Serving.
        (
            "tf.estimator.export.build_parsing_serving_input_receiver_fn("
            "tf.feature_column.make_parse_example_spec(columns))",
            "te.serving_input.examples(te.feature_column.make_parse_example_spec(columns))",
        ),
        (
            "tf.distribute.experimental.MultiWorkerMirroredStrategy("
            "tf.distribute.experimental.CollectiveCommunication.RING)",
            'te.distribute.MultiWorkerMirroredStrategy("RING")',
        ),
    ],
)
def test_a_line_is_rewritten(before: str, after: str) -> None:
    file = ported(f"{IMPORT}\nvalue = {before}\n")
    assert todo(file) == []
    assert file.after.splitlines()[-1] == f"value = {after}"
    assert "tensorflow" not in file.after


@pytest.mark.parametrize(
    ("code", "name", "advice"),
    [
        ("tf.train.AdamOptimizer(*rates)", "tf.train.AdamOptimizer", "write out the arguments of *"),
        ("tf.keras.optimizers.Adam(**settings)", "tf.keras.optimizers.Adam", "write out the arguments of **"),
        ("tf.keras.optimizers.SGD(0.1, use_ema=True)", "tf.keras.optimizers.SGD", "use_ema: wrap the optimizer in"),
        (
            "tf.estimator.DNNEstimator(head, [8], [], None, 'Adam', None, None, partitioner)",
            "tf.estimator.DNNEstimator",
            "give the arguments after the first 7 by name",
        ),
        (
            "tf.feature_column.embedding_column(job, 2, ckpt_to_load_from='model')",
            "tf.feature_column.embedding_column",
            "ckpt_to_load_from: start from a checkpoint",
        ),
        (
            "tf.data.Dataset.from_tensor_slices(data)",
            "tf.data.Dataset.from_tensor_slices",
            "from_arrays(features, labels)",
        ),
        ("tf.data.Dataset.from_generator(rows)", "tf.data.Dataset.from_generator", "without types and shapes"),
        ("tf.estimator.EstimatorSpec(mode)", "tf.estimator.EstimatorSpec", "te.EstimatorSpec with a module"),
        ("tf.nn.relu(x)", "tf.nn.relu", "torch module"),
        ("tf.something.new(x)", "tf.something.new", "does not know this name"),
        ("tf.estimator.DNNClassifier.train", "tf.estimator.DNNClassifier.train", "does not know this name"),
        ("tf", "tf", "does not know this name"),
    ],
)
def test_a_line_is_left_and_listed(code: str, name: str, advice: str) -> None:
    program = f"{IMPORT}\nvalue = {code}\n"
    file = ported(program)
    assert file.after == program
    (finding,) = [one for one in file.findings if not one.is_note]
    assert (finding.line, finding.name) == (3, name)
    assert advice in finding.text


@pytest.mark.parametrize(
    ("imports", "use"),
    [
        ("import tensorflow.compat.v1 as tf", "tf.estimator.TrainSpec"),
        ("import tensorflow", "tensorflow.estimator.TrainSpec"),
        ("from tensorflow import estimator", "estimator.TrainSpec"),
        ("from tensorflow.estimator import TrainSpec", "TrainSpec"),
        ("from tensorflow.estimator import TrainSpec as Spec", "Spec"),
        ("from tensorflow.compat.v1 import estimator as est", "est.TrainSpec"),
    ],
)
def test_every_way_to_import_a_name_is_known(imports: str, use: str) -> None:
    file = ported(f"{imports}\n\nspec = {use}(input_fn)\n")
    assert file.after == "import torch_estimator as te\n\nspec = te.TrainSpec(input_fn)\n"


def test_an_import_stays_while_something_needs_it() -> None:
    uses = "x = feature_column.numeric_column('x')\ny = io.gfile.glob('*')\n"
    code = f"from tensorflow import estimator, feature_column, io\n\n{uses}"
    expected = (
        "from tensorflow import io\nimport torch_estimator as te\n\n"
        "x = te.feature_column.numeric_column('x')\ny = io.gfile.glob('*')\n"
    )
    assert ported(code).after == expected


def test_functions_that_import_tensorflow_themselves_import_this_package() -> None:
    code = "def columns():\n    import tensorflow as tf\n    return [tf.feature_column.numeric_column('x')]\n"
    expected = "def columns():\n    import torch_estimator as te\n    return [te.feature_column.numeric_column('x')]\n"
    assert ported(code).after == expected


def test_a_variable_for_a_part_of_tensorflow_is_followed() -> None:
    uses = "a = fc.numeric_column('a', dtype=tf.float32)\nb = est.ModeKeys.EVAL\n"
    code = f"{IMPORT}fc = tf.feature_column\nest = tf.estimator\n\n{uses}"
    expected = (
        "import torch_estimator as te\nfc = te.feature_column\nest = te\n\n"
        "a = fc.numeric_column('a', dtype=\"float32\")\nb = te.ModeKeys.EVAL\n"
    )
    file = ported(code)
    assert file.after == expected
    assert todo(file) == []


def test_a_name_that_the_program_uses_for_something_else_is_not_taken() -> None:
    code = f"{IMPORT}te = 1\nspec = tf.estimator.TrainSpec\n"
    assert ported(code).after == "import torch_estimator\nte = 1\nspec = torch_estimator.TrainSpec\n"
    code = f"from absl import logging\n{IMPORT}tf.logging.info('hello')\n"
    file = ported(code)
    assert (file.after, todo(file)) == (code, ["tf.logging.info"])


def test_the_layout_of_a_call_stays() -> None:
    code = f"{IMPORT}\na = tf.estimator.RunConfig(\n    model_dir='a',  # here\n    session_config=None,\n)\n"
    assert ported(code).after == "import torch_estimator as te\n\na = te.RunConfig(\n    model_dir='a',  # here\n)\n"
    assert ported(f"{IMPORT}a = tf.estimator.RunConfig(\n    session_config=None)\n").after.endswith(
        "a = te.RunConfig()\n"
    )


def test_parentheses_that_hold_line_breaks_stay() -> None:
    code = f"{IMPORT}rows = (tf.data.Dataset.from_tensor_slices((x, y))\n        .batch(2)\n        .prefetch(1))\n"
    expected = "import torch_estimator as te\nrows = (te.data.Dataset.from_arrays(x, y)\n        .batch(2))\n"
    assert ported(code).after == expected


@pytest.mark.parametrize(
    "code",
    [
        "def f(kind=tf.int64): ...",
        "@tf.function\ndef f(): ...",
        "def f(x: tf.Tensor): ...",
        'f"{tf.VERSION}"',
        "tf.x = 1",
    ],
)
def test_a_name_is_found_wherever_it_stands(code: str) -> None:
    file = ported(f"{IMPORT}{code}\n")
    assert (file.after, len(todo(file))) == (f"{IMPORT}{code}\n", 1)


def test_something_else_called_tf_is_left_alone() -> None:
    code = f"{IMPORT}\n\ndef count(tf):\n    return tf.estimator.TrainSpec\n"
    file = ported(code)
    assert (file.after, file.findings) == ("\n\ndef count(tf):\n    return tf.estimator.TrainSpec\n", ())


def test_statements_that_nothing_needs_are_deleted() -> None:
    code = f"{IMPORT}\nif True:\n    tf.compat.v1.disable_v2_behavior()\n"
    assert ported(code).after == "\nif True:\n    pass\n"


def test_an_iterator_that_is_returned_becomes_its_dataset() -> None:
    code = f"{IMPORT}\ndef f(dataset):\n    return dataset.batch(2).make_one_shot_iterator().get_next()\n"
    assert ported(code).after.splitlines()[-1] == "    return dataset.batch(2)"
    code = (
        f"{IMPORT}\ndef f(dataset):\n    iterator = dataset.make_one_shot_iterator()\n    return iterator.get_next()\n"
    )
    assert todo(ported(code)) == [".make_one_shot_iterator", ".get_next"]
    code = f"{IMPORT}\ndef f(dataset):\n    x = dataset.make_one_shot_iterator().get_next()\n    return x, x.pop('y')\n"
    assert todo(ported(code)) == [".get_next"]


def test_a_model_fn_is_listed_where_it_begins() -> None:
    file = ported(f"{IMPORT}\n\ndef my_model(features, labels, mode, params):\n    return None\n")
    assert [(one.line, one.name) for one in file.findings] == [(4, "def my_model")]


@pytest.mark.parametrize(
    ("minimizes", "reports", "other"),
    [
        ("opt.minimize(loss + penalty, global_step=step)", "mode, loss=loss, train_op=op", ("loss + penalty", "loss")),
        ("opt.minimize(global_step=step, loss=total)", "mode, predictions, loss, op", ("total", "loss")),
        ("opt.compute_gradients(tf.losses.get_total_loss())", "mode, loss=l", ("tf.losses.get_total_loss()", "l")),
        ("tf.contrib.slim.learning.create_train_op(total, opt)", "mode, loss=loss", ("total", "loss")),
        ("opt.minimize(loss, step)", "mode, predictions, loss, op", None),
        ("opt.minimize(loss, step)", "mode, predictions=predictions", None),
    ],
)
def test_a_loss_that_is_reported_but_not_trained_is_named(
    minimizes: str, reports: str, other: tuple[str, str] | None
) -> None:
    body = f"    op = {minimizes}\n    return tf.estimator.EstimatorSpec({reports})\n"
    (entry,) = ported(f"{IMPORT}\ndef model_fn(features, labels, mode):\n{body}").findings
    said = f"; loss= of te.EstimatorSpec is what is trained: {other[0]}; give {other[1]}, which" if other else ""
    assert ("is trained" in entry.text) == bool(other)
    assert said in entry.text


@pytest.mark.parametrize(
    ("features", "computes"),
    [
        ("{'r': inputs['a'] / 2.0, **inputs}", True),
        ("{'r': tf.log(inputs['a'])}", True),
        ("add_engineered(inputs.copy())", True),
        ("{key: tf.expand_dims(value, -1) for key, value in inputs.items()}", False),
        ("{'x%d' % i: inputs['x%d' % i] for i in range(3)}", False),
        ("dict(inputs)", False),
    ],
)
def test_a_serving_function_that_computes_features_is_told_where_they_go(features: str, computes: bool) -> None:
    body = f"    inputs = {{'a': tf.placeholder(tf.float32, [None] * 2)}}\n    features = {features}\n"
    receiver = "    return tf.estimator.export.ServingInputReceiver(features, inputs)\n"
    (entry,) = ported(f"{IMPORT}\ndef serving():\n{body}{receiver}").findings
    assert ("for what it computes give transform=, or write .receiver(" in entry.text) == computes


def test_other_packages_of_tensorflow_are_listed() -> None:
    assert todo(ported("import tensorflow_hub as hub\nfrom tensorflow import *\n")) == [
        "tensorflow_hub",
        "from tensorflow import *",
    ]


@pytest.mark.parametrize(
    ("code", "number", "name"),
    [
        ("tf.placeholder(tf.string)", 1, "te.DNNClassifier"),
        ("tf.compat.v1.placeholder(tf.string)", 2, "te.v2.DNNClassifier"),
        ("tf.data.AUTOTUNE", 2, "te.v2.DNNClassifier"),
        ("1", 2, "te.v2.DNNClassifier"),
    ],
)
def test_the_names_of_a_program_decide_about_the_defaults(code: str, number: int, name: str) -> None:
    other = f"{IMPORT}value = {code}\n"
    model = f"{IMPORT}model = tf.estimator.DNNClassifier([8], [])\n"
    files, generation = port({"model.py": model, "other.py": other})
    assert generation.number == number
    assert files[0].after.splitlines()[-1] == f"model = {name}([8], [])"


def test_a_class_of_compat_v1_has_the_defaults_of_tf_1_in_every_program() -> None:
    code = f"{IMPORT}a = tf.compat.v1.estimator.DNNClassifier([8], [])\nb = tf.estimator.DNNClassifier([8], [])\n"
    assert ported(code, None).after.splitlines()[-2:] == [
        "a = te.DNNClassifier([8], [])",
        "b = te.v2.DNNClassifier([8], [])",
    ]
    code = "import tensorflow.compat.v1 as tf\na = tf.estimator.DNNClassifier([8], [])\n"
    assert ported(code, None).after.splitlines()[-1] == "a = te.DNNClassifier([8], [])"


def test_porting_twice_changes_nothing_more() -> None:
    code = f"{IMPORT}\nspec = tf.estimator.TrainSpec(tf.cast)\n"
    once = ported(code)
    again = ported(once.after)
    assert again.after == once.after
    assert todo(again) == todo(once) == ["tf.cast"]
    assert [one.line for one in once.after_lines().findings] == [one.line for one in again.findings]


def test_a_program_for_python_2_is_an_error_with_its_line() -> None:
    with pytest.raises(InvalidValueError, match=r"^old\.py:2: the file is not in the syntax of Python 3; .* 2to3"):
        port({"old.py": "import tensorflow as tf\nprint tf\n"})


PARSER = """
import tensorflow as tf


def parse(line):
    fields = dict(zip(NAMES, tf.decode_csv(line, record_defaults=DEFAULTS)))
    fields.pop("unused")
    return fields, fields.pop(LABEL)


def input_fn(files):
    return tf.data.TextLineDataset(files).map(parse).batch(4)
"""


def test_a_function_that_goes_as_a_whole_is_one_entry_and_the_line_for_it_is_named() -> None:
    file = ported(PARSER)
    assert [(one.line, one.name) for one in file.findings] == [(5, "def parse"), (12, "tf.data.TextLineDataset")]
    line = "te.data.Dataset.from_csv(files, column_names=NAMES, defaults=DEFAULTS, label=LABEL)"
    assert file.findings[1].text == f"write {line} in place of it and of its .map"
    in_two_lines = PARSER.replace(
        "return tf.data.TextLineDataset(files)", "rows = tf.data.TextLineDataset(files)\n    return rows"
    )
    assert [one.name for one in ported(in_two_lines).findings] == ["def parse", "tf.data.TextLineDataset"]


RECORDS = """\
import tensorflow as tf

SCHEMA = {"image": tf.io.FixedLenFeature([], tf.string)}


def parse(record):
    example = tf.io.parse_single_example(record, SCHEMA)
    return {"image": DECODED}
"""


def test_a_function_that_decodes_bytes_of_records_stays_for_that() -> None:
    decoding = ported(RECORDS.replace("DECODED", 'tf.io.decode_raw(example["image"], tf.uint8)'))
    assert [(one.name, one.is_note, '"bytes"' in one.text) for one in decoding.findings] == [
        ("tf.string", True, True),
        ("def parse", False, True),
    ]
    (parsing,) = ported(RECORDS.replace("DECODED", 'example["image"]')).findings
    assert parsing.text.startswith("delete it; ")


def test_what_a_job_returns_is_explained_where_it_is_used() -> None:
    job = "tf.estimator.train_and_evaluate(estimator, train_spec, eval_spec)"
    assert ported(f"{IMPORT}{job}\n").findings == ()
    (note,) = ported(f"{IMPORT}results = {job}\n").findings
    assert note.is_note and "(None, None)" in note.text


@pytest.mark.parametrize(
    ("body", "line"),
    [
        ("inputs = {'x': tf.placeholder(tf.float32, [None])}", "te.serving_input.json(columns), or"),
        ("inputs = {'x': tf.placeholder_with_default(tf.constant([1]), [None])}", "te.serving_input.json(columns, def"),
        ("inputs = tf.parse_example(tf.placeholder(tf.string, [None]), SPEC)", "te.serving_input.examples("),
        ("inputs = parse(tf.placeholder(tf.string, [None]))[0]", "te.serving_input.csv("),
    ],
)
def test_a_serving_function_is_one_entry_with_the_line_for_its_body(body: str, line: str) -> None:
    receiver = "tf.estimator.export.ServingInputReceiver(inputs, inputs)"
    entry = ported(f"{PARSER}\n\ndef serving():\n    {body}\n    return {receiver}\n").findings[-1]
    assert entry.name == "def serving"
    assert entry.text.startswith(f"write its body as: return {line}")


def test_lines_below_the_first_argument_of_a_call_follow_it() -> None:
    code = f'''{IMPORT}
spec = tf.estimator.TrainSpec(tf.estimator.ModeKeys(a,
                                                    b),
                              """text
                              of lines""",
                              # why
                              max_steps=1)
spec = tf.estimator.TrainSpec(
    input_fn, max_steps=1)
'''
    after = ported(code).after.replace("import torch_estimator as te\n", "")
    assert (
        after
        == '''
spec = te.TrainSpec(te.ModeKeys(a,
                                b),
                    """text
                              of lines""",
                    # why
                    max_steps=1)
spec = te.TrainSpec(
    input_fn, max_steps=1)
'''
    )


@pytest.mark.parametrize(
    ("chain", "notes"),
    [
        ("tf.data.Dataset.from_tensor_slices((x, y))", 1),
        ("tf.data.Dataset.from_tensor_slices({'x': x}).repeat()", 1),
        ("tf.data.Dataset.from_tensor_slices((x, y)).shuffle(9).batch(3)", 0),
        ("tf.data.Dataset.from_tensor_slices((x, y)).padded_batch(3)", 0),
        ("tf.data.Dataset.from_tensor_slices((x, y)).apply(tf.data.experimental.map_and_batch(parse, 3))", 0),
    ],
)
def test_arrays_that_are_not_batched_are_noted(chain: str, notes: int) -> None:
    code = f"{IMPORT}\ndef evaluation(x, y):\n    return {chain}\n\ndef training(rows):\n    return rows.batch(40)\n"
    found = [one for one in ported(code).findings if "add .batch(n)" in one.text]
    assert len(found) == notes
    assert all(one.is_note and one.line == 4 for one in found)


@pytest.mark.parametrize(
    ("call", "notes"),
    [
        ("tf.layers.dropout(net, 0.5)", 1),
        ("tf.compat.v1.layers.batch_normalization(net)", 1),
        ("tf.layers.dropout(net, 0.5, training=mode == 'train')", 0),
        ("tf.layers.dropout(net, **settings)", 0),
        ("tf.layers.dense(net, 3)", 0),
    ],
)
def test_layers_that_never_trained_are_noted(call: str, notes: int) -> None:
    code = f"{IMPORT}\ndef model_fn(features, labels, mode):\n    net = features['x']\n    return {call}\n"
    file = ported(code)
    assert [one.line for one in file.findings if "without training=" in one.text] == [5] * notes
    assert any(one.name == "def model_fn" for one in file.findings)


@pytest.mark.parametrize("code", ["x = " + " + ".join(["a"] * 1000), "x = a" + ".b()" * 1000])
def test_a_program_that_is_nested_too_deeply_is_named(code: str) -> None:
    with pytest.raises(InvalidValueError, match=r"program\.py: an expression is nested too deeply"):
        ported(f"{IMPORT}{code}\n")
