"""Decide what each package of a build holds, before anything is written.

Two layouts: unsplit builds make one libraries package a GPU family, with the device code in
it; split builds (``KPACK_SPLIT_ARTIFACTS``) make one libraries package for all GPUs and one
device package a gfx target, which lies over it. Which artifacts make which package is data,
`packages.toml`.
"""

import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from fnmatch import fnmatchcase
from pathlib import Path, PurePosixPath
from typing import Literal

from core import files
from core.binaries import elf
from core.errors import ArtifactError, UsageError, nearest
from core.families import CPU, families, family, gpu_targets
from core.run import Platform
from rocm_packaging import artifacts
from rocm_packaging.artifacts import GENERIC, Artifact, Entry, families_of, merged, targets_of
from rocm_packaging.packages import payload, versions
from rocm_packaging.packages.layouts import RuntimePackage, libraries_in, packages, payload_folder
from rocm_packaging.packages.payload import Licenses, Payload, licenses_of

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
    without: tuple[str, ...] = ()


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
    promised: Mapping[str, tuple[str, ...]] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class Plan:
    """All packages of a build."""

    distribution: Distribution
    runtimes: tuple[RuntimePlan, ...]
    devel: DevelPlan
    unused: tuple[str, ...]
    built: tuple[str, ...]
    contradiction: str = ""
    lacking: tuple[str, ...] = ()
    unmet: tuple[str, ...] = ()


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
    version = request.version or planner.info.version
    versions.parse(version)
    core = planner.runtime("core", packages().core)
    profiler = [planner.runtime("profiler", packages().profiler)] if request.platform == "linux" else []
    targets, libraries, trees = planner.split(core) if planner.info.split else planner.unsplit(core)
    devel, contradiction = _joined(trees)
    promised = planner.promised(targets)
    runtimes = [core, *(one for one in profiler if one.payload.files), *libraries]
    held = {*devel.files, *devel.links}.union(*(one.payload.files for one in runtimes))
    return Plan(
        distribution=replace(planner.distribution(version, targets, runtimes), promised=promised),
        runtimes=tuple(runtimes),
        devel=devel,
        unused=planner.unused({GENERIC, *targets, *(one for each in targets.values() for one in each)}),
        built=tuple(targets),
        contradiction=contradiction,
        lacking=planner.lacking(),
        unmet=tuple(payload.unmet_imports(devel.files, held)),
    )


class _Planner:
    """The artifacts of a build, and which of them were taken."""

    def __init__(self, request: BuildRequest) -> None:
        self.request = request
        self.found = artifacts.scan(request.artifact_dir)
        self.info = artifacts.build_info(self.found)
        self.folded = request.platform == "windows"
        self._taken: set[Path] = set()
        self._lacking: dict[str, bool] = {}  # what artifacts lack -> whether the request says so
        self._idle = {*request.without}

    def _select(
        self, names: Sequence[str], components: Sequence[str], targets: Collection[str]
    ) -> list[Artifact]:
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

    def runtime(self, kind: Kind, data: RuntimePackage, name: str = "") -> RuntimePlan:
        """Plan a runtime package of a family, if any; device packages take only what is of their target."""
        targets = {name} if kind == "device" else targets_of(family(name)) if name else {GENERIC}
        whole = [one for one in data.artifacts if one not in data.only_lib]
        chosen = [
            *self._select(whole, data.components, targets),
            *self._select(data.only_lib, ("lib",), targets),
        ]
        for one in sorted(set(data.required) - {artifact.name for artifact in chosen}):
            self._lacks(f"{one}, of {name or 'all GPUs'}, for the {kind} package", one)
        headers = self._select(data.with_headers, ("dev",), targets)
        tree = merged([*chosen, *headers], folded=self.folded)
        facts = {path: elf.read(entry.source) for path, entry in tree.items() if not entry.link}
        known = {path: fact for path, fact in facts.items() if fact is not None}
        held = payload.plan(tree, known, include=data.include, exclude=data.exclude)
        if not held.files and kind != "profiler":
            raise ArtifactError(
                f"The artifacts of {name or 'all GPUs'} are incomplete: they hold nothing for {kind}.",
                hint="Fetch the whole set: nox -s fetch_artifacts.",
            )
        folder = payload_folder(kind, name, self.request.suffix)
        core = payload_folder("core", suffix=self.request.suffix)
        neighbours = [f"{core}/{one}" for one in data.rpath_core]
        files = {path: payload.with_rpath(file, folder, neighbours) for path, file in held.files.items()}
        return RuntimePlan(
            kind=kind,
            family=name,
            folder=folder,
            payload=replace(held, files=files),
            licenses=licenses_of(chosen, self.found),
        )

    def promised(self, families: _Targets) -> dict[str, tuple[str, ...]]:
        """Look for what each artifact must hold; return the files that packages have of it, by their kind."""
        sets = [(targets_of(family(name)), each) for name, each in families.items()]
        if self.info.split:
            sets = [(frozenset({GENERIC, *families}), tuple(families))]
        found: dict[str, set[str]] = {}
        for name, data in packages().contents.items():
            for targets, gpus in sets:
                here = [one for one in self.found if one.name == name and one.target in targets]
                tree = merged(one for one in here if one.component in {"lib", "run", "dev"})
                for label, component, glob in data.wanted(self.request.platform, gpus) if here else ():
                    own = [one for one in here if one.component == component]
                    path = _held(tree, glob, {one.path for one in own})
                    if path and label == glob:
                        kind = "devel" if component == "dev" else packages().kind_of(name)
                        found.setdefault(kind, set()).add(path)
                    elif not path:
                        near = [one for one in own if one.target in glob]
                        near = near or [one for one in own if one.target == GENERIC] or own
                        whose = ", ".join(one.path.name for one in near) or f"{name}_{component}_* (missing)"
                        self._lacks(f"{glob} of {whose}", name, label, PurePosixPath(glob).parent.name)
        return {kind: tuple(sorted(paths)) for kind, paths in sorted(found.items())}

    def _lacks(self, what: str, *names: str) -> None:
        known = {one for one in self.request.without for name in names if fnmatchcase(name, one)}
        self._idle -= known
        self._lacking[what] = bool(known)

    def lacking(self) -> tuple[str, ...]:
        """Return what the request says the artifacts lack; fail on what it does not say, or says wrongly."""
        unsaid = [what for what, known in self._lacking.items() if not known]
        if unsaid:
            listing = "".join(f"\n  {what}" for what in unsaid)
            raise ArtifactError(
                f"The artifacts are incomplete. They lack:{listing}",
                hint="Fetch the whole set: nox -s fetch_artifacts. A set that lacks something on purpose is "
                "packaged with --without A,B: names of artifacts or libraries.",
            )
        if self._idle:
            raise UsageError(
                f"--without {','.join(sorted(self._idle))}: the artifacts lack nothing of that name.",
                hint="Leave it out. Names are those of packages.toml under [contents].",
            )
        return tuple(self._lacking)

    def unsplit(self, core: RuntimePlan) -> tuple[_Targets, list[RuntimePlan], list[DevelPlan]]:
        """Plan one libraries package a GPU family, and the development tree of each."""
        available = families_of(self.found)
        if not available:
            raise ArtifactError("The artifacts hold no GPU family's libraries.", hint="Fetch a family's.")
        for name in self.request.families:
            if name not in available and not targets_of(family(name)) & {*available}:
                raise UsageError(f"No artifacts for the GPU family {name!r}. {nearest(name, available)}")
        names = dict.fromkeys(self.request.families) or available
        libraries = [self.runtime("libraries", packages().libraries, name) for name in names]
        built = set(self.info.targets)
        known = {one.family: gpu_targets(one.family) for one in libraries}
        targets = {name: tuple(one for one in each if one in built) or each for name, each in known.items()}
        trees = [self._devel(targets_of(family(one.family)), core, one) for one in libraries]
        return targets, libraries, trees

    def split(self, core: RuntimePlan) -> tuple[_Targets, list[RuntimePlan], list[DevelPlan]]:
        """Plan the libraries for all GPUs, one device package a gfx target, and one development tree."""
        libraries = self.runtime("libraries", packages().libraries)
        devices = [self.runtime("device", packages().device, target) for target in self._split_targets()]
        _require_apart([libraries, *devices], folded=self.folded)
        targets: _Targets = {one.family: (one.family,) for one in devices}
        return targets, [libraries, *devices], [self._devel({GENERIC}, core, libraries)]

    def _split_targets(self) -> tuple[str, ...]:
        """Choose the gfx targets that get a device package: the requested ones, else all that were built."""
        of_families = {name for name, one in families().items() if name not in one.targets}
        if stray := [one.path.name for one in self.found if one.target in of_families]:
            raise ArtifactError(
                f"A split set has artifacts of gfx targets, but {', '.join(stray)} are of a GPU family.",
                hint="Fetch the artifacts of one ROCm build alone; these are of one that was not split.",
            )
        built = self.info.targets or families_of(self.found)
        if not built:
            raise ArtifactError("The artifacts hold no gfx target's device code.", hint="Fetch those of one.")
        targets: list[str] = []
        for name in self.request.families:
            wanted = [target for target in gpu_targets(name) if target in built]
            if not wanted:
                raise UsageError(
                    f"No artifacts for the GPU family {name!r}.", hint=f"They are of {', '.join(built)}."
                )
            targets += wanted
        return tuple(dict.fromkeys(targets)) or tuple(built)

    def _devel(self, targets: Collection[str], *runtimes: RuntimePlan) -> DevelPlan:
        data = packages()
        names = (*data.core.artifacts, *data.libraries.artifacts, *data.devel.artifacts)
        chosen = self._select(names, data.devel.components, targets)
        tree = merged(chosen, folded=self.folded)
        files, links = payload.devel_only(tree, [one.payload for one in runtimes])
        links |= payload.usual_links(tree, data.devel.links)
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


def _held(tree: Mapping[str, Entry], glob: str, folders: Collection[Path]) -> str:
    """Return a path of one of the folders that matches and leads to a file with content; "" for none."""
    for path in filter(files.path_pattern(glob).fullmatch, tree):
        real = payload.follow(tree, path)
        if real and {*folders} & {*tree[path].source.parents} and tree[real].source.stat().st_size:
            return path
    return ""


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
    found = [entry for tree in trees for entry in tree.files.values()]
    found += [Entry(path=path, source=Path(to), link=to) for tree in trees for path, to in tree.links.items()]
    try:
        joined = artifacts.laid(found).items()
    except ArtifactError as problem:
        return trees[0], problem.message
    links = {path: entry.link for path, entry in joined if entry.link}
    return replace(trees[0], files={path: one for path, one in joined if not one.link}, links=links), ""


def _require_apart(overlaid: Sequence[RuntimePlan], *, folded: bool) -> None:
    """Require that packages that share a folder hold no path twice: uninstalling one would remove both's."""
    owners: dict[str, Entry] = {}
    for one in overlaid:
        for path, file in one.payload.files.items():
            owner = owners.setdefault(path, file.entry)
            if owner is not file.entry:
                raise ArtifactError(
                    f"{owner.source} and {file.entry.source} would both be {one.folder}/{path}, "
                    "in packages that lie over each other.",
                    hint="A file of one gfx target needs a path of its own: rebuild the artifacts.",
                )
    artifacts.require_places(owners, folded=folded)
