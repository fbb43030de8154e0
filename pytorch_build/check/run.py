"""Checks of wheels: every subject for every wheel, on all cores, in an order that never changes.

One pass over a wheel verifies RECORD and reads every fact that the checks judge.
"""

import os
import platform
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TypeVar

from packaging.requirements import InvalidRequirement, Requirement
from packaging.utils import canonicalize_name

from core import process
from core.archive.zips import read_archive
from core.binaries import elf, pe
from core.errors import ArtifactError, MissingInputError, WheelError
from core.wheel import parse_wheel_name, read_metadata, read_wheel_info
from core.wheel.record import RecordProblem, Tap, verify_record
from pytorch_build import check
from pytorch_build.check import contents, device_code, libraries
from pytorch_build.check.bundles import BundleError
from rocm_packaging.packages import kpack
from rocm_packaging.packages.layouts import device_target, host_distribution, is_rocm

_WHEELS_AT_ONCE = 4
_Text = TypeVar("_Text")
_TEXTS = (".py", ".cmake", ".pc", ".json", ".txt", ".la", ".h", ".toml", ".cfg")
_MAX_TEXT = 4 << 20
_MAGICS = (elf.MAGIC, pe.MAGIC, kpack.MAGIC, *device_code.MAGICS)


@dataclass(frozen=True, kw_only=True)
class CheckOptions:
    """How wheels are checked: `build_paths` are folders that no text file of a wheel may mention.

    `others` is where the ROCm wheels around one of them have their files; None where they are not known.
    The `loader` of the machine that built them finds these libraries.
    """

    build_paths: tuple[str, ...] = ()
    policy: check.Policy = field(default_factory=check.load_policy)
    loader: frozenset[str] = frozenset()
    others: Mapping[str, Sequence[str]] | None = None
    scratch: Path | None = None
    jobs: int | None = None


def loader_libraries() -> frozenset[str]:
    """Ask this machine's loader which libraries it finds; none where there is no ldconfig."""
    program = process.which("ldconfig", path=os.pathsep.join((os.defpath, "/usr/sbin", "/sbin")))
    listing = process.capture([program, "-p"], check=False).stdout if program else ""
    return libraries.loader_names(listing, platform.machine())


def find_wheels(paths: Sequence[Path]) -> tuple[Path, ...]:
    """Expand folders into the wheels below them, sorted; files stay what they are."""
    found: set[Path] = set()
    for path in paths:
        if not os.path.lexists(path):
            raise MissingInputError(f"{path} does not exist.")
        # A folder with the name of a wheel is judged as one, and refused.
        is_folder = path.is_dir() and path.suffix != ".whl"
        wheels = set(path.rglob("*.whl")) if is_folder else {path}
        if not wheels:
            raise MissingInputError(f"{path} holds no wheels.", hint="Build some first, or name another.")
        found |= wheels
    return tuple(sorted(found))


def check_wheels(
    paths: Sequence[Path],
    expected: Mapping[str, check.Expectation] | None = None,
    options: CheckOptions | None = None,
) -> tuple[check.Finding, ...]:
    """Check wheels, and that they belong together."""
    wheels = find_wheels(paths)
    options = options or CheckOptions()
    promised = {canonicalize_name(name): value for name, value in (expected or {}).items()}
    jobs = options.jobs or os.cpu_count() or 1
    at_once = min(len(wheels), jobs, _WHEELS_AT_ONCE)
    each = replace(options, jobs=max(1, jobs // at_once))
    # programs of the development package run in its expanded tree
    around = replace(each, others=libraries.places(wheels))

    def check_one(path: Path) -> tuple[check.Finding, ...]:
        name = canonicalize_name(path.name.partition("-")[0])
        own = promised.get(name)
        for one in () if own else promised.values():
            own = one.of_part(name) if host_distribution(name) == one.distribution else own
        return check_wheel(path, own, around if is_rocm(name) and name != "rocm-sdk-devel" else each)

    with ThreadPoolExecutor(at_once) as pool:
        found = [finding for findings in pool.map(check_one, wheels) for finding in findings]
    return check.ordered([*found, *_missing_parts(wheels)])


def _missing_parts(wheels: Sequence[Path]) -> Iterator[check.Finding]:
    """Find hosts among the wheels whose device code is not all among them."""
    names = {canonicalize_name(path.name.partition("-")[0]) for path in wheels}
    for path in wheels:
        try:
            requires = [Requirement(one) for one in read_metadata(path).requires_dist]
        except (WheelError, MissingInputError, InvalidRequirement):
            continue  # the wheel's own checks report it
        parts = {canonicalize_name(one.name) for one in requires if one.marker and "extra" in str(one.marker)}
        wanted = {name for name in parts if name.startswith("amd-") and device_target(name)}
        if missing := sorted(wanted - names):
            yield check.Finding(
                severity="error" if wanted & names else "warning",
                check=device_code.CHECK,
                wheel=path.name,
                where="",
                message=f"Its device code is in {', '.join(missing)}, not among these wheels; "
                f"with an index that has them: pip install {path.name.partition('-')[0]}[device-all].",
            )


def check_wheel(
    path: Path, expectation: check.Expectation | None = None, options: CheckOptions | None = None
) -> tuple[check.Finding, ...]:
    """Check one wheel. A file that is not a wheel at all is an error finding, so that the others go on."""
    return examined(path, expectation, options or CheckOptions())[0]


def examined(
    path: Path, expectation: check.Expectation | None, options: CheckOptions
) -> tuple[tuple[check.Finding, ...], frozenset[str]]:
    """Check one wheel; return what was found, and what it needs besides of all that the loader finds."""
    try:
        view, problems = gather(path, options)
    except (WheelError, MissingInputError) as problem:
        facts = {"wheel": path.name, "where": "", "message": problem.message}
        return (check.Finding(severity="error", check="record", **facts),), frozenset()
    found = [view.finding("error", "record", one.message, one.member) for one in problems]
    needed = {name for one in view.binaries if one.elf for name in one.elf.needed}
    of_machine = (options.loader & needed).difference(options.policy.system_libraries)
    return check.collapsed([*found, *_judge(view, expectation, options)]), of_machine


def _judge(
    view: check.WheelView, expectation: check.Expectation | None, options: CheckOptions
) -> Iterator[check.Finding]:
    policy = options.policy
    for binary in view.binaries:
        for message in binary.problems:
            name = binary.member.name
            host = libraries.DLL_CHECK if libraries.is_dll(name) else libraries.CHECK
            subject = device_code.CHECK if name.endswith(kpack.SUFFIX) else host
            yield view.finding("error", subject, message, name)
    yield from contents.check_archive(view, expectation)
    yield from contents.check(view, expectation, policy)
    yield from libraries.check(view, policy, options.loader)
    yield from libraries.check_dlls(view, policy)
    yield from device_code.check(view, expectation, policy)


def gather(path: Path, options: CheckOptions) -> tuple[check.WheelView, tuple[RecordProblem, ...]]:
    """Read every fact of a wheel."""
    name = parse_wheel_name(path.name)
    members = {
        member.name: check.WheelMember(name=member.name, size=member.size)
        for member in read_archive(path).members
        if not member.is_folder
    }
    reader = _Reader(members, options)
    tap = Tap(wanted=reader.wanted, inspect=reader.inspect, folder=options.scratch)
    problems = list(verify_record(path, tap=tap, jobs=options.jobs))

    def tried(read: Callable[[Path], _Text]) -> _Text | None:
        try:
            return read(path)
        except WheelError as problem:
            if problem.message not in {one.message for one in problems}:
                problems.append(RecordProblem(member="", message=problem.message))
            return None

    view = check.WheelView(
        name=name,
        size=path.stat().st_size,
        members=tuple(members[key] for key in sorted(members)),
        metadata=tried(read_metadata),
        info=tried(read_wheel_info),
        binaries=tuple(sorted(reader.binaries, key=lambda binary: binary.member.name)),
        mentions=tuple(sorted(reader.mentions)),
        texts=reader.texts,
        others=options.others,
    )
    return view, tuple(problems)


class _Reader:
    """Takes compiled and text members out of the verifying pass; several threads add, each whole values."""

    def __init__(self, members: Mapping[str, check.WheelMember], options: CheckOptions) -> None:
        self._members = members
        self._build_paths, self._policy = options.build_paths, options.policy
        self.binaries: list[check.Binary] = []
        self.mentions: list[tuple[str, str]] = []
        self.texts: dict[str, str] = {}

    def wanted(self, name: str, first: bytes) -> bool:
        text = bool(self._build_paths) and name.endswith(_TEXTS) and self._members[name].size <= _MAX_TEXT
        if self._policy.promise(name) and not first.startswith(_MAGICS):
            self.texts[name] = first[: 64 << 10].decode("latin-1")
        return text or first.startswith(_MAGICS)

    def inspect(self, name: str, file: Path) -> None:
        with file.open("rb") as stream:
            is_code = stream.read(24).startswith(_MAGICS)
        if is_code:
            self.binaries.append(read_binary(self._members[name], file))
            return
        data = file.read_bytes()
        self.mentions.extend([(name, folder) for folder in self._build_paths if folder.encode() in data])


def read_binary(member: check.WheelMember, file: Path) -> check.Binary:
    """Read a compiled file's headers and device code; what cannot be read becomes a problem of it."""
    found, device = check.Binary(member=member), None
    try:
        with file.open("rb") as stream:
            first = stream.read(len(elf.MAGIC))
            if first == elf.MAGIC:
                found = replace(found, elf=elf.read_all_facts(stream, member.name))
                device = device_code.elf_facts(found.elf, device_code.mapped(file)) if found.elf else None
            elif first.startswith(pe.MAGIC):
                found = replace(found, pe=pe.read_needs(stream, member.name))
                device = device_code.pe_facts(found.pe, device_code.mapped(file)) if found.pe else None
            else:
                device = device_code.file_facts(file)
            return replace(found, device=device)
    except ArtifactError as problem:
        return replace(found, problems=(problem.message,))
    except (BundleError, kpack.KpackError) as problem:
        return replace(found, problems=(f"Its device code cannot be read: {problem}.",))
