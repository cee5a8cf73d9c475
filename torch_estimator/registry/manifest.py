"""Manifest of a version: the checksum of every file, and what the version was made from."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from torch_estimator import __version__, files
from torch_estimator.checkpoint.index import INDEX_NAME
from torch_estimator.errors import ExportError
from torch_estimator.export.exported_model import read_manifest
from torch_estimator.registry.changes import FORMAT_VERSION, MANIFEST_FILE, known_format, now, state_file, user
from torch_estimator.summary.scalar_reader import ScalarReader

# An exporter writes into <run>/export/<exporter>/<number>.
_PARENTS_OF_EXPORT = 3
_EVALUATIONS = "eval"


@dataclass(frozen=True, slots=True, kw_only=True)
class FileInfo:
    """Size in bytes of one file, and its SHA-256 in hexadecimal digits."""

    bytes: int
    sha256: str


@dataclass(frozen=True, slots=True, kw_only=True)
class VersionInfo:
    """What is known about a version, which is the content of its ``manifest.json``.

    Attributes:
        model: Name of the model.
        version: Number of the version.
        description: Text for people.
        created: When the version was created, such as ``2026-11-24T12:30:00Z``.
        created_by: User and host that created it.
        origin: The export that was copied.
        run: Directory of the training that the export comes from; None if unknown.
        global_step: Step of the exported checkpoint; None if unknown.
        metrics: Metrics of each evaluation of that checkpoint, by the evaluation's name (``eval``, ``eval_census``).
        versions: Versions of the software that wrote the export, and of the one that registered it.
        files: Every file of the version but the manifest, by its path in the version's directory.

    >>> info = te.registry.VersionInfo(model="prices", version=3, metrics={"eval": {"loss": 0.25}})
    >>> info.version, info.metrics["eval"]["loss"], info.bytes
    (3, 0.25, 0)
    >>> te.registry.VersionInfo.from_json(info.to_json()) == info
    True
    """

    model: str
    version: int
    description: str = ""
    created: str = ""
    created_by: str = ""
    origin: str = ""
    run: str | None = None
    global_step: int | None = None
    metrics: Mapping[str, Mapping[str, float]] = field(default_factory=dict)
    versions: Mapping[str, str] = field(default_factory=dict)
    files: Mapping[str, FileInfo] = field(default_factory=dict)

    @property
    def bytes(self) -> int:
        """Size of all files, in bytes."""
        return sum(one.bytes for one in self.files.values())

    def to_json(self) -> dict[str, Any]:
        """Return the manifest as JSON."""
        return {"format_version": FORMAT_VERSION, **asdict(self)}

    @classmethod
    def from_json(cls, content: Any) -> VersionInfo:
        """Return the manifest that `to_json` returned.

        Args:
            content: What `to_json` returned.

        Raises:
            ValueError: The content is something else.
        """
        return known_format(cls, content)


def read_version(directory: str) -> VersionInfo | None:
    """Return the manifest in the directory of a version; None if there is none."""
    return state_file(files.join(directory, MANIFEST_FILE), VersionInfo).read()


def copy_version(origin: str, target: str, *, model: str, version: int, description: str) -> VersionInfo:
    """Copy an export into a new directory; return the manifest of the copy, which is not written.

    An export that is itself a version of a registry keeps its run and metrics, and an ExportError says which of its
    files differ from its manifest.
    """
    exported = read_manifest(origin)
    source = read_version(origin)
    copied = {
        name: _copied(files.join(origin, name), files.join(target, name))
        for name in files.all_files(origin)
        if name != MANIFEST_FILE
    }
    if source is not None:
        compare_files(source, copied, origin)
    run = source.run if source is not None else _run_of(origin)
    return VersionInfo(
        model=model,
        version=version,
        description=description,
        created=now(),
        created_by=user(),
        origin=origin,
        run=run,
        global_step=exported.global_step,
        metrics=source.metrics if source is not None else _metrics_of(run, exported.global_step),
        versions={"exported by": f"{exported.producer} {exported.version}", "registered by": _own_version()},
        files=copied,
    )


def check_files(directory: str) -> bool:
    """Compare the files of a version with its manifest; return False if there is no manifest, as in a plain export."""
    info = read_version(directory)
    if info is None:
        return False
    found = {
        name: _info_of(files.join(directory, name)) for name in files.all_files(directory) if name != MANIFEST_FILE
    }
    compare_files(info, found, directory)
    return True


def compare_files(info: VersionInfo, found: Mapping[str, FileInfo], directory: str) -> None:
    """Raise an ExportError if a file of a manifest is missing or has changed, or a file was added."""
    for problem, names in (
        ("lacks", info.files.keys() - found.keys()),
        ("has, beside the files of its manifest,", found.keys() - info.files.keys()),
        ("has another content than its manifest says in", {n for n, one in found.items() if info.files.get(n) != one}),
    ):
        if names:
            raise ExportError(f"{directory} {problem} {min(names)}; copy the version anew from {info.origin}.")


def _copied(source: str, target: str) -> FileInfo:
    """Copy a file; return its size and checksum."""
    files.makedirs(files.parent(target))
    digest = _Digest()
    files.write_file(target, digest.passed_on(files.read_chunks(source)))
    return digest.info()


def _info_of(path: str) -> FileInfo:
    digest = _Digest()
    for _ in digest.passed_on(files.read_chunks(path)):
        pass
    return digest.info()


class _Digest:
    """Size and checksum of the chunks that pass through."""

    def __init__(self) -> None:
        self._hash = hashlib.sha256()
        self._bytes = 0

    def passed_on(self, chunks: Iterable[bytes]) -> Iterator[bytes]:
        for chunk in chunks:
            self._hash.update(chunk)
            self._bytes += len(chunk)
            yield chunk

    def info(self) -> FileInfo:
        return FileInfo(bytes=self._bytes, sha256=self._hash.hexdigest())


def _run_of(origin: str) -> str | None:
    """Return the model directory of the training that an export comes from, if it lies within it."""
    directory = origin
    for _ in range(_PARENTS_OF_EXPORT):
        directory = files.parent(directory)
        if files.exists(files.join(directory, INDEX_NAME)):
            return directory
    return None


def _metrics_of(run: str | None, step: int | None) -> dict[str, dict[str, float]]:
    """Return the metrics of the evaluations at a step, by the evaluation's name."""
    if run is None or step is None:
        return {}
    found = {}
    for name in files.listdir(run):
        if name.startswith(_EVALUATIONS) and files.is_dir(files.join(run, name)):
            metrics = ScalarReader(files.join(run, name)).results().get(step, {})
            # JSON has no numbers that are not finite.
            found[name] = {key: float(f"{value:.8g}") for key, value in metrics.items() if math.isfinite(value)}
    return {name: metrics for name, metrics in found.items() if metrics}


def _own_version() -> str:
    return f"torch-estimator {__version__}"
