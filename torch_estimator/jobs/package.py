"""The package of a job: a copy of the user's folder, made when the job is submitted."""

from __future__ import annotations

import contextlib
import hashlib
import os
import tempfile
from collections.abc import Iterator
from pathlib import Path

from torch_estimator import files
from torch_estimator.errors import InvalidValueError
from torch_estimator.jobs.directory import JobDirectory

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
    """Return the files of a package, sorted, without ``.git`` and what the ``.gitignore`` files around it name."""
    if package.is_file():
        return [package]
    ignored = _Ignored(package)
    found: list[Path] = []
    for folder, names, own in os.walk(package):
        where = Path(folder)
        ignored.enter(where)
        names[:] = [one for one in names if one not in _NEVER and not ignored.has(where / one, is_folder=True)]
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
    for path in package_files(package):
        name, content = path.relative_to(package.parent).as_posix(), path.read_bytes()
        for part in (name.encode(errors="surrogateescape"), content):
            digest.update(len(part).to_bytes(8, "little") + part)
        target = files.join(job.package, name)
        files.makedirs(files.parent(target))
        files.write_file(target, [content])
        if job.is_local:
            os.chmod(target, path.stat().st_mode & 0o700)
    return digest.hexdigest()


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
