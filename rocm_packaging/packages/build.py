"""Build the ROCm packages from an artifact directory."""

from __future__ import annotations

import tempfile
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from core import console
from core.archive import Made, Member
from core.archive.compression import Workers
from core.binaries import rpath
from core.cli.options import ROOT
from core.errors import ArtifactError
from core.families import FAMILIES_FILE
from core.files import digest_of, sha256
from rocm_packaging.artifacts import artifacts as artifact_directory
from rocm_packaging.packages import patching, rendering, wheels
from rocm_packaging.packages.packages import payload_folder
from rocm_packaging.packages.patching import Neighbours, needs_patch
from rocm_packaging.packages.planning import BuildRequest, Plan, RuntimePlan, make_plan

if TYPE_CHECKING:
    from collections.abc import Callable

    from core.wheel.writer import WrittenFile
    from rocm_packaging.artifacts.artifacts import Entry
    from rocm_packaging.packages.payload import PayloadFile

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
    template = patching.stub_template() if planned.has_stubs else b""
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
        return Member(name=file.path, source=patching.stub(template, file.stub_for), executable=True)
    if not needs_patch(file, neighbours):
        return Member(name=file.path, source=file.entry.source, executable=executable)
    source, search = file.entry.source, patching.search_path(file, neighbours)
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
    folders = [here / "packages", here / "artifacts", rendering.TEMPLATES]
    folders += [here.parent / "core" / name for name in ("archive", "binaries", "wheel")]
    found = [path for folder in folders for path in folder.rglob("*") if path.is_file()]
    return sorted(path for path in [*found, FAMILIES_FILE, wheels.LICENSE] if path.suffix != ".pyc")


def _signature(root: Path, entry: Entry) -> tuple[str, str, int, int]:
    status = entry.source.lstat()
    return str(entry.source.relative_to(root)), entry.link, status.st_size, status.st_mtime_ns
