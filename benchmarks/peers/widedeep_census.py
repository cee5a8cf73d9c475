"""The census sample in pytorch-widedeep; runs in `.bench/widedeep`.

Its wide half has dense gradients. So, as its own preprocessor does, it gets only the categories and crosses that the
training rows have, some 1,400 numbered from 1, and 0 for all others. The indicators are among the network's numbers.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

# The package imports torchvision, whose compiled operators want CUDA; two of them must at least be declared.
_declared = torch.library.Library("torchvision", "DEF")
for _operator in ("nms", "qnms"):
    _declared.define(f"{_operator}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")

import pytorch_widedeep  # noqa: E402
from pytorch_widedeep.callbacks import Callback  # noqa: E402
from pytorch_widedeep.models import TabMlp, Wide, WideDeep  # noqa: E402

from benchmarks.peers import census_rows, scores  # noqa: E402
from benchmarks.peers.report import Pace, Report, parser  # noqa: E402

# What tf.estimator's v1 classes take for eleven wide columns and for the network.
WIDE_RATE, DEEP_RATE, START = 0.005, 0.05, 0.1


class Enough(Exception):
    """All steps were taken."""


class Clock(Callback):
    """Tells the clock of every step, and ends training after the last."""

    def __init__(self, pace: Pace, steps: int) -> None:
        super().__init__()
        self._pace = pace
        self._last = steps

    def on_batch_end(self, batch: int, logs: dict[str, Any] | None = None) -> None:
        self._pace.step()
        if self._pace.steps == self._last:
            raise Enough


def arrays(rows: census_rows.CensusRows, known: np.ndarray) -> dict[str, np.ndarray]:
    """What the package takes: wide ids by their place among the known ones, and the network's columns."""
    ids = rows.wide_ids()
    places = np.searchsorted(known, ids).clip(max=len(known) - 1)
    wide = np.where(known[places] == ids, places + 1, 0)
    embedded = np.stack([rows.ids[name] for name in census_rows.HASH_BUCKETS], axis=1)
    return {"X_wide": wide, "X_tab": np.concatenate([embedded, rows.dense()], axis=1, dtype=np.float32)}


def build(known: int) -> WideDeep:
    """The model: both halves, their logits added."""
    numbers = [f"number {place}" for place in range(census_rows.DENSE_INPUTS)]
    names = [*census_rows.HASH_BUCKETS, *numbers]
    network = TabMlp(
        column_idx={name: place for place, name in enumerate(names)},
        cat_embed_input=[
            (name, buckets, census_rows.EMBEDDING_SIZE) for name, buckets in census_rows.HASH_BUCKETS.items()
        ],
        continuous_cols=numbers,
        mlp_hidden_dims=list(census_rows.HIDDEN_UNITS),
        mlp_dropout=0.0,
    )
    return WideDeep(wide=Wide(input_dim=known, pred_dim=1), deeptabular=network)


def adagrad(module: torch.nn.Module, rate: float) -> torch.optim.Optimizer:
    """The nearest to tf.estimator's optimizers."""
    return torch.optim.Adagrad(module.parameters(), lr=rate, initial_accumulator_value=START)


def main() -> None:
    """Measures what was asked for."""
    args = parser(__doc__).parse_args()
    if args.threads:
        torch.set_num_threads(args.threads)
    rows = census_rows.read(args.data / "adult.data.csv")
    known = np.unique(rows.wide_ids())
    model, pace = build(len(known)), Pace(args.warmup)
    trainer = pytorch_widedeep.Trainer(
        model,
        objective="binary",
        optimizers={
            "wide": adagrad(model.wide, WIDE_RATE),
            "deeptabular": adagrad(model.deeptabular, DEEP_RATE),
        },
        callbacks=[Clock(pace, args.steps)],
        num_workers=0,
        verbose=0,
    )
    try:
        trainer.fit(**arrays(rows, known), target=rows.labels, n_epochs=args.steps, batch_size=args.batch)
    except Enough:
        pace.end()
    report = Report(peer="pytorch-widedeep", version=pytorch_widedeep.__version__)
    report.take(pace, args.batch)
    if args.evaluate:
        test = census_rows.read(args.data / "adult.test.csv")
        chances = trainer.predict_proba(**arrays(test, known), batch_size=1024)[:, 1]
        scores.enter(report, chances, test.labels)
    report.print()


if __name__ == "__main__":
    main()
