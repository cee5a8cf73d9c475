"""The module that the processes of a job run."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from torch_estimator.cluster.process_start import JOB_BEGAN
from torch_estimator.cluster.task import PARAMETER_SERVER, Task
from torch_estimator.errors import InvalidValueError


@dataclass(frozen=True, slots=True, kw_only=True)
class Program:
    """A module in a folder, and its arguments.

    Args:
        module_name: Of the module, such as ``trainer.task``.
        package_path: The folder of the package that it is in; its parent is where imports begin. By default they begin
            in the current folder.
        arguments: For the module.
        began: When its job did, in seconds since 1970, for processes that are started again in the middle of it.

    Raises:
        InvalidValueError: There is no such folder or module.
    """

    module_name: str
    package_path: str | None = None
    arguments: tuple[str, ...] = ()
    began: float = field(default_factory=time.time)

    def __post_init__(self) -> None:
        if os.sep in self.module_name or not all(self.module_name.split(".")):
            raise InvalidValueError(
                f"module_name must be a name with dots, such as trainer.task, but got {self.module_name!r}."
            )
        if self.package_path is not None and not Path(self.package_path).is_dir():
            what = "is no folder" if Path(self.package_path).exists() else "does not exist"
            raise InvalidValueError(
                f"package_path {self.package_path!r} {what}; name the folder of the package that "
                f"{self.module_name} is in."
            )
        place = self.root.joinpath(*self.module_name.split("."))
        if not (place.with_suffix(".py").is_file() or (place / "__main__.py").is_file()):
            raise InvalidValueError(
                f"there is no module {self.module_name} in {self.root}: neither {place}.py nor {place}/__main__.py is "
                "there; package_path must name the folder of the package that it is in."
            )

    @property
    def root(self) -> Path:
        """The folder where imports begin."""
        return Path.cwd() if self.package_path is None else Path(os.path.abspath(self.package_path)).parent

    def command(self, task: Task) -> list[str]:
        """What starts a task; ``-P``, because a module in the current folder would go before one in `root`.

        A parameter server needs nothing of the program, and is there sooner without; whoever starts it ends it, too.
        """
        if task.type == PARAMETER_SERVER:
            return [sys.executable, "-P", "-m", "torch_estimator.parameter_server", "--until-told"]
        return [sys.executable, "-P", "-m", self.module_name, *self.arguments]

    def environ(self, tf_config: str, environ: Mapping[str, str] = os.environ) -> dict[str, str]:
        """The environment of a process that `tf_config` tells who it is."""
        paths = [str(self.root), *filter(None, [environ.get("PYTHONPATH")])]
        return {
            **environ,
            "TF_CONFIG": tf_config,
            JOB_BEGAN: str(self.began),
            "PYTHONPATH": os.pathsep.join(paths),
            "PYTHONUNBUFFERED": "1",
            # What torch warns of where a connection is lost, with the stack, the package says in a sentence.
            "TORCH_CPP_LOG_LEVEL": environ.get("TORCH_CPP_LOG_LEVEL", "ERROR"),
        }
