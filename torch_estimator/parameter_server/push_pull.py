"""Steps of a worker of parameter servers: pull the parameters that a batch needs, push its gradients."""

from __future__ import annotations

import dataclasses
import logging
import math
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import Any, NamedTuple, Protocol

import numpy as np
from torch import Tensor

from torch_estimator.checkpoint.checkpoint import latest_checkpoint, load_checkpoint
from torch_estimator.distributed.consistency import Description, difference
from torch_estimator.distributed.gradient_message import HEADER, Layout, MessageTooSmall
from torch_estimator.errors import ClusterError
from torch_estimator.hooks.hook import RunContext
from torch_estimator.parameter_server.client import Frames, Links, TrainingIsOver
from torch_estimator.parameter_server.lookups import Lookups, Mentioned, Mentions
from torch_estimator.parameter_server.messages import (
    GOES,
    PULLS,
    PUSHES,
    SAVED,
    STOPS,
    Header,
    Kind,
    Push,
    pack_exchange,
    unpack_parameters,
)
from torch_estimator.parameter_server.placement import Placement
from torch_estimator.parameter_server.pushed_step import PushedStep
from torch_estimator.parameter_server.start import AT_MOST, POSITION, SINCE
from torch_estimator.parameter_server.token import LAST_STEP, WORD, Token
from torch_estimator.train.batches import Batches, batch_size
from torch_estimator.train.runner import GRADIENTS, EagerRunner, StepRunner
from torch_estimator.train.threads import sized_threads
from torch_estimator.train.training import REPLICAS, Training

logger = logging.getLogger("torch_estimator")

_LAYOUT = "layout"
_COMPILED_PARTS = "compiled_parts"
_STARTS_OVER = "over_when_ended"
_DESCRIPTION = "description"
_PLACE = "its place among the parameter servers"
# Between two looks at hooks.
_STROKE_SECS = 0.05
_MOST_STEPS = 128

_DEPOSIT_EVERY_SECS = 1.0
_LOOK_EVERY_SECS = 0.05
_SAY_EVERY_SECS = 10.0

# After the end of the chief's input, for a worker that has not come yet; the last one starts a minute after the chief.
_COMING_SECS = 120.0


class _Coming(NamedTuple):
    wanted: list[Mentioned]
    questions: Mapping[int, Frames]


_NOTHING = _Coming([], {})


class PushPullSettings(Protocol):
    """The settings of `ParameterServerStrategy`."""

    @property
    def pipeline(self) -> bool: ...

    @property
    def max_staleness(self) -> int | None: ...

    @property
    def silence_secs(self) -> float: ...


class PushPullSteps:
    """Takes the steps of one process; others may take theirs at the same time.

    A step is one message to each server and one back: it brings the gradients of the batch before and asks for the
    rows that this one needs. So gradients are those of the parameters as they are, where one process trains. Pipelined,
    two of them are under way at once, and gradients are those of the parameters one step before.

    Args:
        links: The connections to the servers.
        training: The training of this process.
        context: What hooks are called with.
        strategy: How the processes train.
        token: Of this training, the same for all of its processes.
        description: Of this training, from its beginning.

    Attributes:
        over: Whether training is over.
        positions: Where all inputs stood when last heard, by rank.
    """

    def __init__(
        self,
        links: Links,
        training: Training,
        context: RunContext,
        *,
        strategy: PushPullSettings,
        token: Token,
        description: Description,
    ) -> None:
        self.over = False
        self._training = training
        self._context = context
        saved = training.saved_state.get(REPLICAS) or ()
        self.positions: Mapping[str, Any] = {
            str(rank): {**one, _STARTS_OVER: training.starts_input_over}
            for rank, one in enumerate(saved)
            if rank and one is not None
        }
        # By the step of a checkpoint: how many steps since have been lost.
        self._lost: dict[int, int] = {}
        self._going: set[int] = set()
        self._unsaved: set[int] = set()
        self._deposited_at = -math.inf
        self._links = links
        self._schedules = training.schedules
        self._token = token
        self._description = description
        self._word = ""
        self._is_chief = links.rank == 0
        self._strategy = strategy
        links.say_every_secs = min(links.say_every_secs, strategy.silence_secs)
        if strategy.max_staleness is not None:
            links.held_secs = strategy.silence_secs
        self._names = [training.task.name_of_rank(rank) for rank in range(training.task.num_workers)]
        self._last_step = training.last_step
        self._advanced = context.global_step
        self._step = self._made_step(None)
        self._runner: StepRunner = EagerRunner(self._step)
        self._placement = Placement(self._step, len(links))
        self._lookups = Lookups(self._step)
        self._mentioned = [Mentions(update.table.rows) for update in self._step.tables]
        self._dense = [one.detach().numpy().reshape(-1) for one in self._step.dense]
        self._weights = [update.table.weight.detach().numpy() for update in self._step.tables]
        self._pending: Push | None = None
        self._secs_per_step = _STROKE_SECS
        self._fast: Callable[[int], float] | None = None
        self._at = self._begun_at = context.global_step
        self._went_back = False
        self._look_at_message()
        before = training.saved_state.get(_COMPILED_PARTS) or {}
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
            TrainingIsOver: They have ended.
        """
        if self._is_chief:
            self._word = self._token.make()
            answers = self._links.tell_all(Kind.HELLO)
            for index, (header, about) in enumerate(answers):
                if header.kind is not Kind.EMPTY:
                    self._check(index, about)
            empty = [index for index, (header, _) in enumerate(answers) if header.kind is Kind.EMPTY]
            if len(empty) < len(answers):
                logger.info("Parameter servers are at global step %d; going on with them.", answers[0][0].step)
            # The others, who go on, have told a server that has come back how far all were.
            self._start(empty, self._at, max(self._at, answers[0][0].step))
            answers = self._links.tell_all(Kind.HELLO)
        else:
            self._links.wait_until(self._all_hold, "the chief to give the parameter servers their parameters")
            try:
                self._word = self._token.read()
                answers = self._links.tell_all(Kind.HELLO)
                for index, (_, about) in enumerate(answers):
                    self._check(index, about)
            except ClusterError as error:
                # The servers may have gone on to another training while this process was coming.
                if self._links.is_over():
                    raise TrainingIsOver from error
                raise
        header, about = answers[0]
        self._at = self._begun_at = self._context.global_step = header.step
        self._restore_input(about)

    def _restore_input(self, about: Mapping[str, Any]) -> None:
        """Go on with the input where the process stood whose place this one takes."""
        training, position = self._training, about[POSITION]
        if position is None:
            training.restore_input(training.saved_state)
        else:
            training.restore_input(position, starts_over=position[_STARTS_OVER])
        if about[SINCE] and training.config.resume_input:
            logger.info(
                "Going on with the input where it stood %s%d batches ago; these are trained on twice.",
                "at most " if about[AT_MOST] else "",
                about[SINCE],
            )

    def report_cursor(self, *, at_once: bool = False) -> None:
        """Report to the first server, about once a second, where the input stands after the last batch."""
        if at_once or time.monotonic() > self._deposited_at + _DEPOSIT_EVERY_SECS:
            self.flush()
            with suppress(TrainingIsOver):
                self._links.deposit({**self._training.input_position(), _STARTS_OVER: False})
            self._deposited_at = time.monotonic()

    def whole_state(self) -> dict[str, Any]:
        """Return, as JSON, what the chief's checkpoint holds beside tensors: also the positions of the others."""
        others = range(1, len(self._names))
        return {
            **self._training.state(),
            _COMPILED_PARTS: self.state(),
            REPLICAS: [None, *(self.positions.get(str(rank)) for rank in others)],
        }

    def state(self) -> dict[str, Any]:
        """Returns what a resumed run needs to go on alike, as JSON."""
        if isinstance(self._runner, EagerRunner) and not self._pending:
            return {}
        return {_LAYOUT: self._step.layout.as_json(), GRADIENTS: self._runner.state()}

    def invalidate(self) -> None:
        """Have the next step look for changes, after a hook of the user's has run."""
        self._runner.invalidate()

    @property
    def steps_per_call(self) -> int:
        """How many steps are best taken at once, so that hooks do not wait for long."""
        return max(1, min(_MOST_STEPS, int(_STROKE_SECS / self._secs_per_step)))

    def stops(self, context: RunContext) -> bool:
        """Return whether to end before the next step."""
        return context.stop_requested

    def take(self, most: int) -> Sequence[Tensor | float]:
        """Take at most so many steps; return their losses, none where the input has ended or training is over."""
        if self._has_to_save() and self._training.saver is not None:
            self._training.saver.hook.save(self._context)
            self._training.settle()
            self._let_go()
        self.report_cursor()
        batches = self._training.next_batches(most)
        losses = () if batches is None else self._timed(batches, self._context)
        if not losses:
            # The chief waits for the others.
            self.flush()
            if self._is_chief:
                self._wait_for_others()
        return losses

    def _timed(self, batches: Batches, context: RunContext) -> Sequence[float]:
        started = time.perf_counter()
        with sized_threads(self._step.module, batch_size(batches.whole.features) // batches.of, beside_input=True):
            self._fast = self._runner.one_by_one(batches, context)
            losses = self._taken(batches, context)
        if losses:
            self._secs_per_step = (time.perf_counter() - started) / len(losses)
        # Others may have taken steps since; the last one here has not arrived yet.
        at = self._at + 1 - len(losses)
        context.global_step = max(self._begun_at if self._went_back else context.global_step, at)
        self._went_back = False
        return losses

    def _has_to_save(self) -> bool:
        """For the chief, once for each time: whether a server is about to go, with what it holds."""
        going, self._unsaved = self._unsaved, set()
        if going and self._is_chief:
            logger.info(
                "%s is about to go; saving what it holds.", ", ".join(f"ps {server}" for server in sorted(going))
            )
        return bool(going) and self._is_chief

    def _let_go(self) -> None:
        """Tells servers that are about to go that what they hold is saved."""
        with suppress(TrainingIsOver):
            self._links.tell_all(Kind.STATUS, SAVED)

    def _taken(self, batches: Batches, context: RunContext) -> list[float]:
        losses: list[float] = []
        wanted = self._wanted(batches, 0)
        self._exchange(wanted)
        coming = self._ask_for(batches, 1)
        while not self.over:
            number = len(losses)
            loss, push = self._computed(batches, number, wanted, context)
            if push is None:
                # What a step looks up does not follow from its features, so that rows were missing.
                self._lookups.distrust()
                self._collect(coming.questions)
                coming = _NOTHING
                self._exchange(wanted := self._wanted(batches, number))
                loss, push = self._computed(batches, number, wanted, context)
            losses.append(loss)
            if not math.isfinite(loss):
                break
            self._pending = push
            if number + 1 == batches.count or self.over:
                break
            if coming.questions:
                wanted, coming = coming.wanted, self._received(coming, batches, number + 2)
            else:
                self._exchange(wanted := self._wanted(batches, number + 1))
                coming = self._ask_for(batches, number + 2)
        if not self.over:
            self._collect(coming.questions)
        return losses

    def _received(self, coming: _Coming, batches: Batches, ahead: int) -> _Coming:
        """Puts what was asked for into the model; returns what is under way then, with that of a batch ahead."""
        # What is sent before one waits, travels in that time. Who may not be far ahead sends no gradients before the
        # slowest one has sent its own.
        at_once = self._strategy.max_staleness is None
        after = self._ask_for(batches, ahead) if at_once else _NOTHING
        answers = self._collect(coming.questions)
        if not self.over:
            self._write(coming.wanted, answers)
        return after if at_once else self._ask_for(batches, ahead)

    def _ask_for(self, batches: Batches, number: int) -> _Coming:
        """Where steps are pipelined: pushes what is pending, and pulls what a batch ahead needs, if there is one."""
        if not self._strategy.pipeline:
            return _NOTHING
        wanted = self._wanted(batches, number) if number < batches.count else None
        return _Coming(wanted or [], self._send(wanted))

    def flush(self) -> None:
        """Sends the gradients of the last step, which would wait for the next one."""
        if self._pending is not None:
            self._exchange(None)

    def refresh(self, context: RunContext) -> None:
        """Makes the model and its optimizers those of the servers, and the global step theirs."""
        self.flush()
        while True:
            answers = self._links.state()
            empty = [index for index, (header, _, _) in enumerate(answers) if header.kind is Kind.EMPTY]
            if not empty:
                break
            self._revive(empty)
        for server, (_, _, arrays) in enumerate(answers):
            self._placement.take_over(server, arrays)
        self.positions = answers[0][1]["positions"]
        self._at = context.global_step = answers[0][0].step

    def _wait_for_others(self) -> None:
        """Where the chief's own input has ended: until those of all others have, also of those still to come."""
        started, said = time.monotonic(), -math.inf
        while not self.over and not self._links.is_preempted():
            header, known = self._links.tell_all(Kind.STATUS)[0]
            now = time.monotonic()
            everybody = set(range(len(self._names)))
            waits_for = everybody.intersection(known["active"])
            if now < started + _COMING_SECS:
                waits_for = everybody.difference(known["left"], known["silent"])
            waits_for.discard(self._links.rank)
            if not waits_for or (self._last_step is not None and header.step >= self._last_step):
                return
            if now > said + _SAY_EVERY_SECS:
                said = now
                names = ", ".join(self._names[rank] for rank in sorted(waits_for))
                logger.info("The input has ended here; waiting for %s.", names)
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
            self.leave(stops=stops)

    def leave(self, *, stops: bool = False) -> None:
        """Leaves servers and others as they are.

        Args:
            stops: Whether all others are to end, too.
        """
        self.flush()
        with suppress(TrainingIsOver):
            self._links.tell_all(Kind.LEAVE, STOPS if stops else 0)

    def close(self, *exception: object) -> None:
        """End what the runner does in the background."""
        self._runner.__exit__(*exception)

    def _all_hold(self) -> bool:
        return all(header.kind is Kind.OK for header, _ in self._links.tell_all(Kind.STATUS))

    def _check(self, index: int, about: Mapping[str, Any]) -> None:
        place = f"{index} of {len(self._links)}"
        for what, here, advice in (
            (_PLACE, place, "Give all processes the same parameter servers, in the same order."),
            (WORD, self._word, "End it, and start it again; or name other addresses."),
        ):
            if about.get(what) != here:
                raise ClusterError(
                    f"ps {index} serves another training than this one: {what} is {about.get(what)!r} there, and "
                    f"{here!r} here. {advice}"
                )
        chief = "the chief before it" if self._is_chief else self._names[0]
        mine = self._names[self._links.rank]
        if problem := difference(mine, self._description, chief, about.get(_DESCRIPTION, {})):
            raise ClusterError(f"{problem[:-1]}, or start the parameter servers again, too.")

    def _about_of(self, index: int) -> dict[str, Any]:
        about = {WORD: self._word, LAST_STEP: self._last_step, _PLACE: f"{index} of {len(self._links)}"}
        # One of them can tell who comes.
        return about if index else {**about, _DESCRIPTION: self._description}

    def _start(self, servers: Sequence[int], step: int, known: int) -> None:
        """Gives servers what the model has at global step `step`, where steps up to `known` have been taken."""
        lost = max(0, known - step)
        if 0 in servers:
            # Who has been away since ps 0 was lost before has trained on as many more.
            lost += self._lost.get(step, 0)
            self._lost = {step: lost}
        if 0 in servers and lost:
            logger.info(
                "Who starts again without having told ps 0 where its input stands goes on where that stood at global "
                "step %d, at most %d batches before.",
                step,
                lost,
            )
        most = self._strategy.max_staleness
        for index in servers:
            content = {
                "plan": self._placement.plans[index].as_json(),
                "about": self._about_of(index),
                "step": step,
                # The first one counts.
                "last_step": None if index else self._last_step,
                # Where nobody may be far ahead of one that hangs, all have to know.
                "silence_secs": self._strategy.silence_secs if not index or most is not None else None,
                "max_staleness": most,
                "names": self._names,
                "positions": {} if index else self.positions,
                "lost": 0 if index else lost,
            }
            self._links.start(index, content, self._placement.arrays(index))

    def _revive(self, servers: Sequence[int]) -> None:
        """Deals with servers that have died and come back with nothing."""
        names = ", ".join(f"ps {index}" for index in servers)
        # Whoever tells its position before it dies, has nothing read twice.
        self._deposited_at = -math.inf
        if not self._is_chief:
            self._links.wait_until(self._all_hold, f"the chief to restore {names}")
            return
        step = self._restored()
        logger.warning("%s has lost what it held; restoring it from the checkpoint of global step %d.", names, step)
        self._start(servers, step, self._at)

    def _restored(self) -> int:
        """Put the last checkpoint into the model and the optimizers; return its step."""
        training = self._training
        training.settle()
        if latest_checkpoint(training.model_dir) is None:
            raise ClusterError(
                "A parameter server has lost what it held, and there is no checkpoint to restore it from; start all "
                "processes again, and have checkpoints saved."
            )
        checkpoint = load_checkpoint(training.model_dir)
        training.model.restore(checkpoint, training.optimizers)
        return checkpoint.step

    def _made_step(self, layout: Layout | None) -> PushedStep:
        training = self._training
        if layout is None:
            whole = training.whole_step()
            layout = Layout.of([None] * len(whole.dense), [None] * len(whole.tables))
        return PushedStep(*training.step_arguments, layout=layout)

    def _wanted(self, batches: Batches, number: int) -> list[Mentioned]:
        ids = self._lookups.ids(batches, number)
        return [mentioned(one) for mentioned, one in zip(self._mentioned, ids, strict=True)]

    def _exchange(self, wanted: Sequence[Mentioned] | None) -> None:
        """Pushes what is pending; pulls the dense parameters and rows, if any are wanted."""
        answers = self._collect(self._send(wanted))
        if wanted is not None and not self.over:
            self._write(wanted, answers)

    def _send(self, wanted: Sequence[Mentioned] | None) -> dict[int, Frames]:
        push, self._pending = self._pending, None
        if push is None and wanted is None:
            return {}
        flags = (PUSHES if push is not None else 0) | (PULLS if wanted is not None else 0)
        header = self._links.header(Kind.EXCHANGE, flags, self._at)
        questions: dict[int, Frames] = {
            server: [pack_exchange(header, self._part_of_push(push, server), self._part(wanted, server))]
            for server in range(len(self._links))
        }
        self._links.send(questions)
        return questions

    def _collect(self, questions: Mapping[int, Frames]) -> dict[int, tuple[Header, Frames]]:
        """The answers to what was sent; asks servers again that have died and come back."""
        try:
            answers = self._answers(questions)
        except TrainingIsOver:
            self.over = True
            return {}
        if answers:
            at = answers[0][0].step
            if at < self._at:
                # Restored from a checkpoint, also by the chief before this process has noticed.
                self._went_back = True
                self._deposited_at = -math.inf
            self._at = at
            self.over = any(answer.kind is Kind.OVER for answer, _ in answers.values())
            going = {server for server, (answer, _) in answers.items() if answer.flags & GOES}
            self._unsaved |= going - self._going
            self._going = self._going.difference(answers) | going
        return answers

    def _answers(self, questions: Mapping[int, Frames]) -> dict[int, tuple[Header, Frames]]:
        answers = self._links.collect(questions)
        while empty := [server for server, (answer, _) in answers.items() if answer.kind is Kind.EMPTY]:
            # It may have been given something since: what was asked before is answered, too.
            known = self._links.tell_all(Kind.STATUS)
            if still := [server for server in empty if known[server][0].kind is Kind.EMPTY]:
                self._revive(still)
            answers |= self._links.ask({server: questions[server] for server in empty})
        return answers

    def _write(self, wanted: Sequence[Mentioned], answers: Mapping[int, tuple[Header, Frames]]) -> None:
        """Puts into the model what was pulled."""
        servers = len(self._links)
        for server, (_, frames) in answers.items():
            pulled = self._part(wanted, server)
            dense, rows = unpack_parameters(frames[0], self._placement.plans[server], pulled)
            at = 0
            for place in self._placement.dense[server]:
                mine = self._dense[place]
                mine[:] = dense[at : at + len(mine)]
                at += len(mine)
            for weight, ids, values in zip(self._weights, pulled, rows, strict=True):
                weight[ids * servers + server if servers > 1 else ids] = values

    def _part(self, wanted: Sequence[Mentioned] | None, server: int) -> list[np.ndarray]:
        """Of rows by table those of one server, as it counts them."""
        if wanted is None:
            return [np.empty(0, np.int64)] * len(self._mentioned)
        servers = len(self._links)
        return [one.rows if servers == 1 else one.rows[one.rows % servers == server] // servers for one in wanted]

    def _part_of_push(self, push: Push | None, server: int) -> Push | None:
        servers = len(self._links)
        if push is None or servers == 1:
            return push
        mine = self._placement.dense[server]
        ends = np.cumsum([len(one) for one in self._dense])
        pieces = [push.dense[ends[place] - len(self._dense[place]) : ends[place]] for place in mine]
        tables = []
        for rows, gradients in push.tables:
            here = rows % servers == server
            tables.append((rows[here] // servers, gradients[here]))
        return Push(push.numbers, push.present[mine], np.concatenate(pieces or [push.dense[:0]]), tables)

    def _computed(
        self, batches: Batches, number: int, wanted: Sequence[Mentioned], context: RunContext
    ) -> tuple[float, Push | None]:
        """The loss of one of these batches, and what to push; None where rows were needed that are not there."""
        while self._advanced < self._at and self._schedules:
            self._schedules.advance()
            self._advanced += 1
            self._runner.refresh_settings()
        loss = self._loss(batches, number, context) if self._fast is None else self._fast(number)
        pushed = []
        for mentioned, known, (ids, gradients) in zip(self._mentioned, wanted, self._tables, strict=True):
            touched = known if known.is_of(ids) else mentioned(ids)
            if not touched.is_among(known):
                return loss, None
            pushed.append((touched.rows, gradients.take(touched.at, 0)))
        whole = self._gradients[0] if len(self._gradients) == 1 else np.concatenate(self._gradients)
        present = (self._given > 0).astype(np.uint8)
        return loss, Push(self._placement.numbers(), present, whole, pushed)

    def _loss(self, batches: Batches, number: int, context: RunContext) -> float:
        """Computes gradients into the step's message."""
        one = dataclasses.replace(batches, start=batches.start + number, count=1)
        try:
            return float(self._runner.take(one, context)[0])
        except MessageTooSmall as unsent:
            self._use(self._step.layout.joined([unsent.needed]), None)
            self._step.packing.pack(self._step.message, unsent.loss, unsent.dense, unsent.mentions)
            return float(unsent.loss)

    def _use(self, layout: Layout, before: Any) -> None:
        self.close()
        self._step = self._made_step(layout)
        self._runner = self._training.runner(self._step, before, GRADIENTS)
        self._runner.__enter__()
        self._look_at_message()

    def _look_at_message(self) -> None:
        """Notes where gradients are in the step's message."""
        message = self._step.message.numpy()
        dense, tables = self._step.packing.parts(self._step.message)
        self._tables = [(ids.numpy(), values.numpy()) for ids, values in tables]
        self._given = self._step.packing.given(self._step.message).numpy()
        if all(one is not None for one in dense):
            # They lie side by side.
            self._gradients = [message[HEADER : HEADER + sum(map(len, self._dense))]]
        else:
            self._gradients = [
                np.zeros(len(mine), message.dtype) if one is None else one.numpy()
                for one, mine in zip(dense, self._dense, strict=True)
            ]
