"""What `mirror.toml` says: what of others' packages is mirrored for ours."""

import functools
import sys
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
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
from core.env.installer import configured_sources
from core.errors import DataError, EnvironmentSetupError, ProcessError, StoreError
from core.packages.candidates import Candidate, pin_of, read_requirements
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
_QUERIES_AT_ONCE = 4  # uv waits for the network, and resolves on one core


def _require_requirement(text: str) -> str:
    try:
        Requirement(text)
    except InvalidRequirement as problem:
        raise ValueError(f"{text!r} is not a requirement: {problem}") from problem
    return text


class InstallerPlatformNames(Model):
    """What uv and pip call a platform that is resolved for."""

    uv: str
    pip: tuple[str, ...]


class MirrorData(Model):
    """What `mirror.toml` says."""

    prefix: str
    components: bool = False
    pythons: tuple[str, ...]
    platforms: dict[Platform, InstallerPlatformNames]
    requirements: dict[str, tuple[Annotated[str, AfterValidator(_require_requirement)], ...]]

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

    def find_installer_platform_names(self, cell: Cell) -> InstallerPlatformNames:
        """Return what uv and pip call the platform of a cell."""
        if cell.platform not in self.platforms:
            raise DataError(f"mirror.toml has no platform for {cell}.")
        return self.platforms[cell.platform]

    @property
    def index_key(self) -> str:
        """Key of the index's first page."""
        return f"{self.prefix}/simple/index.html"


@functools.cache
def mirror() -> MirrorData:
    """Read the data file."""
    return load_toml(MIRROR_FILE, MirrorData)


# --- What is needed --------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class Need:
    """Requirements that must be resolvable together in a cell; `required_by` says whose they are."""

    cell: Cell
    required_by: str
    requirements: tuple[str, ...]


def collect_needs(mirror_data: MirrorData, groups: Sequence[RunGroup]) -> Sequence[Need]:
    """Return what has to be resolved: what the data says that ours require, and what a run's wheels do.

    Each distribution is resolved by itself, so that wheels that are never installed together need not
    fit together. What the data says is resolved in one piece, too.
    """
    needs_by_content: dict[tuple[Cell, tuple[str, ...]], Need] = {}
    for cell in mirror_data.cells:
        for distribution, lines in _requirements_in_cell(mirror_data, cell, groups):
            requirements = others_required_by_lines(lines, where=distribution)
            if requirements:
                need = Need(cell=cell, required_by=distribution, requirements=requirements)
                needs_by_content.setdefault((cell, requirements), need)
    return list(needs_by_content.values())


def _requirements_in_cell(
    mirror_data: MirrorData,
    cell: Cell,
    groups: Sequence[RunGroup],
) -> Iterator[tuple[str, Sequence[str]]]:
    """Yield what requires something in a cell, and its requirements."""
    all_lines: list[str] = []
    for name, lines in mirror_data.known_requirements.items():
        yield f"{name} (mirror.toml)", lines
        all_lines += lines
    yield "all of mirror.toml", all_lines

    for group in groups:
        if group.outputs.platform != cell.platform:
            continue
        for candidate in group.listed:
            if candidate.fits(cell.python_tag):
                yield candidate.name, read_requirements(candidate, group.store)


def resolve_needs(mirror_data: MirrorData, all_needs: Sequence[Need]) -> Mapping[Cell, Sequence[Candidate]]:
    """Return the files that meet all needs, each once: with the first cell that needs it."""
    answers = map_in_threads(partial(_resolve_need, mirror_data), all_needs, jobs=_QUERIES_AT_ONCE)
    digests: dict[str, str] = {}
    files_by_cell: dict[Cell, list[Candidate]] = {}
    for need, packages in zip(all_needs, answers, strict=True):
        for file in _files_of(packages):
            digest = file.require_digest()
            if file.name not in digests:
                digests[file.name] = digest
                files_by_cell.setdefault(need.cell, []).append(file)
            elif digests[file.name] != digest:
                raise StoreError(
                    f"The configured indexes have two files {file.name}.",
                    hint="One of them was replaced. Find out which, and leave its index out.",
                )
    return files_by_cell


def _resolve_need(mirror_data: MirrorData, need: Need) -> Sequence[ResolvedPackage]:
    query = ResolverQuery(
        requirements=need.requirements,
        sources=configured_sources(),
        python_version=need.cell.python,
        platform=mirror_data.find_installer_platform_names(need.cell).uv,
        only_wheels=True,
    )
    try:
        return resolve(query)
    except EnvironmentSetupError as problem:
        raise EnvironmentSetupError(
            f"What {need.required_by} requires, for {need.cell}: {problem.message}",
            hint="Only wheels are mirrored: require a version that has one, or add one to an index of yours.",
        ) from problem


def _files_of(packages: Iterable[ResolvedPackage]) -> Iterator[Candidate]:
    for package in packages:
        yield from package.files


# --- The mirror's files ----------------------------------------------------------------------


def mirror_files(
    mirror_data: MirrorData,
    store: Store,
    files_by_cell: Mapping[Cell, Sequence[Candidate]],
) -> Sequence[FileRecord]:
    """Bring files into the store; what an interrupted call put there is taken as it is."""
    stored_keys = {stored_object.key for stored_object in store.list(mirror_data.prefix, recursive=False)}
    absent_files: dict[Cell, list[Candidate]] = {}
    records: list[FileRecord] = []
    with temporary.folder("mirror") as folder:
        for cell, cell_files in files_by_cell.items():
            for file in cell_files:
                if key_of(mirror_data, file) in stored_keys:
                    records.append(_take_stored_file(mirror_data, store, file, folder))
                else:
                    absent_files.setdefault(cell, []).append(file)

        for cell, cell_files in downloads(absent_files):
            with console.group(f"{console.counted(len(cell_files), 'file')} for {cell}"):
                download(mirror_data, cell, cell_files, folder)
                records += map_in_threads(
                    lambda file: publish(mirror_data, store, file, folder / file.name), cell_files
                )
    return records


def key_of(mirror_data: MirrorData, file: Candidate) -> str:
    """Return the key that a file has in the mirror's store."""
    return f"{mirror_data.prefix}/{file.name}"


def _take_stored_file(
    mirror_data: MirrorData,
    store: Store,
    file: Candidate,
    folder: Path,
) -> FileRecord:
    """Return the record of a file that no record names, after comparing it with the public index's."""
    key = key_of(mirror_data, file)
    if store.digest(key) != file.sha256:
        raise StoreError(
            f"{key} in {store.url} is not the file of that name that the public index has.",
            hint="Find out who put it there, and delete it.",
        )
    return publish(mirror_data, store, file, store.fetch(key, folder))


def downloads(
    files_by_cell: Mapping[Cell, Sequence[Candidate]],
) -> Sequence[tuple[Cell, Sequence[Candidate]]]:
    """Divide files into calls of pip, which takes one cell each, and no distribution twice."""
    calls: list[tuple[Cell, Sequence[Candidate]]] = []
    for cell, cell_files in files_by_cell.items():
        files_by_call: dict[int, list[Candidate]] = {}
        counts: Counter[str] = Counter()
        for file in cell_files:
            files_by_call.setdefault(counts[file.distribution], []).append(file)
            counts[file.distribution] += 1
        calls += [(cell, call_files) for call_files in files_by_call.values()]
    return calls


def download(
    mirror_data: MirrorData,
    cell: Cell,
    cell_files: Sequence[Candidate],
    folder: Path,
) -> None:
    """Let pip fetch files of one cell, each by its digest."""
    tag = cell.python_tag or ""
    requirements_file = folder / f"{tag}-{cell.platform}.txt"
    pins = [pin_of(file.distribution, file.version, [file]) for file in cell_files]
    files.write_text(requirements_file, "".join(f"{pin}\n" for pin in pins))

    command = [sys.executable, "-m", "pip", "--disable-pip-version-check", "--no-input", "download"]
    command += ["--quiet", "--no-deps", "--require-hashes", "--only-binary", ":all:", "--progress-bar", "off"]
    command += [
        "--python-version",
        cell.python or "",
        "--implementation",
        "cp",
        "--abi",
        tag,
        "--abi",
        "abi3",
    ]
    for platform in mirror_data.find_installer_platform_names(cell).pip:
        command += ["--platform", platform]
    # No variable of the environment names a source.
    command += [*configured_sources().arguments, "--dest", str(folder), "-r", str(requirements_file)]
    try:
        process.run(command, env=installer.installer_variables(configured_sources()), quiet=True)
    except ProcessError as problem:
        raise EnvironmentSetupError(
            f"Could not fetch {len(cell_files)} files for {cell}.",
            hint="What was fetched is kept, so run it again.",
        ) from problem


def publish(mirror_data: MirrorData, store: Store, file: Candidate, path: Path) -> FileRecord:
    """Put a file and its sidecar into the index's folder; return its record."""
    key = key_of(mirror_data, file)
    digest = file.require_digest()
    record, metadata = describe(path, key=key, sha256=digest)
    if record.distribution != file.distribution:
        raise DataError(f"{path.name} calls itself {record.distribution}; it is not mirrored.")
    store.put_file(key, path, sha256=digest, replace=False)
    store.put_bytes(f"{key}{SIDECAR}", metadata or b"", replace=False)
    return record


def source_of(mirror_data: MirrorData, store: Store) -> RecordSource:
    """Return what names the mirrored files: a record of each call that put some there."""
    return RecordSource(store=store, prefix=f"{mirror_data.prefix}/manifests")
