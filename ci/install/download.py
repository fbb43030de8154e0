"""A run's wheels and sdists -> a folder for ``--find-links DIR --no-index``."""

import hashlib
import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from ci.install import Devices, base_python, devices_for, parse_requirements, pinned
from ci.install.dependencies import mirror
from ci.publish.batches import show
from core import console, files
from core.cli.options import Common
from core.env import interpreter
from core.errors import MissingInputError, StoreError, nearest
from core.packages.candidates import Candidate, candidate_named, candidate_of_record, read_requirements
from core.packages.groups import RunGroup, find_group, recorded_candidates
from core.packages.search import others_required_by_lines, parse_requirement
from core.parallel import Transfer, map_in_threads, transfer
from core.run import records
from core.wheel.distributions import is_ours
from rocm_packaging.packages.layouts import device_target, is_rocm, serves

_LOCK = ".fetch.lock"
_BUILT_WITH = ("setuptools", "wheel")  # what the rocm sdist is built with


@dataclass(frozen=True, kw_only=True)
class DownloadOptions:
    """Which files of a run are fetched, and where to.

    Attributes:
        folder: Where they go.
        artifact_group: The run's group of wheels; None for that of the GPU family.
        packages: Requirements; with none, everything is fetched.
        with_dependencies: Also what they require of others, from the store's index of dependencies.
        jobs: How many files are fetched at a time.
    """

    folder: Path
    artifact_group: str | None
    packages: Sequence[str]
    with_dependencies: bool
    jobs: int


def download(common: Common, options: DownloadOptions) -> None:
    """Fetch the files of a run that are not there already, and print how to install them."""
    group = find_group(common, options.artifact_group or common.artifact_group or None)
    tag = interpreter(base_python(str(common.python))).tag if common.python else ""
    offers = [offer for offer in recorded_candidates(group) if offer.fits(tag or None)]
    if not offers:
        raise MissingInputError(f"Nothing in {group.where} is for that Python.", hint="Leave --python out.")

    requested = parse_requirements(options.packages) if options.packages else ()
    devices = devices_for(requested, common.gpu_family or group.family, here=False)
    if devices.family:
        # The files may be for any machine of the families, and for no other one.
        members = devices.family.split(";")
        offers = [offer for offer in offers if serves(offer.distribution, members, devices.targets)]
    distributions = {offer.distribution for offer in offers}
    for name in sorted({canonicalize_name(requirement.name) for requirement in requested} - distributions):
        raise MissingInputError(f"{group.where} has no {name}. {nearest(name, distributions)}")

    roots = [pinned(requirement, offers) for requirement in requested]
    selected: Sequence[Candidate] = closure(group, offers, roots, devices) if roots else offers
    lines: list[str] = []
    if not options.with_dependencies:
        for offer in selected:
            lines += read_requirements(offer, group.store)
    others = others_required_by_lines(lines, where=group.where)
    if options.with_dependencies:
        selected = [*selected, *dependencies(group, selected, tag)]

    folder = options.folder.absolute()
    show(selected)
    if common.dry_run:
        count = console.counted(len(selected), "file")
        console.done(f"setup_venv: {count} would be fetched from {group.where} into {folder}")
        return
    fresh = fetch(group, selected, folder, jobs=options.jobs)
    console.done(f"setup_venv: {len(selected)} files in {folder}, {len(fresh)} of them fetched now")
    console.say(f"Install them: {command(folder, selected, roots, others)}")


def closure(
    group: RunGroup, offers: Sequence[Candidate], roots: Sequence[str], devices: Devices | None = None
) -> Sequence[Candidate]:
    """Choose what requirements name, and what that requires of the same run, on any Python."""
    chosen: dict[str, Candidate] = {}
    waiting = [Requirement(root) for root in roots]
    while waiting:
        wanted = waiting.pop()
        name = canonicalize_name(wanted.name)
        for one in offers:
            fitting = one.distribution == name and wanted.specifier.contains(one.version, prereleases=True)
            if fitting and one.name not in chosen:
                chosen[one.name] = one
                waiting += _requirements(group, one, offers)
        if devices and not waiting:
            held = {one.distribution: one.version for one in chosen.values()}
            waiting += map(Requirement, devices.packages(held, offers))
    return [chosen[name] for name in sorted(chosen)]


def dependencies(group: RunGroup, wanted: Sequence[Candidate], tag: str) -> Sequence[Candidate]:
    """Choose what files require of others, from the dependencies' index of the same store."""
    store = group.store
    keys = [one.key for one in store.list(f"{mirror().prefix}/manifests") if one.key.endswith(".json")]
    found = [
        candidate_of_record(one) for key in keys for one in records.parse(store.read(key), where=key).files
    ]
    there = [
        one
        for one in found
        if one.fits(tag or None, group.outputs.platform) and not is_ours(one.distribution)
    ]
    if not there:
        raise MissingInputError(
            f"{store.url} has no dependencies' index, or nothing in it for this Python.",
            hint=f"Make it: nox -s mirror_deps -- --from-run-id {group.outputs.run_id} --store {store.url}",
        )
    built = () if all(candidate.is_wheel for candidate in wanted) else _BUILT_WITH
    roots = [*(f"{one.distribution}=={one.version}" for one in wanted), *built]
    ours = {one.name for one in wanted}
    return [one for one in closure(group, [*wanted, *there], roots) if one.name not in ours]


def _requirements(group: RunGroup, one: Candidate, offers: Sequence[Candidate]) -> Sequence[Requirement]:
    """Read what a file requires; the rocm sdist decides that where it is installed, so it may be any."""
    if not one.is_wheel and is_rocm(one.distribution):
        names = {other.distribution for other in offers if is_rocm(other.distribution)}
        return [Requirement(f"{name}=={one.version}") for name in names]
    found = (parse_requirement(line, one.name) for line in read_requirements(one, group.store))
    return [line for line in found if "extra" not in str(line.marker or "")]


def fetch(group: RunGroup, wanted: Sequence[Candidate], folder: Path, *, jobs: int = 8) -> Sequence[str]:
    """Fetch files in parallel, each verified against its record before it gets its name; return their names.

    What is there already, by its digest, is kept, so that an interrupted fetch is resumed.
    """
    total = sum(candidate.size or 0 for candidate in wanted)
    names = {one.name for one in (*wanted, *recorded_candidates(group))}
    versions = {(one.distribution, one.version) for one in wanted}
    for path in folder.iterdir() if folder.is_dir() else ():
        candidate = candidate_named(path.name, url=str(path))
        if candidate is None or candidate.name in names:
            continue
        if (candidate.distribution, candidate.version) in versions:
            raise StoreError(
                f"{path} is not of {group.where}, but an installer would take it.",
                hint="Remove it, or fetch into another folder (--download).",
            )
    title = f"Fetching {len(wanted)} files, {console.size(total)}, from {group.where}"
    with files.locked(folder / _LOCK, what=str(folder)), transfer(title, size=total) as shown:
        # the largest first, so that none of them is waited for at the end
        order = sorted(wanted, key=lambda candidate: -(candidate.size or 0))
        fresh = map_in_threads(lambda one: _fetch(group, one, folder / one.name, shown), order, jobs=jobs)
    return [one.name for one, new in zip(order, fresh, strict=True) if new]


def _fetch(group: RunGroup, one: Candidate, path: Path, shown: Transfer) -> bool:
    """Fetch a file; return whether it was not there. A store reads on where a connection broke."""
    digest = hashlib.sha256()
    if path.is_file() and path.stat().st_size == one.size and files.sha256(path) == one.sha256:
        shown.advance(one.size)
        return False
    with files.atomic(path) as target, group.store.open(str(one.key)) as source:
        while chunk := source.read(files.CHUNK):
            digest.update(chunk)
            target.write(chunk)
            shown.advance(len(chunk))
        if digest.hexdigest() != one.sha256:
            raise StoreError(
                f"{one.key} in {group.store.url} is not the file that its record names: its digest "
                f"is {digest.hexdigest()}, recorded is {one.sha256}.",
                hint="It was replaced; find out by whom, and do not install it.",
            )
    shown.finish(one.name, one.size or 0)
    return True


def command(
    folder: Path, wanted: Sequence[Candidate], roots: Sequence[str] = (), others: Sequence[str] = ()
) -> str:
    """Return the command that installs fetched files, with versions: no others may be taken for them.

    What they require of `others`, and is not among them, comes first, from the user's own index.
    """
    versions: dict[str, set[str]] = {}
    for one in wanted:
        versions.setdefault(one.distribution, set()).add(one.version)
    if roots:
        # without device packages everything installs, and fails at its first kernel
        devices = {f"{one.distribution}=={one.version}" for one in wanted if device_target(one.distribution)}
        pins = [*roots, *sorted(devices)]
    else:
        parts = {name for name in versions if name.startswith("rocm-sdk-") and not device_target(name)}
        extras = ",".join(x for x in ("devel", "libraries") if any(f"rocm-sdk-{x}" in name for name in parts))
        rocm = f"rocm[{extras}]" if extras else "rocm"
        named = {name: of for name, of in versions.items() if "rocm" not in versions or name not in parts}
        pins = [
            f"{rocm if name == 'rocm' else name}=={min(of)}" for name, of in named.items() if len(of) == 1
        ]
    # pip's cache of built wheels does not know which GPU family an sdist was built for
    built = any(not candidate.is_wheel for candidate in wanted)
    more = ["--no-cache-dir"] if built else []
    helped = any(one.distribution == _BUILT_WITH[0] for one in wanted)
    if built and not helped:
        others, more = [*_BUILT_WITH, *others], [*more, "--no-build-isolation"]
    first = f"{shlex.join(['pip', 'install', *others])} && " if others else ""
    return first + shlex.join(["pip", "install", "--no-index", "--find-links", str(folder), *more, *pins])
