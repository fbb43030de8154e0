"""Installing a run's wheels: resolved into exact files first, ours from the run, theirs from elsewhere.

Of two indexes pip and uv take the highest version, whoever has it. So nothing is installed before
every file is known: a distribution of ours must be one that the run offers, and the files of each
side are then installed from their own side only, by digest.
"""

from __future__ import annotations

import json
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from packaging.version import Version

from ci.clients.device_packages import Devices
from core.page_waiting import fetch, wait_for
from core.offers import Offer, constraints
from ci.indexing.pages import Entry, render
from ci.mirror_data import mirror
from core import console, files, installer, locks, process
from core.errors import EnvironmentSetupError
from core.installer import Install, Sources, configured
from core.outputs import LOCAL_RUN
from core.resolving import Question, Resolved, resolve
from core.store_server import served_store

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence
    from pathlib import Path

    from core.offers import RunGroup
    from core.installer import Backend
    from core.interpreters import Interpreter
    from core.stores import Store

MARKER = "run-packages.json"
_HTTP = ("http://", "https://")


@dataclass(frozen=True, kw_only=True)
class Place:
    """Where our files and others' come from.

    Attributes:
        ours: Sources of our files, and of nothing else.
        both: Sources that requirements are resolved from.
        theirs: Sources of others' files; None for the person's own configuration.
    """

    ours: Sources
    both: Sources
    theirs: Sources | None


@dataclass(frozen=True, kw_only=True)
class Wanted:
    """What is to be installed.

    Attributes:
        requirements: Requirements, ours pinned.
        offers: Our files that there are for the Python.
        devices: The GPUs that packages are installed for.
        pre: Allow pre-releases of others' distributions.
        backend: What installs.
        cache_dir: The installer's cache; None for its default.
        locks: Folder of the requirements files that are written.
    """

    requirements: tuple[str, ...]
    offers: tuple[Offer, ...]
    devices: Devices = field(default_factory=Devices)
    pre: bool = False
    backend: Backend = "uv"
    cache_dir: Path | None = None
    locks: Path

    @property
    def told(self) -> str:
        """What sdists of ours are told of the GPU."""
        return self.devices.told(self.offers)

    @property
    def sdists(self) -> tuple[str, ...]:
        """Distributions of ours that are built where they are installed."""
        return tuple(sorted({one.distribution for one in self.offers if not one.name.endswith(".whl")}))


@dataclass(frozen=True, kw_only=True)
class Chosen:
    """What a resolution came to.

    Attributes:
        ours: Our distributions, each with the one file that is installed.
        theirs: Others' distributions.
    """

    ours: tuple[Resolved, ...]
    theirs: tuple[Resolved, ...]


@contextmanager
def run_place(
    group: RunGroup, offers: Sequence[Offer], *, wait: float, deps_index_url: str = ""
) -> Iterator[Place]:
    """Give the addresses of a run's pages, which list by then what the records promise.

    Pages are read over HTTP where everybody may read the run's files, else through the store by an
    address on this machine. The local run's pages are made of its records.

    Args:
        group: The group.
        offers: The files that the pages must list.
        wait: Seconds to wait for them.
        deps_index_url: The dependencies' index; "" for the store's own where it has one, else the
            person's configuration.

    Raises:
        MissingInputError: The pages do not list them in time.
    """
    cert = configured().cert
    with _address(group, offers, cert) as base:
        flat, simple = f"{base}/{group.prefix}/index.html", f"{base}/{group.prefix}/simple/"

        def await_pages(pages: Mapping[str, Sequence[Offer]]) -> None:
            wait_for(
                pages,
                seconds=wait,
                read=lambda url: fetch(url, cert=cert),
                # an address on this machine means nothing once it is gone
                named=lambda url: url.replace(base, group.store.url),
            )

        await_pages({flat: offers})
        deps = deps_index_url or _deps_index(group.store, base, cert)
        # a bucket without a server in front of it answers no folder's address
        if deps and fetch(simple, cert=cert).text is not None:
            names = sorted({one.distribution for one in offers})
            pages = {
                f"{simple}{name}/": [one for one in offers if one.distribution == name] for name in names
            }
            await_pages(pages)
            yield two_indexes(deps, simple, cert)
        else:
            yield beside_page(flat, cert, deps)


def two_indexes(deps: str, simple: str, cert: str) -> Place:
    """Name the sources of the two-index pattern: dependencies alone, and ours alone."""
    return Place(
        ours=Sources(index_url=simple, cert=cert),
        both=Sources(index_url=deps, extra_index_urls=(simple,), cert=cert),
        theirs=Sources(index_url=deps, cert=cert),
    )


def beside_page(flat: str, cert: str, deps: str = "") -> Place:
    """Name the sources of a flat page beside an index; "" for the person's own configuration."""
    ours = Sources(find_links=(flat,), no_index=True, cert=cert)
    if deps:
        theirs = Sources(index_url=deps, cert=cert)
        return Place(ours=ours, both=theirs.with_find_links(flat), theirs=theirs)
    return Place(ours=ours, both=configured().with_find_links(flat), theirs=None)


@contextmanager
def _address(group: RunGroup, offers: Sequence[Offer], cert: str) -> Iterator[str]:
    public = group.store.url_of("").removesuffix("/")
    # a small object that is there for certain: whether everybody may read it
    sample = min(offers, key=lambda one: (not one.metadata_sha256, one.size))
    url = group.store.url_of(f"{sample.key}.metadata" if sample.metadata_sha256 else sample.key)
    if public.startswith(_HTTP) and fetch(url, cert=cert).text is not None:
        yield public
        return
    pages = _pages(group, offers) if group.outputs.run_id == LOCAL_RUN else {}
    with served_store(group.store, pages) as base:
        yield base


def _pages(group: RunGroup, offers: Sequence[Offer]) -> Mapping[str, bytes]:
    """Write the pages of what was just built, which the index stage may not have seen yet."""
    entries = [
        Entry(
            filename=one.name,
            name=one.distribution,
            version=Version(one.version),
            sha256=one.sha256,
            size=one.size,
            modified=0,
            requires_python=one.requires_python,
            metadata_sha256=one.metadata_sha256,
        )
        for one in offers
    ]
    pages = render(group.name, entries)
    return {f"{group.prefix}/{path}": page.encode() for path, page in pages.items()}


def _deps_index(store: Store, base: str, cert: str) -> str:
    """Give the address of the store's dependencies index; "" where there is none to be reached."""
    if store.find(mirror().index_key) is None:
        return ""
    url = f"{base}/{mirror().index_key.removesuffix('index.html')}"
    return url if fetch(url, cert=cert).text is not None else ""


def choose(wanted: Wanted, place: Place, python: Path, *, isolated: bool = False) -> Chosen:
    """Resolve what is wanted into files, ours and theirs, with the device packages of what is ours.

    Args:
        wanted: What is to be installed.
        place: Where files come from.
        python: The interpreter to resolve for.
        isolated: Build sdists in environments of their own, instead of the interpreter's.

    Raises:
        EnvironmentSetupError: It cannot be resolved, or would take a distribution of ours from elsewhere.
        MissingInputError: The device package of a target is not on offer.
    """
    names = tuple(sorted({one.distribution for one in wanted.offers}))
    question = Question(
        requirements=wanted.requirements,
        constraints=constraints(wanted.offers),
        sources=place.both,
        exact=place.theirs is not None,
        python=python,
        pre=wanted.pre,
        pre_names=names,
        unisolated=() if isolated else wanted.sdists,
        refreshed=names,
        gpu_family=wanted.told,
        # one of uv's own; pip's is another one
        cache_dir=wanted.cache_dir if wanted.backend == "uv" else None,
    )
    first = split(resolve(question), wanted.offers, mirror().is_ours)
    more = wanted.devices.packages({one.name: one.version for one in first.ours}, wanted.offers)
    if not more:
        return first
    question = replace(question, requirements=(*wanted.requirements, *more))
    return split(resolve(question), wanted.offers, mirror().is_ours)


def split(resolved: Sequence[Resolved], offers: Sequence[Offer], is_ours: Callable[[str], bool]) -> Chosen:
    """Tell our files from others', and refuse one of ours that is not on offer.

    Raises:
        EnvironmentSetupError: Such a file was chosen: another index has a package of that name.
    """
    ours, theirs = [], []
    offered = {one.distribution for one in offers}
    for one in resolved:
        own = [file for file in one.files if any(_is_file(offer, file.sha256, file.url) for offer in offers)]
        if own:
            ours.append(replace(one, files=(own[0],)))
        elif one.name in offered or is_ours(one.name):
            held = ", ".join(sorted({offer.version for offer in offers if offer.distribution == one.name}))
            raise EnvironmentSetupError(
                f"{one.name} {one.version} would come from {one.files[0].url}, and it is one of our names"
                + (f" (on offer: {held})." if held else ", which is not on offer."),
                hint="Build it into the run, or name the version: --packages "
                f"'{one.name}=={held.split(', ')[-1] or 'VERSION'}'.",
            )
        else:
            theirs.append(one)
    return Chosen(ours=tuple(ours), theirs=tuple(theirs))


def _is_file(offer: Offer, sha256: str, url: str) -> bool:
    return offer.sha256 == sha256 if offer.sha256 else bool(offer.url) and offer.url == url.partition("#")[0]


def install(target: Interpreter, wanted: Wanted, place: Place) -> Chosen:
    """Install what is wanted into an environment, each side's files from its own side and by digest.

    Raises:
        EnvironmentSetupError: It cannot be resolved or installed.
        CheckError: What is installed does not fit together.
    """
    if wanted.sdists:
        first = Install(requirements=("setuptools",), sources=place.theirs)
        installer.install(target, first, backend=wanted.backend, cache_dir=wanted.cache_dir)
    with console.group("Resolving"):
        chosen = choose(wanted, place, target.executable)
    if not chosen.ours:
        console.warn("None of the packages is one of ours.")
    _forget_others(target, chosen)
    for call in calls(wanted, place, chosen):
        installer.install(target, call, backend=wanted.backend, cache_dir=wanted.cache_dir)
    files.write_json(target.prefix / MARKER, {one.name: one.files[0].sha256 for one in chosen.ours})
    installer.require_complete(target)
    wanted.devices.require(target)
    return chosen


def calls(wanted: Wanted, place: Place, chosen: Chosen) -> Sequence[Install]:
    """Plan the installation of chosen files: others' first, as ours may be built with them."""
    planned = []
    if chosen.theirs:
        lock = _lock(wanted.locks, chosen.theirs)
        planned.append(Install(files=(lock,), sources=place.theirs, hashed=True, dependencies=False))
    if chosen.ours:
        lock = _lock(wanted.locks, chosen.ours)
        planned.append(installer.pinned(lock, place.ours, gpu_family=wanted.told))
    return planned


def _lock(folder: Path, resolved: Sequence[Resolved]) -> Path:
    return locks.kept(folder, "venv", "".join(f"{one.pinned}\n" for one in resolved))


def _forget_others(target: Interpreter, chosen: Chosen) -> None:
    """Take out what an installer would keep by its version, although it was made of another file."""
    marker = target.prefix / MARKER
    known = json.loads(marker.read_text(encoding="utf-8")) if marker.is_file() else {}
    other = [one.name for one in chosen.ours if known.get(one.name) != one.files[0].sha256]
    marker.unlink(missing_ok=True)
    if other:
        argv = [installer.uv_program(), "pip", "uninstall", "--no-config", "--quiet"]
        process.run([*argv, "--python", target.executable, *other])
