"""Conversion of torch functions to ONNX nodes by torch's exporter, and explanation of its errors."""

from __future__ import annotations

import contextlib
import linecache
import logging
import re
import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy.typing as npt
import torch
from torch import nn

from torch_estimator.errors import ExportError, UserError
from torch_estimator.export import large_integers
from torch_estimator.export.graph import APART_BYTES, OPSETS, GraphBuilder
from torch_estimator.export.recurrent import exported_rnns, translations
from torch_estimator.export.signatures import DATA_FILE

_NOISY_LOGGERS = ("torch.onnx", "torch.fx", "torch._subclasses", "onnxscript", "onnx_ir")

_DATA_DEPENDENT = "data-dependent"
_FIXED_SIZE = "inferred a static shape"
_UNTRANSLATED = re.compile(r"translating node %(\w+) .*?target=torch\.ops\.([\w.]+?)\]")


@dataclass(frozen=True, slots=True, kw_only=True)
class Inlined:
    """Tensor of the ONNX graph, with the shape and dtype that it has as an argument of a torch function.

    `row_shape` is without the batch dimension; a size of -1 varies. `dtype` is ``"float32"`` or ``"int64"``.
    """

    tensor: str
    row_shape: tuple[int, ...]
    dtype: str

    def example(self, rows: int = 3) -> torch.Tensor:
        """Return a torch tensor of ones with this shape and dtype, with which the function is traced.

        A varying size is 4 in it, so that small convolutions over a sequence have enough values.
        """
        sizes = [4 if size == -1 else size for size in self.row_shape]
        return torch.ones(rows, *sizes, dtype=getattr(torch, self.dtype))

    @property
    def dynamic(self) -> dict[int, Any]:
        """The dimensions whose sizes vary, in the form that torch's exporter takes."""
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
    """Convert a torch function to ONNX nodes, and add them to the graph; return the names of the output tensors.

    The function takes one tensor per input and returns a tensor or a tuple of tensors, all with the batch as their
    first dimension. `what` is its name for messages, for instance ``the normalizer_fn of age``. If it calls a `module`,
    messages name the part of it that fails.
    """
    import onnx

    root = _Function(function, module).eval()
    examples = tuple(item.example() for item in inputs)
    shapes = {"tensors": tuple(item.dynamic for item in inputs)}
    # After one use of a GRU, torch remembers to unroll it to the length of the example, also for the export.
    torch.ops.aten.gru.input._dispatch_cache.clear()
    try:
        with quiet(), torch.no_grad(), exported_rnns(root):
            program = torch.onnx.export(
                root,
                examples,
                dynamo=True,
                opset_version=OPSETS[""],
                dynamic_shapes=shapes,
                verbose=False,
                custom_translation_table=translations(),
            )
    except Exception as error:
        _raise_user_error(error)
        with quiet():
            problem = describe_problem(
                error, root, lambda: torch.export.export(root, examples, dynamic_shapes=shapes, strict=False)
            )
        raise ExportError(f"{what} cannot be exported to ONNX: {problem}.") from error
    large_integers.replace(program.model)  # type: ignore[union-attr]
    apart = _set_apart(program.model)  # type: ignore[union-attr]
    model = program.model_proto  # type: ignore[union-attr]
    if model.functions:
        model = onnx.inliner.inline_local_functions(model)
    foreign = sorted({item.domain for item in model.opset_import} - set(OPSETS))
    if foreign:
        raise ExportError(f"{what} uses the operators of {', '.join(foreign)}, which onnxruntime does not have.")
    return graph.inline(model.graph, [item.tensor for item in inputs], apart)


def _set_apart(model: Any) -> dict[str, npt.NDArray[Any]]:
    """Leave the values of large initializers out of a model of torch's exporter; return them by name."""
    from onnxscript import ir

    apart = {}
    for name, value in model.graph.initializers.items():
        tensor = value.const_value
        if tensor is not None and tensor.nbytes >= APART_BYTES and tensor.dtype != ir.DataType.STRING:
            array = tensor.numpy()
            # The elements of some types are smaller than a byte.
            if array.nbytes == tensor.nbytes and array.ndim:
                apart[name] = array
                value.const_value = ir.ExternalTensor(
                    DATA_FILE, 0, tensor.nbytes, tensor.dtype, shape=tensor.shape, name=name
                )
    return apart


@contextlib.contextmanager
def quiet() -> Iterator[None]:
    """Silence the warnings and log lines of torch's exporter in a ``with`` block. They concern its own internals."""
    levels = {name: logging.getLogger(name).level for name in _NOISY_LOGGERS}
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
    """Function wrapped as a module, which torch's exporter requires.

    A module that the function calls is registered as a submodule, so that error messages can name its parts.
    """

    def __init__(self, function: Callable[..., Any], module: nn.Module | None) -> None:
        super().__init__()
        self.function = function
        self.module = module

    def forward(self, *tensors: torch.Tensor) -> Any:
        return self.function(*tensors)


def _raise_user_error(error: BaseException) -> None:
    """Raise the `UserError` that caused an error of torch's exporter, if the traced function raised a `UserError`."""
    cause: BaseException | None = error
    while cause is not None:
        if isinstance(cause, UserError):
            raise cause
        cause = cause.__cause__


def describe_problem(error: BaseException, root: nn.Module, trace: Callable[[], Any]) -> str:
    """Return a phrase that says why an export failed and what to do.

    The description names the operator that has no ONNX form, or else the line of the user's module that failed. The
    parts of `root`, the exported module, are named by their path below it. `trace` exports `root` to a program of
    torch's operators; it may fail.
    """
    chain = list(_causes(error))
    for one in chain:
        match = _UNTRANSLATED.search(str(one))
        if match is not None:
            operator, place = _traced(trace, *match.groups())
            return f"the operator {operator}{_in(place)} has no ONNX form; use other operators there"
    cause = chain[-1]
    frame = _innermost(cause, {id(module): path for path, module in root.named_modules() if path})
    lines = [line.strip() for line in str(cause).splitlines() if line.strip()]
    # Take two lines of torch's message: often the first says only that something failed, and the second says what.
    problem = f"{type(cause).__name__}: {' '.join(lines[:2]).rstrip('.')}" if lines else type(cause).__name__
    if _DATA_DEPENDENT in problem:
        problem += "; write it with torch operations whose flow does not depend on the values"
    if _FIXED_SIZE in problem:
        problem += "; the module fixes the number of rows or the length of a sequence: take x.shape[0], not len(x)"
    if frame is None:
        return problem
    module, path, line = frame
    return f"`{line}`{_in((path, type(module).__name__))} fails with {problem}"


def _causes(error: BaseException | None) -> Iterator[BaseException]:
    """Yield an error and its chain of causes, from the error itself to the original cause."""
    while error is not None:
        yield error
        error = error.__cause__


def in_module(scopes: Sequence[str]) -> str:
    """Return the phrase " in its module <path>" for the innermost of nested modules; empty if the path is unknown."""
    path = _below_root(scopes[-1]) if scopes else ""
    return f" in its module {path}" if path else ""


def _below_root(path: str) -> str:
    return path.removeprefix("module").removeprefix(".")


def _in(place: tuple[str, str] | None) -> str:
    if place is None:
        return ""
    path = _below_root(place[0])
    return f" in its module {path} ({place[1]})" if path else f" in its own forward ({place[1]})"


def _innermost(error: BaseException, paths: dict[int, str]) -> tuple[nn.Module, str, str] | None:
    """Return the innermost torch module in an error's traceback, its path, and the source line that failed."""
    found = None
    step = error.__traceback__
    while step is not None:
        module = step.tb_frame.f_locals.get("self")
        code = step.tb_frame.f_code
        if isinstance(module, nn.Module) and code.co_name in ("forward", "call"):
            # A Keras layer is not a submodule of the exported module, so it has no path. Take its name.
            path = paths.get(id(module), getattr(module, "name", None))
            if isinstance(path, str):
                found = (module, path, linecache.getline(code.co_filename, step.tb_lineno).strip())
        step = step.tb_next
    return found


def _traced(trace: Callable[[], Any], name: str, target: str) -> tuple[str, tuple[str, str] | None]:
    """Return the torch operator that the user's module calls, for a node that could not be converted to ONNX.

    `name` is that of the failed node in torch's graph, and `target` its operator: decomposition may have replaced the
    one that the module calls. The second result is the path and the type of the module, or None if they are unknown.
    """
    base = target.split(".")[1] if "." in target else target
    nodes: list[Any] = []
    # Ignore a failing trace: the message then names only the operator.
    with contextlib.suppress(Exception):
        program = trace()
        nodes += program.graph.nodes
        nodes += program.run_decompositions().graph.nodes
    nodes = [node for node in nodes if isinstance(node.target, torch._ops.OpOverload)]
    named = [node for node in nodes if node.name == name] or [node for node in nodes if base in str(node.target)]
    if not named:
        return target.removesuffix(".default"), None
    stack = list(named[0].meta.get("nn_module_stack", {}).values())
    place = (stack[-1][0], str(stack[-1][1]).rpartition(".")[2]) if stack else None
    return str(named[0].target).removesuffix(".default"), place
