"""How many bytes each process sends the others in a synchronous step of the census example.

Takes what `ours_census` takes; ends with a line of JSON.
"""

from __future__ import annotations

import json
import logging
from collections import Counter

from torch import Tensor

import torch_estimator as te
from benchmarks.peers import ours_census
from benchmarks.peers.report import Pace
from torch_estimator.distributed.group import Group


def main() -> None:
    """Count in the process that TF_CONFIG names."""
    args = ours_census.arguments().parse_args()
    logging.getLogger("torch_estimator").setLevel(logging.WARNING)
    sizes: Counter[int] = Counter()
    all_gather = Group.all_gather

    def counted(self: Group, sent: Tensor, received: Tensor) -> None:
        sizes[sent.nbytes] += 1
        all_gather(self, sent, received)

    Group.all_gather = counted
    ours_census.train_in_cluster(args, ours_census.build_estimator(args, str(args.cluster)), Pace(args.warmup))
    ((size, _),) = sizes.most_common(1)
    print(json.dumps({"peer": "torch-estimator", "version": te.__version__, "bytes": size}))


if __name__ == "__main__":
    main()
