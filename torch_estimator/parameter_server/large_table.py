"""The rows of a large table on a parameter server, which makes, reads and writes them itself.

No worker holds such a table, so no message carries it. The chief sends a plan of it (`plan.LargePlan`) and names the
files of a checkpoint; `filled` makes the rows from these. For the next checkpoint, `TableShard.freeze` notes the
moment, and a thread of `RowWriting` writes the rows as they were then, while pushes go on changing them.
"""

from __future__ import annotations

import contextlib
import functools
import mmap
import os
import shutil
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np

from torch_estimator import files, initial_values
from torch_estimator.checkpoint.row_file import RowFile, RowFileName, RowFileWriter, SavedRows, SomeRows
from torch_estimator.errors import CheckpointError, ClusterError
from torch_estimator.initial_values import Distribution
from torch_estimator.parameter_server.plan import LargePlan, ServerPlan, TablePlan, VariablePlan

# Size of the pieces in which rows are copied, with the lock that pushes take as well: it takes less than a millisecond.
_PIECE_BYTES = 1 << 20

_NICENESS = 10

_DISTRIBUTIONS = {"uniform": initial_values.uniform, "truncated_normal": initial_values.truncated_normal}


def check_room(name: str, plan: ServerPlan, model_dir: str, *, is_resumed: bool = False) -> None:
    """Check that there is memory for this server's rows of large tables, and room on the disk for checkpoints of all.

    A new training needs room for two, and one that `is_resumed` for one more. While one is written, the server needs up
    to two fifths more memory, for rows that change meanwhile.
    """
    width = np.dtype(plan.dtype).itemsize
    large = [(one, one.large) for one in plan.tables if one.large is not None]
    needed = sum(one.rows * one.dim * (1 + len(two.slots)) * width for one, two in large)
    what = f"{name} is to hold {sum(one.rows for one, _ in large)} rows of large tables, which take {needed} bytes"
    if (free := available_memory()) is not None and needed > free:
        raise ClusterError(f"{what}, but only {free} bytes of memory are available; have more parameter servers.")
    count = 1 if is_resumed else 2
    of_all = needed * max((two.step for _, two in large), default=1)
    if files.is_local(model_dir) and count * of_all > (free := shutil.disk_usage(model_dir).free):
        raise ClusterError(
            f"{what}, and all servers write {of_all} bytes into a checkpoint, but only {free} bytes are free on the "
            f"disk of {model_dir}, too little for {count}; make room, or use another model_dir."
        )


def available_memory() -> int | None:
    """Return the bytes of memory that this process can still take, by the system and its cgroup; None if unknown."""
    found = []
    with contextlib.suppress(OSError, ValueError, StopIteration):
        lines = Path("/proc/meminfo").read_text().splitlines()
        found.append(1024 * next(int(line.split()[1]) for line in lines if line.startswith("MemAvailable:")))
    with contextlib.suppress(OSError, ValueError, KeyError):
        group = Path("/sys/fs/cgroup")
        used = dict(line.split() for line in (group / "memory.stat").read_text().splitlines())
        found.append(int((group / "memory.max").read_text()) - int(used["anon"]))
    return min(found, default=None)


def filled(table: TablePlan, dtype: str, sources: Mapping[str, Sequence[SavedRows]]) -> np.ndarray:
    """Return the rows of a table on this server with their slots, ``[rows, 1 + slots, dim]``."""
    plan = table.large
    assert plan is not None
    store = np.empty((table.rows, 1 + len(plan.slots), table.dim), dtype)
    opened: dict[str, RowFile] = {}
    parts: list[Future[None]] = []
    # numpy and zlib let other threads run.
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        for variable in plan.variables:
            mine = _local_rows(plan, variable)
            names = [variable.name, *(f"{variable.name}/{slot.suffix}" for slot in plan.slots)]
            for place, name in enumerate(names):
                if name in sources:
                    parts.append(pool.submit(_read, store[:, place], plan, variable, name, sources[name], opened))
                elif place:
                    store[mine, place] = plan.slots[place - 1].initial
                else:
                    parts += (pool.submit(part) for part in _draws(store[mine, 0], plan, variable, mine.start))
    for part in parts:
        part.result()
    return store


def _local_rows(plan: LargePlan, variable: VariablePlan) -> slice:
    """Return which rows of this server belong to a variable."""
    return slice(*(-(-(row - plan.first) // plan.step) for row in (variable.offset, variable.offset + variable.rows)))


def _first_row(plan: LargePlan, variable: VariablePlan, local: int) -> int:
    """Return the number in a variable of a row of this server."""
    return plan.first + plan.step * local - variable.offset


def _draws(rows: np.ndarray, plan: LargePlan, variable: VariablePlan, start: int) -> Iterator[Callable[[], None]]:
    """Yield calls that fill the rows of a variable, whose first one is `start` on this server, with initial values."""
    step = max(1, _PIECE_BYTES // (8 * rows.shape[1]))
    for at in range(0, len(rows), step):
        yield functools.partial(_draw, rows[at : at + step], plan, variable, start + at)


def _draw(rows: np.ndarray, plan: LargePlan, variable: VariablePlan, start: int) -> None:
    if variable.distribution is None:
        rows[:] = 0.0
        return
    distribution = Distribution(_DISTRIBUTIONS[variable.distribution], variable.scale)
    ids = _first_row(plan, variable, start) + plan.step * np.arange(len(rows))
    rows[:] = distribution.rows(variable.seed, variable.name, ids, rows.shape[1])


def _read(
    rows: np.ndarray,
    plan: LargePlan,
    variable: VariablePlan,
    name: str,
    sources: Sequence[SavedRows],
    opened: dict[str, RowFile],
) -> None:
    """Copy this server's rows of a variable or slot from files, which any number of servers may have written.

    `opened` keeps files for other variables.
    """
    found = 0
    for source in sources:
        if source.path not in opened:
            opened[source.path] = RowFile(source.path, source.digest)
        file = opened[source.path]
        first, step = file.place(source.name)
        first += source.offset
        # This server has the row p of the variable, and the file has it, too, only if both of these distances fit.
        if (first + variable.offset - plan.first) % np.gcd(step, plan.step):
            continue
        for start, piece in file.blocks(source.name):
            if step == plan.step:
                # All rows of the file are this server's, and in its order.
                at = (variable.offset + first + step * start - plan.first) // step
                rows[at : at + len(piece)] = piece
                found += len(piece)
                continue
            table_rows = variable.offset + first + step * np.arange(start, start + len(piece)) - plan.first
            mine = table_rows % plan.step == 0
            rows[table_rows[mine] // plan.step] = piece[mine]
            found += int(mine.sum())
    mine = _local_rows(plan, variable)
    if found != mine.stop - mine.start:
        raise CheckpointError(
            f"{sources[0].path} and the files beside it hold {found} rows of {name!r} for this parameter server, which "
            f"needs {mine.stop - mine.start}."
        )


class FrozenRows:
    """The rows of a table as they are when this object is made, although pushes change them while they are read.

    `keep` copies rows that are about to change, unless they were read before; `read` must be called in the order of
    rows. Both need the same lock.
    """

    def __init__(self, store: np.ndarray) -> None:
        self.dtype = store.dtype
        self.row_bytes = store[:1].nbytes
        self._store = store
        self._read_up_to = 0
        # For each row the place of its old content in `_kept`, or 0. Memory that is not written to takes no room and no
        # time.
        self._place = _zeros_in_small_pages(len(store))
        self._kept = np.empty((len(store) + 1, *store.shape[1:]), store.dtype)
        self._count = 1

    def keep(self, ids: np.ndarray) -> None:
        """Copy rows, whose ids are int64 ``[n]``, each once, before they change."""
        ids = ids[(ids >= self._read_up_to) & (self._place[ids] == 0)]
        end = self._count + len(ids)
        self._kept[self._count : end] = self._store[ids]
        self._place[ids] = np.arange(self._count, end)
        self._count = end

    def read(self, start: int, stop: int, rows: np.ndarray) -> None:
        """Copy the rows ``start:stop`` as they were to `rows`, ``[1 + slots, stop - start, dim]``."""
        rows[:] = self._store[start:stop].swapaxes(0, 1)
        places = self._place[start:stop]
        kept = places.nonzero()[0]
        rows[:, kept] = self._kept[places[kept]].swapaxes(0, 1)
        self._read_up_to = stop


def _zeros_in_small_pages(count: int) -> np.ndarray:
    """Return zeros, int32 ``[count]``.

    The first writes go to places all over it. With pages of 2 MiB, the system would fill all of it with zeros then,
    which holds a step up for 0.3 s at 30,000,000 rows.
    """
    if not hasattr(mmap, "MADV_NOHUGEPAGE"):
        return np.zeros(count, np.int32)
    memory = mmap.mmap(-1, 4 * max(1, count), mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    # A system without large pages refuses.
    with contextlib.suppress(OSError):
        memory.madvise(mmap.MADV_NOHUGEPAGE)
    return np.frombuffer(memory, np.int32)[:count]


class RowWriting:
    """Thread that writes the frozen rows of this server's large tables into files in the directory of a checkpoint.

    `tables` are the plan of each table, its frozen rows, and the lock that guards them.
    """

    def __init__(
        self, directory: str, server: int, tables: Sequence[tuple[TablePlan, FrozenRows, threading.Lock]]
    ) -> None:
        self._directory, self._server, self._tables = directory, server, list(tables)
        self._files: list[RowFileName] = []
        self._error: str | None = None
        self._thread = threading.Thread(target=self._run, name="rows", daemon=True)
        self._thread.start()

    @property
    def is_running(self) -> bool:
        """Whether the thread is still writing."""
        return self._thread.is_alive()

    def progress(self) -> dict[str, Any]:
        """Return whether everything is written, the files, and what went wrong, as values that JSON can represent."""
        done = not self._thread.is_alive()
        return {"done": done, "files": [asdict(one) for one in self._files] if done else [], "error": self._error}

    def _run(self) -> None:
        try:
            with contextlib.suppress(OSError, AttributeError):
                # Let pushes and pulls go first. On Linux, a thread has a priority of its own.
                os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), _NICENESS)
            self._write()
        # Whatever goes wrong, the chief has to hear of it.
        except Exception as error:
            self._error = files.reason(error)
        # Free the memory of rows that were kept here, where no push waits for it.
        self._tables.clear()

    def _write(self) -> None:
        most_keys = max(1 + len(_large(table).slots) for table, _, _ in self._tables)
        with ExitStack() as stack:
            kinds = ["variables", *(f"slots-{number}" for number in range(most_keys - 1))]
            names = [f"{kind}-of-ps-{self._server}" for kind in kinds]
            writers = [
                RowFileWriter(
                    stack.enter_context(files.opened_to_write(files.join(self._directory, f"{name}.safetensors"))),
                    [one for table, frozen, _ in self._tables for one in _rows_of_key(table, key, frozen)],
                )
                for key, name in enumerate(names)
            ]
            for table, frozen, lock in self._tables:
                for variable in _large(table).variables:
                    self._write_variable(table, variable, frozen, lock, writers)
            self._files = [
                RowFileName(f"{name}.safetensors", "slots" if key else "variables", writer.finish())
                for key, (name, writer) in enumerate(zip(names, writers, strict=True))
            ]

    def _write_variable(
        self,
        table: TablePlan,
        variable: VariablePlan,
        frozen: FrozenRows,
        lock: threading.Lock,
        writers: Sequence[RowFileWriter],
    ) -> None:
        mine = _local_rows(_large(table), variable)
        step = max(1, _PIECE_BYTES // max(1, frozen.row_bytes))
        # The same memory for all pieces, since the system fills new memory with zeros first.
        buffer = np.empty((1 + len(_large(table).slots), step, table.dim), frozen.dtype)
        for start in range(mine.start, mine.stop, step):
            rows = buffer[:, : min(step, mine.stop - start)]
            began = time.thread_time()
            with lock:
                frozen.read(start, start + rows.shape[1], rows)
            if not np.isfinite(rows[0]).all():
                raise ValueError(f"{variable.name!r} is NaN or infinite")
            for writer, of_key in zip(writers, rows, strict=False):
                writer.write(of_key)
            # Rest as long as this took a core, so that steps are slowed down less and for longer.
            time.sleep(time.thread_time() - began)


def _large(table: TablePlan) -> LargePlan:
    assert table.large is not None
    return table.large


def _rows_of_key(table: TablePlan, key: int, frozen: FrozenRows) -> Iterator[SomeRows]:
    """Yield what a file holds of a table: its variables, or their slots of a number."""
    plan = _large(table)
    if key > len(plan.slots):
        return
    for variable in plan.variables:
        mine = _local_rows(plan, variable)
        yield SomeRows(
            name=variable.name if not key else f"{variable.name}/{plan.slots[key - 1].suffix}",
            count=mine.stop - mine.start,
            width=table.dim,
            dtype=frozen.dtype,
            first=_first_row(plan, variable, mine.start),
            step=plan.step,
        )
