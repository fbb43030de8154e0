"""What of others' packages belongs into the dependencies' index, and how it gets there.

The public index is reached by uv and pip as this machine configures them; nothing here knows its
address.
"""

from __future__ import annotations

import hashlib
import sys
import tempfile
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import TYPE_CHECKING

from packaging.utils import canonicalize_name

from core import console, files, process
from core.env import installer
from core.env.installer import configured
from core.errors import DataError, EnvironmentSetupError, ProcessError, StoreError
from core.packages.offers import fits, required_by
from core.packages.resolution import Question, others_of, resolve
from core.parallel import each
from core.run.records import FileRecord
from core.wheel import read_metadata
from core.wheel.distributions import SIDECAR, is_ours

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from ci.install.mirror_data import Mirror
    from core.packages.offers import Offer, RunGroup
    from core.packages.resolution import Resolved
    from core.stores import Store

_JOBS = 4  # uv waits for the network, and resolves on one core


@dataclass(frozen=True, kw_only=True)
class Cell:
    """A Python on a platform."""

    python: str
    platform: str

    @property
    def tag(self) -> str:
        """The Python's ABI tag."""
        return "cp" + self.python.replace(".", "")


@dataclass(frozen=True, kw_only=True)
class Need:
    """Requirements that must be resolvable together in a cell."""

    cell: Cell
    of: str
    requirements: tuple[str, ...]


@dataclass(frozen=True, kw_only=True)
class Source:
    """A file of others' that is to be mirrored."""

    filename: str
    distribution: str
    version: str
    sha256: str
    cell: Cell


def needs(data: Mirror, groups: Sequence[RunGroup], offers: Sequence[Sequence[Offer]]) -> Sequence[Need]:
    """Gather what has to be resolved: what the data knows of each distribution, and what a run's wheels say.

    Each distribution is resolved by itself, so that wheels that nobody installs together need not
    fit together; what the data knows is resolved in one piece, too.
    """
    found: dict[tuple[Cell, tuple[str, ...]], Need] = {}
    lists = [*data.requirements.items(), ("all of mirror.toml", _all(data))]
    for python, platform in product(data.pythons, data.platforms):
        cell = Cell(python=python, platform=platform)
        stated = [(f"{name} (mirror.toml)", lines) for name, lines in lists]
        for group, offered in zip(groups, offers, strict=True):
            if group.outputs.platform == platform:
                stated += [
                    (one.name, required_by(group.store, one)) for one in offered if fits(one, cell.tag)
                ]
        for of, lines in stated:
            kept = others_of(lines, where=of)
            if kept:
                found.setdefault((cell, kept), Need(cell=cell, of=of, requirements=kept))
    return list(found.values())


def _all(data: Mirror) -> tuple[str, ...]:
    return tuple(line for lines in data.requirements.values() for line in lines)


def resolved(data: Mirror, wanted: Sequence[Need]) -> Sequence[Source]:
    """Resolve each need into files, by file name."""
    sources: dict[str, Source] = {}
    for need, answer in zip(wanted, each(lambda one: _ask(data, one), wanted, jobs=_JOBS), strict=True):
        for one in answer:
            if is_ours(one.name):
                raise DataError(
                    f"{need.of} requires {one.name} through others' packages, and that is a name of ours: "
                    "what the public index has under it is somebody else's.",
                    hint="See who requires it, and leave that out of ci/mirror.toml.",
                )
            for source in _sources(one, need.cell):
                before = sources.setdefault(source.filename, source)
                if before.sha256 != source.sha256:
                    raise StoreError(f"The configured indexes have two files {source.filename}.")
    return [sources[name] for name in sorted(sources)]


def _ask(data: Mirror, need: Need) -> Sequence[Resolved]:
    question = Question(
        requirements=need.requirements,
        sources=configured(),
        exact=False,
        python_version=need.cell.python,
        platform=data.platforms[need.cell.platform].uv,
        only_wheels=True,
    )
    try:
        return resolve(question)
    except EnvironmentSetupError as problem:
        where = f"Python {need.cell.python} on {need.cell.platform}"
        raise EnvironmentSetupError(f"What {need.of} requires, for {where}: {problem.message}") from problem


def _sources(one: Resolved, cell: Cell) -> Iterator[Source]:
    for file in one.files:
        yield Source(
            filename=file.filename, distribution=one.name, version=one.version, sha256=file.sha256, cell=cell
        )


def batches(sources: Sequence[Source]) -> Sequence[Sequence[Source]]:
    """Divide files into calls of pip: one cell each, and no distribution twice."""
    found: list[list[Source]] = []
    for one in sources:
        for batch in found:
            same_cell = batch[0].cell == one.cell
            if same_cell and all(other.distribution != one.distribution for other in batch):
                batch.append(one)
                break
        else:
            found.append([one])
    return found


def download(data: Mirror, batch: Sequence[Source], folder: Path) -> None:
    """Let pip fetch files of one cell, each by its digest."""
    cell = batch[0].cell
    lock = folder / f"{cell.tag}-{cell.platform}.txt"
    lines = [f"{one.distribution}=={one.version} --hash=sha256:{one.sha256}\n" for one in batch]
    files.write_text(lock, "".join(lines))
    argv = [sys.executable, "-m", "pip", "--disable-pip-version-check", "--no-input", "download"]
    argv += ["--quiet", "--no-deps", "--require-hashes", "--only-binary", ":all:", "--progress-bar", "off"]
    argv += ["--python-version", cell.python, "--implementation", "cp", "--abi", cell.tag, "--abi", "abi3"]
    for platform in data.platforms[cell.platform].pip:
        argv += ["--platform", platform]
    try:
        process.run(
            [*argv, "--dest", str(folder), "-r", str(lock)], env=installer.environment_for(exact=False)
        )
    except ProcessError as problem:
        raise EnvironmentSetupError(
            f"{len(batch)} files for Python {cell.python} on {cell.platform} could not be fetched.",
            hint="pip's own words stand above; what came already is kept, so run it again.",
        ) from problem


def publish(data: Mirror, store: Store, source: Source, path: Path) -> FileRecord:
    """Put a file and its sidecar into the index's folder."""
    metadata = read_metadata(path)
    if is_ours(metadata.name) or canonicalize_name(metadata.name) != source.distribution:
        raise DataError(f"{path.name} calls itself {metadata.name} inside; it is not mirrored.")
    key = f"{data.prefix}/{source.filename}"
    store.put_file(key, path, sha256=source.sha256, replace=False)
    store.put_bytes(f"{key}{SIDECAR}", metadata.raw, replace=False)
    return FileRecord(
        name=source.filename,
        key=key,
        size=path.stat().st_size,
        sha256=source.sha256,
        distribution=source.distribution,
        version=source.version,
        requires_python=" ".join(metadata.requires_python.split()),
        metadata_sha256=hashlib.sha256(metadata.raw).hexdigest(),
        license=metadata.license,
    )


def bring(
    data: Mirror, store: Store, missing: Sequence[Source], present: frozenset[str]
) -> Sequence[FileRecord]:
    """Fetch files and put them into the store; what an interrupted call put there is taken as it is."""
    put = []
    with tempfile.TemporaryDirectory(prefix="mirror.") as name:
        folder = Path(name)
        there = [one for one in missing if f"{data.prefix}/{one.filename}" in present]
        for one in there:
            key = f"{data.prefix}/{one.filename}"
            if store.digest(key) != one.sha256:
                raise StoreError(
                    f"{key} in {store.url} is not the file of that name that the public index has.",
                    hint="Find out who put it there, and delete it.",
                )
            put.append(publish(data, store, one, store.fetch(key, folder)))
        for batch in batches([one for one in missing if one not in there]):
            cell = batch[0].cell
            with console.group(f"{len(batch)} files for Python {cell.python} on {cell.platform}"):
                download(data, batch, folder)
                put += each(lambda one: publish(data, store, one, folder / one.filename), batch)
    return put
