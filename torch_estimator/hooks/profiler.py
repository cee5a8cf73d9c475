"""`ProfilerHook`: traces of training steps for Perfetto and TensorBoard."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

from torch_estimator import files
from torch_estimator.errors import InvalidValueError, UserError
from torch_estimator.hooks.hook import Hook, RunContext
from torch_estimator.hooks.schedule import check_seconds_or_steps

if TYPE_CHECKING:
    from torch.profiler import profile


class ProfilerHook(Hook):
    """Hook that traces single steps with `torch.profiler`, at regular intervals of steps or seconds, on CPU and GPU.

    It writes ``<output_dir>/<global step>.pt.trace.json``, which https://ui.perfetto.dev, ``chrome://tracing`` and
    TensorBoard's PyTorch profiler plugin can open. The first step of a run is never traced, because it includes warm-up
    and compilation.

    Args:
        save_steps: Steps from one trace to the next. Give either this or ``save_secs``.
        save_secs: Seconds from one trace to the next.
        output_dir: Path or URL of the directory for the traces; empty for the run's own directory.
        show_memory: Whether to trace memory allocations as well.
        record_shapes: Whether to record the shapes of the operators' inputs.
        with_stack: Whether to record the Python lines that call the operators.

    Raises:
        InvalidValueError: None or both of ``save_steps`` and ``save_secs`` are given.

    >>> hook = te.ProfilerHook(save_steps=1000)
    """

    def __init__(
        self,
        save_steps: int | None = None,
        save_secs: float | None = None,
        output_dir: str = "",
        *,
        show_memory: bool = False,
        record_shapes: bool = False,
        with_stack: bool = False,
    ) -> None:
        check_seconds_or_steps("ProfilerHook", save_steps=save_steps, save_secs=save_secs)
        self.every_n_steps = save_steps
        self.every_secs = save_secs
        self.first_step = 2 if save_steps is None else max(2, save_steps)
        self._output_dir = output_dir
        self._options = {"profile_memory": show_memory, "record_shapes": record_shapes, "with_stack": with_stack}
        self._profile: profile | None = None

    def begin(self, context: RunContext) -> None:
        if not self._output_dir and not context.output_dir:
            raise InvalidValueError("This run has no directory for traces of its own; give ProfilerHook an output_dir.")

    def before_step(self, context: RunContext) -> None:
        from torch.profiler import profile

        self._profile = profile(**self._options)  # type: ignore[arg-type]  # all of these are flags
        self._profile.start()

    def after_step(self, context: RunContext) -> None:
        profile = self._stop()
        if profile is not None:
            self._write(profile, context)

    def end(self, context: RunContext) -> None:
        # A trace is still open if `before_step` was called but the input had ended, so that no step followed.
        self._stop()

    def _stop(self) -> profile | None:
        profile, self._profile = self._profile, None
        if profile is not None:
            profile.stop()
        return profile

    def _write(self, profile: profile, context: RunContext) -> None:
        directory = self._output_dir or context.output_dir
        assert directory is not None
        with tempfile.TemporaryDirectory() as folder:
            trace = Path(folder) / "trace.json"
            profile.export_chrome_trace(str(trace))
            try:
                files.makedirs(directory)
                path = files.join(directory, f"{context.global_step}.pt.trace.json")
                files.write_atomic(path, trace.read_bytes())
            except OSError as error:
                raise UserError(
                    f"traces cannot be written into {directory}: {files.reason(error)}; make room or permit writing."
                ) from error
