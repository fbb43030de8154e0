"""Check wheels: every subject for every wheel, on all cores, in an order that never changes."""

from __future__ import annotations

import os
import platform
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from pathlib import Path

from packaging.utils import canonicalize_name

from core import process
from core.errors import MissingInputError, WheelError
from pytorch_build.check import (
    Expectation,
    Finding,
    WheelView,
    collapse_findings,
    contents,
    device_code,
    dlls,
    expected,
    file_names,
    libraries,
    metadata,
    site_packages,
    sort_findings,
    tags,
    wheel_set,
)
from pytorch_build.check.policy import Policy, load_policy
from pytorch_build.check.reading import read_wheel
from pytorch_build.check.wheel_set import distribution_of
from rocm_packaging.packages import kpack
from rocm_packaging.packages.layouts import host_distribution, is_rocm

_RECORD_CHECK = "record"
_MOST_WHEELS_AT_ONCE = 4


@dataclass(frozen=True, kw_only=True)
class CheckOptions:
    """How wheels are checked: `build_paths` are folders that no text file of a wheel may mention.

    The `loader` of the machine that built them finds these libraries. `members_of_rocm` is where the ROCm
    wheels around one of them have their files; None where they are not known.
    """

    build_paths: tuple[str, ...] = ()
    policy: Policy = field(default_factory=load_policy)
    loader: frozenset[str] = frozenset()
    members_of_rocm: Mapping[str, Sequence[str]] | None = None
    scratch: Path | None = None
    jobs: int | None = None


def loader_libraries() -> frozenset[str]:
    """Ask this machine's loader which libraries it finds; none where there is no ldconfig."""
    program = process.which("ldconfig", path=os.pathsep.join((os.defpath, "/usr/sbin", "/sbin")))
    if program is None:
        return frozenset()
    listing = process.capture([program, "-p"], check=False).stdout
    return libraries.loader_names(listing, platform.machine())


def find_wheels(paths: Sequence[Path]) -> tuple[Path, ...]:
    """Return the wheels below folders, and files as they are, sorted."""
    wheels: set[Path] = set()
    for path in paths:
        if not os.path.lexists(path):
            raise MissingInputError(f"{path} does not exist.")
        # A folder with the name of a wheel is judged as one, and refused.
        if not path.is_dir() or path.suffix == ".whl":
            wheels.add(path)
            continue
        wheels_below = set(path.rglob("*.whl"))
        if not wheels_below:
            raise MissingInputError(f"{path} holds no wheels.", hint="Build some first, or name another.")
        wheels |= wheels_below
    return tuple(sorted(wheels))


def check_wheels(
    paths: Sequence[Path],
    expectations: Mapping[str, Expectation] | None = None,
    options: CheckOptions | None = None,
) -> tuple[Finding, ...]:
    """Check wheels, and that they belong together."""
    wheels = find_wheels(paths)
    options = options or CheckOptions()
    expectations_by_name: dict[str, Expectation] = {}
    for name, expectation in (expectations or {}).items():
        expectations_by_name[canonicalize_name(name)] = expectation

    jobs = options.jobs or os.cpu_count() or 1
    at_once = min(len(wheels), jobs, _MOST_WHEELS_AT_ONCE)
    options_of_wheel = replace(options, jobs=max(1, jobs // at_once))
    options_of_rocm = replace(options_of_wheel, members_of_rocm=wheel_set.members_of_rocm(wheels))

    def check_one(path: Path) -> tuple[Finding, ...]:
        distribution = distribution_of(path)
        expectation = _expectation_of(distribution, expectations_by_name)
        # Programs of the development package run in its expanded tree.
        is_rocm_runtime = is_rocm(distribution) and distribution != "rocm-sdk-devel"
        return check_wheel(path, expectation, options_of_rocm if is_rocm_runtime else options_of_wheel)

    findings: list[Finding] = []
    with ThreadPoolExecutor(at_once) as pool:
        for findings_of_wheel in pool.map(check_one, wheels):
            findings += findings_of_wheel
    findings += wheel_set.check(wheels, options.policy)
    return sort_findings(findings)


def _expectation_of(distribution: str, expectations: Mapping[str, Expectation]) -> Expectation | None:
    """Return what is expected of a wheel: as itself, or as the device code of another."""
    if distribution in expectations:
        return expectations[distribution]
    host = host_distribution(distribution)
    for expectation in expectations.values():
        if host == expectation.distribution:
            return expectation.of_part(distribution)
    return None


def check_wheel(
    path: Path,
    expectation: Expectation | None = None,
    options: CheckOptions | None = None,
) -> tuple[Finding, ...]:
    """Check one wheel. A file that is not a wheel at all is an error finding, so that the others go on."""
    findings, _machine_libraries = check_built_wheel(path, expectation, options or CheckOptions())
    return findings


def check_built_wheel(
    path: Path,
    expectation: Expectation | None,
    options: CheckOptions,
) -> tuple[tuple[Finding, ...], frozenset[str]]:
    """Check one wheel; return also which libraries it needs of those that this machine's loader finds."""
    try:
        view, problems = read_wheel(
            path,
            build_folders=options.build_paths,
            scratch=options.scratch,
            jobs=options.jobs,
        )
    except (WheelError, MissingInputError) as problem:
        message = _without_file_name(problem.message, path.name)
        finding = Finding(
            severity="error",
            check=_RECORD_CHECK,
            wheel=path.name,
            where="",
            message=message,
        )
        return (finding,), frozenset()

    view = replace(view, members_of_rocm=options.members_of_rocm)
    findings: list[Finding] = []
    for record_problem in problems:
        message = _without_file_name(record_problem.message, path.name)
        findings.append(
            view.finding(
                "error",
                _RECORD_CHECK,
                message,
                record_problem.member,
            )
        )
    findings += _judge(view, expectation, options)
    needed: set[str] = set()
    for binary in view.binaries:
        if binary.elf is not None:
            needed.update(binary.elf.needed)
    machine_libraries = frozenset(needed & options.loader).difference(options.policy.system_libraries)
    return collapse_findings(findings), machine_libraries


def _without_file_name(message: str, filename: str) -> str:
    """Return what is said of a wheel without its name, which stands beside it."""
    sentence = message.removeprefix(f"{filename}: ")
    if sentence.startswith(f"{filename} "):
        return f"The wheel {sentence.removeprefix(f'{filename} ')}"
    return sentence


def _judge(
    view: WheelView,
    expectation: Expectation | None,
    options: CheckOptions,
) -> Iterator[Finding]:
    policy = options.policy
    yield from _report_unreadable_binaries(view)
    if expectation is not None:
        yield from expected.check(view, expectation)
    yield from metadata.check(view)
    yield from tags.check(view)
    yield from contents.check(view, expectation, policy)
    yield from site_packages.check(view, policy)
    yield from file_names.check(view, policy)
    yield from libraries.check(view, policy, options.loader)
    yield from dlls.check(view, policy)
    yield from device_code.check(view, expectation, policy)


def _report_unreadable_binaries(view: WheelView) -> Iterator[Finding]:
    for binary in view.binaries:
        name = binary.member.name
        subject = libraries.CHECK
        if name.endswith(kpack.SUFFIX):
            subject = device_code.CHECK
        elif dlls.is_dll(name):
            subject = dlls.CHECK
        for problem in binary.problems:
            yield view.finding(
                "error",
                subject,
                problem,
                name,
            )
