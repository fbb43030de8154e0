"""What ROCm's packages follow from, as a record keeps it."""

from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from core.cli.options import ROOT
from core.families import families
from core.files import digest_of, sha256
from rocm_packaging.artifacts import Entry, scan
from rocm_packaging.packages.layouts import TEMPLATES
from rocm_packaging.packages.plan import BuildRequest
from rocm_packaging.packages.wheels import LICENSE

# The parts of `core` that decide about bytes.
_CORE_PACKAGES = ("archive", "binaries", "wheel")


def inputs_of(request: BuildRequest) -> Mapping[str, Any]:
    """Describe everything that the packages follow from: artifacts, arguments and this code.

    Artifacts count by path, size and time of change, as they are gigabytes.
    """
    # Where files lie and how many are packed at once changes no byte.
    arguments = replace(request, artifact_dir=Path(), output_dir=Path(), jobs=None)
    signatures = [_signature(request.artifact_dir, entry) for entry in _entries(request.artifact_dir)]
    return {
        "artifacts": digest_of(signatures),
        "code": digest_of({str(path.relative_to(ROOT)): sha256(path) for path in _code()}),
        "families": digest_of({name: family.targets for name, family in families().items()}),
        "request": {name: str(value) for name, value in vars(arguments).items()},
    }


def _entries(directory: Path) -> Iterator[Entry]:
    for artifact in scan(directory):
        yield from artifact.entries


def _signature(root: Path, entry: Entry) -> tuple[str, str, int, int]:
    status = entry.source.lstat()
    return str(entry.source.relative_to(root)), entry.link, status.st_size, status.st_mtime_ns


def _code() -> list[Path]:
    """List the files that decide about the packages' bytes."""
    folders = [Path(__file__).parent, TEMPLATES]
    folders += [ROOT / "core" / name for name in _CORE_PACKAGES]
    paths = [ROOT / "core" / "files.py", ROOT / "rocm_packaging" / "artifacts.py", LICENSE]
    for folder in folders:
        paths += [path for path in folder.rglob("*") if path.is_file()]
    return sorted(path for path in paths if path.suffix != ".pyc")
