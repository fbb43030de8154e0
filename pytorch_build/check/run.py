"""Check wheels: every subject for every wheel, on all cores, in an order that never changes."""

from __future__ import annotations

import os
import platform
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
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
    error,
    expected,
    libraries,
    metadata,
    site_packages,
    sort_findings,
    tags,
    wheel_set,
)
from pytorch_build.check.policy import CheckOptions
from pytorch_build.check.reading import read_wheel
from pytorch_build.check.wheel_set import distribution_of
from rocm_packaging.packages import kpack
from rocm_packaging.packages.layouts import host_distribution, is_rocm

_RECORD_CHECK = "record"
_MOST_WHEELS_AT_ONCE = 4

# What each subject's findings are called. Several modules judge contents.
_RULES: Sequence[tuple[str, Callable[[WheelView], Iterator[Finding]]]] = (
    ("expected", expected.check),
    ("metadata", metadata.check),
    ("tags", tags.check),
    ("policy", contents.note_user_policy),
    ("contents", contents.check),
    ("size", contents.check_size),
    ("contents", site_packages.check),
    ("elf", libraries.check),
    ("dll", dlls.check),
    ("device_code", device_code.check),
)


def loader_libraries() -> frozenset[str]:
    """Return the libraries that this machine's loader finds (``ldconfig``); none without that program."""
    program = process.which("ldconfig", path=os.pathsep.join((os.defpath, "/usr/sbin", "/sbin")))
    if program is None:
        return frozenset()
    listing = process.capture([program, "-p"], check=False).stdout
    return libraries.parse_ldconfig(listing, platform.machine())


def find_wheels(paths: Sequence[Path]) -> tuple[Path, ...]:
    """Return the wheels among files and below folders, sorted; a folder without any is an error."""
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
    """Return the findings on each of some wheels, and on whether they fit together."""
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
        """Return the findings on one wheel, given what is expected of its distribution."""
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
    """Return what is expected of a wheel by its name, for a device wheel by its host; None if nothing."""
    if distribution in expectations:
        return expectations[distribution]
    host = host_distribution(distribution)
    for expectation in expectations.values():
        if host == expectation.distribution:
            return expectation.for_distribution(distribution)
    return None


def check_wheel(
    path: Path,
    expectation: Expectation | None = None,
    options: CheckOptions | None = None,
) -> tuple[Finding, ...]:
    """Return the findings on one wheel; a file that is not a wheel at all is an error finding."""
    findings, _machine_libraries = check_built_wheel(path, expectation, options or CheckOptions())
    return findings


def check_built_wheel(
    path: Path,
    expectation: Expectation | None,
    options: CheckOptions,
) -> tuple[tuple[Finding, ...], frozenset[str]]:
    """Return the findings on one wheel, and the libraries of this machine that it needs."""
    try:
        view, problems = read_wheel(path, options, expectation)
    except (WheelError, MissingInputError) as problem:
        return (_record_finding(path.name, problem.message, where=""),), frozenset()

    findings = [_record_finding(path.name, problem.message, where=problem.member) for problem in problems]
    findings += run_rules(view)
    needed: set[str] = set()
    for binary in view.binaries:
        if binary.elf is not None:
            needed.update(binary.elf.needed)
    machine_libraries = frozenset(needed & options.loader_libraries).difference(
        options.policy.system_libraries
    )
    return collapse_findings(findings), machine_libraries


def _record_finding(filename: str, message: str, *, where: str) -> Finding:
    """Return an error on a wheel's archive or RECORD; the message loses the name of the file."""
    sentence = message.removeprefix(f"{filename}: ")
    if sentence.startswith(f"{filename} "):
        sentence = f"The wheel {sentence.removeprefix(f'{filename} ')}"
    return Finding(
        severity="error",
        check=_RECORD_CHECK,
        wheel=filename,
        where=where,
        message=sentence,
    )


def run_rules(view: WheelView) -> Iterator[Finding]:
    """Yield the findings of all rules on one wheel, with their subject and the wheel's name."""
    wheel = view.name.filename
    for binary in view.binaries:
        subject = "elf"
        if binary.name.endswith(kpack.SUFFIX):
            subject = "device_code"
        elif dlls.is_windows_binary(binary.name):
            subject = "dll"
        for problem in binary.problems:
            yield replace(
                error(problem, binary.name),
                check=subject,
                wheel=wheel,
            )

    for subject, rule in _RULES:
        for finding in rule(view):
            yield replace(
                finding,
                check=subject,
                wheel=wheel,
            )
