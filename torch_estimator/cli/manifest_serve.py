"""Command ``estimator manifest serve``: write what Kubernetes needs to run ``estimator serve``."""

from __future__ import annotations

import argparse
import sys
from typing import Any

from torch_estimator import files
from torch_estimator.cli import serve
from torch_estimator.errors import InvalidValueError, printable

_ABOUT = """\
Writes YAML for kubectl apply: a Deployment of estimator serve, a Service, a HorizontalPodAutoscaler, a
PodDisruptionBudget and a NetworkPolicy; or an InferenceService of KServe. What follows -- are options of estimator
serve, with paths as the pods see them. Without --registry and --model among them, the volume is the registry."""


def add_to(targets: Any) -> None:
    """Add the command to the parser."""
    parser = targets.add_parser("serve", help="objects of Kubernetes for estimator serve", description=_ABOUT)
    add = parser.add_argument
    add("name", metavar="NAME", help="name of the objects")
    add("--image", required=True, metavar="IMAGE", help="image with torch-estimator[serve], best by its digest")
    add("--namespace", metavar="NAMESPACE", help="namespace of the objects (default: that of kubectl)")
    add("--claim", metavar="CLAIM", help="PersistentVolumeClaim with the models, which is mounted read-only")
    add("--mount", metavar="PATH", default="/models", help="where the pods have it (default: /models)")
    add("--secret", metavar="SECRET", help="Secret whose files the pods have in /secrets, such as tokens")
    add("--env-secret", metavar="SECRET", help="Secret whose keys are environment variables, such as AWS_ACCESS_KEY_ID")
    add("--service-account", metavar="NAME", help="service account of the pods, for clouds that give it rights")
    add("--min-replicas", type=int, metavar="N", help="fewest pods (default: 2; with --kserve 0)")
    add("--max-replicas", type=int, metavar="N", default=4, help="most pods (default: 4)")
    add("--cpus", type=float, metavar="N", default=2.0, help="cores of a pod (default: 2)")
    add("--memory", metavar="SIZE", default="2Gi", help="memory of a pod (default: 2Gi)")
    add("--kserve", action="store_true", help="an InferenceService of KServe, which starts pods from zero")
    add("--output", metavar="FILE", help="file to write (default: stdout)")
    parser.usage = "estimator manifest serve NAME --image IMAGE [options] [-- OPTIONS OF SERVE]"
    parser.set_defaults(run=run, arguments=[])


def run(options: argparse.Namespace) -> None:
    """Write the objects."""
    from torch_estimator.kubernetes_objects import warn_of_tag
    from torch_estimator.serving.config import settings_of
    from torch_estimator.serving.manifests import Deployed
    from torch_estimator.yaml_text import to_yaml

    rpc = [] if options.kserve else ["--grpc-port", "8500"]
    arguments = ["--host", "0.0.0.0", "--port", "8501", *rpc, *options.arguments]
    known = argparse.ArgumentParser(prog="estimator", allow_abbrev=False)
    serve.add_to(known.add_subparsers())
    given = known.parse_args(["serve", *arguments])
    if given.config is not None:
        raise InvalidValueError(f"the settings in {given.config} are unknown here; give them as options after --.")
    if given.registry is None and not given.model:
        if options.claim is None:
            raise InvalidValueError("there is nothing to serve; name a volume with --claim, or -- --registry URL.")
        given.registry = options.mount
        arguments += ["--registry", options.mount]
    own = {name: value for name, value in vars(options).items() if name in Deployed.__dataclass_fields__}
    if options.min_replicas is None:
        own["min_replicas"] = 0 if options.kserve else 2
    deployed = Deployed(**{**own, "settings": settings_of(vars(given)), "arguments": arguments})
    warn_of_tag(options.image)
    if deployed.label != options.name:
        print(f"The objects are called {deployed.label}: Kubernetes does not allow {options.name!r}.", file=sys.stderr)
    text = to_yaml(deployed.objects())
    if options.output is None:
        print(text, end="")
        return
    files.write_atomic(options.output, text.encode())
    print(printable(f"Wrote {options.output}; create the objects with kubectl apply -f {options.output}."))
