"""Runs of wheels that no stage built."""

from collections.abc import Mapping
from pathlib import Path

import pytest

from ci.verbs import index
from core.archive import Member
from core.files import ensure_folder
from core.run import RunOutputs, records
from core.run.records import Record
from core.stores import Store
from core.wheel import distributions
from core.wheel.writer import write_sdist
from tests.kit.environments import download_locked_wheel


def publish_with_records(store: Store, outputs: RunOutputs, group: str, *paths: Path) -> None:
    """Put files into a run, each with a record of its own."""
    for path in paths:
        file = distributions.publish(store, outputs, group, path)
        record = Record(
            stage=path.name,
            run_id=outputs.run_id,
            platform=outputs.platform,
            started=records.now(),
            seconds=0,
            files=(file,),
        )
        records.write(store, outputs, group, record)


def publish_with_pages(store: Store, outputs: RunOutputs, group: str, *paths: Path) -> str:
    """Put files into a run with their records, and write its pages; return the folder of these."""
    publish_with_records(store, outputs, group, *paths)
    index.write_pages(store, outputs, group)
    return outputs.python_prefix(group)


def write_sdist_of_files(
    folder: Path, name: str, version: str, files: Mapping[str, str], metadata_version: str = "2.1"
) -> Path:
    """Write an sdist whose requirements are known where it is built."""
    members = [Member(name=path, source=text.encode()) for path, text in files.items()]
    metadata = f"Metadata-Version: {metadata_version}\nName: {name}\nVersion: {version}\n"
    return write_sdist(ensure_folder(folder), name, version, members, metadata=metadata).path


def write_rocm_sdist(folder: Path, version: str, setup: str) -> Path:
    """Write an sdist of rocm, whose requirements its setup.py decides."""
    return write_sdist_of_files(folder, "rocm", version, {"setup.py": setup}, "2.2\nDynamic: Requires-Dist")


@pytest.fixture(scope="session")
def setuptools_wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a wheel of setuptools: what the sdist builds with."""
    return download_locked_wheel("setuptools", tmp_path_factory.mktemp("setuptools"))
