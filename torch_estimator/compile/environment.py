"""Digest of everything outside of the model on which compiled code depends: machine, versions and flags of torch.

The same Python objects give another program on another processor, with another compiler or version of torch, for
another number of threads, or under another flag of torch.
"""

from __future__ import annotations

import functools
import os
import platform
import shlex
import sys
from collections.abc import Callable, Iterator
from hashlib import sha256
from typing import Any

import numpy as np
import torch

from torch_estimator.code_cache import compiler_version, processor
from torch_estimator.versions import own_sources

_ATTENTION = ("flash", "mem_efficient", "math", "cudnn")
# Environment variables with these prefixes change how torch compiles.
_VARIABLES = ("TORCHINDUCTOR_", "AOT_INDUCTOR", "TORCH_COMPILE")
# This one names a directory only, and `build` names another. Torch sets it when its compiler is imported, which may
# happen in the middle of a program.
_DIRECTORY = "TORCHINDUCTOR_CACHE_DIR"


def environment_digest(threads: int) -> str:
    """Return a hash of the machine, versions and flags of torch, and threads, on which compiled code depends."""
    facts = [
        *machine(),
        f"torch_estimator {own_sources()}",
        *torch_flags(),
        f"threads {threads}",
        *_variables(),
    ]
    return sha256("\0".join(facts).encode("utf-8", "surrogateescape")).hexdigest()


def torch_flags() -> tuple[str, ...]:
    """Return the current flags of torch that change the results of a computation, as texts."""
    flags: dict[str, Callable[[], Any]] = {
        "default dtype": torch.get_default_dtype,
        "default device": torch.get_default_device,
        "deterministic": torch.are_deterministic_algorithms_enabled,
        "deterministic warn only": torch.is_deterministic_algorithms_warn_only_enabled,
        "fill memory": lambda: torch.utils.deterministic.fill_uninitialized_memory,  # type: ignore[attr-defined]
        "matmul precision": torch.get_float32_matmul_precision,
        "mkldnn": lambda: torch._C._get_mkldnn_enabled(),
        "nnpack": lambda: torch._C._get_nnpack_enabled(),
        "fast path": torch.backends.mha.get_fastpath_enabled,
        "cudnn": lambda: [
            getattr(torch.backends.cudnn, name) for name in ("enabled", "benchmark", "deterministic", "allow_tf32")
        ],
        "cuda matmul": lambda: [
            getattr(torch.backends.cuda.matmul, name)
            for name in (
                "allow_tf32",
                "allow_fp16_reduced_precision_reduction",
                "allow_bf16_reduced_precision_reduction",
            )
        ],
        "attention": lambda: [getattr(torch.backends.cuda, f"{name}_sdp_enabled")() for name in _ATTENTION],
        "autocast": lambda: [
            (torch.is_autocast_enabled(device), torch.get_autocast_dtype(device)) for device in ("cpu", "cuda")
        ],
        "autocast cache": torch.is_autocast_cache_enabled,
        "anomaly": torch.is_anomaly_enabled,
    }
    return tuple(f"{name} {_read(flag)}" for name, flag in flags.items())


def _read(flag: Callable[[], Any]) -> str:
    try:
        return repr(flag())
    except Exception as error:
        # torch raises an error when an old flag is read after the newer form of the same flag was set.
        return type(error).__name__


@functools.cache
def machine() -> tuple[str, ...]:
    """Return texts about versions of other software and the hardware, which do not change while the process runs."""
    return (
        f"torch {torch.__version__} {torch.version.git_version}",
        f"numpy {np.__version__}",
        f"python {sys.version}",
        f"platform {platform.system()} {platform.machine()} {platform.libc_ver()}",
        f"processor {torch.backends.cpu.get_cpu_capability()} {processor()}",
        f"compiler {compiler_version(shlex.split(os.environ.get('CXX') or 'g++'))}",
        *_gpus(),
    )


def _gpus() -> Iterator[str]:
    if torch.cuda.is_available():
        yield f"cuda {torch.version.cuda} {torch.backends.cudnn.version()}"  # type: ignore[no-untyped-call]
        for number in range(torch.cuda.device_count()):
            yield f"gpu {torch.cuda.get_device_properties(number)}"


def _variables() -> Iterator[str]:
    for name, value in sorted(os.environ.items()):
        if name.startswith(_VARIABLES) and name != _DIRECTORY:
            yield f"{name}={value}"
