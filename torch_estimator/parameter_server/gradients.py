"""Computation of a batch's gradients in a worker, in the form in which they are sent to the servers."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from torch_estimator.distributed.gradient_message import HEADER, Layout, MessageTooSmall, SendingStep
from torch_estimator.feature_column.table import RowBlock
from torch_estimator.hooks.hook import RunContext
from torch_estimator.parameter_server.lookups import RowDeduplicator, RowHashing, UniqueRows
from torch_estimator.parameter_server.protocol import Push
from torch_estimator.train.batches import Batches
from torch_estimator.train.runner import GRADIENTS, EagerRunner, StepRunner
from torch_estimator.train.training import Training

_LAYOUT, _LOOKUPS = "layout", "lookups"
_ROUND_TO = 64


class GradientStep(SendingStep):
    """A training step that computes and clips gradients, but does not update the parameters.

    It writes the gradients into the step's message, which has the same format as in synchronous training. If a batch
    looks up a row several times, the message holds the sum of the row's gradients at each of these lookups.
    """

    def compute(self, features: Any, labels: Any, weights: Tensor | None) -> tuple[Tensor, list[Tensor | None]]:
        """Compute and clip the gradients of a batch and write them into the message; return the loss.

        Raise `MessageTooSmall` if the message has no space for some of the gradients.
        """
        loss, dense, lookups = self.differentiate(features, labels, weights)
        with torch.no_grad():
            clipped = self.clipped(dense, lookups)
            dense = [None if one is None else one.values for one in clipped[: len(dense)]]
            lookups = [
                None if touched is None or one is None else (touched[0], one.values.reshape(touched[1].shape))
                for touched, one in zip(lookups, clipped[len(dense) :], strict=True)
            ]
            if not self.layout.holds(Layout.of(dense, lookups)):
                raise MessageTooSmall(loss.detach(), dense, lookups)
            self.packing.pack(self.message, loss, dense, lookups)
        return loss.detach(), []


class GradientComputation:
    """Computes the gradients of batches, in Python or as compiled code.

    The message that a step writes has a fixed size, because compiled code needs one. If the gradients of a batch do not
    fit, as for the first batch or one with longer lists of ids, the batch is computed in Python, and `step` is replaced
    by one with a larger message. `saved` is what `state` returned in the run that is resumed; empty for a new training.
    """

    def __init__(self, training: Training, saved: Mapping[str, Any]) -> None:
        self._training = training
        # The number of lookups of a batch in each table on parameter servers that its block has space for.
        self._lookups: list[int] = list(saved.get(_LOOKUPS, ()))
        whole = training.whole_step()
        self._lookups = self._lookups if len(self._lookups) == len(whole.tables) else [0] * len(whole.tables)
        self._embeddings = [update.table for update in whole.tables]
        self._has_blocks = any(table.weight.is_meta for table in self._embeddings)
        self.step = self._make_step(Layout.of([None] * len(whole.dense), [None] * len(whole.tables)))
        self._runner: StepRunner = EagerRunner(self.step)
        self._compute_fast: Callable[[int], float] | None = None
        self._deduplicators = [
            RowHashing(one.rows, one.pieces[0].name) if one.weight.is_meta else RowDeduplicator(one.rows)
            for one in self._embeddings
        ]
        self._sizes = [one.numel() for one in self.step.dense]
        self._find_gradients()
        if _LAYOUT in saved:
            self._use_layout(Layout.from_json(saved[_LAYOUT]), saved.get(GRADIENTS))

    def unique_rows(self, ids: Sequence[np.ndarray]) -> list[UniqueRows]:
        """Return for each table the unique rows among the ids that a batch looks up."""
        return [one.unique(of_table) for one, of_table in zip(self._deduplicators, ids, strict=True)]

    def begin(self, batches: Batches, context: RunContext) -> None:
        """Choose between Python and compiled code for these batches; call this before `compute`."""
        self._compute_fast = self._runner.one_by_one(batches, context)

    def place(self, rows: Sequence[UniqueRows]) -> None:
        """Write the places of the rows that a batch looks up into the blocks of tables on parameter servers."""
        if not self._has_blocks:
            return
        needed = [len(one.ids) if one.places is not None else 0 for one in rows]
        if any(more > most for more, most in zip(needed, self._lookups, strict=True)):
            larger = map(max, zip(self._lookups, needed, strict=True))
            self._lookups = [-(-one // _ROUND_TO) * _ROUND_TO for one in larger]
            self._use_layout(self.step.layout, None)
        for update, unique in zip(self.step.tables, rows, strict=True):
            block = update.table.block
            if block is not None and unique.places is not None:
                positions, count = block.positions.numpy(), len(unique.places)
                positions[:count] = unique.places
                # Missing values, and what follows this batch's lookups, have the last row.
                positions[:count][unique.places < 0] = len(positions)
                positions[count:] = len(positions)
                block.ids.numpy()[:count] = unique.ids
                block.count = count

    def compute(self, batches: Batches, number: int, context: RunContext) -> float:
        """Compute the gradients of one of the batches that `begin` was called with; return its loss."""
        if self._compute_fast is not None:
            return self._compute_fast(number)
        one = dataclasses.replace(batches, start=batches.start + number, count=1)
        try:
            return float(self._runner.take(one, context)[0])
        except MessageTooSmall as unsent:
            self._use_layout(self.step.layout.joined([unsent.needed]), None)
            self.step.packing.pack(self.step.message, unsent.loss, unsent.dense, unsent.mentions)
            return float(unsent.loss)

    def push(self, rows: Sequence[UniqueRows], settings: np.ndarray) -> Push | None:
        """Return the gradients of the last computed batch, in the form that is sent to the servers.

        They are valid until the next batch is computed. `rows` are the rows of each table that were pulled for the
        batch. Return None if the batch has looked up other rows, so that it must be computed again.
        """
        pushed = []
        for deduplicator, pulled, (ids, gradients) in zip(self._deduplicators, rows, self._tables, strict=True):
            if pulled.places is None:
                touched = pulled if pulled.are_of(ids) else deduplicator.unique(ids)
                if not touched.are_among(pulled):
                    return None
            else:
                # Rows of a block lie in the order of the lookups, so other lookups have computed with other rows.
                given = ids >= 0
                if not pulled.are_of(np.where(given, ids, ~ids)):
                    return None
                touched = pulled if given.all() else deduplicator.unique(np.where(given, ids, pulled.missing))
            # The message repeats the sum of a row's gradients at each lookup of the row. Read one of these copies.
            pushed.append((touched.rows, gradients.take(touched.at, 0)))
        dense = self._dense[0] if len(self._dense) == 1 else np.concatenate(self._dense)
        present = (self._present > 0).astype(np.uint8)
        return Push(settings, present, dense, pushed)

    def state(self) -> dict[str, Any]:
        """Return the message's layout and whether batches run as compiled code, for a checkpoint.

        A resumed run then computes the same numbers. All values can be represented by JSON.
        """
        return {_LAYOUT: self.step.layout.as_json(), _LOOKUPS: self._lookups, GRADIENTS: self._runner.state()}

    @property
    def is_eager(self) -> bool:
        """Whether gradients are computed in Python, without compiled code."""
        return isinstance(self._runner, EagerRunner)

    def invalidate(self) -> None:
        """Make the next step check the model and the optimizers for changes. Called after a user's hook has run."""
        self._runner.invalidate()

    def refresh_settings(self) -> None:
        """Make the next step read the optimizers' settings again. Called after a schedule has changed them."""
        self._runner.refresh_settings()

    def close(self, *exception: object) -> None:
        """Stop a compilation in the background, or let it finish for later runs."""
        self._runner.__exit__(*exception)

    def _make_step(self, layout: Layout) -> GradientStep:
        for table, lookups in zip(self._embeddings, self._lookups, strict=True):
            if table.weight.is_meta and (table.block is None or len(table.block.positions) < lookups):
                table.block = RowBlock(lookups, table.dim, table.weight.dtype)
        return GradientStep(*self._training.step_arguments, layout=layout)

    def _use_layout(self, layout: Layout, saved: Any) -> None:
        self.close()
        self._compute_fast = None
        self.step = self._make_step(layout)
        # The layout of the first batch shows what the message has to hold; before that there is nothing to compile.
        is_known = any(layout.dense) or any(layout.mentions)
        self._runner = self._training.runner(self.step, saved, GRADIENTS) if is_known else EagerRunner(self.step)
        self._runner.__enter__()
        self._find_gradients()

    def _find_gradients(self) -> None:
        """Store views of the gradients in the step's message, for `push` to read."""
        message = self.step.message.numpy()
        dense, tables = self.step.packing.parts(self.step.message)
        self._tables = [(ids.numpy(), values.numpy()) for ids, values in tables]
        self._present = self.step.packing.given(self.step.message).numpy()
        if all(one is not None for one in dense):
            # All dense gradients are contiguous in the message, so push them as one array, without a copy.
            self._dense = [message[HEADER : HEADER + sum(self._sizes)]]
        else:
            self._dense = [
                np.zeros(size, message.dtype) if one is None else one.numpy()
                for one, size in zip(dense, self._sizes, strict=True)
            ]
