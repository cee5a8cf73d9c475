"""A trial that costs nothing: its score is its parameter."""

from __future__ import annotations

import argparse
import json
import os
from pathlib import Path


def main() -> None:
    """Report the score."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--x", type=float, required=True)
    parser.add_argument("--job-dir")
    options = parser.parse_args()
    Path(os.environ["CLOUD_ML_HP_METRIC_FILE"]).write_text(json.dumps({"score": options.x}) + "\n")


if __name__ == "__main__":
    main()
