"""The key that all processes of a cluster share, in a file: who has it is one of them."""

from __future__ import annotations

import os
import stat
from collections.abc import Mapping
from dataclasses import dataclass, field

import zmq

from torch_estimator import files
from torch_estimator.errors import InvalidValueError

KEY_FILE = "TORCH_ESTIMATOR_KEY_FILE"
"""Environment variable that names the file."""

# A group may read it: Kubernetes gives the files of a Secret to one.
_TOO_OPEN = 0o027
_LENGTH = 40


@dataclass(frozen=True, slots=True)
class Key:
    """A CURVE key pair in Z85, as ZeroMQ takes it.

    Attributes:
        path: Of its file.
        public: Of the pair.
        secret: The same.
    """

    path: str
    public: bytes
    secret: bytes = field(repr=False)


def make_key_file(path: str) -> None:
    """Writes a new key, which only this user can read.

    Raises:
        InvalidValueError: There is something at `path`, or it cannot be written.
    """
    _, secret = zmq.curve_keypair()
    try:
        with open(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
            file.write(secret + b"\n")
    except FileExistsError as error:
        raise InvalidValueError(
            f"there is already something at {path}, which may be the key of a cluster; name another file."
        ) from error
    except OSError as error:
        raise InvalidValueError(f"the key cannot be written to {path}: {files.reason(error)}.") from error


def key_from_environment(environ: Mapping[str, str] = os.environ) -> Key | None:
    """Reads the key whose file `KEY_FILE` names; returns None where it names none.

    Raises:
        InvalidValueError: It cannot be read, holds no key, or can be read by everybody.
    """
    path = environ.get(KEY_FILE)
    if path is None:
        return None
    try:
        with open(path, "rb") as file:
            mode = stat.S_IMODE(os.fstat(file.fileno()).st_mode)
            secret = file.read(_LENGTH + 2).rstrip(b"\r\n")
    except OSError as error:
        raise InvalidValueError(
            f"the key file {path!r}, which {KEY_FILE} names, cannot be read: {files.reason(error)}; "
            "`estimator make-key FILE` makes one."
        ) from error
    if os.name == "posix" and mode & _TOO_OPEN:
        raise InvalidValueError(
            f"the key file {path!r}, which {KEY_FILE} names, is open to others (mode {mode:04o}); "
            "make a new one, or `chmod 600` it if nobody else can have read it."
        )
    try:
        return Key(path, zmq.curve_public(secret), secret)
    except (ValueError, zmq.ZMQError) as error:
        raise InvalidValueError(
            f"the key file {path!r}, which {KEY_FILE} names, holds no key that can be used ({error}); it must be as "
            "`estimator make-key` has written it."
        ) from error
