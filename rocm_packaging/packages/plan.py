"""Decide what each package of a build holds, before anything is written.

Two layouts: unsplit builds make one libraries package a GPU family, with the device code in
it; split builds (``KPACK_SPLIT_ARTIFACTS``) make one libraries package for all GPUs and one
device package a gfx target, which lies over it. Which artifacts make which package is data,
`packages.toml`.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Literal

from core.binaries import elf
from core.errors import ArtifactError, UsageError, nearest
from core.families import CPU, families, gpu_targets
from rocm_packaging.artifacts import GENERIC, Artifact, build_info, families_of, merged, require_same, scan
from rocm_packaging.packages import versions
from rocm_packaging.packages.layouts import libraries_in, packages, payload_folder
from rocm_packaging.packages.payload import Licenses, devel_only, licenses_of, plan, usual_links

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence
    from pathlib import Path

    from rocm_packaging.artifacts import BuildInfo, Entry
    from rocm_packaging.packages.layouts import RuntimePackage
    from rocm_packaging.packages.payload import Payload

Platform = Literal["linux", "windows"]
Kind = Literal["core", "libraries", "device", "profiler"]


@dataclass(frozen=True, kw_only=True)
class BuildRequest:
    """What to package."""

    artifact_dir: Path
    output_dir: Path
    version: str = ""
    families: tuple[str, ...] = ()
    platform: Platform = "linux"
    epoch: int | None = None
    jobs: int | None = None
    level: int | None = None
    suffix: str = ""
    platform_tag: str = ""
    linux_families: tuple[str, ...] = ()
    windows_families: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True)
class RuntimePlan:
    """One wheel of files that programs need at run time."""

    kind: Kind
    family: str
    folder: str
    payload: Payload
    rpath: tuple[str, ...]
    licenses: Licenses


@dataclass(frozen=True, kw_only=True)
class DevelPlan:
    """The development tree, beyond what the runtime wheels hold."""

    files: Mapping[str, Entry]
    links: Mapping[str, str]
    licenses: Licenses


@dataclass(frozen=True, kw_only=True)
class Distribution:
    """What all packages of one build know of each other."""

    version: str
    platform: Platform
    families: Mapping[str, tuple[str, ...]]
    libraries: tuple[str, ...]
    split: bool = False
    suffix: str = ""
    profiler: bool = False
    linux: tuple[str, ...] = ()
    windows: tuple[str, ...] = ()
    aliases: Mapping[str, tuple[str, ...]] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class Plan:
    """All packages of a build."""

    distribution: Distribution
    runtimes: tuple[RuntimePlan, ...]
    devel: DevelPlan
    unused: tuple[str, ...]
    built: tuple[str, ...]
    contradiction: str = ""

    @property
    def has_stubs(self) -> bool:
        """Whether a link to a program is to become a program."""
        return any(file.stub_for for one in self.runtimes for file in one.payload.files.values())


class _Shelf:
    """The artifacts of a build, and which of them were taken."""

    def __init__(self, found: Sequence[Artifact]) -> None:
        self.found = found
        self._taken: set[Path] = set()

    def select(
        self, names: Sequence[str], components: Sequence[str], targets: Iterable[str]
    ) -> list[Artifact]:
        wanted = set(targets)
        chosen = [
            one
            for one in self.found
            if one.name in names and one.component in components and one.target in wanted
        ]
        self._taken.update(one.path for one in chosen)
        return chosen

    def runtime(self, data: RuntimePackage, targets: Iterable[str]) -> list[Artifact]:
        """Select what a runtime package takes of its artifacts."""
        wanted = tuple(targets)
        others = [name for name in data.artifacts if name not in data.only_lib]
        return [
            *self.select(others, data.components, wanted),
            *self.select(data.only_lib, ("lib",), wanted),
        ]

    def left(self, targets: Iterable[str]) -> tuple[str, ...]:
        """List the folders of these targets that nothing was taken of."""
        wanted = {GENERIC, *targets}
        return tuple(
            sorted(
                one.path.name for one in self.found if one.path not in self._taken and one.target in wanted
            )
        )


def make_plan(request: BuildRequest) -> Plan:
    """Decide what each package holds; files' heads are read, nothing is written."""
    shelf = _Shelf(scan(request.artifact_dir))
    info = build_info(shelf.found)
    _require_names(request)
    version = versions.parse(request.version or info.version).text
    core = _runtime(shelf, request, "core", packages().core)
    profiler = _profiler(shelf, request)
    layout = _split if info.split else _unsplit
    named, libraries, trees = layout(shelf, info, request, core)
    devel, contradiction = _joined(trees)
    used = tuple(target for targets in named.values() for target in targets)
    return Plan(
        distribution=_distribution(request, version, info, named, [core, *profiler, *libraries]),
        runtimes=(core, *profiler, *libraries),
        devel=devel,
        unused=shelf.left((*named, *used)),
        built=tuple(named),
        contradiction=contradiction,
    )


def _require_names(request: BuildRequest) -> None:
    """See that what becomes part of names can."""
    if not re.fullmatch(r"\w*", request.suffix, re.ASCII):
        raise UsageError(
            f"The suffix {request.suffix!r} cannot end a folder's name that Python imports.",
            hint="Letters, digits and _ can.",
        )
    if not re.fullmatch(r"[a-z0-9_]*", request.platform_tag):
        raise UsageError(
            f"{request.platform_tag!r} is no platform tag of a wheel.", hint="One is linux_x86_64."
        )


def _profiler(shelf: _Shelf, request: BuildRequest) -> tuple[RuntimePlan, ...]:
    if request.platform != "linux":
        return ()
    made = _runtime(shelf, request, "profiler", packages().profiler)
    return (made,) if made.payload.files else ()


def _runtime(
    shelf: _Shelf, request: BuildRequest, kind: Kind, data: RuntimePackage, family: str = ""
) -> RuntimePlan:
    """Plan a runtime package; device packages take only what is of their target."""
    targets = {family} if kind == "device" else {GENERIC, family}
    chosen = shelf.runtime(data, targets)
    missing = sorted(set(data.required) - {artifact.name for artifact in chosen})
    if missing:
        raise ArtifactError(
            f"The artifacts of the {kind} package are incomplete: {', '.join(missing)} missing.",
            hint="Fetch the whole set: nox -s fetch_artifacts.",
        )
    headers = merged(shelf.select(data.with_headers, ("dev",), targets))
    tree = dict(sorted({**headers, **merged(chosen)}.items()))
    facts = {path: elf.read(entry.source) for path, entry in tree.items() if not entry.link}
    known = {path: fact for path, fact in facts.items() if fact is not None}
    return RuntimePlan(
        kind=kind,
        family=family,
        folder=payload_folder(kind, family, request.suffix),
        payload=plan(tree, known, include=data.include, exclude=data.exclude),
        rpath=data.rpath_core,
        licenses=licenses_of(chosen, shelf.found),
    )


_Layout = tuple["dict[str, tuple[str, ...]]", "tuple[RuntimePlan, ...]", "tuple[DevelPlan, ...]"]


def _unsplit(shelf: _Shelf, info: BuildInfo, request: BuildRequest, core: RuntimePlan) -> _Layout:
    """Plan one libraries package a GPU family, and a development tree that serves them all."""
    available = families_of(shelf.found)
    if not available:
        raise ArtifactError("The artifacts hold no GPU family's libraries.", hint="Fetch those of a family.")
    for family in request.families:
        if family not in available:
            raise UsageError(f"No artifacts are of the GPU family {family!r}. {nearest(family, available)}")
    chosen = tuple(dict.fromkeys(request.families)) or available
    data = packages().unsplit.libraries
    libraries = []
    for family in chosen:
        libraries.append(_runtime(shelf, request, "libraries", data, family))
        if not libraries[-1].payload.files:
            raise ArtifactError(
                f"The artifacts of {family} are incomplete: they hold no libraries.",
                hint="Fetch the whole set: nox -s fetch_artifacts.",
            )
    named = {family: _built_targets(family, info) for family in chosen}
    trees = [_devel(shelf, {GENERIC, one.family}, [core.payload, one.payload]) for one in libraries]
    return named, tuple(libraries), tuple(trees)


def _built_targets(family: str, info: BuildInfo) -> tuple[str, ...]:
    targets = gpu_targets(family)
    return tuple(target for target in targets if target in info.targets) or targets


def _devel(shelf: _Shelf, targets: Iterable[str], payloads: Sequence[Payload]) -> DevelPlan:
    data, layouts = packages(), (packages().unsplit.libraries, packages().split.libraries)
    libraries = (name for layout in layouts for name in layout.artifacts)
    names = (*data.core.artifacts, *libraries, *data.devel.artifacts)
    chosen = shelf.select(names, data.devel.components, targets)
    tree = merged(chosen)
    files, links = devel_only(tree, payloads)
    return DevelPlan(
        files=files,
        links={**links, **usual_links(tree, data.devel.links)},
        licenses=licenses_of(chosen, shelf.found),
    )


def _joined(trees: Sequence[DevelPlan]) -> tuple[DevelPlan, str]:
    """Make one development tree of all families'."""
    files: dict[str, Entry] = {}
    links: dict[str, str] = {}
    for tree in trees:
        try:
            for path, entry in tree.files.items():
                require_same(files.setdefault(path, entry), entry)
        except ArtifactError as problem:
            return trees[0], problem.message
        for path, link in tree.links.items():
            if links.setdefault(path, link) != link:
                return trees[0], f"One family links {path} to {links[path]}, another to {link}."
    both = sorted(files.keys() & links.keys())
    if both:
        return trees[0], f"{both[0]} is a file ({files[both[0]].source}) and a link ({links[both[0]]})."
    return replace(trees[0], files=files, links=links), ""


def _split(shelf: _Shelf, info: BuildInfo, request: BuildRequest, core: RuntimePlan) -> _Layout:
    """Plan the libraries for all GPUs, one device package a gfx target, and one development tree."""
    data = packages().split
    libraries = _runtime(shelf, request, "libraries", data.libraries)
    targets = _split_targets(shelf, info, request)
    devices = [_runtime(shelf, request, "device", data.device, target) for target in targets]
    incomplete = [one.family for one in devices if not one.payload.files]
    if incomplete or not libraries.payload.files:
        raise ArtifactError(
            f"The artifacts are incomplete: no libraries of {', '.join(incomplete) or 'any GPU'}.",
            hint="Fetch the whole set: nox -s fetch_artifacts.",
        )
    _require_apart([libraries, *devices])
    devel = _devel(shelf, {GENERIC}, [core.payload, libraries.payload])
    return {target: (target,) for target in targets}, (libraries, *devices), (devel,)


def _split_targets(shelf: _Shelf, info: BuildInfo, request: BuildRequest) -> tuple[str, ...]:
    """Say which gfx targets get a device package: those asked for, else all that were built."""
    built = info.targets or families_of(shelf.found)
    if not built:
        raise ArtifactError("The artifacts hold no gfx target's device code.", hint="Fetch those of one.")
    targets: dict[str, None] = {}
    for family in request.families:
        wanted = [target for target in gpu_targets(family) if target in built]
        if not wanted:
            raise UsageError(
                f"No artifacts are of the GPU family {family!r}.", hint=f"They are of {', '.join(built)}."
            )
        targets.update(dict.fromkeys(wanted))
    return tuple(targets) or tuple(built)


def _require_apart(overlaid: Sequence[RuntimePlan]) -> None:
    """See that no two packages that share a folder hold one path: an uninstall would take both's."""
    owners: dict[str, Path] = {}
    for one in overlaid:
        for path, file in one.payload.files.items():
            source = owners.setdefault(path, file.entry.source)
            if source is not file.entry.source:
                raise ArtifactError(
                    f"{source} and {file.entry.source} would both be {one.folder}/{path}, "
                    "in packages that lie over each other.",
                    hint="A file of one gfx target needs a path of its own: rebuild the artifacts.",
                )


def _distribution(
    request: BuildRequest,
    version: str,
    info: BuildInfo,
    named: Mapping[str, tuple[str, ...]],
    runtimes: Sequence[RuntimePlan],
) -> Distribution:
    core = libraries_in("core", runtimes[0].payload.files, request.platform)
    held = [
        libraries_in("libraries", one.payload.files, request.platform)
        for one in runtimes
        if one.kind == "libraries"
    ]
    made = Distribution(
        version=version,
        platform=request.platform,
        families=named,
        libraries=tuple(sorted(core | set.intersection(*held))),
        split=info.split,
        suffix=request.suffix,
        profiler=any(one.kind == "profiler" for one in runtimes),
    )
    offered = {
        platform: _offered(names, info)
        for platform, names in (("linux", request.linux_families), ("windows", request.windows_families))
    }
    offered[request.platform] = {**named, **offered[request.platform]}
    everything = {**named, **offered["linux"], **offered["windows"]}
    return replace(
        made,
        families=everything,
        linux=tuple(offered["linux"]),
        windows=tuple(offered["windows"]),
        aliases=_aliases(everything) if info.split else {},
    )


def _offered(names: Sequence[str], info: BuildInfo) -> dict[str, tuple[str, ...]]:
    if not info.split:
        return {name: gpu_targets(name) for name in names}
    return {target: (target,) for name in names for target in gpu_targets(name)}


def _aliases(available: Mapping[str, tuple[str, ...]]) -> dict[str, tuple[str, ...]]:
    """Find the families that stand for some of the gfx targets that have packages."""
    found = {
        name: tuple(target for target in family.targets if target in available)
        for name, family in families().items()
        if name != CPU and name not in available
    }
    return {name: targets for name, targets in sorted(found.items()) if targets}
