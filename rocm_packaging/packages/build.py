"""Build the ROCm packages from an artifact directory."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from core import console, process, temporary
from core.archive import DeferredFile, Member
from core.archive.packed import LEVEL, Packing, Workers
from core.binaries import elf, rpath
from core.errors import ArtifactError, BuildError, MissingInputError
from rocm_packaging.packages import wheels
from rocm_packaging.packages.layouts import TEMPLATES
from rocm_packaging.packages.payload import PayloadFile, with_rpath
from rocm_packaging.packages.plan import (
    BuildRequest,
    DevelPlan,
    PackagingPlan,
    RuntimePlan,
    make_plan,
)
from rocm_packaging.packages.reuse import note_packed_files, packed_members

if TYPE_CHECKING:
    from core.wheel.writer import WrittenFile
    from rocm_packaging.artifacts import TreeEntry

__all__ = ["BuildRequest", "BuiltPackages", "build"]

_WHEELS_AT_ONCE = 4
_STUB_MARK = b"@@STUB-TARGET@@"
_STUB_ROOM = 1024
_C_COMPILERS = ("cc", "gcc", "clang", "c++", "g++", "clang++")

_WriteWheel = Callable[[], "WrittenFile"]


@dataclass(frozen=True, kw_only=True)
class BuiltPackages:
    """What a build left, of which plan."""

    plan: PackagingPlan
    files: tuple[WrittenFile, ...]

    @property
    def digests(self) -> dict[str, str]:
        """Return the files' SHA-256 by name."""
        return {file.path.name: file.sha256 for file in self.files}


def build(request: BuildRequest) -> BuiltPackages:
    """Write the `rocm` sdist and the core, profiler, libraries, device and devel wheels."""
    plan = make_plan(request)
    if plan.contradiction:
        raise ArtifactError(plan.contradiction, hint="Package one GPU family at a time.")
    _tell_gaps(plan)

    level = LEVEL if request.level is None else request.level
    stub_program = stub_template() if _has_stubs(plan) else b""
    request.output_dir.mkdir(parents=True, exist_ok=True)
    with (
        temporary.folder("payload", within=request.output_dir) as folder,
        Workers(jobs=request.jobs) as workers,
    ):
        known_members = packed_members(request.output_dir, level)
        packing = Packing(workers=workers, level=level, known=known_members)
        output = wheels.Output(dist_info=plan.dist_info, request=request, packing=packing)

        write_runtime = partial(_runtime_wheel, output, folder, stub_program)
        writers: list[_WriteWheel] = [partial(wheels.rocm_sdist, output)]
        writers += [partial(write_runtime, runtime) for runtime in plan.runtimes]
        writers.append(partial(_devel_wheel, output, Path(folder), plan.devel))
        files = _write_at_once(writers)

    packages = BuiltPackages(plan=plan, files=files)
    note_packed_files(request.output_dir, level, packages.digests)
    return packages


def _tell_gaps(plan: PackagingPlan) -> None:
    if plan.unused_artifacts:
        console.say(f"In no package: {', '.join(plan.unused_artifacts)}")
    for gap in plan.lacking:
        console.warn(f"Packaged without {gap}, as --without says.")
    for unmet_import in plan.unmet:
        console.warn(f"{unmet_import}, which is in no package: CMake's find_package will fail there.")


def _has_stubs(plan: PackagingPlan) -> bool:
    payloads = [runtime.payload for runtime in plan.runtimes]
    return any(payload.has_stubs for payload in payloads)


def _write_at_once(writers: Sequence[_WriteWheel]) -> tuple[WrittenFile, ...]:
    """Write several files at one time; where one fails, those that have not begun are left out."""
    with ThreadPoolExecutor(_WHEELS_AT_ONCE) as pool:
        jobs = [pool.submit(writer) for writer in writers]
        try:
            return tuple(job.result() for job in jobs)
        finally:
            for job in jobs:
                job.cancel()


def _runtime_wheel(
    output: wheels.Output,
    scratch: Path,
    stub_program: bytes,
    runtime: RuntimePlan,
) -> WrittenFile:
    folder = scratch / f"{runtime.kind}-{runtime.family}"
    with console.group(f"pack {runtime.folder} {runtime.family}".rstrip()):
        members = [_member(file, folder, stub_program) for file in runtime.payload.files.values()]
        return wheels.runtime_wheel(output, runtime, members)


def _devel_wheel(output: wheels.Output, scratch: Path, plan: DevelPlan) -> WrittenFile:
    folder = scratch / "devel"
    members = [_devel_member(path, entry, folder) for path, entry in plan.files.items()]
    return wheels.devel_wheel(output, plan, members)


def _devel_member(path: str, entry: TreeEntry, scratch: Path) -> Member:
    """Choose how a file gets into the development tree, where it finds the tree's own libraries.

    LD_LIBRARY_PATH comes before a RUNPATH: with another ROCm in it, a program would load that one's.
    """
    file = PayloadFile(path=path, entry=entry, facts=elf.read(entry.source))
    if file.facts is None or not file.facts.search:
        return Member(name=path, source=entry.source, executable=entry.executable)
    return _member(with_rpath(file, "", ()), scratch, b"")


def _member(file: PayloadFile, scratch: Path, stub_program: bytes) -> Member:
    """Choose how a file gets into its wheel: as it is, as a stub, or patched when its turn comes."""
    if file.stub_for:
        return Member(
            name=file.path,
            source=stub(stub_program, file.stub_for),
            executable=True,
        )

    is_program = file.facts is not None and file.facts.program
    is_executable = file.entry.executable or is_program
    source = file.entry.source
    if file.rpath is None:
        return Member(name=file.path, source=source, executable=is_executable)

    # Most files have room for the RPATH, and are read with a few bytes changed.
    edited_file = rpath.edit_without_patchelf(source, file.rpath)
    if edited_file is not None:
        return Member(name=file.path, source=edited_file, executable=is_executable)
    make = partial(rpath.write_by_patchelf, source, file.rpath, scratch / file.path)
    deferred_file = DeferredFile(size=source.stat().st_size, make=make)
    return Member(name=file.path, source=deferred_file, executable=is_executable)


def stub_template() -> bytes:
    """Compile the program that starts another program beside it, and whose target is filled in later."""
    compilers = [path for path in map(process.which, _C_COMPILERS) if path is not None]
    if not compilers:
        raise MissingInputError(
            "No C compiler is on the PATH, and links to programs become small programs in a wheel.",
            hint="Install one, such as the package gcc.",
        )
    with temporary.folder("stub") as folder:
        program = folder / "stub"
        # The build id would follow from the folder's name on some compilers.
        flags = ("-O1", "-s", "-Wl,--build-id=none")
        source = TEMPLATES / "stub.c"
        process.capture(
            [compilers[0], *flags, "-x", "c", source, "-o", program],
            cwd=folder,
        )
        return program.read_bytes()


def stub(template: bytes, target: str) -> bytes:
    """Fill a stub's target in: a path relative to the stub's own folder."""
    placeholder = _STUB_MARK.ljust(_STUB_ROOM, b"\0")
    target_bytes = target.encode()
    if template.count(placeholder) != 1 or len(target_bytes) >= _STUB_ROOM:
        raise BuildError(f"The stub program has no place for the path {target!r}.")
    return template.replace(placeholder, target_bytes.ljust(_STUB_ROOM, b"\0"))
