"""Wheels and sdists of a ROCm release candidate, rewritten as those of the release.

Use: ``change = final_of("7.10.0rc2")``, ``plan_set(names, change)`` for what will become of each
file (pure, by names alone: a dry run needs no bytes), ``rewrite_set(paths, folder, change)`` to do it.
"""

from __future__ import annotations

import shutil
import tempfile
import time
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from packaging.utils import canonicalize_name
from packaging.version import Version

from ci.promote.member_edits import MemberEdits
from ci.promote.metadata_edits import requirement
from ci.promote.renaming import Renamed, RocmChange, final_of, new_version, plan_set
from core import console
from core.errors import MissingInputError, WheelError
from core.files import made, sha256
from core.wheel import read_metadata
from core.wheel.editor import edit_sdist, edit_wheel
from core.wheel.record import Tap, verify_record
from core.wheel.writer import WrittenFile
from pytorch_build.check import require_no_errors
from pytorch_build.check.run import CheckOptions, check_wheel

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from ci.promote.keeping import Kept
    from pytorch_build.check import Expectation

__all__ = ["Renamed", "Rewritten", "RocmChange", "final_of", "new_version", "plan_set", "rewrite_set"]

_TARS = (".tar", ".tar.xz", ".tar.gz")


@dataclass(frozen=True, kw_only=True)
class Rewritten:
    """A wheel or sdist that was rewritten, and checked again."""

    plan: Renamed
    file: WrittenFile
    changed: tuple[str, ...]


def rewrite_set(
    files: Sequence[Path],
    folder: Path,
    change: RocmChange,
    *,
    expected: Mapping[str, Expectation] | None = None,
    kept: Kept | None = None,
) -> tuple[Rewritten, ...]:
    """Write every wheel and sdist of a set again under its new version, and check the results.

    The whole set is written and checked before one new file appears in `folder`; the old files
    stay as they are. The same files give the same bytes, so an interrupted call can be repeated.
    """
    sources = _by_name(files)
    plans = plan_set(sources, change)
    with tempfile.TemporaryDirectory(dir=made(folder), prefix=".rewriting.") as scratch:
        place = Path(scratch)
        done = []
        for plan in plans:
            started = time.monotonic()
            one = _rewrite(sources[plan.source], place, plan, MemberEdits(plan, change, kept))
            if one.file.path.suffix == ".whl":
                _check(one, change, (expected or {}).get(plan.distribution))
            done.append(one)
            taken = console.duration(time.monotonic() - started)
            console.say(f"{plan.source} -> {plan.target}  {console.size(one.file.size)}  {taken}")
        return tuple(_moved(one, folder) for one in done)


def _by_name(files: Sequence[Path]) -> Mapping[str, Path]:
    found: dict[str, Path] = {}
    for path in files:
        if path.name in found:
            raise WheelError(
                f"{path} and {found[path.name]} have one name.",
                hint="Rewrite the packages of each GPU family on their own.",
            )
        if not path.is_file():
            raise MissingInputError(f"{path} does not exist.")
        found[path.name] = path
    return found


def _rewrite(source: Path, folder: Path, plan: Renamed, edits: MemberEdits) -> Rewritten:
    if plan.kind == "constant":
        path = shutil.copyfile(source, folder / plan.target)
        file = WrittenFile(path=path, sha256=sha256(path), size=path.stat().st_size)
        return Rewritten(plan=plan, file=file, changed=())
    edit_file = edit_wheel if plan.source.endswith(".whl") else edit_sdist
    edited = edit_file(source, folder, version=plan.new, edit=edits)
    edits.see_paths(edited.members)
    edits.require_done()
    if edited.file.path.name != plan.target:
        raise WheelError(f"{plan.source} would become {edited.file.path.name}, not {plan.target}.")
    return Rewritten(plan=plan, file=edited.file, changed=edited.changed)


def _check(one: Rewritten, change: RocmChange, expectation: Expectation | None) -> None:
    """Check a rewritten wheel as a built one, in the one pass that inflates all of it."""
    path, plan = one.file.path, one.plan
    stated = read_metadata(path)
    if canonicalize_name(stated.name) != plan.distribution or stated.version != Version(plan.new):
        raise WheelError(f"METADATA of {plan.source} is that of {stated.name} {stated.version}.")
    if plan.kind == "pytorch":
        promised = expectation and _promised(expectation, plan, change)
        require_no_errors(check_wheel(path, promised, options=CheckOptions(scratch=path.parent)))
        return
    edits = MemberEdits(plan, change)
    tars = Tap(wanted=lambda name, _: name.endswith(_TARS), inspect=edits.see_tar, folder=path.parent)
    problems = verify_record(path, tap=tars)
    if problems:
        raise WheelError(f"{plan.source}: {problems[0].message}", hint="Download or build it again.")
    edits.require_nothing_found()


def _promised(expectation: Expectation, plan: Renamed, change: RocmChange) -> Expectation:
    requires = tuple(requirement(text, change) for text in expectation.requires)
    return replace(expectation, version=plan.new, requires=requires)


def _moved(one: Rewritten, folder: Path) -> Rewritten:
    target = folder / one.file.path.name
    one.file.path.replace(target)
    return replace(one, file=replace(one.file, path=target))
