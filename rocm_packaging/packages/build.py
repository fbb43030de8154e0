"""Build the ROCm packages from an artifact directory."""

from __future__ import annotations

import json
import tempfile
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from core import console, process
from core.binaries import rpath
from core.cli.options import ROOT
from core.errors import ArtifactError, BuildError, MissingInputError
from core.families import FAMILIES_FILE
from core.files import digest_of, sha256
from core.wheel.wheel_writer import Made, Member, Workers
from rocm_packaging import artifacts as artifact_directory
from rocm_packaging.packages import wheels
from rocm_packaging.packages.layouts import TEMPLATES, payload_folder
from rocm_packaging.packages.payload import PayloadFile, devel_path
from rocm_packaging.packages.plan import BuildRequest, Plan, RuntimePlan, make_plan

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from core.wheel.wheel_writer import WrittenFile
    from rocm_packaging.artifacts import Entry
    from rocm_packaging.packages.plan import DevelPlan


__all__ = ["BuildRequest", "BuiltPackages", "build", "inputs_digest"]

_WHEELS_AT_ONCE = 4


@dataclass(frozen=True, kw_only=True)
class BuiltPackages:
    """What a build left."""

    version: str
    families: tuple[str, ...]
    files: tuple[WrittenFile, ...]
    unused: tuple[str, ...]


def build(request: BuildRequest) -> BuiltPackages:
    """Write the `rocm` sdist and the core, profiler, libraries, device and devel wheels."""
    planned = make_plan(request)
    if planned.contradiction:
        raise ArtifactError(planned.contradiction, hint="Package one GPU family at a time.")
    _announce(planned)
    request.output_dir.mkdir(parents=True, exist_ok=True)
    with (
        tempfile.TemporaryDirectory(dir=request.output_dir, prefix=".payload.") as folder,
        Workers(jobs=request.jobs) as workers,
        ThreadPoolExecutor(_WHEELS_AT_ONCE) as pool,
    ):
        output = wheels.Output(
            folder=request.output_dir,
            epoch=request.epoch,
            workers=workers,
            level=request.level,
            platform_tag=request.platform_tag,
        )
        started = [pool.submit(job) for job in _jobs(planned, Path(folder), output)]
        try:
            files = tuple(job.result() for job in started)
        finally:
            for job in started:
                job.cancel()
    return BuiltPackages(
        version=planned.distribution.version,
        families=planned.built,
        files=files,
        unused=planned.unused,
    )


def _announce(planned: Plan) -> None:
    for runtime in planned.runtimes:
        neighbours = _neighbours(runtime, planned)
        files = list(runtime.payload.files.values())
        patches = sum(needs_patch(file, neighbours) for file in files)
        what = f"{runtime.folder} ({runtime.family})" if runtime.kind == "device" else runtime.folder
        console.say(f"{what}: {len(files)} files, {patches} with an RPATH to set")
    if planned.unused:
        console.say(f"In no package: {', '.join(planned.unused)}")


def _jobs(planned: Plan, work: Path, output: wheels.Output) -> list[Callable[[], WrittenFile]]:
    """List what is to be written: the sdist, the runtime wheels, then devel."""
    template = stub_template() if planned.has_stubs else b""
    return [
        partial(wheels.rocm_sdist, planned.distribution, output),
        *(partial(_runtime_wheel, planned, one, work, template, output) for one in planned.runtimes),
        partial(wheels.devel_wheel, planned.distribution, planned.devel, output),
    ]


def _runtime_wheel(
    planned: Plan, runtime: RuntimePlan, work: Path, template: bytes, output: wheels.Output
) -> WrittenFile:
    neighbours = _neighbours(runtime, planned)
    folder = work / f"{runtime.kind}-{runtime.family}"
    members = [_member(file, neighbours, folder, template) for file in runtime.payload.files.values()]
    return wheels.runtime_wheel(planned.distribution, runtime, members, output)


def _neighbours(runtime: RuntimePlan, planned: Plan) -> Neighbours:
    core = payload_folder("core", suffix=planned.distribution.suffix)
    return Neighbours(payload=runtime.folder, core=core, folders=runtime.rpath)


def _member(file: PayloadFile, neighbours: Neighbours, work: Path, template: bytes) -> Member:
    """Say how a file gets into its wheel: as it is, as a stub, or patched when its turn comes."""
    executable = file.entry.executable or (file.facts is not None and file.facts.program)
    if file.stub_for:
        return Member(name=file.path, source=stub(template, file.stub_for), executable=True)
    if not needs_patch(file, neighbours):
        return Member(name=file.path, source=file.entry.source, executable=executable)
    source, search = file.entry.source, search_path(file, neighbours)
    edited = rpath.edited(source, search)
    if edited is not None:
        return Member(name=file.path, source=edited, executable=executable)
    made = Made(size=source.stat().st_size, make=lambda: rpath.patched(source, search, work / file.path))
    return Member(name=file.path, source=made, executable=executable)


def inputs_digest(request: BuildRequest) -> str:
    """Digest everything that the packages follow from: artifacts, arguments and this code.

    Artifacts count by path, size and time of change, as they are gigabytes.
    """
    root = request.artifact_dir
    listed = [
        _signature(root, entry)
        for artifact in artifact_directory.scan(root)
        for entry in artifact_directory.entries(artifact)
    ]
    chosen = replace(request, artifact_dir=Path(), output_dir=Path(), jobs=None)
    return digest_of(
        {
            "artifacts": listed,
            "code": {str(path.relative_to(ROOT)): sha256(path) for path in _code()},
            "request": {name: str(value) for name, value in vars(chosen).items()},
        }
    )


def _code() -> list[Path]:
    """List the files that decide about the packages' bytes."""
    here = Path(__file__).parents[1]
    folders = [here / "packages", TEMPLATES]
    folders += [here.parent / "core" / name for name in ("archive", "binaries", "wheel")]
    found = [path for folder in folders for path in folder.rglob("*") if path.is_file()]
    return sorted(
        path
        for path in [*found, here / "artifacts.py", FAMILIES_FILE, wheels.LICENSE]
        if path.suffix != ".pyc"
    )


def _signature(root: Path, entry: Entry) -> tuple[str, str, int, int]:
    status = entry.source.lstat()
    return str(entry.source.relative_to(root)), entry.link, status.st_size, status.st_mtime_ns


_STUB_SOURCE = TEMPLATES / "stub.c"
_STUB_MARK = b"@@STUB-TARGET@@"
_STUB_ROOM = 1024
_C_COMPILERS = ("cc", "gcc", "clang", "c++", "g++", "clang++")


@dataclass(frozen=True, kw_only=True)
class Neighbours:
    """Where a payload lies beside the core payload in site-packages."""

    payload: str
    core: str
    folders: Sequence[str]


def search_path(file: PayloadFile, neighbours: Neighbours) -> tuple[str, ...]:
    """Give the RPATH that a file is to have.

    What is relative to the file stays, in order; absolute folders are of the build machine
    and go; the folders of core follow.
    """
    if file.facts is None:
        return ()
    folders = (f"{neighbours.core}/{folder}" for folder in neighbours.folders)
    parts = (*rpath.relative(file.facts.search), *rpath.ways(f"{neighbours.payload}/{file.path}", folders))
    return tuple(dict.fromkeys(parts))


def needs_patch(file: PayloadFile, neighbours: Neighbours) -> bool:
    """Whether a file's RPATH is not yet what it is to be."""
    facts = file.facts
    if facts is None or not facts.dynamic:
        return False
    return facts.search != search_path(file, neighbours) or not facts.is_rpath


def stub_template() -> bytes:
    """Compile the program that starts another program beside it, and whose target is filled in later."""
    compiler = next(filter(None, map(process.which, _C_COMPILERS)), None)
    if compiler is None:
        raise MissingInputError(
            "No C compiler is on the PATH, and links to programs become small programs in a wheel.",
            hint="Install one, such as the package gcc.",
        )
    with tempfile.TemporaryDirectory(prefix="stub-") as folder:
        program = Path(folder) / "stub"
        # The build id would follow from the folder's name on some compilers.
        flags = ("-O1", "-s", "-Wl,--build-id=none")
        process.capture([compiler, *flags, "-x", "c", _STUB_SOURCE, "-o", program], cwd=Path(folder))
        return program.read_bytes()


def stub(template: bytes, target: str) -> bytes:
    """Fill a stub's target in: a path relative to the stub's own folder."""
    room = _STUB_MARK.ljust(_STUB_ROOM, b"\0")
    text = target.encode()
    if template.count(room) != 1 or len(text) >= _STUB_ROOM:
        raise BuildError(f"The stub program has no place for the path {target!r}.")
    return template.replace(room, text.ljust(_STUB_ROOM, b"\0"))


How = Literal["as it is", "patched", "stub", "link", "left out"]
COLUMNS = ("package", "path", "how", "soname", "aliases", "rpath", "devel", "source")


@dataclass(frozen=True, kw_only=True)
class Planned:
    """One line of a plan."""

    package: str
    path: str
    how: How
    soname: str = ""
    aliases: tuple[str, ...] = ()
    rpath: str = ""
    devel: str = ""
    source: str = ""


def planned_files(plan: Plan) -> list[Planned]:
    """List what becomes of every file, package by package, then by path."""
    found: list[Planned] = []
    for runtime in plan.runtimes:
        found += _runtime(runtime, plan)
    return [*found, *_devel(plan.devel)]


def _distribution(runtime: RuntimePlan) -> str:
    if runtime.kind == "profiler":
        return "rocm-profiler"
    return "-".join(filter(None, ("rocm-sdk", runtime.kind, runtime.family)))


def _runtime(runtime: RuntimePlan, plan: Plan) -> Iterator[Planned]:
    core = payload_folder("core", suffix=plan.distribution.suffix)
    neighbours = Neighbours(payload=runtime.folder, core=core, folders=runtime.rpath)
    names: dict[str, list[str]] = {}
    for alias in runtime.payload.aliases:
        names.setdefault(devel_path(alias, runtime.payload.aliases[alias]), []).append(alias)
    package = _distribution(runtime)
    for path, file in runtime.payload.files.items():
        yield Planned(
            package=package,
            path=path,
            how=_how(file, neighbours),
            soname=file.facts.soname if file.facts else "",
            aliases=tuple(sorted(names.get(path, ()))),
            rpath=":".join(search_path(file, neighbours)) if needs_patch(file, neighbours) else "",
            devel="" if runtime.kind == "profiler" or file.stub_for else "hard link",
            source=str(file.entry.source),
        )
    for path in runtime.payload.dropped:
        yield Planned(package=package, path=path, how="left out")


def _how(file: PayloadFile, neighbours: Neighbours) -> How:
    if file.stub_for:
        return "stub"
    return "patched" if needs_patch(file, neighbours) else "as it is"


def _devel(tree: DevelPlan) -> Iterator[Planned]:
    package = "rocm-sdk-devel"
    for path, entry in sorted(tree.files.items()):
        yield Planned(package=package, path=path, how="as it is", devel="own", source=str(entry.source))
    for path, link in sorted(tree.links.items()):
        yield Planned(package=package, path=path, how="link", devel="own", source=link)


def table_rows(files: Sequence[Planned]) -> list[tuple[str, ...]]:
    """Give the cells of a table under `COLUMNS`."""
    return [
        (
            one.package,
            one.path,
            one.how,
            one.soname,
            ", ".join(name.rpartition("/")[2] for name in one.aliases),
            one.rpath,
            one.devel,
            one.source,
        )
        for one in files
    ]


def plan_json(plan: Plan, files: Sequence[Planned]) -> str:
    """Write a plan as JSON: what is packaged, every file, and the artifacts that no package takes."""
    value = {
        "version": plan.distribution.version,
        "split": plan.distribution.split,
        "families": list(plan.built),
        "unused": list(plan.unused),
        "contradiction": plan.contradiction,
        "files": [asdict(one) for one in files],
    }
    return json.dumps(value, indent=2)
