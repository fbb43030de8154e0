"""Wheels and sdists in a run's outputs: how they get there, and how later stages find them."""

import hashlib
from collections.abc import Iterable
from fnmatch import fnmatchcase
from pathlib import Path

from packaging.utils import canonicalize_name

from core import files
from core.data import Model, cached_by_user_file, data_file
from core.errors import WheelError
from core.families import families
from core.run import Platform, RunOutputs
from core.run.records import FileRecord
from core.stores import Store
from core.wheel import parse_name, parse_wheel_name, read_checked_metadata

SIDECAR = ".metadata"
NAMES_FILE = Path(__file__).with_name("our_names.toml")


class _Names(Model):
    names: tuple[str, ...]
    globs: tuple[str, ...]


_names = data_file(NAMES_FILE, _Names)


@cached_by_user_file
def our_names() -> frozenset[str]:
    """Return the names that our distributions have, normalised."""
    names: set[str] = set()
    for template in _names().names:
        for family in families():
            names.add(canonicalize_name(template.format(family=family)))
    return frozenset(names)


def is_ours(name: str) -> bool:
    """Return whether a distribution's name, in any spelling, is one of ours."""
    normalized = canonicalize_name(name)
    if normalized in our_names():
        return True
    return any(fnmatchcase(normalized, glob) for glob in _names().globs)


def is_distribution(filename: str) -> bool:
    """Return whether a file is a wheel or an sdist, by its name."""
    return filename.endswith((".whl", ".tar.gz"))


def on_platform(filename: str, platform: Platform) -> bool:
    """Return whether a wheel or sdist is for a platform, by its name; one for any is for each."""
    if not filename.endswith(".whl"):
        return True
    system = "win" if platform == "windows" else "linux"
    return any(tag.platform == "any" or system in tag.platform for tag in parse_wheel_name(filename).tags)


def require_platform(filenames: Iterable[str], outputs: RunOutputs) -> None:
    """Refuse wheels of another platform than a run's."""
    foreign_files = [name for name in filenames if not on_platform(name, outputs.platform)]
    if foreign_files:
        other_platform = "linux" if outputs.platform == "windows" else "windows"
        raise WheelError(
            f"{', '.join(foreign_files)}: not for {outputs.platform}, and would go to {outputs.prefix}/.",
            hint=f"Use --platform {other_platform}.",
        )


def publish(
    store: Store, outputs: RunOutputs, artifact_group: str, path: Path, *, sha256: str = ""
) -> FileRecord:
    """Put a wheel or sdist into a run's outputs: the file, then its metadata sidecar (PEP 658)."""
    require_platform([path.name], outputs)
    digest = sha256 or files.sha256(path)
    key = f"{outputs.python_prefix(artifact_group)}/{path.name}"
    record, sidecar = describe(path, key=key, sha256=digest)
    store.put_file(
        key,
        path,
        sha256=digest,
        replace=not outputs.immutable,
    )
    if sidecar is not None:
        store.put_bytes(f"{key}{SIDECAR}", sidecar, replace=not outputs.immutable)
    return record


def describe(
    path: Path,
    *,
    key: str,
    sha256: str,
) -> tuple[FileRecord, bytes | None]:
    """Read a file's entry in a record, and a wheel's METADATA; its name and its metadata must agree."""
    name = parse_name(path.name)
    requires_python = ""
    metadata_sha256 = ""
    license_text = ""
    raw_metadata = None
    if path.suffix != ".whl":
        from core.wheel.sdist import read_requires_python

        # An index of this file reads its metadata, and would refuse what is refused here.
        read_requires_python(path)
    else:
        metadata = read_checked_metadata(path)
        requires_python = metadata.requires_python
        metadata_sha256 = hashlib.sha256(metadata.raw).hexdigest()
        license_text = metadata.license
        raw_metadata = metadata.raw

    record = FileRecord(
        name=path.name,
        key=key,
        size=path.stat().st_size,
        sha256=sha256,
        distribution=name.distribution,
        version=str(name.version),
        requires_python=requires_python,
        metadata_sha256=metadata_sha256,
        license=license_text,
    )
    return record, raw_metadata
