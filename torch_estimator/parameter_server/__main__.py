"""``python -m torch_estimator.parameter_server``: the parameter server that the environment says this process is.

It runs no program of the user's, which would import torch: it serves within half a second.
"""

from torch_estimator.cluster.resolve import task_from_environment
from torch_estimator.cluster.task import PARAMETER_SERVER
from torch_estimator.errors import InvalidValueError, exit_on_user_error
from torch_estimator.roles.parameter_server import run_parameter_server


def main() -> None:
    """Serves until training ends; a mistake of the user's is a sentence and exit status 2."""
    with exit_on_user_error():
        task = task_from_environment()
        if task.type != PARAMETER_SERVER:
            raise InvalidValueError(
                f"{task.source or 'The environment'} says that this process is {task}, which is no parameter server; "
                f"TF_CONFIG must have a task of type {PARAMETER_SERVER!r}."
            )
        run_parameter_server(task)


if __name__ == "__main__":
    main()
