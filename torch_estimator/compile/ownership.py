"""Which users can change what lies in a directory."""

from __future__ import annotations

import errno
import os
import stat
from pathlib import Path


def changeable_by_others(directory: Path) -> Path | None:
    """Return the first part of a path through which another user could change what lies in the directory.

    The directory must belong to this user, and its parents to this user or root. None of them may be writable by
    others, but a parent with the sticky bit, such as `/tmp`: there each user can rename only what is theirs.

    Args:
        directory: Absolute and without symbolic links: a link is refused, because its target could be changed later.

    Returns:
        None where no other user can.

    Raises:
        OSError: The directory does not exist or is none, or its parents may not be searched.
    """
    user = os.geteuid()
    # In a user namespace that does not map root, root's directories show another owner; "/" is root's.
    trusted = {user, 0, os.lstat("/").st_uid}
    # From the root on: once no other user can rename a part, the parts below it stay what they are.
    for part in (*reversed(directory.parents), directory):
        status = os.lstat(part)
        if not (stat.S_ISDIR(status.st_mode) or stat.S_ISLNK(status.st_mode)):
            raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR), str(part))
        is_last = part == directory
        owned = status.st_uid == user if is_last else status.st_uid in trusted
        guarded = not _is_writable_by_others(status) or (not is_last and bool(status.st_mode & stat.S_ISVTX))
        if not (stat.S_ISDIR(status.st_mode) and owned and guarded):
            return part
    return None


def is_own(path: Path) -> bool:
    """Return whether a file or directory is no link, belongs to this user and is not writable by others."""
    status = os.lstat(path)
    return not stat.S_ISLNK(status.st_mode) and status.st_uid == os.geteuid() and not _is_writable_by_others(status)


def _is_writable_by_others(status: os.stat_result) -> bool:
    if status.st_mode & stat.S_IWOTH:
        return True
    return bool(status.st_mode & stat.S_IWGRP) and not _is_private_group(status.st_gid)


def _is_private_group(number: int) -> bool:
    """Return whether this user is alone in a group, as where each user has a group of the same name (umask 002)."""
    import grp  # Windows has neither.
    import pwd

    try:
        user, group = pwd.getpwuid(os.geteuid()), grp.getgrgid(number)
    except KeyError:
        return False
    return user.pw_gid == number and group.gr_name == user.pw_name and set(group.gr_mem) <= {user.pw_name}
