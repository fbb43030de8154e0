"""Where ROCm packages come from, and which files of them builds and tests take, by digest."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import quote

from packaging.utils import canonicalize_name
from packaging.version import Version

from core import console
from core.cli.options import DEFAULT_STORE, Common, environment, with_run_location
from core.data import Dated, Model, data_file
from core.errors import MissingInputError, RocmError, UsageError, nearest
from core.http import without_secret
from core.packages.candidates import Candidate, with_digest
from core.packages.groups import RunGroup, StagedGroup, find_group
from core.packages.options import SourceOptions, below
from core.packages.sources import PackageIndex, combine_sources, linked_source
from core.parallel import map_in_threads
from core.run import Platform, group_name
from core.run.locations import distribution_store, run_buckets
from core.stores.location import open_store
from rocm_packaging.packages import layouts, versions

if TYPE_CHECKING:
    from core.env import Interpreter
    from core.env.installer import InstallerCall
    from core.packages.package_source import PackageSource
    from core.packages.search import SdistRequirements

INDEXES_FILE = Path(__file__).with_name("rocm_indexes.toml")


@dataclass(frozen=True, kw_only=True)
class RocmSource:
    """The ROCm packages that are installed: an exact version, its layout, their source, the chosen files."""

    version: str
    layout: layouts.Layout = "split"
    packages: PackageSource
    files: tuple[Candidate, ...] = ()

    @property
    def origin(self) -> str:
        """The source in words."""
        return self.packages.description

    @property
    def digests(self) -> Mapping[str, str]:
        """File name to SHA-256; {} where a page does not say all of them, so that its bytes may change."""
        digests: dict[str, str] = {}
        for file in self.files:
            if file.sha256 is None:
                return {}
            digests[file.name] = file.sha256
        return digests

    @property
    def options(self) -> list[str]:
        """What tells pip where the packages are; none for what is installed."""
        options: list[str] = []
        for url in self.packages.index_urls:
            options += ["--extra-index-url", without_secret(url)]
        if self.packages.stored is not None:
            options += ["--find-links", without_secret(self.packages.stored.page_url)]
        for link in self.packages.find_links:
            options += ["--find-links", without_secret(link)]
        return options

    @contextmanager
    def opened_call(self, folder: Path, family: str, targets: Sequence[str] = ()) -> Iterator[InstallerCall]:
        """Plan the installation of the files, from an address that lives as long as the context.

        The requirements file is written into the folder; unsplit packages are for the family, and split
        ones have device packages of the targets.
        """
        from core.packages.resolution import call_for_ours

        files = map_in_threads(with_digest, self.files)
        target = layouts.sdk_target(self.layout, family, targets)
        with self.packages.opened(files) as sources:
            yield call_for_ours(folder, files, sources, gpu_family=target)


class _Index(Model):
    url: str
    default: bool = False


class Indexes(Dated):
    """The release indexes, by name."""

    indexes: dict[str, _Index]

    @property
    def default_name(self) -> str:
        """The name of the index that is meant where none is named."""
        (name,) = [name for name, index in self.indexes.items() if index.default]
        return name


release_indexes = data_file(INDEXES_FILE, Indexes)


def release_index_url(name: str, family: str) -> str:
    """Return the address of a release index, "" for the default one, for a GPU family."""
    indexes = release_indexes().indexes
    index_name = name or release_indexes().default_name
    if index_name not in indexes:
        raise UsageError(f"Unknown ROCm index {index_name!r}. {nearest(index_name, indexes)}")

    url = indexes[index_name].url
    is_one_family = bool(family) and ";" not in family
    if "{family}" in url and not is_one_family:
        raise UsageError(
            f"{url} is an index of one GPU family, and {family or 'none'} is given.",
            hint="Set --gpu-family or --index-subdir, or choose an index of all families: --help lists them.",
        )
    return url.replace("{family}", quote(family))


def named_source(options: SourceOptions, common: Common, family: str) -> PackageSource | None:
    """Find the source that options name; None for the stage's own run."""
    if not options.named:
        return None
    urls = [below(url, options.index_subdir) for url in options.index_urls]
    if options.index_name or (options.index_subdir and not urls):
        url = release_index_url(options.index_name, options.index_subdir or family)
        if options.index_subdir not in url:
            raise UsageError(
                f"The release index {url} serves all families and has no folder {options.index_subdir}.",
                hint="Leave --index-subdir out, or name an index of one family: --index-name nightly-v2.",
            )
        urls.insert(0, url)
    parts: list[PackageSource] = []
    if options.run_id or options.store:
        other = replace(
            common,
            run_id=options.run_id or common.run_id,
            store=options.store or DEFAULT_STORE,
            read_store="",
            external_repo="",
        )
        other = with_run_location(other, environment(), is_store_named=bool(options.store))
        group = options.artifact_group or group_name(family, common.build_variant)
        parts.append(find_group(other, group or None))
    parts += [linked_source(link, option_prefix=options.prefix) for link in options.find_links]
    parts += [PackageIndex(url=url, option_prefix=options.prefix) for url in urls]
    return combine_sources(parts, option_prefix=options.prefix)


def staged_source(options: SourceOptions, common: Common, artifact_group: str) -> StagedGroup:
    """Return what is up for testing of an artifact group, in the store that distributes its releases."""
    place = distribution_store(run_buckets(), common.release_type, options.distribution_store)
    store = open_store(place, root=common.root)
    return StagedGroup(store=store, name=artifact_group)


def own_run(common: Common, artifact_group: str) -> RunGroup:
    """Return the stage's own run as a source."""
    return RunGroup(store=common.open_for_reading(), outputs=common.outputs, name=artifact_group)


def has_rocm(packages: PackageSource) -> bool:
    """Return whether a run has ROCm packages; one whose records name nothing has none."""
    try:
        return any(file.distribution == "rocm" for file in packages.listed)
    except MissingInputError:
        return False


def require_devices(targets: Sequence[str], names: Collection[str], *, where: str, version: str) -> None:
    """Require that a split source has a device package of each target."""
    missing_targets = [target for target in targets if layouts.device_package(target) not in names]
    if missing_targets:
        available_targets = sorted(filter(None, map(layouts.device_target, names)))
        raise MissingInputError(
            f"{where} has no device code of ROCm {version} for {', '.join(missing_targets)}"
            f" (it has {', '.join(available_targets) or 'none'}).",
            hint="Choose a GPU family or target that it has (--gpu-family), or build the missing packages.",
        )


def with_layout(
    packages: PackageSource, version: str, family: str, targets: Sequence[str] = ()
) -> RocmSource:
    """Query one source for the layout of its packages for a family, or several joined by ``;``.

    Split packages must have device code of the targets.
    """
    family_names = family.split(";")
    library_names = [layouts.LIBRARIES]
    library_names += [f"{layouts.LIBRARIES}-{canonicalize_name(name)}" for name in family_names]
    device_names = list(map(layouts.device_package, targets))

    names = [*library_names, *device_names]
    presence = map_in_threads(partial(has_package, packages, version), names)
    offered_names = [name for name, is_offered in zip(names, presence, strict=True) if is_offered]
    layout = layouts.layout_of(offered_names, where=f"{packages.description} of version {version}")
    if layout is None:
        raise RocmError(
            f"{packages.description} has no ROCm {version} libraries for {family}: "
            f"{' or '.join(library_names)} was not found.",
            hint=f"{packages.missing_error('').hint} "
            "Or another version (--rocm-version), or family (--gpu-family).",
        )
    if layout == "split":
        require_devices(targets, offered_names, where=packages.description, version=version)
    return RocmSource(version=version, layout=layout, packages=packages)


def has_package(packages: PackageSource, version: str, name: str) -> bool:
    """Return whether a source has a package in a version."""
    return any(is_version(candidate, version) for candidate in packages.candidates(name))


def is_version(candidate: Candidate, version: str) -> bool:
    """Return whether a file is of a version, however that is written."""
    return Version(candidate.version) == Version(version)


def requirements(source: RocmSource, family: str, extras: Sequence[str] = ()) -> tuple[str, ...]:
    """Pin every ROCm package of a build; more extras of ``rocm`` are ``profiler`` or ``device-gfx942``.

    Of split packages no device code is needed, and the family may be several, joined by ``;``.
    """
    libraries = layouts.libraries_package(source.layout, family)
    names = ["rocm", "rocm-sdk-core", libraries, "rocm-sdk-devel", *map(_package_of, extras)]
    return tuple(f"{name}=={source.version}" for name in names)


def _package_of(extra: str) -> str:
    return "rocm-profiler" if extra == "profiler" else f"rocm-sdk-{extra}"


def choose_for_build(
    packages: PackageSource, version: str, family: str, extras: Sequence[str], platform: Platform
) -> RocmSource:
    """Choose the files of the ROCm that builds need for a family."""
    versions.require_valid(version)
    source = with_layout(packages, version, family)
    names = [pin.partition("==")[0] for pin in requirements(source, family, extras)]
    return replace(source, files=_choose_files(packages, version, names, platform))


def choose_for_bundles(
    packages: PackageSource, version: str, family: str, targets: Sequence[str], platform: Platform
) -> RocmSource:
    """Choose the wheels of the ROCm whose parts go into a stand-alone wheel."""
    source = with_layout(packages, version, family, targets)
    names = ["rocm-sdk-core", layouts.libraries_package(source.layout, family)]
    if source.layout == "split":
        names += map(layouts.device_package, targets)
    return replace(source, files=_choose_files(packages, version, names, platform))


def _choose_files(
    packages: PackageSource, version: str, names: Iterable[str], platform: Platform
) -> tuple[Candidate, ...]:
    """Choose a file of each package; all are named, so no other one can be drawn in."""
    files = []
    for name in names:
        candidates = [
            candidate
            for candidate in packages.candidates(name)
            if is_version(candidate, version) and candidate.fits(platform=platform)
        ]
        if not candidates:
            raise packages.missing_error(f"{name} {version}")
        wheels = [candidate for candidate in candidates if candidate.is_wheel]
        file = (wheels or candidates)[0]
        files.append(file if file.is_remote else with_digest(file))
    return tuple(files)


def choose_for_tests(
    packages: PackageSource,
    version: str,
    families: Sequence[str],
    targets: Sequence[str],
    extras: Sequence[str],
    *,
    python: Interpreter,
    platform: Platform,
) -> RocmSource:
    """Choose the files that are tested: of a run and of staging all of a version, else ``rocm`` with extras.

    Unsplit extras are those of the first family. Device packages, of split ones, are named themselves, as
    the extra of a single target is missing in upstream's ``rocm``.
    """
    from core.packages.search import choose_packages

    versions.require_valid(version)
    has_libraries = "libraries" in extras
    source = with_layout(packages, version, ";".join(families), targets if has_libraries else ())
    if packages.stored is not None:
        files = [
            candidate
            for candidate in packages.listed
            if layouts.is_rocm(candidate.distribution)
            and is_version(candidate, version)
            and candidate.fits(platform=platform)
            and layouts.serves(candidate.distribution, families, targets)
        ]
        return replace(source, files=tuple(files))

    rocm = f"rocm[{','.join(extras)}]" if extras else "rocm"
    names = [rocm]
    if has_libraries and source.layout == "split":
        names += map(layouts.device_package, targets)
    elif has_libraries:
        names += [layouts.libraries_package("unsplit", family) for family in families[1:]]
    selection = choose_packages(
        packages,
        [f"{name}=={version}" for name in names],
        python=python,
        platform=platform,
        sdist_requirements=sdist_requirements(packages, families[0], targets),
    )
    return replace(source, files=selection.files)


def sdist_requirements(packages: PackageSource, family: str, targets: Sequence[str]) -> SdistRequirements:
    """Return what the sdist of `rocm` requires, which it decides on the machine that installs it.

    It serves one GPU family or target there, the first: that of ROCM_SDK_TARGET_FAMILY (`sdk_target`).
    """
    first_family = family.partition(";")[0]
    first_targets = targets[:1]

    def requirements_with(sdist: Candidate, extras: frozenset[str]) -> Sequence[str]:
        if sdist.distribution != "rocm":
            return ()
        names = ["rocm-sdk-core"] if has_package(packages, sdist.version, "rocm-sdk-core") else []
        for extra in sorted(extras):
            if extra == "libraries":
                layout = with_layout(packages, sdist.version, family).layout
                names.append(layouts.libraries_package(layout, first_family))
            elif extra == "device":
                names += map(layouts.device_package, first_targets)
            else:
                names.append(_package_of(extra))
        return [f"{name}=={sdist.version}" for name in names]

    return requirements_with


def newest(packages: PackageSource) -> str:
    """Return a source's newest version of ``rocm``."""
    versions_of_rocm = packages.versions("rocm")
    if not versions_of_rocm:
        raise packages.missing_error("version of rocm")
    console.say(f"ROCm version: {versions_of_rocm[0]} (the newest at {packages.description})")
    return versions_of_rocm[0]
