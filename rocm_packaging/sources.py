"""Where ROCm packages come from, and how they are installed: by exact name and version, from there only."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import quote

from packaging.utils import canonicalize_name
from packaging.version import Version

from core import console, distributions, files, installer, records
from core.data import Dated, Model, load_toml
from core.errors import DataError, MissingInputError, ProcessError, RocmError, UsageError, nearest
from core.installer import Install, configured
from core.named_sources import alone
from core.parallel import each
from rocm_packaging import versions
from rocm_packaging.layouts import (
    LIBRARIES,
    device_package,
    device_target,
    is_rocm,
    layout_of,
    libraries_package,
    sdk_target,
    serves,
)

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence

    from core.installer import Sources
    from core.options import Common
    from core.records import FileRecord
    from rocm_packaging.layouts import Layout

INDEXES_FILE = Path(__file__).with_name("rocm_indexes.toml")


@dataclass(frozen=True, kw_only=True)
class RocmSource:
    """Where ROCm packages come from.

    Attributes:
        version: The exact version.
        layout: Which packages it has of that version.
        index_urls: Indexes, the first in the place of the public one.
        find_links: Folders and flat pages.
        digests: File name to SHA-256, where the packages are a run's own outputs.
        origin: In words, for people.
    """

    version: str
    layout: Layout = "split"
    index_urls: tuple[str, ...] = ()
    find_links: tuple[str, ...] = ()
    digests: tuple[tuple[str, str], ...] = ()
    origin: str = ""

    @property
    def sources(self) -> Sources:
        """The installer's sources: nothing of ROCm may come from the person's own indexes.

        The public Python index holds placeholders named ``rocm``, ``rocm-sdk-core`` …
        """
        return alone(self.index_urls, self.find_links, cert=configured().cert)

    def of_version(self, version: str) -> RocmSource:
        """Give the same source for a version."""
        return replace(self, version=version)

    def contents(self) -> dict[str, str] | None:
        """Digest what folders hold of ROCm: file name to SHA-256; None where an address may change.

        Raises:
            MissingInputError: The folders hold none.
        """
        if self.index_urls or any("://" in link for link in self.find_links):
            return None
        found = [path for link in self.find_links for path in sorted(Path(link).glob("rocm*"))]
        digests = {
            path.name: files.sha256(path) for path in found if distributions.is_distribution(path.name)
        }
        if not digests:
            raise MissingInputError(
                f"There are no ROCm packages in {', '.join(self.find_links)}.",
                hint="Name the folder that holds rocm-V.tar.gz and the wheels: --find-links DIR.",
            )
        return digests


class _Index(Model):
    url: str
    default: bool = False


class Indexes(Dated):
    """The release indexes, by name."""

    indexes: dict[str, _Index]


def release_indexes() -> Indexes:
    """Read the data file."""
    return load_toml(INDEXES_FILE, Indexes)


def release_index_url(name: str, family: str) -> str:
    """Give the address of a release index for a family.

    Args:
        name: A name in `rocm_indexes.toml`; "" for the default one.
        family: The GPU family.

    Raises:
        UsageError: An unknown name, or not one family where each has an index of its own.
    """
    indexes = release_indexes().indexes
    chosen = name or next(key for key, index in indexes.items() if index.default)
    if chosen not in indexes:
        raise UsageError(f"Unknown ROCm index {chosen!r}. {nearest(chosen, indexes)}")
    url = indexes[chosen].url
    if "{family}" in url and (not family or ";" in family):
        raise UsageError(
            f"{url} is an index of one GPU family, and {family or 'none'} is given.",
            hint="Give one with --gpu-family or --index-subdir, or take an index of all: --help lists them.",
        )
    return url.replace("{family}", quote(family))


def in_run(common: Common, artifact_group: str, extras: Sequence[str] = ()) -> RocmSource | None:
    """Find the ROCm packages that the run itself built; device packages only where extras name them.

    Raises:
        MissingInputError: The run lies in a store that this machine cannot give as a folder.
    """
    store, outputs = common.open_for_reading(), common.outputs
    found = [one for one in distributions.in_run(store, outputs, artifact_group) if is_rocm(one.name)]
    sdists = [one for one in found if one.name == "rocm"]
    if not sdists:
        return None
    newest = sdists[-1]
    chosen = [
        one
        for one in found
        if one.version == newest.version
        and (not device_target(one.name) or one.name.removeprefix("rocm-sdk-") in extras)
    ]
    folders = {store.fetch(one.key, common.cache / "fetched" / outputs.prefix).parent for one in chosen}
    where = f"{store.url}/{outputs.python_prefix(artifact_group)}"
    return RocmSource(
        version=str(newest.version),
        layout=layout_of((one.name for one in chosen), where=where) or "split",
        find_links=tuple(sorted(str(folder) for folder in folders)),
        digests=tuple((one.filename, store.digest(one.key)) for one in chosen),
        origin=f"this run's outputs ({where})",
    )


def in_record(
    common: Common, artifact_group: str, families: Sequence[str], targets: Sequence[str], version: str = ""
) -> Sequence[FileRecord]:
    """List the ROCm packages that the run's records promise for GPU families, sorted by file name.

    Args:
        common: The run and its store.
        artifact_group: The group.
        families: The families; unsplit libraries of other ones are left out.
        targets: The gfx targets; device packages of other ones are left out.
        version: The version; "" for the newest.

    Raises:
        MissingInputError: The run has no ``rocm`` of that version, or no device package of a target.
    """
    store, outputs = common.open_for_reading(), common.outputs
    recorded = {
        one.name: one
        for record in records.read_all(store, outputs, artifact_group)
        for one in (record.files if record.status == "ok" else ())
        if is_rocm(one.distribution)
    }
    known = sorted({one.version for one in recorded.values() if one.distribution == "rocm"}, key=Version)
    chosen = version or (known[-1] if known else "")
    where = f"Run {outputs.run_id} in {store.url}"
    if chosen not in known:
        what = f"ROCm {version}" if version else "ROCm packages"
        raise MissingInputError(
            f"{where} has no {what} for {', '.join(families)}.",
            hint="Build some (nox -s build_rocm), name another run (--run-id, --store), or where they are: "
            "--find-links DIR, --index-url URL.",
        )
    found = [
        one
        for one in recorded.values()
        if one.version == chosen and serves(one.distribution, families, targets)
    ]
    names = {one.distribution for one in found}
    if layout_of(names, where=where) == "split":
        require_devices(targets, names, where=where, version=chosen)
    return sorted(found, key=lambda one: one.name)


def require_devices(targets: Sequence[str], names: Collection[str], *, where: str, version: str) -> None:
    """Require that a split source has a device package of each target.

    Raises:
        MissingInputError: One is missing.
    """
    missing = [one for one in targets if device_package(one) not in names]
    if missing:
        held = sorted(filter(None, map(device_target, names)))
        raise MissingInputError(
            f"{where} has no device code of ROCm {version} for {', '.join(missing)}"
            f" (it has {', '.join(held) or 'none'}).",
            hint="Choose a GPU family or target that it has (--gpu-family), or build the missing packages.",
        )


def with_layout(source: RocmSource, family: str, targets: Sequence[str] = ()) -> RocmSource:
    """Ask a source, and no other, which layout its packages of a version have.

    Args:
        source: The source, with its version.
        family: The GPU family, or several joined by ``;``.
        targets: The gfx targets that split packages must have device code of.

    Raises:
        UsageError: A malformed version.
        RocmError: It has both layouts of that version, or libraries of neither.
        MissingInputError: Split packages lack a target.
    """
    versions.parse(source.version)
    names = [LIBRARIES, *(f"{LIBRARIES}-{canonicalize_name(one)}" for one in family.split(";"))]
    asked = [*names, *map(device_package, targets)]
    held = [name for name, has in zip(asked, each(partial(_has, source), asked), strict=True) if has]
    layout = layout_of(held, where=f"{source.origin} of version {source.version}")
    if layout is None:
        raise RocmError(
            f"{source.origin} has no ROCm {source.version} libraries for {family}: "
            f"{' or '.join(names)} was not found.",
            hint="Name another source (--rocm-index-url, --rocm-find-links), version (--rocm-version) "
            "or GPU family (--gpu-family).",
        )
    if layout == "split":
        require_devices(targets, held, where=source.origin, version=source.version)
    return replace(source, layout=layout)


def _has(source: RocmSource, name: str) -> bool:
    return Version(source.version) in {Version(one) for one in installer.versions(name, source.sources)}


def requirements(source: RocmSource, family: str, extras: Sequence[str] = ()) -> tuple[str, ...]:
    """Name every ROCm package of a build exactly; of split packages no device code is needed.

    Args:
        source: The version and its layout.
        family: The GPU family; of split packages it may be several, joined by ``;``.
        extras: More extras of ``rocm``, such as ``profiler`` or ``device-gfx942``.

    Raises:
        UsageError: Several families, of unsplit packages.
    """
    names = ["rocm", "rocm-sdk-core", libraries_package(source.layout, family), "rocm-sdk-devel"]
    names += ["rocm-profiler" if extra == "profiler" else f"rocm-sdk-{extra}" for extra in extras]
    return tuple(f"{name}=={source.version}" for name in names)


def install_call(source: RocmSource, family: str, extras: Sequence[str] = ()) -> Install:
    """Plan the installation of the ROCm that builds need for a family.

    Raises:
        UsageError: A malformed version, or several families of unsplit packages.
    """
    versions.parse(source.version)
    return Install(
        requirements=requirements(source, family, extras),
        sources=source.sources,
        # every package is named, so nothing else can be drawn in from these sources
        dependencies=False,
        # setuptools comes from the build's own lock, and these sources need not have it
        build_isolation=False,
        pre=True,
        gpu_family=sdk_target(source.layout, family),
    )


def named_call(
    source: RocmSource, families: Sequence[str], targets: Sequence[str], extras: Sequence[str]
) -> Install:
    """Plan the installation of ``rocm`` with extras from named sources, as its own metadata asks for it.

    Device packages are named themselves, as the extra of a single target is missing in upstream's ``rocm``.

    Args:
        source: The sources and the version.
        families: GPU families: the first is the one that unsplit extras are for.
        targets: The gfx targets whose device packages are installed, of split packages.
        extras: Extras of ``rocm``.

    Raises:
        UsageError: A malformed version.
    """
    versions.parse(source.version)
    listed = f"[{','.join(extras)}]" if extras else ""
    more: list[str] = []
    if "libraries" in extras:
        more = (
            [device_package(one) for one in targets]
            if source.layout == "split"
            else [libraries_package("unsplit", family) for family in families[1:]]
        )
    return Install(
        requirements=tuple(f"{name}=={source.version}" for name in (f"rocm{listed}", *more)),
        sources=source.sources,
        # setuptools is there already, and these sources need not have it
        build_isolation=False,
        pre=True,
        gpu_family=sdk_target(source.layout, families[0], targets),
    )


def newest(source: RocmSource) -> str:
    """Ask a source for its newest version of ``rocm``.

    Raises:
        RocmError: It has none, or does not answer.
    """
    hint = "Name a source (--rocm-find-links, --rocm-index-url), or the version (--rocm-version)."
    try:
        version = installer.newest("rocm", source.sources)
    except ProcessError as problem:
        raise RocmError(f"No version of rocm was found at {source.origin}.", hint=hint) from problem
    except DataError as problem:
        raise RocmError(
            f"{source.origin} did not say which rocm versions it has.", hint="Give --rocm-version."
        ) from problem
    console.say(f"ROCm version: {version} (the newest at {source.origin})")
    return version
