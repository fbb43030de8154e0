"""`rocm_sdk` as it lies in an environment: the runtime of ROCm's packages, from its templates."""

import hashlib
import importlib
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from rocm_packaging.packages import wheels
from rocm_packaging.packages.plan import DistInfo

VERSION = "1.0.0"


def install_runtime(
    site: Path,
    *,
    families: Mapping[str, tuple[str, ...]],
    libraries: Sequence[str] = (),
    is_split: bool = False,
) -> None:
    """Write the runtime into a folder that Python imports from.

    `families` are GPU families with their targets, `libraries` the names that `find_libraries` knows.
    """
    dist_info = DistInfo(
        version=VERSION,
        platform="linux",
        families=families,
        libraries=tuple(libraries),
        split=is_split,
    )
    sources = {name: path.read_bytes() for name, path in wheels.rocm_sdist_sources()}
    sources["src/rocm_sdk/_dist_info.py"] = wheels.dist_info_module(dist_info, "")
    for name, source in sources.items():
        if name.startswith("src/"):
            target = site / name.removeprefix("src/")
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_bytes(source)
    importlib.invalidate_caches()


def install_files(site: Path, files: Mapping[str, str]) -> None:
    """Write files into a folder that Python imports from: path to text."""
    for path, text in files.items():
        target = site / path
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(text, encoding="utf-8")
    importlib.invalidate_caches()


def install_metadata(site: Path, name: str, paths: Iterable[str] = (), *, version: str = VERSION) -> Path:
    """Write what an installer leaves of a distribution beside its files; return the RECORD.

    `paths` are its files, which must be there, from the folder that Python imports from.
    """
    folder = site / f"{name.replace('-', '_')}-{version}.dist-info"
    rows = []
    for path in paths:
        digest = hashlib.sha256((site / path).read_bytes()).hexdigest()
        rows.append(f"{path},sha256={digest},{(site / path).stat().st_size}\n")
    metadata = f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n"
    install_files(folder, {"METADATA": metadata, "RECORD": "".join(rows)})
    return folder / "RECORD"
