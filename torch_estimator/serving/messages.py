"""Messages of gRPC, made from ``protos/*.pb``, which are translations of the files ``.proto`` beside them.

Each file is in a pool of its own, because a program that also imports tritonclient would otherwise have two messages of
one name.
"""

from __future__ import annotations

import functools
from pathlib import Path
from typing import Any

# Stubs are not a dependency.
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory  # type: ignore[import-untyped]


@functools.cache
def read_pool(name: str) -> tuple[Any, list[bytes]]:
    """Return the pool of the files in ``protos/NAME.pb``, and these files, each as a serialized message."""
    pool = descriptor_pool.DescriptorPool()
    content = Path(__file__).with_name("protos").joinpath(f"{name}.pb").read_bytes()
    files = descriptor_pb2.FileDescriptorSet.FromString(content).file
    for file in files:
        pool.Add(file)
    return pool, [file.SerializeToString() for file in files]


def read_messages(name: str) -> dict[str, Any]:
    """Return the classes of the messages in ``protos/NAME.pb`` by name."""
    pool, _ = read_pool(name)
    described = pool.FindFileByName(f"{name}.proto").message_types_by_name
    return {one: message_factory.GetMessageClass(message) for one, message in described.items()}
