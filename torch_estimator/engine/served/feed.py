"""The loop of who trains on parameters that are with servers: pulls what a batch needs, pushes what it gives."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
from torch import Tensor

from torch_estimator import __version__
from torch_estimator.engine.batches import Batches
from torch_estimator.engine.compiled.choice import GRADIENTS, AnySteps, EagerSteps
from torch_estimator.engine.replicas.packing import HEADER, Layout
from torch_estimator.engine.replicas.steps import NoRoom
from torch_estimator.engine.schedules import Schedules
from torch_estimator.engine.served.links import Frames, Links
from torch_estimator.engine.served.lookups import FirstMentions, Lookups
from torch_estimator.engine.served.placement import Placement
from torch_estimator.engine.served.steps import PushedStep
from torch_estimator.engine.served.token import Token
from torch_estimator.errors import ClusterError
from torch_estimator.hooks.run_context import RunContext
from torch_estimator.parameter_server.messages import (
    PULLS,
    PUSHES,
    STOPS,
    Header,
    Kind,
    Push,
    pack_exchange,
    unpack_parameters,
)

logger = logging.getLogger("torch_estimator")

_LAYOUT = "layout"
_LOOK_EVERY_SECS = 0.05
_SAY_EVERY_SECS = 10.0


class ServedSteps:
    """Takes the steps of one process; others may take theirs at the same time.

    A step is one message to each server and one back: it brings the gradients of the batch before and asks for the
    rows that this one needs. So gradients are those of the parameters as they are, where one process trains.

    Args:
        links: To the servers.
        halves: Makes a step for a layout; for None one without room.
        compiled: Makes what takes the steps, from what it had saved before.
        schedules: Of the optimizers; moved on to the servers' global step.
        token: Of this training, the same for all of its processes.
        is_chief: Whether this process gives the servers what they hold.
        restored: For the chief: puts the last checkpoint into the model and its optimizers; returns its global step.
        global_step: Of the model as it is.
        last_step: Global step at which training ends, or None.
        before: What `state` returned in the run before a resume.
    """

    def __init__(
        self,
        links: Links,
        halves: Callable[[Layout | None], PushedStep],
        compiled: Callable[[PushedStep, str, Any], AnySteps],
        *,
        schedules: Schedules,
        token: Token,
        is_chief: bool,
        restored: Callable[[], int],
        global_step: int,
        last_step: int | None,
        before: Mapping[str, Any] | None,
    ) -> None:
        self.over = False
        self._links = links
        self._halves = halves
        self._compiled = compiled
        self._schedules = schedules
        self._token = token
        self._about: Mapping[str, Any] = {}
        self._is_chief = is_chief
        self._restored = restored
        self._last_step = last_step
        self._advanced = global_step
        self._step = halves(None)
        self._steps: AnySteps = EagerSteps(self._step)
        self._placement = Placement(self._step, len(links))
        self._lookups = Lookups(self._step)
        self._first = [FirstMentions(update.table.rows) for update in self._step.tables]
        self._dense = [one.detach().numpy().reshape(-1) for one in self._step.dense]
        self._weights = [update.table.weight.detach().numpy() for update in self._step.tables]
        self._pending: Push | None = None
        self._at = global_step
        self._look_at_message()
        before = before or {}
        if _LAYOUT in before:
            self._use(Layout.from_json(before[_LAYOUT]), before.get(GRADIENTS))

    @property
    def global_step(self) -> int:
        """As the servers have told it last."""
        return self._at

    def begin(self) -> None:
        """Gives the servers their parameters, or waits until the chief has.

        Raises:
            ClusterError: They are another training's, or cannot be reached.
        """
        if self._is_chief:
            self._about = {"the token of its model_dir": self._token.make(), "torch-estimator": __version__}
            answers = self._links.tell_all(Kind.HELLO)
            for index, (header, about) in enumerate(answers):
                if header.kind is not Kind.EMPTY:
                    self._check(index, about)
            empty = [index for index, (header, _) in enumerate(answers) if header.kind is Kind.EMPTY]
            if len(empty) < len(answers):
                logger.info("Parameter servers are at global step %d; going on with them.", answers[0][0].step)
            self._start(empty, self._at)
            answers = self._links.tell_all(Kind.HELLO)
        else:
            self._links.wait_until(self._all_hold, "the chief to give the parameter servers their parameters")
            self._about = {"the token of its model_dir": self._token.read(), "torch-estimator": __version__}
            answers = self._links.tell_all(Kind.HELLO)
            for index, (_, about) in enumerate(answers):
                self._check(index, about)
        self._at = answers[0][0].step

    def state(self) -> dict[str, Any]:
        """Returns what a resumed run needs to go on alike, as JSON."""
        if isinstance(self._steps, EagerSteps) and not self._pending:
            return {}
        return {_LAYOUT: self._step.layout.as_json(), GRADIENTS: self._steps.state()}

    def look_again(self) -> None:
        """After somebody else's code has run."""
        self._steps.look_again()

    def take(self, batches: Batches | None, context: RunContext) -> Sequence[Tensor | float]:
        """Takes one step; none where there is no batch, or training is over."""
        if batches is None:
            self.flush()
            if self._is_chief:
                self._wait_for_others()
            return ()
        ids = self._lookups.ids(batches.batch(0))
        wanted = [first(mentioned)[0] for first, mentioned in zip(self._first, ids, strict=True)]
        self._exchange(wanted)
        if self.over:
            return ()
        # Others may have taken steps since.
        context.global_step = max(context.global_step, self._at)
        losses = self._computed(batches, context)
        touched = self._push()
        if not all(_are_among(one, pulled) for one, pulled in zip(touched, wanted, strict=True)):
            # What the step looked up does not follow from its features, so that rows were missing.
            self._lookups.distrust()
            self._pending = None
            return self.take(batches, context)
        return losses

    def flush(self) -> None:
        """Sends the gradients of the last step, which would wait for the next one."""
        if self._pending is not None:
            self._exchange(None)

    def refresh(self, context: RunContext) -> None:
        """Makes the model and its optimizers those of the servers, and the global step theirs."""
        self.flush()
        while True:
            answers = self._links.state()
            empty = [index for index, (header, _) in enumerate(answers) if header.kind is Kind.EMPTY]
            if not empty:
                break
            self._revive(empty)
        for server, (_, arrays) in enumerate(answers):
            self._placement.take_over(server, arrays)
        self._at = context.global_step = answers[0][0].step

    def _wait_for_others(self) -> None:
        """Where the chief's own input has ended: until those of all others have."""
        said = time.monotonic()
        while not self.over:
            header, content = self._links.tell_all(Kind.STATUS)[0]
            others = [worker for worker in content["active"] if worker]
            if not others or (self._last_step is not None and header.step >= self._last_step):
                return
            if time.monotonic() > said + _SAY_EVERY_SECS:
                said = time.monotonic()
                logger.info("The input has ended here; %d others still train.", len(others))
            time.sleep(_LOOK_EVERY_SECS)

    def end(self, *, stops: bool) -> None:
        """Leaves; the chief ends the servers.

        Args:
            stops: Whether training is to end since this process wants it.
        """
        if self._is_chief:
            self._links.tell_all(Kind.END)
            self._token.remove()
        else:
            self.flush()
            self._links.tell_all(Kind.LEAVE, STOPS if stops else 0)

    def close(self) -> None:
        """Ends what compiles beside."""
        self._steps.__exit__(None, None, None)

    def _all_hold(self) -> bool:
        return all(header.kind is Kind.OK for header, _ in self._links.tell_all(Kind.STATUS))

    def _check(self, index: int, about: Mapping[str, Any]) -> None:
        for what, ours in self._about_of(index).items():
            if about.get(what) != ours:
                raise ClusterError(
                    f"ps {index} serves another training than this one: {what} is {about.get(what)!r} there, and "
                    f"{ours!r} here. End it, and start it again; or name other addresses."
                )

    def _about_of(self, index: int) -> dict[str, Any]:
        return {**self._about, "the digest of all variables and optimizers": self._placement.plans[index].digest}

    def _start(self, servers: Sequence[int], step: int) -> None:
        for index in servers:
            content = {
                "plan": self._placement.plans[index].as_json(),
                "about": self._about_of(index),
                "step": step,
                # The first one counts.
                "last_step": None if index else self._last_step,
            }
            self._links.start(index, content, self._placement.arrays(index))

    def _revive(self, servers: Sequence[int]) -> None:
        """Deals with servers that have died and come back with nothing."""
        names = ", ".join(f"ps {index}" for index in servers)
        if not self._is_chief:
            self._links.wait_until(self._all_hold, f"the chief to restore {names}")
            return
        step = self._restored()
        logger.warning("%s has lost what it held; restoring it from the checkpoint of global step %d.", names, step)
        self._start(servers, step)

    def _exchange(self, wanted: Sequence[np.ndarray] | None) -> None:
        """Pushes what is pending; pulls the dense parameters and rows, if any are wanted."""
        flags = (PUSHES if self._pending is not None else 0) | (PULLS if wanted is not None else 0)
        header = self._links.header(Kind.EXCHANGE, flags, self._at)
        servers = range(len(self._links))
        pulls = [self._part(wanted, server) for server in servers]
        questions: dict[int, Frames] = {
            server: [pack_exchange(header, self._part_of_push(server), pulls[server])] for server in servers
        }
        answers: dict[int, tuple[Header, Frames]] = {}
        while questions:
            answers |= self._links.ask(questions)
            empty = [server for server, (answer, _) in answers.items() if answer.kind is Kind.EMPTY]
            questions = {server: questions[server] for server in empty}
            if empty:
                self._revive(empty)
        self._pending = None
        self._at = answers[0][0].step
        self.over = any(answer.kind is Kind.OVER for answer, _ in answers.values())
        if wanted is None or self.over:
            return
        for server, (_, frames) in answers.items():
            self._write(server, frames[0], pulls[server])

    def _write(self, server: int, message: Any, pulled: Sequence[np.ndarray]) -> None:
        dense, rows = unpack_parameters(message, self._placement.plans[server], pulled)
        at = 0
        for place in self._placement.dense[server]:
            mine = self._dense[place]
            mine[:] = dense[at : at + len(mine)]
            at += len(mine)
        servers = len(self._links)
        for weight, ids, values in zip(self._weights, pulled, rows, strict=True):
            weight[ids * servers + server if servers > 1 else ids] = values

    def _part(self, ids: Sequence[np.ndarray] | None, server: int) -> list[np.ndarray]:
        """Of ids by table those of one server, as it counts rows."""
        if ids is None:
            return [np.empty(0, np.int64)] * len(self._first)
        servers = len(self._links)
        return [one if servers == 1 else one[one % servers == server] // servers for one in ids]

    def _part_of_push(self, server: int) -> Push | None:
        push, servers = self._pending, len(self._links)
        if push is None or servers == 1:
            return push
        mine = self._placement.dense[server]
        ends = np.cumsum([len(one) for one in self._dense])
        pieces = [push.dense[ends[place] - len(self._dense[place]) : ends[place]] for place in mine]
        tables = [
            (ids[here] // servers, values[here]) for ids, values in push.tables for here in [ids % servers == server]
        ]
        return Push(push.numbers, push.present[mine], np.concatenate(pieces or [push.dense[:0]]), tables)

    def _computed(self, batches: Batches, context: RunContext) -> Sequence[Tensor | float]:
        while self._advanced < self._at and self._schedules:
            self._schedules.advance()
            self._advanced += 1
        try:
            return self._steps.take(batches, context)
        except NoRoom as unsent:
            self._use(self._step.layout.joined([unsent.needed]), None)
            self._step.packing.pack(self._step.message, unsent.loss, unsent.dense, unsent.mentions)
            return [unsent.loss]

    def _push(self) -> list[np.ndarray]:
        """Has the step's message pushed with the next exchange; returns by table the rows that it touches."""
        pushed = []
        for first, (ids, values) in zip(self._first, self._tables, strict=True):
            rows, at = first(ids)
            pushed.append((rows, values.take(at, 0)))
        gradients = self._gradients[0] if len(self._gradients) == 1 else np.concatenate(self._gradients)
        self._pending = Push(self._placement.numbers(), self._present, gradients, pushed)
        return [rows for rows, _ in pushed]

    def _use(self, layout: Layout, before: Any) -> None:
        self.close()
        self._step = self._halves(layout)
        self._steps = self._compiled(self._step, GRADIENTS, before)
        self._steps.__enter__()
        self._look_at_message()

    def _look_at_message(self) -> None:
        """Notes where gradients are in the step's message."""
        dense, tables = self._step.packing.parts(self._step.message)
        self._tables = [(ids.numpy(), values.numpy()) for ids, values in tables]
        self._present = np.array([one is not None for one in dense], np.uint8)
        if all(self._present):
            # They lie side by side.
            self._gradients = [self._step.message.numpy()[HEADER : HEADER + sum(map(len, self._dense))]]
        else:
            dtype = self._step.message.numpy().dtype
            self._gradients = [
                np.zeros(len(mine), dtype) if one is None else one.numpy()
                for one, mine in zip(dense, self._dense, strict=True)
            ]


def _are_among(ids: np.ndarray, pulled: np.ndarray) -> bool:
    return np.array_equal(ids, pulled) or bool(np.isin(ids, pulled).all())
