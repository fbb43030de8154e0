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
from rocm_packaging.artifacts import GENERIC, build_info, families_of, merged, require_same, scan
from rocm_packaging.packages import versions
from rocm_packaging.packages.layouts import libraries_in, packages, payload_folder
from rocm_packaging.packages.payload import devel_only, licenses_of, plan, usual_links, with_rpath

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence
    from pathlib import Path

    from rocm_packaging.artifacts import Artifact, Entry
    from rocm_packaging.packages.layouts import RuntimePackage
    from rocm_packaging.packages.payload import Licenses, Payload

Platform = Literal["linux", "windows"]
Kind = Literal["core", "libraries", "device", "profiler"]
_Targets = dict[str, tuple[str, ...]]  # GPU family, or gfx target of a split build -> its gfx targets


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
    licenses: Licenses

    @property
    def distribution(self) -> str:
        """The wheel's name."""
        sdk = () if self.kind == "profiler" else ("sdk",)
        return "-".join(filter(None, ("rocm", *sdk, self.kind, self.family)))


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


def make_plan(request: BuildRequest) -> Plan:
    """Decide what each package holds; files' heads are read, nothing is written."""
    planner = _Planner(request)
    if not re.fullmatch(r"\w*", request.suffix, re.ASCII):
        raise UsageError(
            f"Invalid suffix {request.suffix!r}: it ends the name of a folder that Python imports.",
            hint="Use letters, digits and _.",
        )
    if not re.fullmatch(r"[a-z0-9_]*", request.platform_tag):
        raise UsageError(
            f"Invalid platform tag {request.platform_tag!r} of a wheel.", hint="A valid one is linux_x86_64."
        )
    version = versions.parse(request.version or planner.info.version).text
    core = planner.runtime("core", packages().core)
    profiler = [planner.runtime("profiler", packages().profiler)] if request.platform == "linux" else []
    targets, libraries, trees = planner.split(core) if planner.info.split else planner.unsplit(core)
    devel, contradiction = _joined(trees)
    runtimes = [core, *(one for one in profiler if one.payload.files), *libraries]
    return Plan(
        distribution=planner.distribution(version, targets, runtimes),
        runtimes=tuple(runtimes),
        devel=devel,
        unused=planner.unused({GENERIC, *targets, *(one for each in targets.values() for one in each)}),
        built=tuple(targets),
        contradiction=contradiction,
    )


class _Planner:
    """The artifacts of a build, and which of them were taken."""

    def __init__(self, request: BuildRequest) -> None:
        self.request = request
        self.found = scan(request.artifact_dir)
        self.info = build_info(self.found)
        self._taken: set[Path] = set()

    def _select(self, names: Sequence[str], components: Sequence[str], targets: set[str]) -> list[Artifact]:
        chosen = [
            one
            for one in self.found
            if one.name in names and one.component in components and one.target in targets
        ]
        self._taken.update(one.path for one in chosen)
        return chosen

    def unused(self, targets: set[str]) -> tuple[str, ...]:
        """List the folders of these targets that nothing was taken of."""
        left = (one for one in self.found if one.path not in self._taken and one.target in targets)
        return tuple(sorted(one.path.name for one in left))

    def runtime(self, kind: Kind, data: RuntimePackage, family: str = "") -> RuntimePlan:
        """Plan a runtime package; device packages take only what is of their target."""
        targets = {family} if kind == "device" else {GENERIC, family}
        whole = [name for name in data.artifacts if name not in data.only_lib]
        chosen = [
            *self._select(whole, data.components, targets),
            *self._select(data.only_lib, ("lib",), targets),
        ]
        missing = sorted(set(data.required) - {artifact.name for artifact in chosen})
        if missing:
            raise ArtifactError(
                f"The artifacts of the {kind} package are incomplete: {', '.join(missing)} missing.",
                hint="Fetch the whole set: nox -s fetch_artifacts.",
            )
        headers = merged(self._select(data.with_headers, ("dev",), targets))
        tree = dict(sorted({**headers, **merged(chosen)}.items()))
        facts = {path: elf.read(entry.source) for path, entry in tree.items() if not entry.link}
        known = {path: fact for path, fact in facts.items() if fact is not None}
        payload = plan(tree, known, include=data.include, exclude=data.exclude)
        folder = payload_folder(kind, family, self.request.suffix)
        core = payload_folder("core", suffix=self.request.suffix)
        neighbours = [f"{core}/{one}" for one in data.rpath_core]
        files = {path: with_rpath(file, folder, neighbours) for path, file in payload.files.items()}
        return RuntimePlan(
            kind=kind,
            family=family,
            folder=folder,
            payload=replace(payload, files=files),
            licenses=licenses_of(chosen, self.found),
        )

    def unsplit(self, core: RuntimePlan) -> tuple[_Targets, list[RuntimePlan], list[DevelPlan]]:
        """Plan one libraries package a GPU family, and the development tree of each."""
        available = families_of(self.found)
        if not available:
            raise ArtifactError(
                "The artifacts hold no GPU family's libraries.", hint="Fetch those of a family."
            )
        for family in self.request.families:
            if family not in available:
                raise UsageError(f"No artifacts for the GPU family {family!r}. {nearest(family, available)}")
        libraries = []
        for family in dict.fromkeys(self.request.families) or available:
            libraries.append(self.runtime("libraries", packages().unsplit.libraries, family))
            if not libraries[-1].payload.files:
                raise ArtifactError(
                    f"The artifacts of {family} are incomplete: they hold no libraries.",
                    hint="Fetch the whole set: nox -s fetch_artifacts.",
                )
        built = set(self.info.targets)
        known = {one.family: gpu_targets(one.family) for one in libraries}
        targets = {name: tuple(one for one in each if one in built) or each for name, each in known.items()}
        return targets, libraries, [self._devel({GENERIC, one.family}, core, one) for one in libraries]

    def split(self, core: RuntimePlan) -> tuple[_Targets, list[RuntimePlan], list[DevelPlan]]:
        """Plan the libraries for all GPUs, one device package a gfx target, and one development tree."""
        data = packages().split
        libraries = self.runtime("libraries", data.libraries)
        devices = [self.runtime("device", data.device, target) for target in self._split_targets()]
        incomplete = [one.family for one in devices if not one.payload.files]
        if incomplete or not libraries.payload.files:
            raise ArtifactError(
                f"The artifacts are incomplete: no libraries of {', '.join(incomplete) or 'any GPU'}.",
                hint="Fetch the whole set: nox -s fetch_artifacts.",
            )
        _require_apart([libraries, *devices])
        targets: _Targets = {one.family: (one.family,) for one in devices}
        return targets, [libraries, *devices], [self._devel({GENERIC}, core, libraries)]

    def _split_targets(self) -> tuple[str, ...]:
        """Choose the gfx targets that get a device package: the requested ones, else all that were built."""
        built = self.info.targets or families_of(self.found)
        if not built:
            raise ArtifactError("The artifacts hold no gfx target's device code.", hint="Fetch those of one.")
        targets: list[str] = []
        for family in self.request.families:
            wanted = [target for target in gpu_targets(family) if target in built]
            if not wanted:
                raise UsageError(
                    f"No artifacts for the GPU family {family!r}.", hint=f"They are of {', '.join(built)}."
                )
            targets += wanted
        return tuple(dict.fromkeys(targets)) or tuple(built)

    def _devel(self, targets: set[str], *runtimes: RuntimePlan) -> DevelPlan:
        data = packages()
        libraries = (name for layout in (data.unsplit, data.split) for name in layout.libraries.artifacts)
        names = (*data.core.artifacts, *libraries, *data.devel.artifacts)
        chosen = self._select(names, data.devel.components, targets)
        tree = merged(chosen)
        files, links = devel_only(tree, [one.payload for one in runtimes])
        links |= usual_links(tree, data.devel.links)
        return DevelPlan(files=files, links=links, licenses=licenses_of(chosen, self.found))

    def distribution(self, version: str, targets: _Targets, runtimes: Sequence[RuntimePlan]) -> Distribution:
        """Gather what all packages know of each other."""
        request, split = self.request, self.info.split
        held = [
            libraries_in(one.kind, one.payload.files, request.platform)
            for one in runtimes
            if one.kind in {"core", "libraries"}
        ]
        offered = {"linux": self._offered(request.linux_families)}
        offered["windows"] = self._offered(request.windows_families)
        offered[request.platform] = {**targets, **offered[request.platform]}
        everything = {**targets, **offered["linux"], **offered["windows"]}
        return Distribution(
            version=version,
            platform=request.platform,
            families=everything,
            libraries=tuple(sorted(held[0] | set.intersection(*held[1:]))),
            split=split,
            suffix=request.suffix,
            profiler=any(one.kind == "profiler" for one in runtimes),
            linux=tuple(offered["linux"]),
            windows=tuple(offered["windows"]),
            aliases=_aliases(everything) if split else {},
        )

    def _offered(self, names: Iterable[str]) -> _Targets:
        if self.info.split:
            return {target: (target,) for name in names for target in gpu_targets(name)}
        return {name: gpu_targets(name) for name in names}


def _aliases(available: Iterable[str]) -> _Targets:
    """Find the families that stand for some of the gfx targets that have packages."""
    known = set(available)
    found = {
        name: tuple(target for target in family.targets if target in known)
        for name, family in sorted(families().items())
        if name != CPU and name not in known
    }
    return {name: targets for name, targets in found.items() if targets}


def _joined(trees: Sequence[DevelPlan]) -> tuple[DevelPlan, str]:
    """Make one development tree of all families'; or the first, and how another contradicts it."""
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
    for path in sorted(files.keys() & links.keys()):
        return trees[0], f"{path} is a file ({files[path].source}) and a link ({links[path]})."
    return replace(trees[0], files=files, links=links), ""


def _require_apart(overlaid: Sequence[RuntimePlan]) -> None:
    """Require that packages that share a folder hold no path twice: uninstalling one would remove both's."""
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
