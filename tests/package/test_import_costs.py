"""What takes long to import is imported by those who use it, and not before the first training step."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from torch_estimator.summary.event_writer import EventWriter
from torch_estimator.tfrecord.records import masked_crc32c

HEAVY = [
    "torch._dynamo",
    "torch._inductor",
    "sympy",
    "pandas",
    "keras",
    "onnx",
    "onnxruntime",
    "onnxscript",
    "absl",
    "zmq",
]

TRAINING = """
import logging, sys
import torch_estimator as te
from torch_estimator import feature_column as fc

file, model_dir = sys.argv[1:]
color = fc.categorical_column_with_hash_bucket("color", 10)
size = fc.numeric_column("size")
estimator = te.DNNLinearCombinedClassifier(
    linear_feature_columns=[color, fc.crossed_column(["color", "shape"], 100)],
    dnn_feature_columns=[fc.embedding_column(color, 4), size, fc.bucketized_column(size, [1.0, 2.0])],
    dnn_hidden_units=[8],
    label_vocabulary=["no", "yes"],
    config=te.RunConfig(model_dir=model_dir, compile=False),
)
data = te.data.Dataset.from_csv(file, label="bought").shuffle(100, seed=1).repeat().batch(2)
estimator.train(lambda: data, max_steps=3)
assert estimator.evaluate(lambda: data, steps=2)["global_step"] == 3
"""


def test_the_garbage_collector_does_not_visit_what_torch_keeps() -> None:
    program = """
import gc
import torch_estimator as te

te.errors
assert gc.get_freeze_count() == 0
te.Estimator
assert gc.get_freeze_count() > 100_000 and gc.isenabled()
gc.disable()
try:
    te.Missing
except AttributeError:
    assert not gc.isenabled()
"""
    subprocess.run([sys.executable, "-c", program], check=True)


def test_the_garbage_collector_goes_on_after_a_failed_import() -> None:
    program = """
import gc
import torch_estimator as te

try:
    te.Missing
except AttributeError:
    assert gc.isenabled()
"""
    subprocess.run([sys.executable, "-c", program], check=True)


def test_a_parameter_server_does_without_torch() -> None:
    program = "import sys; import torch_estimator.parameter_server.__main__; sys.exit('torch' in sys.modules)"
    subprocess.run([sys.executable, "-c", program], check=True)


def test_the_state_of_a_table_on_servers_is_made_without_sympy() -> None:
    program = """
import sys
import torch
import torch_estimator as te

weight = torch.nn.Parameter(torch.zeros(10, 4, device="meta"))
sgd = te.optim.SGD(lr=0.1, momentum=0.9)
optimizers = [te.optim.Adagrad(lr=0.1), te.optim.Adam(lr=0.1), te.optim.Ftrl(lr=0.1), te.optim.RMSProp(lr=0.1), sgd]
for optimizer in optimizers:
    made = optimizer([("weight", weight)])
    assert {one.shape for one in made.state[weight].values()} >= {weight.shape}
sys.exit("sympy" in sys.modules)
"""
    subprocess.run([sys.executable, "-c", program], check=True)


def test_a_registry_and_an_export_do_without_torch() -> None:
    modules = ("registry", "registry.check", "export.exported_model", "export.warmup", "export.triton", "cli.main")
    program = "; ".join(f"import torch_estimator.{module}" for module in modules)
    subprocess.run([sys.executable, "-c", f"{program}; import sys; sys.exit('torch' in sys.modules)"], check=True)


def test_serving_does_without_torch() -> None:
    program = """
import sys
import torch_estimator.cli.predict, torch_estimator.cli.serve
import torch_estimator.serving.config, torch_estimator.serving.openapi, torch_estimator.serving.worker
sys.exit(bool({"torch", "onnx", "pandas", "pyarrow", "jsonschema"} & set(sys.modules)))
"""
    subprocess.run([sys.executable, "-c", program], check=True)


def test_the_list_of_the_console_does_without_numpy(tmp_path: Path) -> None:
    program = """
import sys
from torch_estimator.console.app import make_app
from torch_estimator.console.sources import Sources
context = make_app(Sources(jobs=None, logdir=sys.argv[1]), host="127.0.0.1").state.context
(row,) = context.index.rows(context.sources.entries()).values()
assert row.step == 2000 and row.metric == "loss"
sys.exit("numpy" in sys.modules)
"""
    with EventWriter(tmp_path / "run") as events:
        for step in range(2001):  # more than what is read of it
            events.scalar("loss", 1.0, step)
    subprocess.run([sys.executable, "-c", program, str(tmp_path)], check=True)


def imported(program: str, *arguments: str) -> list[str]:
    """The heavy modules that a program imports."""
    report = f"\nimport sys\nprint([name for name in {HEAVY} if name in sys.modules])"
    command = [sys.executable, "-c", program + report, *arguments]
    output = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    names: list[str] = eval(output)
    return names


def test_no_public_name_needs_them() -> None:
    assert imported("import torch_estimator as te\nfor name in te.__all__: getattr(te, name)") == []


def test_training_and_evaluating_need_none_of_them(tmp_path: Path) -> None:
    file = tmp_path / "data.csv"
    file.write_text("color,shape,size,bought\nred,round,0.5,yes\nblue,square,1.5,no\nred,square,2.5,no\n")
    assert imported(TRAINING, str(file), str(tmp_path / "model")) == []


def test_checksums_are_tensorboards() -> None:
    from tensorboard.compat.tensorflow_stub.pywrap_tensorflow import masked_crc32c as reference

    for data in (b"", b"a", b"123456789", bytes(range(256)) * 5):
        assert masked_crc32c(data) == reference(data)
