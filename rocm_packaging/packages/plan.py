"""Decide what each package of a build holds, before anything is written.

Two layouts: unsplit builds make one libraries package a GPU family, with the device code in
it; split builds (``KPACK_SPLIT_ARTIFACTS``) make one libraries package for all GPUs and one
device package a gfx target, which lies over it. Which artifacts make which package is data,
`packages.toml`.
"""

import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Literal

from core.binaries import elf
from core.errors import ArtifactError, UsageError, nearest
from core.families import CPU, families, family, gpu_targets
from core.run import Platform
from rocm_packaging import artifacts
from rocm_packaging.artifacts import (
    GENERIC,
    Artifact,
    TreeEntry,
    families_of,
    merge_artifacts,
    targets_of,
)
from rocm_packaging.packages import payload, versions
from rocm_packaging.packages.contents import Gaps, TargetSet, promised_files
from rocm_packaging.packages.layouts import (
    RuntimePackage,
    libraries_in,
    packages,
    payload_folder,
)
from rocm_packaging.packages.payload import Licenses, Payload, licenses_of

Kind = Literal["core", "libraries", "device", "profiler"]
TargetsByFamily = Mapping[str, tuple[str, ...]]  # a gfx target is a family of itself, in split builds


@dataclass(frozen=True, kw_only=True)
class BuildRequest:
    """What to package.

    Attributes:
        artifact_dir: The folder of artifacts.
        output_dir: Where the packages go.
        version: That of the packages; "" for that of the artifacts.
        families: The GPU families that get packages; none for all that the artifacts hold.
        platform: That of the artifacts.
        epoch: The time of all files, in seconds since 1970.
        jobs: How many threads compress.
        level: How hard they do.
        suffix: The end of the names of payload folders.
        platform_tag: The platform in the wheels' names; "" for the usual one.
        linux_families: What the release offers on Linux, built here or elsewhere.
        windows_families: What it offers on Windows.
        without: What the artifacts lack on purpose, by names that may be globs.
    """

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

    def require_valid(self) -> None:
        """Refuse texts that would become names of folders or files and cannot."""
        if not re.fullmatch(r"\w*", self.suffix, re.ASCII):
            raise UsageError(
                f"Invalid suffix {self.suffix!r}: it ends the name of a folder that Python imports.",
                hint="Use letters, digits and _.",
            )
        if not re.fullmatch(r"[a-z0-9_]*", self.platform_tag):
            raise UsageError(
                f"Invalid platform tag {self.platform_tag!r} of a wheel.",
                hint="A valid one is linux_x86_64.",
            )


@dataclass(frozen=True, kw_only=True)
class RuntimePlan:
    """One wheel of files that programs need at run time.

    `family` is a GPU family; of a device package its gfx target; "" for a package that serves all GPUs.
    """

    kind: Kind
    family: str
    folder: str
    payload: Payload
    licenses: Licenses

    @property
    def distribution(self) -> str:
        """The wheel's name."""
        prefix = "rocm" if self.kind == "profiler" else "rocm-sdk"
        return "-".join(filter(None, (prefix, self.kind, self.family)))


@dataclass(frozen=True, kw_only=True)
class DevelPlan:
    """The development tree, beyond what the runtime wheels hold."""

    files: Mapping[str, TreeEntry]
    links: Mapping[str, str]
    licenses: Licenses


@dataclass(frozen=True, kw_only=True)
class DistInfo:
    """What all packages of one build know of each other, by their modules ``_dist_info``.

    Attributes:
        version: That of all packages.
        platform: That of all packages.
        families: The families that the release offers, on any platform, with their gfx targets.
        libraries: The libraries that every installation has, by the names that `rocm_sdk` gives them.
        split: Whether the packages have the split layout.
        suffix: The end of the names of payload folders.
        profiler: Whether there is a package of profilers.
        linux_families: The families that the release offers on Linux.
        windows_families: The families that it offers on Windows.
        aliases: Families without packages of their own, with those of their targets that have some.
        promised_files: The paths of files that users count on, by package.
    """

    version: str
    platform: Platform
    families: TargetsByFamily
    libraries: tuple[str, ...]
    split: bool = False
    suffix: str = ""
    profiler: bool = False
    linux_families: tuple[str, ...] = ()
    windows_families: tuple[str, ...] = ()
    aliases: TargetsByFamily = field(default_factory=dict)
    promised_files: Mapping[str, tuple[str, ...]] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class PackagingPlan:
    """All packages of a build."""

    dist_info: DistInfo
    runtimes: tuple[RuntimePlan, ...]
    devel: DevelPlan
    unused_artifacts: tuple[str, ...]
    built_families: tuple[str, ...]
    contradiction: str = ""
    lacking: tuple[str, ...] = ()
    unmet: tuple[str, ...] = ()


def make_plan(request: BuildRequest) -> PackagingPlan:
    """Decide what each package holds; files' heads are read, nothing is written."""
    planner = _Planner(request)
    request.require_valid()
    version = request.version or planner.info.version
    versions.require_valid(version)

    core = planner.plan_runtime("core", packages().core)
    runtimes = [core]
    if request.platform == "linux":
        profiler = planner.plan_runtime("profiler", packages().profiler)
        if profiler.payload.files:
            runtimes.append(profiler)
    libraries = planner.plan_libraries()
    runtimes += libraries
    targets = planner.targets_by_family(libraries)

    devel, contradiction = _merge_trees(planner.plan_development_trees(core, libraries))
    files_by_package = promised_files(
        planner.artifacts,
        planner.target_sets(targets),
        request.platform,
        planner.gaps,
    )
    dist_info = planner.plan_dist_info(version, targets, runtimes)
    return PackagingPlan(
        dist_info=replace(dist_info, promised_files=files_by_package),
        runtimes=tuple(runtimes),
        devel=devel,
        unused_artifacts=planner.unused_artifacts(targets),
        built_families=tuple(targets),
        contradiction=contradiction,
        lacking=planner.gaps.intended_gaps(),
        unmet=tuple(payload.unmet_imports(devel.files, _packaged_paths(devel, runtimes))),
    )


def _packaged_paths(devel: DevelPlan, runtimes: Iterable[RuntimePlan]) -> set[str]:
    paths = {*devel.files, *devel.links}
    for runtime in runtimes:
        paths.update(runtime.payload.files)
    return paths


class _Planner:
    """The artifacts of a build, which of them are packaged, and what they lack."""

    def __init__(self, request: BuildRequest) -> None:
        self.request = request
        self.artifacts = artifacts.scan(request.artifact_dir)
        self.info = artifacts.build_info(self.artifacts)
        self.gaps = Gaps(request.without)
        self._ignores_case = request.platform == "windows"
        self._packaged_folders: set[Path] = set()

    def _select(
        self,
        names: Sequence[str],
        components: Sequence[str],
        targets: Collection[str],
    ) -> list[Artifact]:
        """Take the artifacts of these names, components and targets."""
        selected = artifacts.select_artifacts(
            self.artifacts, names=names, components=components, targets=targets
        )
        self._packaged_folders.update(artifact.path for artifact in selected)
        return selected

    def unused_artifacts(self, targets: TargetsByFamily) -> tuple[str, ...]:
        """List the folders of these targets that nothing was taken of."""
        artifact_targets = {GENERIC, *targets}
        for gpu_targets_of_family in targets.values():
            artifact_targets.update(gpu_targets_of_family)
        folder_names: list[str] = []
        for artifact in self.artifacts:
            is_packaged = artifact.path in self._packaged_folders
            if not is_packaged and artifact.target in artifact_targets:
                folder_names.append(artifact.path.name)
        return tuple(sorted(folder_names))

    # Runtime packages

    def plan_runtime(self, kind: Kind, data: RuntimePackage, name: str = "") -> RuntimePlan:
        """Plan a runtime package: of a GPU family or gfx target, or ("") of none.

        Device packages take only what is of their target.
        """
        if kind == "device":
            targets: Collection[str] = {name}
        elif name:
            targets = targets_of(family(name))
        else:
            targets = {GENERIC}

        selected = self._select_for_runtime(data, targets)
        label = name or "all GPUs"
        for required in sorted(set(data.required) - {artifact.name for artifact in selected}):
            self.gaps.add(f"{required}, of {label}, for the {kind} package", required)

        headers = self._select(data.with_headers, ("dev",), targets)
        planned_payload = self._plan_payload(data, [*selected, *headers])
        if not planned_payload.files and kind != "profiler":
            raise ArtifactError(
                f"The artifacts of {label} are incomplete: they hold nothing for {kind}.",
                hint="Fetch the whole set: nox -s fetch_artifacts.",
            )

        folder = payload_folder(kind, name, self.request.suffix)
        return RuntimePlan(
            kind=kind,
            family=name,
            folder=folder,
            payload=self._with_rpaths(planned_payload, folder, data.rpath_core),
            licenses=licenses_of(selected, self.artifacts),
        )

    def _select_for_runtime(self, data: RuntimePackage, targets: Collection[str]) -> list[Artifact]:
        names = [name for name in data.artifacts if name not in data.only_lib]
        return [
            *self._select(names, data.components, targets),
            *self._select(data.only_lib, ("lib",), targets),
        ]

    def _plan_payload(self, data: RuntimePackage, selected: Iterable[Artifact]) -> Payload:
        tree = merge_artifacts(selected, ignores_case=self._ignores_case)
        facts: dict[str, elf.ElfFacts] = {}
        for path, entry in tree.items():
            if not entry.link:
                elf_facts = elf.read(entry.source)
                if elf_facts is not None:
                    facts[path] = elf_facts
        return payload.plan(
            tree,
            facts,
            include=data.include,
            exclude=data.exclude,
            unversioned=data.unversioned,
        )

    def _with_rpaths(
        self,
        runtime_payload: Payload,
        folder: str,
        folders_of_core: Iterable[str],
    ) -> Payload:
        core = payload_folder("core", suffix=self.request.suffix)
        other_folders = [f"{core}/{folder_of_core}" for folder_of_core in folders_of_core]
        files: dict[str, payload.PayloadFile] = {}
        for path, file in runtime_payload.files.items():
            files[path] = payload.with_rpath(file, folder, other_folders)
        return replace(runtime_payload, files=files)

    # Libraries and device code

    def plan_libraries(self) -> list[RuntimePlan]:
        """Plan the packages of libraries: one a GPU family, or one for all and a device package a target."""
        data = packages()
        if not self.info.split:
            return [self.plan_runtime("libraries", data.libraries, name) for name in self._unsplit_families()]

        libraries = self.plan_runtime("libraries", data.libraries)
        devices = [self.plan_runtime("device", data.device, target) for target in self._split_targets()]
        overlaid = [libraries, *devices]
        _require_disjoint(overlaid, ignores_case=self._ignores_case)
        return overlaid

    def _unsplit_families(self) -> tuple[str, ...]:
        """Choose the GPU families that get libraries: the requested ones, else all that were built."""
        available = families_of(self.artifacts)
        if not available:
            raise ArtifactError(
                "The artifacts hold no GPU family's libraries.",
                hint="Fetch a family's.",
            )
        for name in self.request.families:
            if name not in available and targets_of(family(name)).isdisjoint(available):
                raise UsageError(f"No artifacts for the GPU family {name!r}. {nearest(name, available)}")
        return tuple(dict.fromkeys(self.request.families)) or available

    def _split_targets(self) -> tuple[str, ...]:
        """Choose the gfx targets that get a device package: the requested ones, else all that were built."""
        self._refuse_artifacts_of_families()
        built_targets = self.info.targets or families_of(self.artifacts)
        if not built_targets:
            raise ArtifactError(
                "The artifacts hold no gfx target's device code.",
                hint="Fetch those of one.",
            )

        targets: list[str] = []
        for name in self.request.families:
            targets_of_family = [target for target in gpu_targets(name) if target in built_targets]
            if not targets_of_family:
                raise UsageError(
                    f"No artifacts for the GPU family {name!r}.",
                    hint=f"They are of {', '.join(built_targets)}.",
                )
            targets += targets_of_family
        return tuple(dict.fromkeys(targets)) or tuple(built_targets)

    def _refuse_artifacts_of_families(self) -> None:
        # A gfx target is a family, too, of itself alone.
        family_names = {name for name, known_family in families().items() if name not in known_family.targets}
        strays = [artifact.path.name for artifact in self.artifacts if artifact.target in family_names]
        if strays:
            raise ArtifactError(
                f"A split set has artifacts of gfx targets, but {', '.join(strays)} are of a GPU family.",
                hint="Fetch the artifacts of one ROCm build alone; these are of one that was not split.",
            )

    def targets_by_family(self, runtimes: Iterable[RuntimePlan]) -> TargetsByFamily:
        """Return the gfx targets of each package: those of its family that were built, or its own."""
        targets: dict[str, tuple[str, ...]] = {}
        for runtime in runtimes:
            if runtime.kind == "device":
                targets[runtime.family] = (runtime.family,)
            elif runtime.family:
                all_targets = gpu_targets(runtime.family)
                built_targets = tuple(target for target in all_targets if target in self.info.targets)
                # The base artifact may name no targets, or those of another family's build.
                targets[runtime.family] = built_targets or all_targets
        return targets

    def target_sets(self, targets: TargetsByFamily) -> list[TargetSet]:
        """Return which artifacts are used together: all of a split build, else those of a family."""
        if self.info.split:
            return [
                TargetSet(
                    artifact_targets=frozenset({GENERIC, *targets}),
                    gpu_targets=tuple(targets),
                )
            ]
        return [
            TargetSet(
                artifact_targets=targets_of(family(name)),
                gpu_targets=targets_of_family,
            )
            for name, targets_of_family in targets.items()
        ]

    # The development tree

    def plan_development_trees(self, core: RuntimePlan, libraries: Sequence[RuntimePlan]) -> list[DevelPlan]:
        """Plan the development tree of each GPU family; split builds have one, of what is generic."""
        if self.info.split:
            return [self._plan_development_tree({GENERIC}, [core, libraries[0]])]
        return [
            self._plan_development_tree(targets_of(family(runtime.family)), [core, runtime])
            for runtime in libraries
        ]

    def _plan_development_tree(self, targets: Collection[str], runtimes: Iterable[RuntimePlan]) -> DevelPlan:
        data = packages()
        names = (
            *data.core.artifacts,
            *data.libraries.artifacts,
            *data.devel.artifacts,
        )
        selected = self._select(names, data.devel.components, targets)
        tree = merge_artifacts(selected, ignores_case=self._ignores_case)
        files, links = payload.devel_only(tree, [runtime.payload for runtime in runtimes])
        # On Windows a link to a folder needs a right that few users have, and upstream's tree has none.
        if self.request.platform == "linux":
            links |= payload.usual_links(tree, data.devel.links)
        return DevelPlan(
            files=files,
            links=links,
            licenses=licenses_of(selected, self.artifacts),
        )

    # The whole

    def plan_dist_info(
        self, version: str, built_families: TargetsByFamily, runtimes: Sequence[RuntimePlan]
    ) -> DistInfo:
        """Gather what all packages know of each other."""
        request = self.request
        linux_families = self._offered_families(request.linux_families)
        windows_families = self._offered_families(request.windows_families)
        if request.platform == "linux":
            linux_families = {**built_families, **linux_families}
        else:
            windows_families = {**built_families, **windows_families}
        # Built ones come first, as the first one is the default.
        all_families = {**built_families, **linux_families, **windows_families}
        return DistInfo(
            version=version,
            platform=request.platform,
            families=all_families,
            libraries=_libraries_of_every_installation(runtimes, request.platform),
            split=self.info.split,
            suffix=request.suffix,
            profiler=any(runtime.kind == "profiler" for runtime in runtimes),
            linux_families=tuple(linux_families),
            windows_families=tuple(windows_families),
            aliases=_aliases(all_families) if self.info.split else {},
        )

    def _offered_families(self, names: Iterable[str]) -> TargetsByFamily:
        """Return the families, or targets of a split build, that are offered, built here or elsewhere."""
        targets_by_family: dict[str, tuple[str, ...]] = {}
        for name in names:
            if self.info.split:
                targets_by_family.update((target, (target,)) for target in gpu_targets(name))
            else:
                targets_by_family[name] = gpu_targets(name)
        return targets_by_family


def _libraries_of_every_installation(runtimes: Iterable[RuntimePlan], platform: Platform) -> tuple[str, ...]:
    """Return the names for `rocm_sdk` of the libraries in core, and in every package of libraries.

    An installation may have any one of those packages, and a build plans one at least.
    """
    libraries_of_core: set[str] = set()
    libraries_of_families: list[set[str]] = []
    for runtime in runtimes:
        names = libraries_in(runtime.kind, runtime.payload.files, platform)
        if runtime.kind == "core":
            libraries_of_core = names
        elif runtime.kind == "libraries":
            libraries_of_families.append(names)
    libraries_of_all_families = set.intersection(*libraries_of_families)
    return tuple(sorted(libraries_of_core | libraries_of_all_families))


def _aliases(available_targets: Iterable[str]) -> TargetsByFamily:
    """Return the families that stand for some of the gfx targets that have packages."""
    available = set(available_targets)
    aliases: dict[str, tuple[str, ...]] = {}
    for name, known_family in sorted(families().items()):
        targets = tuple(target for target in known_family.targets if target in available)
        if targets and name != CPU and name not in available:
            aliases[name] = targets
    return aliases


def _merge_trees(trees: Sequence[DevelPlan]) -> tuple[DevelPlan, str]:
    """Make one development tree of all families'; or return the first, and how another contradicts it."""
    entries: list[TreeEntry] = []
    for tree in trees:
        entries += tree.files.values()
        entries += [TreeEntry(path=path, source=Path(link), link=link) for path, link in tree.links.items()]
    try:
        merged_tree = artifacts.merge_entries(entries)
    except ArtifactError as problem:
        return trees[0], problem.message

    files: dict[str, TreeEntry] = {}
    links: dict[str, str] = {}
    for path, entry in merged_tree.items():
        if entry.link:
            links[path] = entry.link
        else:
            files[path] = entry
    return replace(trees[0], files=files, links=links), ""


def _require_disjoint(overlaid: Sequence[RuntimePlan], *, ignores_case: bool) -> None:
    """Require that packages that share a folder hold no path twice: uninstalling one would remove both's."""
    owners: dict[str, TreeEntry] = {}
    for runtime in overlaid:
        for path, file in runtime.payload.files.items():
            owner = owners.setdefault(path, file.entry)
            if owner is not file.entry:
                raise ArtifactError(
                    f"{owner.source} and {file.entry.source} would both be {runtime.folder}/{path}, "
                    "in packages that lie over each other.",
                    hint="A file of one gfx target needs a path of its own: rebuild the artifacts.",
                )
    artifacts.require_places(owners, ignores_case=ignores_case)
