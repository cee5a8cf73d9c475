"""The package of a job: a copy of the user's folder, made when the job is submitted."""

from __future__ import annotations

import contextlib
import hashlib
import logging
import os
import stat
import tempfile
from collections.abc import Iterable, Iterator
from pathlib import Path, PurePosixPath
from typing import Any, NoReturn

from torch_estimator import files
from torch_estimator.errors import InvalidValueError
from torch_estimator.jobs.directory import JobDirectory

logger = logging.getLogger("torch_estimator")

# A package of this size is a mistake, most times: it has data in it, or an environment.
_LARGE_BYTES = 10**8
_NEVER = {".git", "__pycache__"}


def find_package(module_name: str, package_path: str | None) -> Path:
    """Return the folder or file that holds a module: the given folder, else the one of its name in this directory."""
    if package_path is not None:
        path = Path(os.path.abspath(package_path))
        if not path.is_dir():
            what = "is no folder" if path.exists() else "does not exist"
            raise InvalidValueError(f"--package-path {package_path} {what}; name the folder that {module_name} is in.")
        return path
    top = module_name.partition(".")[0]
    for path in (Path.cwd() / top, Path.cwd() / f"{top}.py"):
        if path.exists():
            return path
    raise InvalidValueError(
        f"there is no module {module_name} in {Path.cwd()}; --package-path must name the folder of its package."
    )


def package_files(package: Path) -> list[Path]:
    """Return the files of a package, sorted, without ``.git`` and what the ``.gitignore`` files around it name.

    Links are followed. Raise an InvalidValueError for a link to a folder that it is in.
    """
    if package.is_file():
        return [package]
    ignored = _Ignored(package)
    found: list[Path] = []
    for folder, names, own in os.walk(package, onerror=_refuse, followlinks=True):
        where = Path(folder)
        ignored.enter(where)
        names[:] = [one for one in names if one not in _NEVER and not ignored.has(where / one, is_folder=True)]
        for link in (where / one for one in names if (where / one).is_symlink()):
            if link.resolve() in (where.resolve(), *where.resolve().parents):
                raise InvalidValueError(f"{link} is a link to a folder that it is in; remove it, or ignore it in git.")
        found += (where / one for one in own if not ignored.has(where / one))
    return sorted(found)


class _Ignored:
    """What the ``.gitignore`` files of a folder and of those above it, up to that of the repository, name."""

    def __init__(self, package: Path) -> None:
        self._rules: list[tuple[Path, object]] = []
        above = [package, *package.parents]
        top = next((index for index, folder in enumerate(above) if (folder / ".git").exists()), 0)
        for folder in reversed(above[1 : top + 1]):
            self.enter(folder)
        if any(self.has(folder, is_folder=True) for folder in above[:top]):
            # The user wants this folder all the same, so that only what is in it counts.
            self._rules.clear()

    def enter(self, folder: Path) -> None:
        """Read the file of a folder, if it has one. Enter a folder before those in it."""
        with contextlib.suppress(FileNotFoundError, IsADirectoryError):
            # Only here, as most commands need no package.
            from pathspec import GitIgnoreSpec

            lines = (folder / ".gitignore").read_text(errors="replace").splitlines()
            self._rules.append((folder, GitIgnoreSpec.from_lines(lines)))

    def has(self, path: Path, *, is_folder: bool = False) -> bool:
        """Return whether git ignores a path. The last file that says something about it decides."""
        for folder, rules in reversed(self._rules):
            if folder in path.parents:
                result = rules.check_file(f"{path.relative_to(folder)}{'/' if is_folder else ''}")  # type: ignore[attr-defined]
                if result.include is not None:
                    return bool(result.include)
        return False


def copy_package(package: Path, job: JobDirectory) -> str:
    """Copy a package into the directory of a job; return the SHA-256 of its files' names and contents, in hex."""
    digest = hashlib.sha256()
    found = {path: _status(path) for path in package_files(package)}
    total = sum(status.st_size for status in found.values())
    if total > _LARGE_BYTES:
        largest = max(found, key=lambda path: found[path].st_size)
        logger.warning(
            "package %s has %d MB, %d of them in %s; name what the program does not need in .gitignore.",
            *(package, total // 10**6, found[largest].st_size // 10**6, largest),
        )
    for path, status in found.items():
        name = path.relative_to(package.parent).as_posix()
        target = files.join(job.package, name)
        files.makedirs(files.parent(target))
        files.write_file(target, _hashed(digest, name, status.st_size, files.read_chunks(path)))
        if job.is_local:
            os.chmod(target, status.st_mode & 0o700)
    return digest.hexdigest()


def _status(path: Path) -> os.stat_result:
    """Return the status of a file that can be copied, or raise an InvalidValueError."""
    try:
        status = path.stat()
        if stat.S_ISREG(status.st_mode):
            # Opening a pipe would wait for its writer.
            path.open("rb").close()
            return status
    except OSError as error:
        _refuse(error)
    raise InvalidValueError(f"{path} of the package is no file, but a pipe, a socket or a device; remove it.")


def _refuse(error: OSError) -> NoReturn:
    raise InvalidValueError(
        f"{error.filename} of the package cannot be read: {files.reason(error)}; mend it, or name it in .gitignore."
    ) from error


def package_digest(job: JobDirectory) -> str:
    """Return what `copy_package` has returned, if nobody has changed the copy since then."""
    digest = hashlib.sha256()
    sizes = files.all_files(job.package)
    for name in sorted(sizes, key=PurePosixPath):
        # Python adds its compiled modules.
        if _NEVER.isdisjoint(name.split("/")):
            for _ in _hashed(digest, name, sizes[name], files.read_chunks(files.join(job.package, name))):
                pass
    return digest.hexdigest()


def _hashed(digest: Any, name: str, size: int, chunks: Iterable[bytes]) -> Iterator[bytes]:
    """Pass on the content of a file, and add its name and its content to a digest."""
    own = name.encode(errors="surrogateescape")
    digest.update(len(own).to_bytes(8, "little") + own + size.to_bytes(8, "little"))
    for chunk in chunks:
        digest.update(chunk)
        yield chunk


@contextlib.contextmanager
def local_package(job: JobDirectory) -> Iterator[Path]:
    """Give the folder from which Python imports the package of a job; a copy of it if the job is on an object store."""
    if job.is_local:
        yield Path(files.as_url(job.package))
        return
    with tempfile.TemporaryDirectory(prefix=f"torch-estimator-{job.name}-") as folder:
        for name in files.all_files(job.package):
            target = Path(folder) / name
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_bytes(files.read_bytes(files.join(job.package, name)))
        yield Path(folder)
