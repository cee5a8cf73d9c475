"""LightGBM on a split of the census data; runs in `.bench/lightgbm`: `lightgbm_census.py SPLIT ANSWER PARAMETERS`.

SPLIT is an .npz file with `fit` and `held_out` (float64 `[rows, columns]`, categories as codes), `labels` and
`categorical` (the places of the categories). ANSWER gets the `scores` of the held-out rows and the `seconds` that
training took.
"""

from __future__ import annotations

import json
import sys
import time

import lightgbm
import numpy as np


def main(split_file: str, answer_file: str, parameters: str) -> None:
    """Trains and predicts."""
    split = np.load(split_file)
    started = time.perf_counter()
    data = lightgbm.Dataset(split["fit"], split["labels"], categorical_feature=split["categorical"].tolist())
    model = lightgbm.train({"objective": "binary", "verbosity": -1, "seed": 1, **json.loads(parameters)}, data)
    seconds = time.perf_counter() - started
    np.savez(answer_file, scores=model.predict(split["held_out"]), seconds=seconds)


if __name__ == "__main__":
    main(*sys.argv[1:])
