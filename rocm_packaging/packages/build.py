"""Build the ROCm packages from an artifact directory, or list what a build would do."""

from __future__ import annotations

import importlib.metadata
import json
import mmap
import os
import posixpath
import tempfile
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, get_args

from core import archive, console, process
from core.archive import Content, DeferredFile, Member
from core.archive.packed import LEVEL, PackedData, Packing, Workers
from core.binaries import rpath
from core.cli.options import ROOT
from core.errors import ArtifactError, BuildError, MissingInputError
from core.families import families
from core.files import digest_of, sha256, write_json
from core.wheel.record import require_listing
from rocm_packaging.artifacts import Entry, scan
from rocm_packaging.packages import wheels
from rocm_packaging.packages.layouts import TEMPLATES
from rocm_packaging.packages.plan import BuildRequest, Plan, RuntimePlan, make_plan

if TYPE_CHECKING:
    from core.wheel.writer import WrittenFile
    from rocm_packaging.packages.payload import PayloadFile

__all__ = ["BuildRequest", "BuiltPackages", "build", "inputs_of", "plan_json", "planned_files"]

_WHEELS_AT_ONCE = 4
_STUB_MARK = b"@@STUB-TARGET@@"
_STUB_ROOM = 1024
_C_COMPILERS = ("cc", "gcc", "clang", "c++", "g++", "clang++")
_NOTE = ".packed.json"  # which files a build has left: their SHA-256 by name
_PACKERS = ("deflate", "zlib-ng")


@dataclass(frozen=True, kw_only=True)
class BuiltPackages:
    """What a build left, of which plan."""

    plan: Plan
    files: tuple[WrittenFile, ...]

    @property
    def digests(self) -> dict[str, str]:
        """Return the files' SHA-256 by name."""
        return {one.path.name: one.sha256 for one in self.files}


def build(request: BuildRequest) -> BuiltPackages:
    """Write the `rocm` sdist and the core, profiler, libraries, device and devel wheels."""
    planned = make_plan(request)
    if planned.contradiction:
        raise ArtifactError(planned.contradiction, hint="Package one GPU family at a time.")
    if planned.unused:
        console.say(f"In no package: {', '.join(planned.unused)}")
    for what in planned.lacking:
        console.warn(f"Packaged without {what}, as --without says.")
    for what in planned.unmet:
        console.warn(f"{what}, which is in no package: CMake's find_package will fail there.")
    template = b""
    if any(file.stub_for for one in planned.runtimes for file in one.payload.files.values()):
        template = stub_template()
    request.output_dir.mkdir(parents=True, exist_ok=True)
    with (
        tempfile.TemporaryDirectory(dir=request.output_dir, prefix=".payload.") as folder,
        Workers(jobs=request.jobs) as workers,
        ThreadPoolExecutor(_WHEELS_AT_ONCE) as pool,
    ):
        level = LEVEL if request.level is None else request.level
        known = _kept_members(request.output_dir, level)
        packing = Packing(workers=workers, level=level, known=known)
        output = wheels.Output(distribution=planned.distribution, request=request, packing=packing)
        started = [
            pool.submit(wheels.rocm_sdist, output),
            *(pool.submit(_runtime_wheel, output, one, Path(folder), template) for one in planned.runtimes),
            pool.submit(wheels.devel_wheel, output, planned.devel),
        ]
        try:
            written = tuple(job.result() for job in started)
        finally:
            for job in started:
                job.cancel()
    built = BuiltPackages(plan=planned, files=written)
    write_json(request.output_dir / _NOTE, {"rules": _rules(level), "digests": built.digests})
    return built


def _kept_members(folder: Path, level: int) -> Mapping[bytes, PackedData]:
    """Return the members of wheels that are as the last build left them, by the SHA-256 of their bytes.

    They count only where the wheels have the bytes that it wrote, by this code, at this level, so that a
    build makes the same bytes with them and without.
    """
    note = folder / _NOTE
    # Windows does not replace a file that somebody reads.
    if os.name == "nt" or not note.is_file():
        return {}
    noted = json.loads(note.read_text(encoding="utf-8"))
    if noted["rules"] != _rules(level):
        return {}
    found: dict[bytes, PackedData] = {}
    for name, digest in noted["digests"].items():
        path = folder / name
        if path.suffix == ".whl" and path.is_file() and sha256(path) == digest:
            found |= _packed_members(path)
    return found


def _packed_members(path: Path) -> dict[bytes, PackedData]:
    # mapped, and so read from the file that it is now: the build puts another into its place
    with path.open("rb") as stream:
        content = Content(data=mmap.mmap(stream.fileno(), 0, access=mmap.ACCESS_READ))
    listing = require_listing(path)
    packed: dict[bytes, PackedData] = {}
    for member in listing.members:
        row = listing.rows.get(member.name)
        if row is not None:
            pieces = partial(content.pieces, member.start, member.end)
            packed[row.digest] = PackedData(method=member.method, size=member.packed_size, pieces=pieces)
    return packed


def _rules(level: int) -> str:
    """Digest what decides about a member's packed bytes."""
    code = sorted(Path(archive.__file__).parent.glob("*.py"))
    return digest_of(
        {
            "level": level,
            "code": {path.name: sha256(path) for path in code},
            "packers": {name: importlib.metadata.version(name) for name in _PACKERS},
        }
    )


def _runtime_wheel(output: wheels.Output, runtime: RuntimePlan, work: Path, template: bytes) -> WrittenFile:
    folder = work / f"{runtime.kind}-{runtime.family}"
    with console.group(f"pack {runtime.folder} {runtime.family}".rstrip()):
        members = [_member(file, folder, template) for file in runtime.payload.files.values()]
        return wheels.runtime_wheel(output, runtime, members)


def _member(file: PayloadFile, work: Path, template: bytes) -> Member:
    """Choose how a file gets into its wheel: as it is, as a stub, or patched when its turn comes."""
    if file.stub_for:
        return Member(name=file.path, source=stub(template, file.stub_for), executable=True)
    executable = file.entry.executable or (file.facts is not None and file.facts.program)
    source, search = file.entry.source, file.rpath
    if search is None:
        return Member(name=file.path, source=source, executable=executable)
    make = partial(rpath.patched, source, search, work / file.path)
    made = rpath.edited(source, search) or DeferredFile(size=source.stat().st_size, make=make)
    return Member(name=file.path, source=made, executable=executable)


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
        process.capture([compiler, *flags, "-x", "c", TEMPLATES / "stub.c", "-o", program], cwd=Path(folder))
        return program.read_bytes()


def stub(template: bytes, target: str) -> bytes:
    """Fill a stub's target in: a path relative to the stub's own folder."""
    room = _STUB_MARK.ljust(_STUB_ROOM, b"\0")
    text = target.encode()
    if template.count(room) != 1 or len(text) >= _STUB_ROOM:
        raise BuildError(f"The stub program has no place for the path {target!r}.")
    return template.replace(room, text.ljust(_STUB_ROOM, b"\0"))


def inputs_of(request: BuildRequest) -> Mapping[str, Any]:
    """Describe everything that the packages follow from: artifacts, arguments and this code.

    Artifacts count by path, size and time of change, as they are gigabytes.
    """
    root = request.artifact_dir
    chosen = replace(request, artifact_dir=Path(), output_dir=Path(), jobs=None)
    artifacts = [_signature(root, entry) for artifact in scan(root) for entry in artifact.entries]
    return {
        "artifacts": digest_of(artifacts),
        "code": digest_of({str(path.relative_to(ROOT)): sha256(path) for path in _code()}),
        "families": digest_of({name: one.targets for name, one in families().items()}),
        "request": {name: str(value) for name, value in vars(chosen).items()},
    }


def _code() -> list[Path]:
    """List the files that decide about the packages' bytes."""
    folders = [
        Path(__file__).parent,
        TEMPLATES,
        *(ROOT / "core" / one for one in ("archive", "binaries", "wheel")),
    ]
    found = [path for folder in folders for path in folder.rglob("*") if path.is_file()]
    found += [ROOT / "core" / "files.py", ROOT / "rocm_packaging" / "artifacts.py", wheels.LICENSE]
    return sorted(path for path in found if path.suffix != ".pyc")


def _signature(root: Path, entry: Entry) -> tuple[str, str, int, int]:
    status = entry.source.lstat()
    return str(entry.source.relative_to(root)), entry.link, status.st_size, status.st_mtime_ns


How = Literal["as it is", "patched", "stub", "link", "left out"]


@dataclass(frozen=True, kw_only=True)
class Planned:
    """One file of a plan: its package, its other names, its RPATH, and how development trees get it."""

    package: str
    path: str
    how: How
    soname: str = ""
    aliases: tuple[str, ...] = ()
    rpath: str = ""
    devel: str = ""
    source: str = ""


COLUMNS = ("package", *get_args(How))


def planned_files(plan: Plan) -> list[Planned]:
    """List what becomes of every file, package by package, then by path."""
    package, devel = "rocm-sdk-devel", plan.devel
    return [
        *(one for runtime in plan.runtimes for one in _planned_runtime(runtime)),
        *(
            Planned(package=package, path=path, how="as it is", devel="own", source=str(entry.source))
            for path, entry in sorted(devel.files.items())
        ),
        *(
            Planned(package=package, path=path, how="link", devel="own", source=link)
            for path, link in sorted(devel.links.items())
        ),
    ]


def _planned_runtime(runtime: RuntimePlan) -> Iterator[Planned]:
    names: dict[str, list[str]] = {}
    for alias, name in sorted(runtime.payload.aliases.items()):
        names.setdefault(posixpath.join(posixpath.dirname(alias), name), []).append(alias)
    for path, file in runtime.payload.files.items():
        yield Planned(
            package=runtime.distribution,
            path=path,
            how="stub" if file.stub_for else "as it is" if file.rpath is None else "patched",
            soname=file.facts.soname if file.facts else "",
            aliases=tuple(names.get(path, ())),
            rpath=":".join(file.rpath or ()),
            devel="" if runtime.kind == "profiler" or file.stub_for else "hard link",
            source=str(file.entry.source),
        )
    for path in runtime.payload.dropped:
        yield Planned(package=runtime.distribution, path=path, how="left out")


def table_rows(files: Sequence[Planned]) -> list[tuple[str, ...]]:
    """Count each package's files by what becomes of them, for a table under `COLUMNS`."""
    counts = Counter((one.package, one.how) for one in files)
    packages = dict.fromkeys(one.package for one in files)
    return [(name, *(str(counts[name, how] or "") for how in get_args(How))) for name in packages]


def plan_json(plan: Plan, files: Sequence[Planned]) -> str:
    """Write a plan as JSON: what is packaged, every file, and the artifacts that no package takes."""
    value = {
        "version": plan.distribution.version,
        "split": plan.distribution.split,
        "families": list(plan.built),
        "unused": list(plan.unused),
        "lacking": list(plan.lacking),
        "unmet": list(plan.unmet),
        "contradiction": plan.contradiction,
        "files": [asdict(one) for one in files],
    }
    return json.dumps(value, indent=2)
