"""Build the ROCm packages from an artifact directory."""

from __future__ import annotations

import os
import tempfile
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from core import console
from core.errors import ArtifactError, UsageError, nearest
from core.families import FAMILIES_FILE, gpu_targets
from core.files import digest_of, sha256
from core.wheel_writer import Member
from rocm_packaging import artifacts as artifact_directory
from rocm_packaging import elf, patching, rendering, versions, wheels
from rocm_packaging.artifacts import (
    GENERIC,
    Artifact,
    BuildInfo,
    Entry,
    build_info,
    families_of,
    merged,
    scan,
)
from rocm_packaging.packages import CORE_PAYLOAD, RuntimePackage, packages
from rocm_packaging.patching import Neighbours, needs_patch
from rocm_packaging.payload import Payload, PayloadFile, devel_only, plan
from rocm_packaging.rendering import Distribution, libraries_in

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from core.wheel_writer import WrittenFile

Platform = Literal["linux", "windows"]


@dataclass(frozen=True, kw_only=True)
class BuildRequest:
    """What to package.

    Attributes:
        artifact_dir: The artifact directory.
        output_dir: Where the packages go.
        version: Their ROCm version; empty: the one that the artifacts name.
        families: GPU families to package, the default one first; empty: all that are found, sorted.
        platform: What the artifacts were built for.
        epoch: SOURCE_DATE_EPOCH in seconds, or None.
        jobs: How many threads and processes work; None: one a core.
    """

    artifact_dir: Path
    output_dir: Path
    version: str = ""
    families: tuple[str, ...] = ()
    platform: Platform = "linux"
    epoch: int | None = None
    jobs: int | None = None


@dataclass(frozen=True, kw_only=True)
class BuiltPackages:
    """What a build left.

    Attributes:
        version: The ROCm version of all packages.
        families: The GPU families that were packaged.
        files: The sdist and the wheels, in the order they were written.
        unused: Names of artifacts that belong to no package.
    """

    version: str
    families: tuple[str, ...]
    files: tuple[WrittenFile, ...]
    unused: tuple[str, ...]


@dataclass(frozen=True, kw_only=True)
class _Runtime:
    payload_name: str
    payload: Payload
    rpath: tuple[str, ...]


@dataclass(frozen=True, kw_only=True)
class _Plan:
    distribution: Distribution
    core: _Runtime
    libraries: Mapping[str, _Runtime]
    devel_files: Mapping[str, Entry]
    devel_links: Mapping[str, str]
    unused: tuple[str, ...] = field(default=())


def build(request: BuildRequest) -> BuiltPackages:
    """Write the `rocm` sdist and the core, libraries and devel wheels.

    Raises:
        MissingInputError: There are no artifacts.
        ArtifactError: The set of artifacts is incomplete, malformed or contradicts itself.
        UsageError: The version or a family cannot be meant as written.
        ProcessError: patchelf or the compiler failed.
    """
    planned = _plan(request)
    output = wheels.Output(folder=request.output_dir, epoch=request.epoch, jobs=request.jobs)
    distribution = planned.distribution
    request.output_dir.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=request.output_dir, prefix=".payload.") as folder:
        work = Path(folder)
        files = [
            wheels.rocm_sdist(distribution, output),
            wheels.core_wheel(distribution, _members(planned.core, work, request.jobs), output),
        ]
        for family, runtime in planned.libraries.items():
            members = _members(runtime, work, request.jobs)
            files.append(wheels.libraries_wheel(distribution, family, members, output))
        files.append(wheels.devel_wheel(distribution, planned.devel_files, planned.devel_links, output))
    return BuiltPackages(
        version=distribution.version,
        families=tuple(distribution.families),
        files=tuple(files),
        unused=planned.unused,
    )


def inputs_digest(request: BuildRequest) -> str:
    """Digest everything that the packages follow from: artifacts, arguments and this code.

    Artifacts count by path, size and time of change, as they are gigabytes.

    Raises:
        MissingInputError: There are no artifacts.
    """
    root = request.artifact_dir
    listed = [
        _signature(root, entry) for artifact in scan(root) for entry in artifact_directory.entries(artifact)
    ]
    return digest_of(
        {
            "artifacts": listed,
            "code": {path.name: sha256(path) for path in _code()},
            "request": [request.version, request.families, request.platform, request.epoch],
        }
    )


def _code() -> list[Path]:
    """List the files that decide about the packages' bytes."""
    here = Path(__file__).parent
    own = [path for path in here.glob("*") if path.is_file()]
    templates = [path for path in rendering.TEMPLATES.rglob("*") if path.is_file()]
    shared = [here.parent / "core" / name for name in ("wheel_writer.py", "zip_writer.py")]
    return sorted(path for path in [*own, *templates, *shared, FAMILIES_FILE] if path.suffix != ".pyc")


def _signature(root: Path, entry: Entry) -> tuple[str, str, int, int]:
    status = entry.source.lstat()
    return str(entry.source.relative_to(root)), entry.link, status.st_size, status.st_mtime_ns


def _plan(request: BuildRequest) -> _Plan:
    found = scan(request.artifact_dir)
    info = build_info(found)
    if info.split:
        raise ArtifactError(
            f"{request.artifact_dir} was built with KPACK_SPLIT_ARTIFACTS, and device packages "
            "cannot be made yet.",
            hint="Use artifacts of a build with KPACK_SPLIT_ARTIFACTS=OFF.",
        )
    version = versions.parse(request.version or info.version).text
    families = _families(request.families, found)
    data = packages()
    core_tree = _core_tree(found)
    core = _runtime(core_tree, CORE_PAYLOAD, data.core)
    libraries = {family: _libraries(found, family) for family in families}
    files, links = _devel(found, families, core.payload, libraries)
    held = [
        libraries_in("libraries", runtime.payload.files, request.platform) for runtime in libraries.values()
    ]
    names = libraries_in("core", core.payload.files, request.platform) | set.intersection(*held)
    used = {*data.core.artifacts, *data.libraries.artifacts, *data.devel.artifacts}
    distribution = Distribution(
        version=version,
        platform=request.platform,
        families={family: _targets(family, info) for family in families},
        libraries=tuple(sorted(names)),
    )
    return _Plan(
        distribution=distribution,
        core=core,
        libraries=libraries,
        devel_files=files,
        devel_links=links,
        unused=tuple(sorted({artifact.name for artifact in found} - used)),
    )


def _families(requested: Sequence[str], found: Sequence[Artifact]) -> tuple[str, ...]:
    available = families_of(found)
    if not available:
        raise ArtifactError("The artifacts hold no GPU family's libraries.", hint="Fetch those of a family.")
    for family in requested:
        if family not in available:
            raise UsageError(f"No artifacts are of the GPU family {family!r}. {nearest(family, available)}")
    return tuple(dict.fromkeys(requested)) or available


def _targets(family: str, info: BuildInfo) -> tuple[str, ...]:
    targets = gpu_targets(family)
    return tuple(target for target in targets if target in info.targets) or targets


def _select(
    found: Sequence[Artifact], names: Sequence[str], components: Sequence[str], targets: Iterable[str]
) -> list[Artifact]:
    wanted = set(targets)
    return [a for a in found if a.name in names and a.component in components and a.target in wanted]


def _require(names: Sequence[str], chosen: Sequence[Artifact], what: str) -> None:
    missing = sorted(set(names) - {artifact.name for artifact in chosen})
    if missing:
        raise ArtifactError(
            f"The artifacts of {what} are incomplete: {', '.join(missing)} missing.",
            hint="Fetch the whole set: nox -s fetch_artifacts.",
        )


def _core_tree(found: Sequence[Artifact]) -> dict[str, Entry]:
    data = packages().core
    chosen = _select(found, data.artifacts, data.components, {GENERIC})
    _require(data.required, chosen, "the core package")
    tree = merged(chosen)
    headers = merged(_select(found, data.with_headers, ("dev",), {GENERIC}))
    return dict(sorted({**headers, **tree}.items()))


def _libraries(found: Sequence[Artifact], family: str) -> _Runtime:
    data = packages().libraries
    chosen = _select(found, data.artifacts, data.components, {GENERIC, family})
    _require(data.required, chosen, family)
    return _runtime(merged(chosen), wheels.payload_name(family), data)


def _runtime(tree: Mapping[str, Entry], name: str, data: RuntimePackage) -> _Runtime:
    facts = {path: elf.read(entry.source) for path, entry in tree.items() if not entry.link}
    known = {path: fact for path, fact in facts.items() if fact is not None}
    return _Runtime(payload_name=name, payload=plan(tree, known, exclude=data.exclude), rpath=data.rpath_core)


def _devel(
    found: Sequence[Artifact], families: Sequence[str], core: Payload, libraries: Mapping[str, _Runtime]
) -> tuple[dict[str, Entry], dict[str, str]]:
    """Choose the development tree's own files; families may not disagree about one."""
    data = packages()
    names = (*data.core.artifacts, *data.libraries.artifacts, *data.devel.artifacts)
    files: dict[str, Entry] = {}
    links: dict[str, str] = {}
    for family in families:
        tree = merged(_select(found, names, data.devel.components, {GENERIC, family}))
        more_files, more_links = devel_only(tree, [core, libraries[family].payload])
        for path, entry in more_files.items():
            artifact_directory.require_same(files.setdefault(path, entry), entry)
        for path, link in more_links.items():
            if links.setdefault(path, link) != link:
                raise ArtifactError(
                    f"The GPU families {', '.join(families)} link {path} to {links[path]} and to {link}.",
                    hint="Package one GPU family at a time.",
                )
    return files, links


def _members(runtime: _Runtime, work: Path, jobs: int | None) -> list[Member]:
    """Patch what needs it, side by side, and list the payload's members."""
    neighbours = Neighbours(payload=runtime.payload_name, core=CORE_PAYLOAD, folders=runtime.rpath)
    files = list(runtime.payload.files.values())
    patches = sum(needs_patch(file, neighbours) for file in files)
    console.say(f"{runtime.payload_name}: {len(files)} files, {patches} with an RPATH to set")
    template = patching.stub_template() if any(file.stub_for for file in files) else b""

    def member(file: PayloadFile) -> Member:
        executable = file.entry.executable or (file.facts is not None and file.facts.program)
        if file.stub_for:
            return Member(name=file.path, source=patching.stub(template, file.stub_for), executable=True)
        needed = needs_patch(file, neighbours)
        source = patching.patched(file, neighbours, work) if needed else file.entry.source
        return Member(name=file.path, source=source, executable=executable)

    with ThreadPoolExecutor(jobs or os.cpu_count()) as pool:
        return list(pool.map(member, files))
