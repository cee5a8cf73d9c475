"""Cluster: which task of which job this process is, read from the environment that its launcher set."""

from torch_estimator.cluster.environment import task_from_environment as task_from_environment
from torch_estimator.cluster.task import Task as Task
