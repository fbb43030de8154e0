"""Checks of wheels: every subject for every wheel, on all cores, in an order that never changes."""

from __future__ import annotations

import os
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import TYPE_CHECKING

from packaging.requirements import InvalidRequirement, Requirement
from packaging.utils import canonicalize_name

from core.errors import MissingInputError, WheelError
from core.wheel.wheels import read_metadata
from pytorch_build.check import archive, contents, device_code, dlls, elf, expectations
from pytorch_build.check.findings import Finding, collapsed, ordered
from pytorch_build.check.gather import gather
from pytorch_build.check.policy import load_policy
from rocm_packaging.packages import kpack
from rocm_packaging.packages.layouts import device_host, device_target

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence
    from pathlib import Path

    from core.wheel.wheel_record import RecordProblem
    from pytorch_build.check.policy import Policy
    from pytorch_build.check.view import Expectation, WheelView

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
    """Check one wheel. A file that is no wheel at all is an error finding, as the others go on.

    Raises:
        MissingInputError: There is no such file.
        DataError: The expectation or the policy cannot be read.
    """
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
    yield from archive.check_archive(view)
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
