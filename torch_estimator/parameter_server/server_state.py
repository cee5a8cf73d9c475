"""State of the servers, seen from a worker: the chief sends it, restores it on restarted servers, and reads it back."""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from dataclasses import asdict
from typing import Any, Protocol

from torch_estimator import activity, files
from torch_estimator.checkpoint.checkpoint import latest_checkpoint, load_checkpoint
from torch_estimator.checkpoint.row_file import RowFileName, SavedRows
from torch_estimator.checkpoint.saved_tensors import SavedTensors
from torch_estimator.checkpoint.writer import NotWhole
from torch_estimator.distributed.consistency import Description, difference
from torch_estimator.errors import CheckpointError, ClusterError
from torch_estimator.feature_column.table import Table, tables_of
from torch_estimator.parameter_server.client import ServerClient, TrainingIsOver
from torch_estimator.parameter_server.own_initializers import made_here
from torch_estimator.parameter_server.placement import Placement
from torch_estimator.parameter_server.plan import CURSOR, INCARNATION, PACKAGE, SINCE, LargePlan
from torch_estimator.parameter_server.protocol import Header, Kind, pack_json
from torch_estimator.parameter_server.run_id import LAST_STEP, MODEL_DIR, RunIdFile
from torch_estimator.train.training import REPLICAS, Training
from torch_estimator.versions import version_and_sources

logger = logging.getLogger("torch_estimator")

_DESCRIPTION = "description"
_PLACE = "its place among the parameter servers"

_POLL_SECS = 0.05

STARTS_OVER = "over_when_ended"
"""Key of an input cursor: whether an input that had ended starts again from its beginning."""


class PushPullSettings(Protocol):
    """The settings of `ParameterServerStrategy` that the steps of a worker need."""

    @property
    def pipeline(self) -> bool: ...

    @property
    def max_staleness(self) -> int | None: ...

    @property
    def silence_secs(self) -> float: ...


class ServerState:
    """Transfer of parameters, optimizer state and input cursors between this process and the servers.

    The chief gives each server its parameters at the beginning. A server that dies and is started again holds nothing;
    the chief then restores it from the last checkpoint, while the workers wait. Other servers keep their state. If the
    first server is restored, the global step and the input cursors go back to the checkpoint, too. Workers that still
    run report their cursors anew. A worker that died together with the first server continues from its cursor in the
    checkpoint.

    `description` holds properties that must be identical in all processes, as they were at the beginning of the
    training. `cursors` holds the input cursors by rank, of all workers but the chief, as last read from the checkpoint
    or the servers.
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
        self._run_id = run_id
        self._description = description
        self._is_chief = client.rank == 0
        self._checkpoint = training.checkpoint
        self.names = [training.task.name_of_rank(rank) for rank in range(training.task.num_workers)]
        saved = training.saved_state.get(REPLICAS) or ()
        self.cursors: Mapping[str, Any] = {
            str(rank): {**one, STARTS_OVER: training.starts_input_over}
            for rank, one in enumerate(saved)
            if rank and one is not None
        }

    def begin(self, step: int) -> int:
        """Wait until all servers hold this training, then restore the input; return the global step of the servers.

        The chief first sends the parameters of the model, which are of the global step `step`.
        """
        replies = self._take_over(step) if self._is_chief else self._wait_for_chief()
        header, about = replies[0]
        # Servers accept the process with the highest incarnation, which is taken from the clock. The clock of the
        # machine of the previous process may be ahead, so exceed any incarnation that a server knows.
        known = max(about.get(INCARNATION, 0) for _, about in replies)
        self._client.incarnation = max(self._client.incarnation, known + 1)
        self._restore_input(about)
        return header.step

    def _take_over(self, step: int) -> list[tuple[Header, Mapping[str, Any]]]:
        """As the chief, send parameters to each server without this training; return all servers' replies to HELLO."""
        self._client.run_id = self._run_id.read_or_create()
        replies = self._client.request_all(Kind.HELLO)
        others = []
        for index, (header, about) in enumerate(replies):
            if header.kind is Kind.EMPTY or header.run_id != self._client.run_id:
                others.append(index)
            else:
                self._check(index, header, about)
        if held := [header.step for index, (header, _) in enumerate(replies) if index not in others]:
            # This chief was restarted. The workers have gone on training with these servers.
            logger.info("Parameter servers are at global step %d; going on with them.", max(held))
        self._start(others, step)
        return self._client.request_all(Kind.HELLO)

    def _wait_for_chief(self) -> list[tuple[Header, Mapping[str, Any]]]:
        """As a worker, wait until all servers hold this training; return their replies to HELLO."""
        while True:
            self._wait_until_started("the chief to give the parameter servers their parameters")
            try:
                self._client.run_id = self._run_id.read()
                replies = self._client.request_all(Kind.HELLO)
                if any(header.kind is Kind.EMPTY for header, _ in replies):
                    # Wait again: a server has died since `_all_are_started`, or the training has just ended.
                    continue
                for index, (header, about) in enumerate(replies):
                    self._check(index, header, about)
                return replies
            except ClusterError as error:
                # The training may have ended while this process was starting, and the next one may have begun.
                if self._client.is_over():
                    raise TrainingIsOver from error
                raise

    def restore(self, servers: Sequence[int], was_at: int) -> None:
        """Restore restarted servers from the last checkpoint; as a worker, wait until the chief has done so."""
        names = ", ".join(f"ps {index}" for index in servers)
        if not self._is_chief:
            self._wait_until_started(f"the chief to restore {names}")
            return
        training = self._training
        training.settle()
        if latest_checkpoint(training.model_dir) is None and self._large and training.saver is not None:
            # The servers were still writing the first checkpoint, which this one is missing in now.
            logger.warning(
                "%s has lost what it held before the first checkpoint was whole; it begins with initial values. "
                "Training was at step %d.",
                names,
                was_at,
            )
            self._start(servers, 0)
            return
        if latest_checkpoint(training.model_dir) is None:
            raise ClusterError(
                "A parameter server has lost what it held, and there is no checkpoint to restore it from; start all "
                "processes again, and have checkpoints saved."
            )
        checkpoint = load_checkpoint(training.model_dir)
        training.model.restore(checkpoint, training.optimizers)
        self._checkpoint = checkpoint
        logger.warning(
            "%s has lost what it held; restoring it from the checkpoint of global step %d. Training was at step %d.",
            names,
            checkpoint.step,
            was_at,
        )
        self._start(servers, checkpoint.step)

    def read_back(self, was_at: int) -> int:
        """Copy the state of all servers into the model and the optimizers; return the global step.

        `was_at` is the last known global step, for the log.

        The state of each server is that of one moment. There is no barrier across servers, so these moments differ.
        """
        while True:
            replies = self._client.state()
            empty = [index for index, (header, _, _) in enumerate(replies) if header.kind is Kind.EMPTY]
            if not empty:
                break
            self.restore(empty, was_at)
        for server, (_, _, arrays) in enumerate(replies):
            self._placement.write_state(server, arrays)
        header, content, _ = replies[0]
        self.cursors = content["cursors"]
        return header.step

    def _wait_until_started(self, what: str) -> None:
        with activity.waiting(lambda: self.names[:1], activity.OTHERS):
            self._client.wait_until(self._all_are_started, what)

    def _all_are_started(self) -> bool:
        return all(header.kind is Kind.OK for header, _ in self._client.request_all(Kind.STATUS))

    def _check(self, index: int, header: Header, about: Mapping[str, Any]) -> None:
        """Check by a server's reply to HELLO that it holds this training, and that the chief runs the same program."""
        if header.run_id != self._client.run_id:
            raise ClusterError(
                f"ps {index} serves another training than this one, with another model_dir; give all processes of a "
                "cluster the same model_dir, and each training its own parameter servers."
            )
        place = f"{index} of {len(self._client)}"
        if about.get(_PLACE) != place:
            raise ClusterError(
                f"ps {index} serves another training than this one: {_PLACE} is {about.get(_PLACE)!r} there, and "
                f"{place!r} here. Give all processes the same parameter servers, in the same order."
            )
        chief = "the chief before it" if self._is_chief else self.names[0]
        own_name = self.names[self._client.rank]
        if problem := difference(own_name, self._description, chief, about.get(_DESCRIPTION, {})):
            raise ClusterError(f"{problem[:-1]}, or start the parameter servers again, too.")

    def _about(self, index: int) -> dict[str, Any]:
        model_dir = self._training.model_dir
        about = {
            LAST_STEP: self._training.last_step,
            _PLACE: f"{index} of {len(self._client)}",
            PACKAGE: version_and_sources(),
            MODEL_DIR: os.path.abspath(model_dir) if files.is_local(model_dir) else model_dir,
        }
        # The description of the program may be long, so only the first server gets it.
        return about if index else {**about, _DESCRIPTION: self._description}

    def _start(self, servers: Sequence[int], step: int) -> None:
        """Send each of these servers its part of this process's parameters and optimizer state."""
        known = self._sources()
        with made_here(self._tables, known, self._training.model_dir) as made:
            sources = {name: [asdict(one) for one in rows] for name, rows in (known | made).items()}
            parts = {
                index: (self._content(index, step, sources), self._placement.read_state(index)) for index in servers
            }
            self._client.start(parts)

    def _content(self, index: int, step: int, sources: Mapping[str, object]) -> dict[str, object]:
        most = self._settings.max_staleness
        return {
            "plan": self._placement.plans[index].as_json(),
            "about": self._about(index),
            "step": step,
            # The global step is that of the first server, so only this server ends the training.
            "last_step": None if index else self._training.last_step,
            # With bounded staleness, a server holds back replies to fast workers until slow workers catch up.
            # So every server must detect hung workers, or it would hold back those replies forever.
            # Without bounded staleness it is enough that the first server detects and names them.
            "silence_secs": self._settings.silence_secs if not index or most is not None else None,
            "max_staleness": most,
            "names": self.names,
            "cursors": {} if index else self.cursors,
            "sources": sources,
        }

    def _sources(self) -> dict[str, list[SavedRows]]:
        """Return the files from which the servers have to read their rows of large tables, by variable and slot."""
        found: dict[str, list[SavedRows]] = {}
        for table in self._tables:
            found |= table.read_from
        if self._checkpoint is None:
            return found
        for plan in self._large:
            for variable in plan.variables:
                names = {variable.name: self._checkpoint.variables}
                names |= {f"{variable.name}/{slot.suffix}": self._checkpoint.slots for slot in plan.slots}
                for name, saved in names.items():
                    if not isinstance(saved, SavedTensors):
                        raise CheckpointError(
                            f"Parameter servers read {name!r} themselves, which they cannot from "
                            f"{self._checkpoint.path}; make a checkpoint of ours by training one step in one process."
                        )
                    found[name] = saved.files_of(name)
        return found

    @property
    def _tables(self) -> list[Table]:
        return list(tables_of(self._training.model.module))

    @property
    def _large(self) -> list[LargePlan]:
        return [table.large for table in self._placement.plans[0].tables if table.large is not None]

    def write_rows(self, reserve: Callable[[], str]) -> Callable[[], list[RowFileName]] | None:
        """Let the servers write rows of large tables into a directory; see `PushPullSteps.write_rows`."""
        if not self._large:
            return None
        directory = files.basename(reserve())
        client = self._client
        header = client.header(Kind.WRITE)
        servers = range(len(client))
        client.request({index: pack_json(header, {"directory": directory, "server": index}) for index in servers})

        def wait() -> list[RowFileName]:
            with closing(client.another()) as own:
                return _written(own)

        return wait

    def _restore_input(self, about: Mapping[str, Any]) -> None:
        """Continue the input from the cursor that this rank has last reported; without one, from the checkpoint."""
        training, cursor = self._training, about.get(CURSOR)
        if cursor is None:
            training.restore_input(training.saved_state)
        else:
            training.restore_input(cursor, starts_over=cursor[STARTS_OVER])
        if (since := about.get(SINCE)) and training.config.resume_input:
            logger.info("Going on with the input where it stood %d batches ago; these are trained on again.", since)


def _written(client: ServerClient) -> list[RowFileName]:
    """Wait until all servers have written their rows of large tables; return the files.

    Raise `NotWhole` if a server was started again meanwhile, and ClusterError if one could not write.
    """
    while True:
        replies = client.request_all(Kind.WRITTEN)
        for index, (header, progress) in enumerate(replies):
            if header.kind is Kind.EMPTY:
                raise NotWhole(f"ps {index} was started again while it wrote its rows.")
            if progress["error"] is not None:
                raise ClusterError(
                    f"ps {index} cannot write its rows of large tables: {progress['error']}; the checkpoint before "
                    "stays, and training goes on from it when it is started again."
                )
        if all(progress["done"] for _, progress in replies):
            return [RowFileName(**one) for _, progress in replies for one in progress["files"]]
        time.sleep(_POLL_SECS)
