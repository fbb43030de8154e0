"""What `mirror.toml` says: what of others' packages is mirrored for ours."""

import functools
import sys
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import Annotated

from packaging.requirements import InvalidRequirement, Requirement
from pydantic import AfterValidator

from ci.publish.index import RecordSource
from core import console, files, process, temporary
from core.cell import Cell
from core.data import Model, load_toml
from core.env import installer
from core.env.installer import configured
from core.errors import DataError, EnvironmentSetupError, ProcessError, StoreError
from core.packages.candidates import Candidate, read_requirements
from core.packages.groups import RunGroup
from core.packages.resolution import ResolvedPackage, ResolverQuery, resolve
from core.packages.search import others_required_by_lines
from core.parallel import map_in_threads
from core.run import Platform
from core.run.records import FileRecord
from core.stores import Store
from core.wheel.distributions import SIDECAR, describe
from pytorch_build.components import COMPONENTS

MIRROR_FILE = Path(__file__).parents[1] / "mirror.toml"
_JOBS = 4  # uv waits for the network, and resolves on one core


def _requirement(text: str) -> str:
    try:
        Requirement(text)
    except InvalidRequirement as problem:
        raise ValueError(f"{text!r} is not a requirement: {problem}") from problem
    return text


class PlatformNames(Model):
    """What uv and pip call a platform that is resolved for."""

    uv: str
    pip: tuple[str, ...]


class Mirror(Model):
    """What `mirror.toml` says."""

    prefix: str
    components: bool = False
    pythons: tuple[str, ...]
    platforms: dict[Platform, PlatformNames]
    requirements: dict[str, tuple[Annotated[str, AfterValidator(_requirement)], ...]]

    @property
    def known_requirements(self) -> Mapping[str, Sequence[str]]:
        """What our distributions are known to require of others, by distribution."""
        requirements: dict[str, Sequence[str]] = dict(self.requirements)
        if self.components:
            for component in COMPONENTS.values():
                requirements[component.distribution] = component.third_party_requirements
        return requirements

    @property
    def cells(self) -> Sequence[Cell]:
        """The Pythons on each platform."""
        pairs = product(self.pythons, self.platforms)
        return [Cell(python=python, platform=platform) for python, platform in pairs]

    def names_of_platform(self, cell: Cell) -> PlatformNames:
        """Return what uv and pip call the platform of a cell."""
        if cell.platform not in self.platforms:
            raise DataError(f"mirror.toml has no platform for {cell}.")
        return self.platforms[cell.platform]

    @property
    def index_key(self) -> str:
        """Key of the index's first page."""
        return f"{self.prefix}/simple/index.html"


@functools.cache
def mirror() -> Mirror:
    """Read the data file."""
    return load_toml(MIRROR_FILE, Mirror)


@dataclass(frozen=True, kw_only=True)
class Need:
    """Requirements that must be resolvable together in a cell."""

    cell: Cell
    of: str
    requirements: tuple[str, ...]


@dataclass(frozen=True, kw_only=True)
class MirroredFile(Candidate):
    """A third-party file that is to be mirrored, and for which cell it was resolved first."""

    cell: Cell


def needs(data: Mirror, groups: Sequence[RunGroup], offers: Sequence[Sequence[Candidate]]) -> Sequence[Need]:
    """Gather what has to be resolved: the data's requirements by distribution, and those of a run's wheels.

    Each distribution is resolved by itself, so that wheels that are never installed together need not
    fit together; what the data knows is resolved in one piece, too.
    """
    gathered: dict[tuple[Cell, tuple[str, ...]], Need] = {}
    for cell in data.cells:
        for distribution, lines in _stated(data, cell, groups, offers):
            requirements = others_required_by_lines(lines, where=distribution)
            if requirements:
                need = Need(cell=cell, of=distribution, requirements=requirements)
                gathered.setdefault((cell, requirements), need)
    return list(gathered.values())


def _stated(
    data: Mirror, cell: Cell, groups: Sequence[RunGroup], offers: Sequence[Sequence[Candidate]]
) -> Iterator[tuple[str, Sequence[str]]]:
    """Yield what requires something in a cell, and its requirements."""
    known_requirements = data.known_requirements
    for name, lines in known_requirements.items():
        yield f"{name} (mirror.toml)", lines
    yield "all of mirror.toml", [line for lines in known_requirements.values() for line in lines]

    for group, group_offers in zip(groups, offers, strict=True):
        if group.outputs.platform != cell.platform:
            continue
        for offer in group_offers:
            if offer.fits(cell.python_tag):
                yield offer.name, read_requirements(offer, group.store)


def resolved(data: Mirror, wanted: Sequence[Need]) -> Sequence[MirroredFile]:
    """Resolve each need into files, by file name."""
    sources: dict[str, MirroredFile] = {}
    for need, answer in zip(
        wanted, map_in_threads(lambda one: _query(data, one), wanted, jobs=_JOBS), strict=True
    ):
        for one in answer:
            for file in one.files:
                source = MirroredFile(**vars(file), cell=need.cell)
                if sources.setdefault(source.name, source).sha256 != source.sha256:
                    raise StoreError(f"The configured indexes have two files {source.name}.")
    return [sources[name] for name in sorted(sources)]


def _query(data: Mirror, need: Need) -> Sequence[ResolvedPackage]:
    query = ResolverQuery(
        requirements=need.requirements,
        sources=configured(),
        python_version=need.cell.python,
        platform=data.names_of_platform(need.cell).uv,
        only_wheels=True,
    )
    try:
        return resolve(query)
    except EnvironmentSetupError as problem:
        raise EnvironmentSetupError(
            f"What {need.of} requires, for {need.cell}: {problem.message}"
        ) from problem


def batches(sources: Sequence[MirroredFile]) -> Sequence[Sequence[MirroredFile]]:
    """Divide files into calls of pip: one cell each, and no distribution twice."""
    found: dict[tuple[Cell, int], list[MirroredFile]] = {}
    count: Counter[tuple[Cell, str]] = Counter()
    for one in sources:
        count[one.cell, one.distribution] += 1
        found.setdefault((one.cell, count[one.cell, one.distribution]), []).append(one)
    return list(found.values())


def download(data: Mirror, batch: Sequence[MirroredFile], folder: Path) -> None:
    """Let pip fetch files of one cell, each by its digest."""
    cell = batch[0].cell
    tag = cell.python_tag or ""
    lock = folder / f"{tag}-{cell.platform}.txt"
    lines = [f"{file.distribution}=={file.version} --hash=sha256:{file.require_digest()}\n" for file in batch]
    files.write_text(lock, "".join(lines))

    argv = [sys.executable, "-m", "pip", "--disable-pip-version-check", "--no-input", "download"]
    argv += ["--quiet", "--no-deps", "--require-hashes", "--only-binary", ":all:", "--progress-bar", "off"]
    argv += ["--python-version", cell.python or "", "--implementation", "cp", "--abi", tag, "--abi", "abi3"]
    for platform in data.names_of_platform(cell).pip:
        argv += ["--platform", platform]
    # no variable of the environment names a source
    argv += [*configured().arguments, "--dest", str(folder), "-r", str(lock)]
    try:
        process.run(argv, env=installer.installer_variables(configured()), quiet=True)
    except ProcessError as problem:
        raise EnvironmentSetupError(
            f"Could not fetch {len(batch)} files for {cell}.",
            hint="What was fetched is kept, so run it again.",
        ) from problem


def publish(data: Mirror, store: Store, source: MirroredFile, path: Path) -> FileRecord:
    """Put a file and its sidecar into the index's folder."""
    key = f"{data.prefix}/{source.name}"
    record, metadata = describe(path, key=key, sha256=source.require_digest())
    if record.distribution != source.distribution:
        raise DataError(f"{path.name} calls itself {record.distribution}; it is not mirrored.")
    store.put_file(key, path, sha256=source.require_digest(), replace=False)
    store.put_bytes(f"{key}{SIDECAR}", metadata or b"", replace=False)
    return record


def bring(
    data: Mirror, store: Store, missing: Sequence[MirroredFile], present: frozenset[str]
) -> Sequence[FileRecord]:
    """Fetch files and put them into the store; what an interrupted call put there is taken as it is."""
    put = []
    with temporary.folder("mirror") as folder:
        there = [one for one in missing if f"{data.prefix}/{one.name}" in present]
        for one in there:
            key = f"{data.prefix}/{one.name}"
            if store.digest(key) != one.sha256:
                raise StoreError(
                    f"{key} in {store.url} is not the file of that name that the public index has.",
                    hint="Find out who put it there, and delete it.",
                )
            put.append(publish(data, store, one, store.fetch(key, folder)))
        for batch in batches([one for one in missing if one not in there]):
            with console.group(f"{len(batch)} files for {batch[0].cell}"):
                download(data, batch, folder)
                put += map_in_threads(lambda one: publish(data, store, one, folder / one.name), batch)
    return put


def source_of(data: Mirror, store: Store) -> RecordSource:
    """Return what names the mirrored files: a record of each call that put some there."""
    return RecordSource(store=store, prefix=f"{data.prefix}/manifests")
