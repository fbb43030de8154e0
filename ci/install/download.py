"""A run's wheels and sdists -> a folder for ``--find-links DIR --no-index``."""

import hashlib
from collections.abc import Iterable, Sequence
from functools import partial
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from ci.install import base_python, parse_requirements, pin_requirement
from ci.install.dependencies import mirror
from ci.install.devices import Devices, devices_for
from ci.publish.batches import print_files
from core import console, files
from core.cli.options import Common
from core.env import interpreter
from core.errors import MissingInputError, StoreError, nearest
from core.packages.candidates import Candidate, candidate_named, candidate_of_record, read_requirements
from core.packages.groups import RunGroup, find_group
from core.packages.search import others_required_by_lines, parse_requirement
from core.parallel import Transfer, map_in_threads, transfer
from core.run import records
from core.shell import command_line
from core.wheel.distributions import is_ours
from rocm_packaging.packages.layouts import device_target, is_rocm, serves

_LOCK_FILE = ".fetch.lock"
_BUILD_REQUIREMENTS = ("setuptools", "wheel")  # what the rocm sdist is built with
_ROCM_PART_PREFIX = "rocm-sdk-"


def download(
    common: Common,
    folder: Path,
    artifact_group: str | None,
    packages: Sequence[str],
    *,
    with_dependencies: bool,
    jobs: int,
) -> None:
    """Fetch the files of a run that are not there already, and print how to install them.

    Args:
        common: Which run.
        folder: Where the files go.
        artifact_group: The run's group of wheels; None for that of the GPU family.
        packages: Requirements; with none, everything is fetched.
        with_dependencies: Also what they require of others, from the store's index of dependencies.
        jobs: How many files are fetched at a time.
    """
    group = find_group(common, artifact_group or common.artifact_group or None)
    tag = _python_tag(common)
    candidates: Sequence[Candidate] = [candidate for candidate in group.listed if candidate.fits(tag)]
    if not candidates:
        raise MissingInputError(f"Nothing in {group.where} is for that Python.", hint="Leave --python out.")

    requirements: Sequence[Requirement] = ()
    if packages:
        requirements = parse_requirements(packages)
    devices = devices_for(requirements, common.gpu_family or group.family, for_this_machine=False)
    candidates = _for_devices(candidates, devices)
    _require_names(group, requirements, candidates)

    roots = [pin_requirement(requirement, candidates) for requirement in requirements]
    selected_files = candidates
    if roots:
        selected_files = closure(group, candidates, roots, devices)
    other_requirements: Sequence[str] = ()
    if with_dependencies:
        selected_files = [*selected_files, *dependencies(group, selected_files, tag)]
    else:
        other_requirements = _requirements_of_others(group, selected_files)

    folder = folder.absolute()
    count = console.counted(len(selected_files), "file")
    print_files(selected_files)
    if common.dry_run:
        console.done(f"setup_venv: {count} would be fetched from {group.where} into {folder}")
        return
    new_names = fetch(group, selected_files, folder, jobs=jobs)
    console.done(f"setup_venv: {count} in {folder}, {len(new_names)} of them fetched now")
    console.say(f"Install them: {command(folder, selected_files, roots, other_requirements)}")


def _python_tag(common: Common) -> str | None:
    """Return the ABI tag of the Python that is named; None for every Python."""
    if common.python is None:
        return None
    return interpreter(base_python(str(common.python))).tag


def _for_devices(candidates: Sequence[Candidate], devices: Devices) -> Sequence[Candidate]:
    """Return the files for any machine of the GPU families, and for no other one."""
    if not devices.family:
        return candidates
    families = devices.family.split(";")
    return [
        candidate for candidate in candidates if serves(candidate.distribution, families, devices.targets)
    ]


def _require_names(
    group: RunGroup,
    requirements: Sequence[Requirement],
    candidates: Sequence[Candidate],
) -> None:
    """Require that a run has every distribution that is named."""
    distributions = {candidate.distribution for candidate in candidates}
    for requirement in requirements:
        name = canonicalize_name(requirement.name)
        if name not in distributions:
            raise MissingInputError(f"{group.where} has no {name}. {nearest(name, distributions)}")


# --- What is required ------------------------------------------------------------------------


def closure(
    group: RunGroup,
    candidates: Sequence[Candidate],
    roots: Sequence[str],
    devices: Devices | None = None,
) -> Sequence[Candidate]:
    """Return the files that requirements name, and what these require of the same run, on any Python."""
    selected: dict[str, Candidate] = {}
    open_requirements = list(map(Requirement, roots))
    while open_requirements:
        requirement = open_requirements.pop()
        for candidate in candidates:
            if candidate.name in selected or not _meets(candidate, requirement):
                continue
            selected[candidate.name] = candidate
            open_requirements += _requirements_of(group, candidate, candidates)

        if devices is not None and not open_requirements:
            versions = {candidate.distribution: candidate.version for candidate in selected.values()}
            open_requirements += map(Requirement, devices.packages(versions, candidates))
    return [selected[name] for name in sorted(selected)]


def _meets(candidate: Candidate, requirement: Requirement) -> bool:
    if candidate.distribution != canonicalize_name(requirement.name):
        return False
    return requirement.specifier.contains(candidate.version, prereleases=True)


def _requirements_of(
    group: RunGroup,
    candidate: Candidate,
    candidates: Sequence[Candidate],
) -> Sequence[Requirement]:
    """Return what a file requires without extras.

    The rocm sdist decides that where it is installed, so it may require any of ROCm's packages.
    """
    if not candidate.is_wheel and is_rocm(candidate.distribution):
        requirements_by_name: dict[str, Requirement] = {}
        for other in candidates:
            name = other.distribution
            if is_rocm(name):
                requirements_by_name[name] = Requirement(f"{name}=={candidate.version}")
        return list(requirements_by_name.values())

    requirements: list[Requirement] = []
    for line in read_requirements(candidate, group.store):
        requirement = parse_requirement(line, candidate.name)
        if "extra" not in str(requirement.marker or ""):
            requirements.append(requirement)
    return requirements


def dependencies(
    group: RunGroup,
    selected_files: Sequence[Candidate],
    tag: str | None,
) -> Sequence[Candidate]:
    """Return what files require of others, from the dependencies' index of the same store."""
    store = group.store
    mirrored_files = [
        candidate
        for candidate in _mirrored_candidates(group)
        if candidate.fits(tag, group.outputs.platform) and not is_ours(candidate.distribution)
    ]
    if not mirrored_files:
        raise MissingInputError(
            f"{store.url} has no dependencies' index, or nothing in it for this Python.",
            hint=f"Make it: nox -s mirror_deps -- --from-run-id {group.outputs.run_id} --store {store.url}",
        )

    roots: list[str] = []
    selected_names: set[str] = set()
    for file in selected_files:
        roots.append(f"{file.distribution}=={file.version}")
        selected_names.add(file.name)
    if _has_sdist(selected_files):
        roots += _BUILD_REQUIREMENTS
    needed_files = closure(group, [*selected_files, *mirrored_files], roots)
    return [file for file in needed_files if file.name not in selected_names]


def _has_sdist(candidates: Iterable[Candidate]) -> bool:
    return any(not candidate.is_wheel for candidate in candidates)


def _mirrored_candidates(group: RunGroup) -> Sequence[Candidate]:
    candidates: list[Candidate] = []
    for stored_object in group.store.list(f"{mirror().prefix}/manifests"):
        if stored_object.key.endswith(".json"):
            record = records.parse(group.store.read(stored_object.key), where=stored_object.key)
            candidates += map(candidate_of_record, record.files)
    return candidates


def _requirements_of_others(group: RunGroup, selected_files: Sequence[Candidate]) -> Sequence[str]:
    lines: list[str] = []
    for file in selected_files:
        lines += read_requirements(file, group.store)
    return others_required_by_lines(lines, where=group.where)


# --- Fetching --------------------------------------------------------------------------------


def fetch(
    group: RunGroup,
    candidates: Sequence[Candidate],
    folder: Path,
    *,
    jobs: int = 8,
) -> Sequence[str]:
    """Fetch files in parallel, each verified against its record before it gets its name; return their names.

    What is there already, by its digest, is kept, so that an interrupted fetch is resumed.
    """
    _refuse_strangers(group, candidates, folder)
    size = sum(candidate.size or 0 for candidate in candidates)
    title = f"Fetching {len(candidates)} files, {console.size(size)}, from {group.where}"
    with files.locked(folder / _LOCK_FILE, what=str(folder)), transfer(title, size=size) as progress:
        # The largest first, so that none of them is waited for at the end.
        largest_first = sorted(candidates, key=lambda candidate: -(candidate.size or 0))
        fetch_file = partial(_fetch_file, group, folder, progress)
        names = map_in_threads(fetch_file, largest_first, jobs=jobs)
    return [name for name in names if name is not None]


def _refuse_strangers(
    group: RunGroup,
    candidates: Sequence[Candidate],
    folder: Path,
) -> None:
    """Refuse a folder with files of the same versions that are not the run's: an installer may take them."""
    if not folder.is_dir():
        return
    names_of_run = {candidate.name for candidate in group.listed}
    releases: set[tuple[str, str]] = set()
    for candidate in candidates:
        names_of_run.add(candidate.name)
        releases.add((candidate.distribution, candidate.version))
    for path in folder.iterdir():
        stranger = candidate_named(path.name, url=str(path))
        if stranger is None or stranger.name in names_of_run:
            continue
        if (stranger.distribution, stranger.version) in releases:
            raise StoreError(
                f"{path} is not of {group.where}, but an installer would take it.",
                hint="Remove it, or fetch into another folder (--download).",
            )


def _fetch_file(
    group: RunGroup,
    folder: Path,
    progress: Transfer,
    candidate: Candidate,
) -> str | None:
    """Fetch a file; return its name, or None where it is there already."""
    path = folder / candidate.name
    size = candidate.size or 0
    if path.is_file() and path.stat().st_size == size and files.sha256(path) == candidate.sha256:
        progress.advance(size)
        return None

    digest = hashlib.sha256()
    # A store reads on where a connection broke.
    with files.atomic_file(path) as target, group.store.open(str(candidate.key)) as source:
        while chunk := source.read(files.CHUNK):
            digest.update(chunk)
            target.write(chunk)
            progress.advance(len(chunk))
        if digest.hexdigest() != candidate.sha256:
            raise StoreError(
                f"{candidate.key} in {group.store.url} is not the file that its record names: its digest "
                f"is {digest.hexdigest()}, recorded is {candidate.sha256}.",
                hint="It was replaced; find out by whom, and do not install it.",
            )
    progress.finish(candidate.name, size)
    return candidate.name


# --- How they are installed ------------------------------------------------------------------


def command(
    folder: Path,
    selected_files: Sequence[Candidate],
    roots: Sequence[str] = (),
    other_requirements: Sequence[str] = (),
) -> str:
    """Return the command that installs fetched files, with versions: no others may be taken for them.

    What they require of others, and is not among them, comes first, from the user's own index.
    """
    arguments = ["pip", "install", "--no-index", "--find-links", str(folder)]
    installed_before = list(other_requirements)
    if _has_sdist(selected_files):
        # pip's cache of built wheels does not know which GPU family an sdist was built for.
        arguments.append("--no-cache-dir")
        if not any(file.distribution == _BUILD_REQUIREMENTS[0] for file in selected_files):
            arguments.append("--no-build-isolation")
            installed_before = [*_BUILD_REQUIREMENTS, *installed_before]

    if roots:
        # Without device packages everything installs, and fails at its first kernel.
        arguments += [*roots, *_pins_of_device_packages(selected_files)]
    else:
        arguments += _pins_of_all(selected_files)
    if not installed_before:
        return command_line(arguments)
    return f"{command_line(['pip', 'install', *installed_before])} && {command_line(arguments)}"


def _pins_of_device_packages(selected_files: Sequence[Candidate]) -> Sequence[str]:
    pins: set[str] = set()
    for file in selected_files:
        if device_target(file.distribution):
            pins.add(f"{file.distribution}=={file.version}")
    return sorted(pins)


def _pins_of_all(selected_files: Sequence[Candidate]) -> Sequence[str]:
    """Return a pin of each distribution. ROCm's parts come as extras of the sdist, where it is among them."""
    versions: dict[str, set[str]] = {}
    for file in selected_files:
        versions.setdefault(file.distribution, set()).add(file.version)

    extras = _rocm_extras([*versions])
    pins: list[str] = []
    for name, versions_of_name in versions.items():
        comes_with_rocm = "rocm" in versions and _is_rocm_part(name)
        if len(versions_of_name) == 1 and not comes_with_rocm:
            requirement = f"rocm{extras}" if name == "rocm" else name
            pins.append(f"{requirement}=={min(versions_of_name)}")
    return pins


def _rocm_extras(names: Sequence[str]) -> str:
    """Return the extras that bring ROCm's parts: ``[devel,libraries]``; "" for none."""
    extras: set[str] = set()
    for name in filter(_is_rocm_part, names):
        for extra in ("devel", "libraries"):
            if f"{_ROCM_PART_PREFIX}{extra}" in name:
                extras.add(extra)
    return f"[{','.join(sorted(extras))}]" if extras else ""


def _is_rocm_part(name: str) -> bool:
    return name.startswith(_ROCM_PART_PREFIX) and not device_target(name)
