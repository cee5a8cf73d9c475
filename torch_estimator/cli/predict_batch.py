"""Command ``estimator predict-batch``: run an export on files of rows."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

from torch_estimator.cli.predict import DEFAULT_SIGNATURE

if TYPE_CHECKING:
    Commands = argparse._SubParsersAction[argparse.ArgumentParser]

_EPILOG = """\
DIR gets prediction.results-00000-of-00004 and so on, with one JSON object per row in the order of the input, and
prediction.errors_stats-00000-of-00004 with the place and the reason of each row that was rejected. If the command is
killed, run it again: it goes on, and no row is lost or written twice."""


def add_to(commands: Commands) -> None:
    """Add the command to the parser."""
    parser = commands.add_parser("predict-batch", help="run an export on files of rows", epilog=_EPILOG)
    add = parser.add_argument
    add("--model", "--model-dir", required=True, metavar="DIR", help="the export, or a directory of numbered ones")
    add("--input", required=True, nargs="+", metavar="FILE", help="paths, URLs or globs such as 'data/*.csv'")
    add("--output", required=True, metavar="DIR", help="directory of the predictions")
    add("--format", choices=["csv", "jsonl", "parquet", "tfrecord"], help="default: by the names of the files")
    add("--columns", nargs="+", default=[], metavar="COLUMN", help="columns of CSV files without a header")
    add("--delimiter", metavar="CHARACTER", help="between the fields of CSV files (default: found in the first lines)")
    add("--quote-char", default='"', metavar="CHARACTER", help="around fields of CSV files (default: \"; '' for none)")
    add("--missing-values", nargs="+", default=[], metavar="TEXT", help="fields of CSV files that stand for no value")
    add("--encoding", default="utf-8", metavar="NAME", help="of CSV files (default: utf-8)")
    add("--key", nargs="+", action="extend", default=[], metavar="COLUMN", help="column to copy to each prediction")
    add("--signature-name", default=DEFAULT_SIGNATURE, metavar="NAME", help=f"default: {DEFAULT_SIGNATURE}")
    add("--batch", type=int, default=4096, metavar="N", help="rows that the model is run on at once (default: 4096)")
    add("--workers", type=int, default=1, metavar="N", help="processes (default: 1)")
    add("--shards", type=int, metavar="N", help="files of predictions (default: by the size of the input)")
    add("--ignore-unknown", action="store_true", help="leave names that the model does not read out of rows of JSON")
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> None:
    """Predict, and print a summary."""
    # Import here, because the other commands do not need Arrow.
    from torch_estimator.batch_prediction.inputs import CsvOptions
    from torch_estimator.batch_prediction.job import BatchOptions, predict_files
    from torch_estimator.log import set_up_logging

    set_up_logging()
    summary = predict_files(
        BatchOptions(
            model=options.model,
            inputs=tuple(options.input),
            output=options.output,
            format=options.format,
            signature=options.signature_name,
            keys=tuple(options.key),
            columns=tuple(options.columns),
            csv=CsvOptions(
                delimiter=options.delimiter,
                quote_char=options.quote_char,
                missing_values=tuple(options.missing_values),
                encoding=options.encoding,
            ),
            batch=options.batch,
            workers=options.workers,
            shards=options.shards,
            ignore_unknown=options.ignore_unknown,
        )
    )
    counts = f"{summary.predicted:,} rows predicted, {summary.rejected:,} rejected"
    if summary.ignored:
        counts += f", {summary.ignored:,} values of names that the model does not read left out"
    if summary.was_complete:
        print(f"{options.output} is complete already: {counts}.")
        return
    before = f", {summary.before:,} of them by earlier runs" if summary.before else ""
    print(f"{counts}{before}, in {summary.seconds:.1f} s ({summary.rows_per_sec:,.0f} rows/s).")
    if summary.rejected:
        print(f"Places and reasons of the rejected rows: {options.output}/prediction.errors_stats-*.")
