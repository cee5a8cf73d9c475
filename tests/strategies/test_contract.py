"""Every strategy of the package passes the contract suite."""

from __future__ import annotations

import pytest

from tests.strategies.contract import Job, check_strategy

HERE = "torch_estimator.distribute:"


@pytest.mark.parametrize(
    ("program", "strategy", "replicas", "cluster"),
    [
        ("census", f"{HERE}MirroredStrategy(replicas=2)", 2, {}),
        ("census", f"{HERE}MultiWorkerMirroredStrategy()", 2, {"workers": 1}),
        ("census", f"{HERE}ParameterServerStrategy()", 1, {"servers": 2}),
        # FullyShardedStrategy takes no tables of feature columns, so it trains a plain module.
        ("births", f"{HERE}FullyShardedStrategy()", 2, {"workers": 1}),
    ],
)
def test_replicas_with_a_part_of_each_batch_end_where_one_process_and_tensorflow_do(
    contract_jobs: dict[str, Job], program: str, strategy: str, replicas: int, cluster: dict[str, int]
) -> None:
    check_strategy(contract_jobs[program], strategy, replicas, cluster)
