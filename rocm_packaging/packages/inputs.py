"""What ROCm's packages follow from, as a record keeps it."""

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from core.cli.options import ROOT
from core.families import families
from core.files import digest_of, sha256
from rocm_packaging.artifacts import TreeEntry, scan
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
    targets_by_family = {name: family.targets for name, family in families().items()}
    return {
        "artifacts": digest_of(_artifact_signatures(request.artifact_dir)),
        "code": digest_of(_code_digests()),
        "families": digest_of(targets_by_family),
        "request": {name: str(value) for name, value in vars(arguments).items()},
    }


_Signature = tuple[str, str, int, int]


def _artifact_signatures(directory: Path) -> list[_Signature]:
    signatures: list[_Signature] = []
    for artifact in scan(directory):
        signatures += [_signature(directory, entry) for entry in artifact.entries]
    return signatures


def _signature(root: Path, entry: TreeEntry) -> _Signature:
    status = entry.source.lstat()
    path = str(entry.source.relative_to(root))
    return path, entry.link, status.st_size, status.st_mtime_ns


def _code_digests() -> dict[str, str]:
    """Return the SHA-256 of the files that decide about the packages' bytes, by path."""
    folders = [Path(__file__).parent, TEMPLATES]
    folders += [ROOT / "core" / name for name in _CORE_PACKAGES]
    paths = [
        ROOT / "core" / "files.py",
        ROOT / "rocm_packaging" / "artifacts.py",
        LICENSE,
    ]
    for folder in folders:
        paths += [path for path in folder.rglob("*") if path.is_file()]

    digests: dict[str, str] = {}
    for path in sorted(paths):
        if path.suffix != ".pyc":
            digests[str(path.relative_to(ROOT))] = sha256(path)
    return digests
