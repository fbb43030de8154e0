"""Checks of wheels: every subject for every wheel, on all cores, in an order that never changes."""

from __future__ import annotations

import os
import threading
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import TYPE_CHECKING, BinaryIO

from packaging.requirements import InvalidRequirement, Requirement
from packaging.utils import canonicalize_name

from core.archive import zip_reader
from core.binaries import pe
from core.errors import ArtifactError, MissingInputError, WheelError
from core.wheel import parse_wheel_name, read_metadata, read_wheel_info
from core.wheel.record import RecordProblem, Tap, verify_record
from pytorch_build.check import (
    Binary,
    Finding,
    WheelMember,
    WheelView,
    collapsed,
    contents,
    device_code,
    dlls,
    elf,
    expectations,
    ordered,
)
from pytorch_build.check.bundles import BundleError
from pytorch_build.check.policy import load_policy
from rocm_packaging.packages import kpack
from rocm_packaging.packages.layouts import device_host, device_target

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence
    from pathlib import Path

    from core.wheel import WheelInfo, WheelMetadata
    from pytorch_build.check import ElfFacts, Expectation
    from pytorch_build.check.policy import Policy


_WHEELS_AT_ONCE = 4


@dataclass(frozen=True, kw_only=True)
class CheckOptions:
    """How wheels are checked.

    Attributes:
        build_paths: Folders of the build machine that no text file of a wheel may mention.
        scratch: Where compiled members lie while they are read (default: the system's folder).
        jobs: Threads in all (default: one a core).
    """

    build_paths: tuple[str, ...] = ()
    scratch: Path | None = None
    jobs: int | None = None


def find_wheels(paths: Sequence[Path]) -> tuple[Path, ...]:
    """Expand folders into the wheels below them, sorted; files stay what they are."""
    found: set[Path] = set()
    for path in paths:
        if path.is_dir():
            wheels = set(path.rglob("*.whl"))
            if not wheels:
                raise MissingInputError(f"{path} holds no wheels.", hint="Build some first, or name another.")
            found |= wheels
        elif path.is_file():
            found.add(path)
        else:
            raise MissingInputError(f"{path} does not exist.")
    if not found:
        raise MissingInputError("There are no wheels to check.", hint="Name a wheel or a folder of wheels.")
    return tuple(sorted(found))


def check_wheels(
    paths: Sequence[Path],
    expected: Mapping[str, Expectation] | None = None,
    policy: Policy | None = None,
    options: CheckOptions | None = None,
) -> tuple[Finding, ...]:
    """Check wheels."""
    wheels = find_wheels(paths)
    policy, options = policy or load_policy(), options or CheckOptions()
    promised = {canonicalize_name(name): value for name, value in (expected or {}).items()}
    jobs = options.jobs or os.cpu_count() or 1
    at_once = min(len(wheels), jobs, _WHEELS_AT_ONCE)
    each = CheckOptions(
        build_paths=options.build_paths, scratch=options.scratch, jobs=max(1, jobs // at_once)
    )

    def check_one(path: Path) -> tuple[Finding, ...]:
        name = canonicalize_name(path.name.partition("-")[0])
        own = promised.get(name)
        for one in () if own else promised.values():
            own = one.of_part(name) if device_host(name) == one.distribution else own
        return check_wheel(path, own, policy, each)

    with ThreadPoolExecutor(at_once) as pool:
        found = [finding for findings in pool.map(check_one, wheels) for finding in findings]
    return ordered([*found, *_missing_parts(wheels)])


def _missing_parts(wheels: Sequence[Path]) -> Iterator[Finding]:
    """Find hosts among the wheels whose device code is not all among them."""
    names = {canonicalize_name(path.name.partition("-")[0]) for path in wheels}
    for path in wheels:
        try:
            requires = [Requirement(one) for one in read_metadata(path).requires_dist]
        except (WheelError, InvalidRequirement):
            continue  # the wheel's own checks report it
        parts = {canonicalize_name(one.name) for one in requires if one.marker and "extra" in str(one.marker)}
        wanted = {name for name in parts if name.startswith("amd-") and device_target(name)}
        if missing := sorted(wanted - names):
            yield Finding(
                severity="error" if wanted & names else "warning",
                check=device_code.CHECK,
                wheel=path.name,
                where="",
                message=f"Its device code is in {', '.join(missing)}, not among these wheels; "
                f"with an index that has them: pip install {path.name.partition('-')[0]}[device-all].",
            )


def check_wheel(
    path: Path,
    expectation: Expectation | None = None,
    policy: Policy | None = None,
    options: CheckOptions | None = None,
) -> tuple[Finding, ...]:
    """Check one wheel. A file that is no wheel at all is an error finding, as the others go on."""
    policy, options = policy or load_policy(), options or CheckOptions()
    try:
        view, problems = gather(
            path, build_paths=options.build_paths, jobs=options.jobs, scratch=options.scratch
        )
    except WheelError as problem:
        return (
            Finding(severity="error", check="record", wheel=path.name, where="", message=problem.message),
        )
    return collapsed(judge(view, problems, expectation, policy))


def judge(
    view: WheelView, problems: Sequence[RecordProblem], expectation: Expectation | None, policy: Policy
) -> Iterator[Finding]:
    """Judge the facts of one wheel: every subject in turn."""
    for problem in problems:
        yield view.finding("error", "record", problem.message, problem.member)
    for binary in view.binaries:
        for message in binary.problems:
            subject = _subject(binary.member.name)
            yield view.finding("error", subject, message, binary.member.name)
    yield from contents.check_archive(view)
    if expectation is not None:
        yield from expectations.check(view, expectation)
    yield from contents.check(view, expectation, policy)
    yield from elf.check(view, policy)
    yield from dlls.check(view, policy)
    yield from device_code.check(view, expectation, policy)


def _subject(member: str) -> str:
    """Say which check a file that cannot be read belongs to."""
    if member.endswith(kpack.SUFFIX):
        return device_code.CHECK
    return dlls.CHECK if dlls.is_dll(member) else elf.CHECK


_TEXT = (".py", ".cmake", ".pc", ".json", ".txt", ".la", ".h", ".toml", ".cfg")
_MAX_TEXT = 4 << 20
_MAGICS = (elf.MAGIC, pe.MAGIC, kpack.MAGIC, *device_code.MAGICS)


def gather(
    path: Path, *, build_paths: Iterable[str] = (), jobs: int | None = None, scratch: Path | None = None
) -> tuple[WheelView, tuple[RecordProblem, ...]]:
    """Read a wheel."""
    name = parse_wheel_name(path.name)
    with zip_reader.opened(path) as archive:
        members = {
            info.filename: WheelMember(name=info.filename, size=info.file_size)
            for info in archive.infolist()
            if not info.is_dir()
        }
    reader = _Reader(members, tuple(build_paths))
    problems = verify_record(
        path, tap=Tap(wanted=reader.wanted, inspect=reader.inspect, folder=scratch), jobs=jobs
    )
    metadata, info, more = _texts(path)
    view = WheelView(
        name=name,
        size=path.stat().st_size,
        members=tuple(members[key] for key in sorted(members)),
        metadata=metadata,
        info=info,
        binaries=tuple(sorted(reader.binaries, key=lambda binary: binary.member.name)),
        mentions=tuple(sorted(reader.mentions)),
    )
    known = {problem.message for problem in problems}
    return view, (*problems, *(one for one in more if one.message not in known))


def _texts(path: Path) -> tuple[WheelMetadata | None, WheelInfo | None, list[RecordProblem]]:
    metadata, info = None, None
    problems: list[RecordProblem] = []
    try:
        metadata = read_metadata(path)
    except WheelError as problem:
        problems.append(RecordProblem(member="", kind="structure", message=problem.message))
    try:
        info = read_wheel_info(path)
    except WheelError as problem:
        problems.append(RecordProblem(member="", kind="structure", message=problem.message))
    return metadata, info, problems


class _Reader:
    """Takes compiled and text members out of the verifying pass; called from several threads."""

    def __init__(self, members: dict[str, WheelMember], build_paths: tuple[str, ...]) -> None:
        self._members = members
        self._build_paths = build_paths
        self._lock = threading.Lock()
        self.binaries: list[Binary] = []
        self.mentions: list[tuple[str, str]] = []

    def wanted(self, name: str, first: bytes) -> bool:
        return first.startswith(_MAGICS) or self._is_text(name)

    def inspect(self, name: str, file: Path) -> None:
        member = self._members[name]
        with file.open("rb") as stream:
            is_code = stream.read(24).startswith(_MAGICS)
        if is_code:
            found = read_binary(member, file)
            with self._lock:
                self.binaries.append(found)
        else:
            data = file.read_bytes()
            hits = [(name, folder) for folder in self._build_paths if folder.encode() in data]
            with self._lock:
                self.mentions += hits

    def _is_text(self, name: str) -> bool:
        return bool(self._build_paths) and name.endswith(_TEXT) and self._members[name].size <= _MAX_TEXT


def read_binary(member: WheelMember, file: Path) -> Binary:
    """Read a compiled file's headers and device code; what cannot be read becomes a problem of it."""
    with file.open("rb") as stream:
        first = stream.read(len(elf.MAGIC))
        if first == elf.MAGIC:
            return _read_elf(member, stream)
        if first.startswith(pe.MAGIC):
            return _read_pe(member, stream)
    try:
        return Binary(member=member, device=device_code.file_facts(file))
    except (BundleError, kpack.KpackError) as problem:
        return Binary(member=member, problems=(f"Its device code cannot be read: {problem}.",))


def _read_pe(member: WheelMember, stream: BinaryIO) -> Binary:
    import mmap

    try:
        headers = pe.read_needs(stream, member.name)
    except ArtifactError as problem:
        return Binary(member=member, problems=(problem.message,))
    if headers is None:
        return Binary(member=member)
    # Closed by the collector: an error's traceback may still hold views of it.
    data = mmap.mmap(stream.fileno(), 0, access=mmap.ACCESS_READ)
    try:
        return Binary(member=member, pe=headers, device=device_code.pe_facts(headers, data))
    except BundleError as problem:
        said = f"Its device code cannot be read: {problem}."
        return Binary(member=member, pe=headers, problems=(said,))


def _read_elf(member: WheelMember, stream: BinaryIO) -> Binary:
    import mmap

    from elftools.elf.elffile import ELFFile

    headers: ElfFacts | None = None
    try:
        opened = ELFFile(stream)
        headers = elf.facts(opened)
        # Closed by the collector: an error's traceback may still hold views of it.
        data = mmap.mmap(stream.fileno(), 0, access=mmap.ACCESS_READ)
        return Binary(member=member, elf=headers, device=device_code.elf_facts(opened, data))
    except BundleError as problem:
        said = f"Its device code cannot be read: {problem}."
    except Exception as problem:  # noqa: BLE001 - the parser raises anything for hostile headers
        said = f"Its ELF headers cannot be read ({type(problem).__name__}: {problem})."
    return Binary(member=member, elf=headers, problems=(said,))
