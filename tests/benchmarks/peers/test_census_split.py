"""The census benchmark's splits and scores."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from benchmarks.peers.census_split import People, Score, folds
from examples.census.trainer import sample


def test_auc_is_the_share_of_pairs_in_the_right_order_ties_half() -> None:
    random = np.random.default_rng(0)
    scores, rich = random.integers(0, 12, 80) / 12, random.random(80) < 0.3
    pairs = [(a > b) + (a == b) / 2 for a in scores[rich] for b in scores[~rich]]

    score = Score.of(scores, rich, seconds=1.0)

    assert score.auc == pytest.approx(np.mean(pairs), abs=1e-12)
    assert score.accuracy == ((scores > 0.5) == rich).mean()


def test_each_row_is_held_out_once_and_never_fitted_on_then(tmp_path: Path) -> None:
    people = People.of(sample.write(str(tmp_path), train_rows=103, eval_rows=10).train_file)
    numbered = People({"row": np.arange(len(people))}, people.rich)

    splits = list(folds(numbered, 5))

    assert sorted(row for _, held_out in splits for row in held_out.features["row"]) == list(range(103))
    for fit, held_out in splits:
        assert sorted([*fit.features["row"], *held_out.features["row"]]) == list(range(103))
        assert (held_out.rich == people.rich[held_out.features["row"]]).all()
