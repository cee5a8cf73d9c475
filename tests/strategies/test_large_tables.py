"""Tables that only parameter servers hold: numbers as those of tables in the worker, and what reads such a table."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from tests.cluster_jobs import Cluster, Process, ended
from tests.line_jobs import checkpoint_steps
from torch_estimator.checkpoint.checkpoint import load_checkpoint
from torch_estimator.summary.scalar_reader import read_scalars

PROGRAM = """
import json, logging, os, sys, time
import numpy as np
import pyarrow as pa
import torch
import torch_estimator as te
from torch_estimator import feature_column as fc
from torch_estimator.checkpoint.variables import named_variables
from torch_estimator.checkpoint.row_file import RowFile
from torch_estimator.parameter_server import large_table, push_pull

model_dir, model, max_steps, *rest = sys.argv[1:]
settings = dict(one.split("=", 1) for one in rest)
logging.basicConfig(level=logging.INFO, format="%(message)s")
fc.table.LARGE_BYTES = int(settings.get("large", 0))
if model == "pairs":

    def write(self, rows, whole=large_table.RowFileWriter.write):
        time.sleep(0.002)
        whole(self, rows)

    large_table._PIECE_BYTES, large_table.RowFileWriter.write = 1, write
task = json.loads(os.environ.get("TF_CONFIG", "{}"))
if settings.get("large", "0") == "0" and "ps" in task.get("cluster", {}) and task["task"]["type"] != "ps":
    # Only servers read rows of tables that are on servers.
    RowFile.rows = None
if "pipeline" in settings:
    # The number of steps of a call decides which gradients are late, and would depend on the time that steps take.
    push_pull._CALL_SECS = 1e9
config = te.RunConfig(
    random_seed=1,
    log_step_count_steps=100,
    save_summary_steps=20 if "summaries" in settings else None,
    save_checkpoints_steps=int(settings.get("save", 1000)),
    compile="compile" in settings,
    experimental_max_worker_delay_secs=0,
    train_distribute=te.distribute.ParameterServerStrategy(pipeline="pipeline" in settings),
)
optimizer = {
    "Adagrad": te.optim.Adagrad(lr=0.1),
    "Adam": te.optim.Adam(lr=0.01),
    "Ftrl": te.optim.Ftrl(lr=0.1),
    "clipped": te.optim.clip_gradients_by_norm(te.optim.Adagrad(lr=0.1), 0.05),
    "torch": lambda params: torch.optim.Adagrad(params, lr=0.1),
}[settings.get("optimizer", "Adagrad")]


def batches():
    random = np.random.default_rng(1)
    count = 960

    def lists(values):
        return [random.choice(values, random.integers(0, 5)).tolist() for _ in range(count)]

    tags = lists(np.array(["a", "b", "c", "d", "", "e"], object))
    features = {
        "tags": pa.array(tags),
        "weights": pa.array([random.choice([0.5, 2.0], len(row)).tolist() for row in tags], pa.list_(pa.float32())),
        "ids": pa.array(lists(np.arange(-1, 41))),
        "id": random.integers(-1, 41, count),
        "city": random.choice(np.array(["x", "y", ""], object), count),
    }
    if model in ("ids", "pairs"):
        features = {"id": features["id"]}
    return te.data.Dataset.from_arrays(features, random.normal(size=count).astype(np.float32)).batch(32)


class OfColumns:
    own = torch.nn.init.xavier_uniform_ if "own" in settings else None
    tags = fc.categorical_column_with_vocabulary_list("tags", ["a", "b", "c", "d"], multivalent=True)
    ids = fc.categorical_column_with_identity("ids", 40, multivalent=True)
    id = fc.categorical_column_with_identity("id", 40)
    city = fc.categorical_column_with_vocabulary_list("city", ["x", "y"])
    weighted = fc.weighted_categorical_column(tags, "weights")
    wide = [tags, weighted, city, fc.crossed_column([tags, "city"], 30)]
    deep = [
        fc.embedding_column(weighted, 3),
        *fc.shared_embeddings([ids, id], 3, combiner="sum", max_norm=0.5),
        fc.indicator_column(weighted),
        fc.embedding_column(id, 2, initializer=own),
        fc.embedding_column(city, 3, initializer=own),
    ]
    all = [*wide, *deep]


class OfIds(torch.nn.Module):
    def __init__(self):
        super().__init__()
        normal = te.initial_values.Distribution(te.initial_values.truncated_normal, 0.5)
        self.rows = fc.Table([fc.Piece(name="rows", rows=100, initializer=normal)], dim=4)
        self.zeros = fc.Table([fc.Piece(name="zeros", rows=50), fc.Piece(name="more", rows=7)], dim=2)
        self.linear = torch.nn.Linear(14, 1)
        if "tied" in settings:
            self.tied = torch.nn.Linear(4, 101, bias=False)
            self.tied.weight = self.rows.weight

    def forward(self, features):
        ids = features["id"] + 1
        if "draws" in settings:
            ids = torch.from_numpy(np.random.randint(0, 100, len(ids)))
        # The loss depends on this lookup, but not on its rows.
        found = [self.rows(ids * 7 % 100), self.rows(ids % 10), self.zeros(ids % 57), self.rows(ids * 3 % 100).detach()]
        if "sums" in settings:
            found[0] = found[0] + self.rows.weight.sum()
        te.summary.scalar("mean", torch.cat(found, 1).mean())
        return self.linear(torch.cat(found, 1))[:, 0]


class OfPairs(torch.nn.Module):
    # The rows i and i + 200 count the lookups of i. They are on the same one of two servers.
    def __init__(self):
        super().__init__()
        self.rows = fc.Table([fc.Piece(name="rows", rows=400)], dim=4)

    def forward(self, features):
        time.sleep(0.005)
        ids = torch.randint(0, 200, (4,))
        return self.rows(torch.cat([ids, ids + 200]))


def ids_model(mode):
    if model == "pairs":
        return te.EstimatorSpec(
            mode=mode, module=OfPairs(), loss=lambda rows, _: -rows.sum(), optimizer=te.optim.GradientDescent(lr=1.0)
        )
    module = OfIds().double() if "double" in settings else OfIds()
    return te.EstimatorSpec(mode=mode, module=module, loss=torch.nn.MSELoss(), optimizer=optimizer)


def estimator_of(model_dir):
    start = settings.get("from")
    if model in ("ids", "pairs"):
        return te.Estimator(ids_model, model_dir=model_dir, config=config, warm_start_from=start)
    return te.DNNLinearCombinedRegressor(
        model_dir,
        linear_feature_columns=OfColumns.wide,
        linear_optimizer=optimizer,
        dnn_feature_columns=OfColumns.deep,
        dnn_optimizer=optimizer,
        dnn_hidden_units=[6],
        config=config,
        warm_start_from=start,
    )


estimator = estimator_of(model_dir)


class Reads(te.Hook):
    def end(self, context):
        print(float(context.module.rows.weight.sum()))


def results():
    predictions = [one["predictions"].tolist() for one in estimator.predict(batches)]
    path = estimator.export_saved_model(f"{model_dir}/export", te.serving_input.raw_features(OfColumns.all))
    features = {"tags": [["a", "d"], []], "weights": [[0.5, 2.0], []], "ids": [[3, 4, 3], [40]], "id": [7, -1]}
    served = te.ExportedModel.load(path).predict({**features, "city": ["x", ""]})["predictions"]
    module = estimator.trained_module()
    modules = {name: one.tolist() for name, one in named_variables(module).items()}
    variables = {name: estimator.get_variable_value(name).tolist() for name in modules}
    return [estimator.evaluate(batches), predictions, served.tolist(), modules, variables]


hooks = {
    "log": lambda: te.LoggingTensorHook([settings["log"]], every_n_iter=10),
    "evaluates": lambda: te.InMemoryEvaluatorHook(estimator, batches, steps=2, every_n_iter=20),
    "reads": Reads,
}
with te.errors.exit_on_user_error():
    if "results" in settings:
        print(json.dumps(results()))
        sys.exit()
    te.train_and_evaluate(
        estimator,
        te.TrainSpec(
            lambda: batches().repeat(),
            max_steps=int(max_steps),
            hooks=[hooks[name]() for name in settings if name in hooks],
        ),
        te.EvalSpec(batches, steps=1, start_delay_secs=0, throttle_secs=0),
    )
"""


SMALL = f"large={2**40}"


def variables(model_dir: Path) -> dict[str, np.ndarray]:
    checkpoint = load_checkpoint(str(model_dir / f"model.ckpt-{max(checkpoint_steps(model_dir))}"))
    return {name: tensor.numpy() for name, tensor in {**checkpoint.variables, **checkpoint.slots}.items()}


def assert_same(one: Path, other: Path) -> None:
    ours, theirs = variables(one), variables(other)
    assert ours.keys() == theirs.keys()
    for name, value in theirs.items():
        np.testing.assert_array_equal(ours[name], value, err_msg=name)


def run(model_dir: Path, model: str, steps: int, *settings: str, servers: int = 2, workers: int = 0) -> str:
    """Run a job that succeeds; return what its chief printed."""
    results = Cluster(PROGRAM, workers, servers).run(model_dir, model, steps, *settings)
    for result in results:
        assert result.status == 0, result.output
    return results[0].output


def refused(model_dir: Path, model: str, *settings: str) -> str:
    """Run a job whose chief ends with a sentence; return what the chief printed."""
    cluster = Cluster(PROGRAM, 0, 1)
    chief, server = (cluster.start(task, model_dir, model, 40, *settings) for task in cluster.tasks)
    output = chief.wait()
    server.kill()
    server.wait()
    assert chief.status == 2, output
    assert "Traceback" not in output
    return output


@pytest.mark.parametrize(
    "settings",
    [
        ("columns", "save=25"),
        ("columns", "optimizer=Ftrl", "own=1"),
        ("columns", "optimizer=clipped", "pipeline=1"),
        pytest.param(("columns", "optimizer=clipped", "compile=1"), marks=pytest.mark.slow),
        ("ids", "optimizer=Adam", "save=25"),
        ("ids", "optimizer=clipped", "double=1"),
        ("ids", "optimizer=Adam", "pipeline=1", "compile=1"),
    ],
    ids=" ".join,
)
def test_training_ends_with_the_bits_of_tables_that_the_worker_holds(tmp_path: Path, settings: tuple[str, ...]) -> None:
    """Columns have lists, weights, missing values, ``max_norm`` and a feature in two tables; ``ids`` are of forward."""
    model, *others = settings
    told = [run(tmp_path / name, model, 60, *others, name) for name in ("large=0", SMALL)]
    assert_same(tmp_path / "large=0", tmp_path / SMALL)
    if model == "ids":
        assert "The model computes ids of table rows in its forward pass" in told[0]
    if "compile=1" in others:
        assert "is not compiled" not in told[0]


def test_lookups_without_gradients_do_not_keep_the_others_from_training(tmp_path: Path) -> None:
    run(tmp_path / "servers", "ids", 40)
    run(tmp_path / "alone", "ids", 40, servers=0)
    ours, theirs = variables(tmp_path / "servers"), variables(tmp_path / "alone")
    for name, value in theirs.items():
        np.testing.assert_allclose(ours[name], value, rtol=2e-5, atol=1e-6, err_msg=name)


@pytest.mark.parametrize("model", ["columns", "ids"])
def test_other_numbers_of_servers_and_one_process_go_on_with_each_row(tmp_path: Path, model: str) -> None:
    for size in ("large=0", SMALL):
        for servers, step in ((2, 15), (3, 30), (0, 45), (1, 60)):
            run(tmp_path / size, model, step, size, servers=servers)
    assert_same(tmp_path / "large=0", tmp_path / SMALL)


def test_a_warm_start_from_another_job_is_that_of_tables_in_the_worker(tmp_path: Path) -> None:
    run(tmp_path / "first", "columns", 20)
    for size in ("large=0", SMALL):
        run(tmp_path / size, "columns", 20, size, f"from={tmp_path / 'first'}", servers=3)
    assert_same(tmp_path / "large=0", tmp_path / SMALL)


def test_all_that_reads_checkpoints_gives_what_tables_in_memory_give(tmp_path: Path) -> None:
    run(tmp_path / "job", "columns", 40, servers=3)
    arguments = (str(tmp_path / "job"), "columns", "40", "results=1")
    large, small = ended([Process(PROGRAM, [*arguments, size], {}) for size in ("large=0", SMALL)])
    assert (large.status, small.status) == (0, 0), large.output + small.output
    results = [json.loads(one.output.splitlines()[-1]) for one in (large, small)]
    assert results[0] == results[1]
    values, saved = results[0][3], variables(tmp_path / "job")
    assert len(values) == 13
    for name, value in values.items():
        np.testing.assert_array_equal(np.float32(value), saved[name], err_msg=name)


def test_a_checkpoint_holds_one_moment_of_each_server_although_the_next_one_is_due(tmp_path: Path) -> None:
    run(tmp_path, "pairs", 300, "save=20", workers=2)
    steps = checkpoint_steps(tmp_path)
    assert len(steps) >= 3
    for step in steps:
        rows = load_checkpoint(str(tmp_path / f"model.ckpt-{step}")).variables["rows"].numpy()
        np.testing.assert_array_equal(rows[:200], rows[200:], err_msg=str(step))


def test_summaries_are_those_of_tables_in_the_worker(tmp_path: Path) -> None:
    for size in ("large=0", SMALL):
        run(tmp_path / size, "ids", 60, size, "summaries=1")
    ours, theirs = (read_scalars(str(tmp_path / size))["mean"] for size in ("large=0", SMALL))
    assert (list(ours.steps), list(ours.values)) == (list(theirs.steps), list(theirs.values))
    assert len(theirs.values) == 3


@pytest.mark.parametrize(
    ("setting", "sentence"),
    [
        ("log=rows", "Logging needs whole variables, but large tables are on parameter servers; read them from"),
        ("evaluates=1", "Evaluating what is in training needs whole variables, but large tables are on parameter"),
        ("reads=1", "<string>, line {line}, reads a whole table, and large ones are on parameter servers ('rows', "),
        ("sums=1", "<string>, line {line}, reads a whole table, and large ones are on parameter servers ('rows', "),
        (
            "optimizer=torch",
            "The table of 'rows' has 100 rows, so it is on parameter servers, which update rows with",
        ),
        (
            "tied=1",
            "The layer 'tied' has the weight of the table of 'rows', which has 100 rows and is on parameter servers",
        ),
        ("draws=1", "The model looks up other ids of a table in each forward pass over the same batch, so "),
    ],
    ids=lambda one: one.split("=")[0] if "=" in one else "",
)
def test_what_needs_a_whole_table_or_other_rows_is_told_so(tmp_path: Path, setting: str, sentence: str) -> None:
    read = {"reads=1": "print(float(context.module", "sums=1": "found[0] = found[0]"}.get(setting)
    line = next((number for number, one in enumerate(PROGRAM.splitlines(), 1) if read and read in one), 0)
    assert "error: " + sentence.format(line=line) in refused(tmp_path, "ids", setting)
