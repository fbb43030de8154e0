"""Installing what a person asks for: exact files, ours from their source and others' from elsewhere."""

from __future__ import annotations

import json
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from ci.install.device_packages import Devices
from ci.install.mirror_data import mirror
from core import console, files, process
from core.env import installer
from core.env.installer import Install, Sources, configured
from core.packages import resolution
from core.packages.resolution import others_question, pinned_call, resolve_others
from core.packages.sources import PackageSource, store_address
from rocm_packaging.rocm_sources import sdist_requires

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from core.env import Interpreter
    from core.env.installer import Backend
    from core.packages.offers import Offer, RunGroup
    from core.packages.resolution import Resolved
    from core.run.outputs import Platform

MARKER = "run-packages.json"


@dataclass(frozen=True, kw_only=True)
class Wanted:
    """What is to be installed."""

    requirements: tuple[str, ...]
    source: PackageSource
    offers: tuple[Offer, ...]
    devices: Devices = field(default_factory=Devices)
    platform: Platform = "linux"
    pre: bool = False
    backend: Backend = "uv"
    cache_dir: Path | None = None
    locks: Path


@dataclass(frozen=True, kw_only=True)
class Chosen:
    """What was chosen: our files, and others' distributions."""

    ours: tuple[Offer, ...]
    theirs: tuple[Resolved, ...]


@contextmanager
def others_index(group: RunGroup | None, url: str) -> Iterator[Sources | None]:
    """Return the index of third-party packages: the one that is named, else the store's own."""
    cert = configured().cert
    if url or group is None or group.store.find(mirror().index_key) is None:
        yield Sources(index_url=url, cert=cert) if url else None
        return
    # a bucket without a server in front of it answers no folder's address
    folder = mirror().index_key.removesuffix("index.html")
    with store_address(group.store, folder, {}) as base:
        yield Sources(index_url=f"{base}/{folder}", cert=cert)


def choose(wanted: Wanted, theirs: Sources | None, python: Interpreter) -> Chosen:
    """Choose files, ours and theirs, with the device packages of what is ours."""
    devices = wanted.devices

    def asked(*more: str) -> resolution.Chosen:
        return resolution.choose(
            wanted.source,
            (*wanted.requirements, *more),
            python=python,
            platform=wanted.platform,
            sdist_requires=sdist_requires(wanted.source, devices.family, devices.targets),
        )

    ours = asked()
    if more := devices.packages(ours.versions, wanted.offers):
        ours = asked(*more)
    question = others_question(
        python.executable,
        theirs,
        pre=wanted.pre,
        # one of uv's own; pip's is another one
        cache_dir=wanted.cache_dir if wanted.backend == "uv" else None,
    )
    return Chosen(ours=ours.files, theirs=resolve_others(ours.others, list(ours.versions), question))


def install(
    target: Interpreter, wanted: Wanted, chosen: Chosen, ours: Sources, theirs: Sources | None
) -> None:
    """Install chosen files into an environment, each side's from its own side and by digest."""
    if not chosen.ours:
        console.warn("None of the packages is one of ours.")
    _forget_others(target, chosen)
    calls = []
    if any(not one.name.endswith(".whl") for one in chosen.ours):
        calls.append(Install(requirements=("setuptools",), sources=theirs))
    if chosen.theirs:
        calls.append(pinned_call(wanted.locks, chosen.theirs, theirs))
    if chosen.ours:
        calls.append(pinned_call(wanted.locks, chosen.ours, ours, told=wanted.devices.told(wanted.offers)))
    for call in calls:
        installer.install(target, call, backend=wanted.backend, cache_dir=wanted.cache_dir)
    files.write_json(target.prefix / MARKER, {one.distribution: one.sha256 for one in chosen.ours})
    installer.require_complete(target)
    wanted.devices.require(target)


def _forget_others(target: Interpreter, chosen: Chosen) -> None:
    """Take out what an installer would keep by its version, although it was made of another file."""
    marker = target.prefix / MARKER
    known = json.loads(marker.read_text(encoding="utf-8")) if marker.is_file() else {}
    other = [one.distribution for one in chosen.ours if known.get(one.distribution) != one.sha256]
    marker.unlink(missing_ok=True)
    if other:
        argv = [installer.uv_program(), "pip", "uninstall", "--no-config", "--quiet"]
        process.run([*argv, "--python", target.executable, *other])
