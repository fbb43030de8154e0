"""Runs of wheels that no stage built."""

from __future__ import annotations

import io
import sys
import tarfile
from typing import TYPE_CHECKING

import pytest

from ci.verbs import index
from core import process
from core.run import records
from core.run.records import Record
from core.wheel import distributions

if TYPE_CHECKING:
    from pathlib import Path

    from core.run import RunOutputs
    from core.stores import Store


def recorded(store: Store, outputs: RunOutputs, group: str, *paths: Path) -> None:
    """Put files into a run, each with a record."""
    run = {"run_id": outputs.run_id, "platform": outputs.platform, "started": records.now(), "seconds": 0}
    for path in paths:
        one = distributions.publish(store, outputs, group, path)
        made = Record.model_validate({"stage": path.name, "files": (one,), **run})
        records.write(store, outputs, group, made)


def indexed(store: Store, outputs: RunOutputs, group: str, *paths: Path) -> str:
    """Put files into a run with their records, and write its pages; return the folder of these."""
    recorded(store, outputs, group, *paths)
    index.write_pages(store, outputs, group)
    return outputs.python_prefix(group)


def rocm_sdist(folder: Path, version: str, setup: str) -> Path:
    """Write an sdist of rocm whose requirements are known where it is built."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"rocm-{version}.tar.gz"
    metadata = f"Metadata-Version: 2.2\nName: rocm\nVersion: {version}\nDynamic: Requires-Dist\n"
    with tarfile.open(path, "w:gz") as archive:
        for name, text in (("setup.py", setup), ("PKG-INFO", metadata)):
            member = tarfile.TarInfo(f"rocm-{version}/{name}")
            member.size = len(text)
            archive.addfile(member, io.BytesIO(text.encode()))
    return path


@pytest.fixture(scope="session")
def setuptools_wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A wheel of setuptools, from the public index: what the sdist builds with."""
    folder = tmp_path_factory.mktemp("setuptools")
    download: list[str | Path] = ["pip", "download", "--quiet", "--no-deps", "--dest", folder]
    process.capture([sys.executable, "-m", *download, "setuptools>=70.2"])
    return next(folder.glob("*.whl"))
