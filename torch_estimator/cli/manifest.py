"""Command ``estimator manifest``: write what other systems need to train or to serve without us."""

from __future__ import annotations

import argparse
import os
from typing import TYPE_CHECKING

from torch_estimator import files
from torch_estimator.cli import manifest_serve
from torch_estimator.cli.jobs import add_request, requested
from torch_estimator.cli.registry_options import add_model, registry_of
from torch_estimator.cli.show import newest_export
from torch_estimator.errors import InvalidValueError, printable
from torch_estimator.export.exported_model import read_manifest
from torch_estimator.export.triton import write_config

if TYPE_CHECKING:
    Commands = argparse._SubParsersAction[argparse.ArgumentParser]

_ABOUT = """\
Writes config.pbtxt into the directory of the model, for the onnxruntime backend of NVIDIA Triton. The parent of that
directory is then a model repository: start Triton with --model-repository and its path. For a model of a registry the
file names the version that Triton serves; write it anew when the default has changed."""

_JOB = """\
Writes the objects that jobs submit training --on kubernetes creates, as YAML, with the package and a new key for
parameter servers in a Secret. The options are those of jobs submit training. Nobody follows such a job: kubectl logs
has its lines, and kubectl delete -f ends it."""


def add_to(commands: Commands) -> None:
    """Add the command to the parser."""
    parser = commands.add_parser("manifest", help="write what Kubernetes or another server needs")
    targets = parser.add_subparsers(required=True, metavar="WHAT")
    job = targets.add_parser("job", help="objects of Kubernetes for a training", description=_JOB)
    add_request(job)
    job.add_argument("--jobset", action="store_true", help="one JobSet instead of a Job for each type of task")
    job.add_argument("--output", metavar="FILE", help="file to write, which only you can read (default: stdout)")
    job.usage = "estimator manifest job NAME --on TARGET --module-name NAME [options] [-- ARGS]"
    job.set_defaults(run=run_job)
    manifest_serve.add_to(targets)
    triton = targets.add_parser("triton", help="config.pbtxt for NVIDIA Triton", description=_ABOUT)
    triton.add_argument("--model-dir", metavar="EXPORT", help="the export, or a directory of numbered ones")
    add_model(triton, required=False)
    triton.add_argument("--version", metavar="VERSION", help="version of --model; default: the model's default")
    triton.add_argument("--max-batch", type=int, default=64, metavar="ROWS", help="largest batch; default: 64")
    triton.add_argument(
        "--max-delay-ms", type=float, default=0.0, metavar="MS", help="wait for more requests; default: 0"
    )
    triton.set_defaults(run=run)


def run_job(options: argparse.Namespace) -> None:
    """Write the objects of a training on Kubernetes."""
    from torch_estimator.jobs.directory import private_files
    from torch_estimator.jobs.kubernetes.objects import Objects
    from torch_estimator.parameter_server.encryption import new_key
    from torch_estimator.yaml_text import to_yaml

    spec, secrets, package = requested(options, None)
    if spec.settings["kind"] != "kubernetes":
        raise InvalidValueError(f"target {spec.target} is {spec.settings['kind']}; name one of Kubernetes with --on.")
    objects = Objects(spec, "", is_job_set=options.jobset)
    objects.settings.check(spec)
    text = to_yaml(objects.build(package, secrets, new_key(), spec.created))
    if options.output is None:
        print(text, end="")
        return
    with private_files(options.output):
        files.write_atomic(options.output, text.encode())
    print(printable(f"Wrote {options.output}; start the job with kubectl apply --server-side -f {options.output}."))


def run(options: argparse.Namespace) -> None:
    """Write ``config.pbtxt``."""
    if options.max_batch < 1 or not 0 <= options.max_delay_ms <= 10_000:
        raise InvalidValueError(
            f"--max-batch must be 1 or more and --max-delay-ms 0 to 10000, but got {options.max_batch} and "
            f"{options.max_delay_ms:g}."
        )
    directory = _directory(options)
    if files.is_local(directory):
        directory = os.path.abspath(directory)
    path = write_config(
        directory,
        read_manifest(directory),
        max_batch=options.max_batch,
        max_delay_ms=options.max_delay_ms,
        # A registry has a default, which need not be its newest version.
        is_default=options.model is not None,
    )
    print(printable(f"Wrote {path}; start Triton with --model-repository={files.parent(files.parent(path))}."))


def _directory(options: argparse.Namespace) -> str:
    if (options.model_dir is None) == (options.model is None):
        raise InvalidValueError("give either --model-dir or --model with a registry.")
    if options.model is None:
        return newest_export(options.model_dir)
    registry = registry_of(options)
    version = options.version or registry.read_model(options.model).default
    if version is None:
        raise InvalidValueError(f"the model {options.model!r} has no version yet; create one first.")
    return registry.version_dir(options.model, version)
