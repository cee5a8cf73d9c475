"""A device simulated on the CPU: its tensors compute there, but refuse to be mixed with the CPU's and to become numpy.

What is simulated is where tensors are. Streams, pinned memory, CUDA graphs, atomic additions and speed are not.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch.utils import backend_registration
from torch.utils._python_dispatch import TorchDispatchMode, return_and_correct_aliasing
from torch.utils._pytree import tree_leaves, tree_map

from torch_estimator.train import model_builder

NAME = "simulated"
_aten = torch.ops.aten
_COPIES = {_aten._to_copy.default, _aten.copy_.default}
# The operations by which the host has read from the device, and waited for it.
READS: list[str] = []
_INDEXING = {"index", "index_put", "index_put_", "_index_put_impl_", "_unsafe_index"}


class OnDevice(torch.Tensor):
    """Tensor that says that it is on the device; `elem` has its values, on the CPU."""

    elem: torch.Tensor
    __torch_function__ = torch._C._disabled_torch_function_impl

    @staticmethod
    def __new__(cls, elem: torch.Tensor) -> OnDevice:
        made = torch.Tensor._make_wrapper_subclass(
            cls,
            elem.size(),
            strides=elem.stride(),
            storage_offset=elem.storage_offset(),
            dtype=elem.dtype,
            layout=elem.layout,
            device=torch.device(NAME, 0),
        )
        made.elem = elem
        return made

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return _run(func, args, kwargs or {})

    def __repr__(self) -> str:  # type: ignore[override]
        return f"OnDevice({self.elem!r})"

    def __deepcopy__(self, memo: Any) -> torch.Tensor:
        copied = OnDevice(self.elem.detach().clone())
        if isinstance(self, torch.nn.Parameter):
            return torch.nn.Parameter(copied, self.requires_grad)
        return copied.requires_grad_(self.requires_grad)

    def numpy(self, **options: Any) -> Any:
        raise TypeError(f"can't convert {NAME}:0 device type tensor to numpy.")

    def tolist(self) -> Any:
        READS.append("tolist")
        return self.elem.tolist()


class _Mode(TorchDispatchMode):
    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return _run(func, args, kwargs or {})


def _run(func: Any, args: Any, kwargs: Any) -> Any:
    given = [one for one in tree_leaves((args, kwargs)) if isinstance(one, torch.Tensor)]
    on_device = [one for one in given if isinstance(one, OnDevice)]
    wanted = kwargs.get("device")
    to_device = bool(on_device) if wanted is None else torch.device(wanted).type == NAME
    if not on_device and not to_device:
        return func(*args, **kwargs)
    others = [one for one in given if not isinstance(one, OnDevice) and one.dim()]
    # As on a GPU, a tensor of the device may be indexed by one of the CPU.
    indexes = func.overloadpacket.__name__ in _INDEXING and isinstance(args[0], OnDevice)
    if on_device and others and func not in _COPIES and not indexes:
        raise RuntimeError(f"Expected all tensors to be on the same device, but {func} got {NAME}:0 and cpu.")
    cpu_args, cpu_kwargs = tree_map(_values, args), tree_map(_values, kwargs)
    if to_device and wanted is not None:
        cpu_kwargs["device"] = torch.device("cpu")
    result = func(*cpu_args, **cpu_kwargs)
    is_copy_to_host = func is _aten.copy_.default and not isinstance(args[0], OnDevice)
    if on_device and (not to_device or is_copy_to_host or isinstance(result, bool | int | float)):
        READS.append(str(func))
    if not to_device:
        return result
    if is_copy_to_host:
        return args[0]
    if func is _aten._to_copy.default and any(result is one for one in cpu_args):
        result = result.clone()
    wrapped = tree_map(lambda one: OnDevice(one) if isinstance(one, torch.Tensor) else one, result)
    aliases = any(returned.alias_info is not None for returned in func._schema.returns)
    return return_and_correct_aliasing(func, args, kwargs, wrapped) if on_device and aliases else wrapped


def _values(value: Any) -> Any:
    return value.elem if isinstance(value, OnDevice) else value


@contextlib.contextmanager
def simulated_gpu() -> Iterator[None]:
    """In the body, models that are not asked for another device are built on the simulated one."""
    if not getattr(torch, NAME, None):
        backend_registration._setup_privateuseone_for_python_backend(NAME)  # type: ignore[attr-defined]
        # The device stays registered in this process, and `torch.random.fork_rng` asks it for its state from now on.
        backend = getattr(torch, NAME)
        backend.get_rng_state = lambda device: torch.empty(0)
        backend.set_rng_state = lambda state, device: None
    choose, run = model_builder.device_of, threading.Thread.run

    def run_on_device(thread: threading.Thread) -> None:
        with _Mode():
            run(thread)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(
            model_builder, "device_of", lambda config: f"{NAME}:0" if config.device == "auto" else choose(config)
        )
        patch.setattr(threading.Thread, "run", run_on_device)
        # Inference mode would make tensors without a dispatch to `OnDevice`.
        patch.setattr(torch, "inference_mode", lambda *mode: torch.no_grad())
        swaps = torch.__future__.get_swap_module_params_on_conversion()
        torch.__future__.set_swap_module_params_on_conversion(True)
        try:
            with torch.autograd.set_multithreading_enabled(False), _Mode():
                yield
        finally:
            torch.__future__.set_swap_module_params_on_conversion(swaps)
