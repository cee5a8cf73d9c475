"""Cluster: the role of this process in its job, read from environment variables that the launcher has set."""

from torch_estimator.cluster.environment import task_from_environment as task_from_environment
from torch_estimator.cluster.task import Task as Task
