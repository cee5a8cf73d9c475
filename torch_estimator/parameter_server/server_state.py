"""The state of a training that servers hold: given to them by the chief, restored after one has died, and read back."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from typing import Any, Protocol

from torch_estimator.checkpoint.checkpoint import latest_checkpoint, load_checkpoint
from torch_estimator.distributed.description import Description, difference
from torch_estimator.errors import ClusterError
from torch_estimator.parameter_server.client import ServerClient, TrainingIsOver
from torch_estimator.parameter_server.placement import Placement
from torch_estimator.parameter_server.plan import AT_MOST, CURSOR, SINCE
from torch_estimator.parameter_server.protocol import Kind
from torch_estimator.parameter_server.run_id import LAST_STEP, RUN_ID, RunIdFile
from torch_estimator.train.training import REPLICAS, Training

logger = logging.getLogger("torch_estimator")

_DESCRIPTION = "description"
_PLACE = "its place among the parameter servers"

STARTS_OVER = "over_when_ended"
"""Key of an input cursor: whether an input that had ended starts over."""


class PushPullSettings(Protocol):
    """The settings of `ParameterServerStrategy`."""

    @property
    def pipeline(self) -> bool: ...

    @property
    def max_staleness(self) -> int | None: ...

    @property
    def silence_secs(self) -> float: ...


class ServerState:
    """What the servers hold of one training.

    The chief gives each server its parameters at the beginning. A server that dies and is started again holds nothing;
    the chief then restores it from the last checkpoint, while the workers wait. Other servers keep what they hold, so
    that after a restart servers may be at different steps, as they always may by the steps under way.

    Args:
        client: The connections to the servers.
        training: The training of this process.
        placement: Which parameter is on which server.
        settings: How the processes train.
        run_id: The file with the run id.
        description: What all processes have to agree on, as it was at the beginning of the training.

    Attributes:
        cursors: The input cursors of all workers but the chief when last heard of, by rank.
    """

    def __init__(
        self,
        client: ServerClient,
        training: Training,
        placement: Placement,
        *,
        settings: PushPullSettings,
        run_id: RunIdFile,
        description: Description,
    ) -> None:
        self._client = client
        self._training = training
        self._placement = placement
        self._settings = settings
        self._run_id_file = run_id
        self._run_id = ""
        self._description = description
        self._is_chief = client.rank == 0
        self.names = [training.task.name_of_rank(rank) for rank in range(training.task.num_workers)]
        saved = training.saved_state.get(REPLICAS) or ()
        self.cursors: Mapping[str, Any] = {
            str(rank): {**one, STARTS_OVER: training.starts_input_over}
            for rank, one in enumerate(saved)
            if rank and one is not None
        }
        # By the step of a checkpoint: how many later steps have been lost with the first server.
        self._lost: dict[int, int] = {}

    def begin(self, step: int) -> int:
        """Give the servers their parameters, or wait until the chief has; restore the input of this process.

        Args:
            step: Global step of the parameters in the model.

        Returns:
            The global step of the servers.

        Raises:
            ClusterError: The servers hold another training, or cannot be reached.
            TrainingIsOver: The servers have ended.
        """
        if self._is_chief:
            self._run_id = self._run_id_file.read_or_create()
            replies = self._client.request_all(Kind.HELLO)
            for index, (header, about) in enumerate(replies):
                if header.kind is not Kind.EMPTY:
                    self._check(index, about)
            empty = [index for index, (header, _) in enumerate(replies) if header.kind is Kind.EMPTY]
            if len(empty) < len(replies):
                # This chief was started again, and its servers have gone on with the workers.
                logger.info("Parameter servers are at global step %d; going on with them.", replies[0][0].step)
            # The workers may have told an empty server which step they had reached.
            self._start(empty, step, max(step, replies[0][0].step))
            replies = self._client.request_all(Kind.HELLO)
        else:
            self._client.wait_until(self._all_are_started, "the chief to give the parameter servers their parameters")
            try:
                self._run_id = self._run_id_file.read()
                replies = self._client.request_all(Kind.HELLO)
                for index, (_, about) in enumerate(replies):
                    self._check(index, about)
            except ClusterError as error:
                # Where the program trains again, the servers may hold the next training already.
                if self._client.is_over():
                    raise TrainingIsOver from error
                raise
        header, about = replies[0]
        self._restore_input(about)
        return header.step

    def restore(self, servers: Sequence[int], reached: int) -> None:
        """Have servers that have lost what they held restored: as the chief restore them, as a worker wait for that.

        Args:
            servers: Indices of the servers.
            reached: The global step that this process knows of.

        Raises:
            ClusterError: There is no checkpoint, or the chief does not come.
        """
        names = ", ".join(f"ps {index}" for index in servers)
        if not self._is_chief:
            self._client.wait_until(self._all_are_started, f"the chief to restore {names}")
            return
        training = self._training
        training.settle()
        if latest_checkpoint(training.model_dir) is None:
            raise ClusterError(
                "A parameter server has lost what it held, and there is no checkpoint to restore it from; start all "
                "processes again, and have checkpoints saved."
            )
        checkpoint = load_checkpoint(training.model_dir)
        training.model.restore(checkpoint, training.optimizers)
        logger.warning(
            "%s has lost what it held; restoring it from the checkpoint of global step %d.", names, checkpoint.step
        )
        self._start(servers, checkpoint.step, reached)

    def read_back(self, reached: int) -> int:
        """Put what the servers hold into the model and the optimizers; return the global step.

        What each server replies is one moment of that server. There is no barrier across servers.

        Args:
            reached: The global step that this process knows of.
        """
        while True:
            replies = self._client.state()
            empty = [index for index, (header, _, _) in enumerate(replies) if header.kind is Kind.EMPTY]
            if not empty:
                break
            self.restore(empty, reached)
        for server, (_, _, arrays) in enumerate(replies):
            self._placement.write_state(server, arrays)
        header, content, _ = replies[0]
        self.cursors = content["cursors"]
        return header.step

    def _all_are_started(self) -> bool:
        return all(header.kind is Kind.OK for header, _ in self._client.request_all(Kind.STATUS))

    def _check(self, index: int, about: Mapping[str, Any]) -> None:
        """Check that a server holds this training, and that the chief runs the same program."""
        place = f"{index} of {len(self._client)}"
        for what, here, advice in (
            (_PLACE, place, "Give all processes the same parameter servers, in the same order."),
            (RUN_ID, self._run_id, "End it, and start it again; or name other addresses."),
        ):
            if about.get(what) != here:
                raise ClusterError(
                    f"ps {index} serves another training than this one: {what} is {about.get(what)!r} there, and "
                    f"{here!r} here. {advice}"
                )
        chief = "the chief before it" if self._is_chief else self.names[0]
        own_name = self.names[self._client.rank]
        if problem := difference(own_name, self._description, chief, about.get(_DESCRIPTION, {})):
            raise ClusterError(f"{problem[:-1]}, or start the parameter servers again, too.")

    def _about(self, index: int) -> dict[str, Any]:
        about = {RUN_ID: self._run_id, LAST_STEP: self._training.last_step, _PLACE: f"{index} of {len(self._client)}"}
        # The description may be long, and one server that tells it is enough.
        return about if index else {**about, _DESCRIPTION: self._description}

    def _start(self, servers: Sequence[int], step: int, reached: int) -> None:
        """Give servers what the model and the optimizers hold.

        Args:
            servers: Indices of the servers.
            step: Global step of the model.
            reached: The highest global step that is known; the steps since `step` are lost.
        """
        lost = max(0, reached - step)
        if 0 in servers:
            # A worker that has been away since the first server was lost before has trained on as many more.
            lost += self._lost.get(step, 0)
            self._lost = {step: lost}
        if 0 in servers and lost:
            logger.info(
                "Who starts again without having told ps 0 where its input stands goes on where that stood at global "
                "step %d, at most %d batches before.",
                step,
                lost,
            )
        most = self._settings.max_staleness
        for index in servers:
            content = {
                "plan": self._placement.plans[index].as_json(),
                "about": self._about(index),
                "step": step,
                # The first server counts the steps.
                "last_step": None if index else self._training.last_step,
                # A server that holds back replies has to know which worker hangs; otherwise one log line is enough.
                "silence_secs": self._settings.silence_secs if not index or most is not None else None,
                "max_staleness": most,
                "names": self.names,
                "cursors": {} if index else self.cursors,
                "lost": 0 if index else lost,
            }
            self._client.start(index, content, self._placement.read_state(index))

    def _restore_input(self, about: Mapping[str, Any]) -> None:
        """Go on with the input where the process before this one has reported its cursor."""
        training, cursor = self._training, about[CURSOR]
        if cursor is None:
            training.restore_input(training.saved_state)
        else:
            training.restore_input(cursor, starts_over=cursor[STARTS_OVER])
        if about[SINCE] and training.config.resume_input:
            logger.info(
                "Going on with the input where it stood %s%d batches ago; these are trained on twice.",
                "at most " if about[AT_MOST] else "",
                about[SINCE],
            )
