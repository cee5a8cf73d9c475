"""Who am I: which task of which job this process is, as the environment tells it."""

from torch_estimator.cluster.resolve import task_from_environment as task_from_environment
from torch_estimator.cluster.task import Task as Task
