"""Any torch function or module in the graph, by way of torch's own ONNX exporter."""

from __future__ import annotations

import contextlib
import logging
import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from torch_estimator.errors import ExportError, UserError
from torch_estimator.export.export_problems import describe_problem
from torch_estimator.export.graph import OPSETS, GraphBuilder

_TALKATIVE = ("torch.onnx", "torch.fx", "torch._subclasses", "onnxscript", "onnx_ir")


@dataclass(frozen=True, slots=True, kw_only=True)
class Inlined:
    """A tensor of the graph that a torch function takes.

    Attributes:
        tensor: Its name in the graph.
        row_shape: Its shape without the batch; a size of -1 varies.
        dtype: ``"float32"`` or ``"int64"``.
    """

    tensor: str
    row_shape: tuple[int, ...]
    dtype: str

    def example(self, rows: int = 3) -> torch.Tensor:
        """A tensor of ones like it."""
        sizes = [2 if size == -1 else size for size in self.row_shape]
        return torch.ones(rows, *sizes, dtype=getattr(torch, self.dtype))

    @property
    def dynamic(self) -> dict[int, Any]:
        """The dimensions that vary, as torch's exporter takes them."""
        return {0: torch.export.Dim.DYNAMIC} | {
            place: torch.export.Dim.DYNAMIC for place, size in enumerate(self.row_shape, 1) if size == -1
        }


def inline(
    graph: GraphBuilder,
    function: Callable[..., Any],
    inputs: Sequence[Inlined],
    *,
    what: str,
    module: nn.Module | None = None,
) -> tuple[str, ...]:
    """Copies a torch function into the graph and returns its outputs' tensors.

    Args:
        graph: Where the nodes go.
        function: Takes one tensor per input, returns a tensor or a tuple of tensors, all with the batch first.
        inputs: What it is applied to.
        what: Names the function in errors, for instance ``the normalizer_fn of age``.
        module: The module that the function calls, whose parts errors name.

    Raises:
        ExportError: torch cannot express the function in ONNX.
    """
    import onnx

    root = _Function(function, module).eval()
    examples = tuple(item.example() for item in inputs)
    shapes = {"tensors": tuple(item.dynamic for item in inputs)}
    try:
        with quiet(), torch.no_grad():
            program = torch.onnx.export(
                root, examples, dynamo=True, opset_version=OPSETS[""], dynamic_shapes=shapes, verbose=False
            )
    except Exception as error:
        _raise_own(error)
        with quiet():
            problem = describe_problem(
                error, root, lambda: torch.export.export(root, examples, dynamic_shapes=shapes, strict=False)
            )
        raise ExportError(f"{what} cannot be exported to ONNX: {problem}.") from error
    model = program.model_proto  # type: ignore[union-attr]
    if model.functions:
        model = onnx.inliner.inline_local_functions(model)
    foreign = sorted({item.domain for item in model.opset_import} - set(OPSETS))
    if foreign:
        raise ExportError(f"{what} uses the operators of {', '.join(foreign)}, which onnxruntime does not have.")
    return graph.inline(model.graph, [item.tensor for item in inputs])


@contextlib.contextmanager
def quiet() -> Iterator[None]:
    """Silences what torch's exporter says about itself."""
    levels = {name: logging.getLogger(name).level for name in _TALKATIVE}
    for name in levels:
        logging.getLogger(name).setLevel(logging.CRITICAL)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        for name, level in levels.items():
            logging.getLogger(name).setLevel(level)


class _Function(nn.Module):
    def __init__(self, function: Callable[..., Any], module: nn.Module | None) -> None:
        super().__init__()
        self.function = function
        self.module = module

    def forward(self, *tensors: torch.Tensor) -> Any:
        return self.function(*tensors)


def _raise_own(error: BaseException) -> None:
    """Raises the error that the function itself had meant for the user."""
    cause: BaseException | None = error
    while cause is not None:
        if isinstance(cause, UserError):
            raise cause
        cause = cause.__cause__
