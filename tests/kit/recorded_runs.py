"""Runs of wheels that no stage built."""

import sys
from collections.abc import Mapping
from pathlib import Path

import pytest

from ci.verbs import index
from core import process
from core.archive import Member
from core.files import made
from core.run import RunOutputs, records
from core.run.records import Record
from core.stores import Store
from core.wheel import distributions
from core.wheel.writer import write_sdist


def recorded(store: Store, outputs: RunOutputs, group: str, *paths: Path) -> None:
    run = {"run_id": outputs.run_id, "platform": outputs.platform, "started": records.now(), "seconds": 0}
    for path in paths:
        one = distributions.publish(store, outputs, group, path)
        record = Record.model_validate({"stage": path.name, "files": (one,), **run})
        records.write(store, outputs, group, record)


def indexed(store: Store, outputs: RunOutputs, group: str, *paths: Path) -> str:
    """Put files into a run with their records, and write its pages; return the folder of these."""
    recorded(store, outputs, group, *paths)
    index.write_pages(store, outputs, group)
    return outputs.python_prefix(group)


def sdist(folder: Path, name: str, version: str, texts: Mapping[str, str], kind: str = "2.1") -> Path:
    """Write an sdist whose requirements are known where it is built."""
    members = [Member(name=path, source=text.encode()) for path, text in texts.items()]
    metadata = f"Metadata-Version: {kind}\nName: {name}\nVersion: {version}\n"
    return write_sdist(made(folder), name, version, members, metadata=metadata).path


def rocm_sdist(folder: Path, version: str, setup: str) -> Path:
    return sdist(folder, "rocm", version, {"setup.py": setup}, "2.2\nDynamic: Requires-Dist")


@pytest.fixture(scope="session")
def setuptools_wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A wheel of setuptools, from the public index: what the sdist builds with."""
    folder = tmp_path_factory.mktemp("setuptools")
    download: list[str | Path] = ["pip", "download", "--quiet", "--no-deps", "--dest", folder]
    process.capture([sys.executable, "-m", *download, "setuptools>=70.2"])
    return next(folder.glob("*.whl"))
