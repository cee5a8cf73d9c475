"""The addresses of a cluster, as tf.train.ClusterSpec shows them."""

from __future__ import annotations


class ClusterSpec(dict[str, list[str]]):
    """Addresses, ``host:port``, by task type; with the methods of ``tf.train.ClusterSpec``, and otherwise a dict.

    >>> ClusterSpec(chief=["a:1"], worker=["b:1", "c:1"]).num_tasks("worker")
    2
    """

    @property
    def jobs(self) -> list[str]:
        """The task types."""
        return list(self)

    def as_dict(self) -> dict[str, list[str]]:
        """The same as a plain dict."""
        return {type: list(addresses) for type, addresses in self.items()}

    def num_tasks(self, job_name: str) -> int:
        """How many tasks of a type there are."""
        return len(self[job_name])

    def job_tasks(self, job_name: str) -> list[str]:
        """The addresses of the tasks of a type."""
        return list(self[job_name])

    def task_address(self, job_name: str, task_index: int) -> str:
        """The address of a task."""
        return self[job_name][task_index]
