"""A key file is this user's alone, and what is wrong with one is said."""

from __future__ import annotations

import re
import stat
from pathlib import Path

import pytest

from torch_estimator.errors import InvalidValueError
from torch_estimator.parameter_server.key import KEY_FILE, key_from_environment, make_key_file


def test_a_new_key_is_read_back_and_its_secret_is_not_shown(tmp_path: Path) -> None:
    path = tmp_path / "key"
    make_key_file(str(path))
    key = key_from_environment({KEY_FILE: str(path)})
    assert key is not None
    assert path.read_bytes() == key.secret + b"\n"
    assert key.secret.decode() not in repr(key)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    make_key_file(str(tmp_path / "other"))
    assert (tmp_path / "other").read_bytes() != path.read_bytes()


def test_without_a_file_there_is_no_key() -> None:
    assert key_from_environment({}) is None


def test_a_key_is_never_written_over(tmp_path: Path) -> None:
    path = tmp_path / "key"
    make_key_file(str(path))
    before = path.read_bytes()
    with pytest.raises(InvalidValueError, match=rf"^there is already something at {path}, which may be the key of a"):
        make_key_file(str(path))
    assert path.read_bytes() == before


def test_a_folder_that_is_not_there_is_named(tmp_path: Path) -> None:
    path = tmp_path / "absent" / "key"
    with pytest.raises(InvalidValueError, match=rf"^the key cannot be written to {path}: No such file or directory\.$"):
        make_key_file(str(path))


@pytest.mark.parametrize("content", [b"", b"abc\n", b" " * 40, b"\xff" * 40, b"0" * 41, b"0" * 4000])
def test_what_is_no_key_is_named(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "key"
    make_key_file(str(path))
    path.write_bytes(content)
    told = rf"^the key file '{path}', which {KEY_FILE} names, holds no key that can be used \(.*\); it must be as"
    with pytest.raises(InvalidValueError, match=told):
        key_from_environment({KEY_FILE: str(path)})


@pytest.mark.parametrize("name", ["", "absent", "folder"])
def test_a_file_that_cannot_be_read_is_named(tmp_path: Path, name: str) -> None:
    (tmp_path / "folder").mkdir()
    path = str(tmp_path / name) if name else ""
    with pytest.raises(InvalidValueError, match=rf"^the key file '{path}', .* cannot be read: [NI].* directory; `esti"):
        key_from_environment({KEY_FILE: path})


@pytest.mark.parametrize(("mode", "is_open"), [(0o400, False), (0o440, False), (0o644, True), (0o620, True)])
def test_a_key_that_others_can_read_or_replace_is_refused(tmp_path: Path, mode: int, is_open: bool) -> None:
    path = tmp_path / "key"
    make_key_file(str(path))
    path.chmod(mode)
    if not is_open:
        assert key_from_environment({KEY_FILE: str(path)}) is not None
        return
    told = re.escape(f"the key file '{path}', which {KEY_FILE} names, is open to others (mode {mode:04o}); make a new")
    with pytest.raises(InvalidValueError, match=f"^{told}"):
        key_from_environment({KEY_FILE: str(path)})
