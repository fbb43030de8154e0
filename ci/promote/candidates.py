"""A release candidate's set rewritten as the release's, and checked again.

``plan_set`` of `ci.promote.version_change` says by names alone what becomes of each file (a dry run needs no
bytes), `rewrite_set` does it for files here, `rewritten` for those of a store.
"""

from __future__ import annotations

import shutil
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from packaging.utils import canonicalize_name
from packaging.version import Version

from ci.promote import documents
from ci.promote.edits import MemberEdits, requirement
from ci.promote.promotion import rewritten_here
from ci.promote.version_change import Renamed, RocmChange, plan_set
from core import console, files, parallel, temporary
from core.errors import MissingInputError, StoreError, WheelError
from core.stores import Store
from core.wheel import distributions, read_metadata
from core.wheel.editor import edit_sdist, edit_wheel
from core.wheel.record import Tap, verify_record
from core.wheel.writer import WrittenFile
from pytorch_build.check import Expectation, require_no_errors
from pytorch_build.check.run import CheckOptions, check_wheel
from pytorch_build.components import COMPONENTS

if TYPE_CHECKING:
    from ci.promote.documents import PromotedFile
    from ci.promote.facts import Facts
    from ci.promote.promotion import Origin

    Promised = Mapping[str, Mapping[str, Expectation]]  # artifact group -> distribution -> what it must be

_DOWNLOADS = 4  # files of gigabytes: more at a time are no faster
_TARS = (".tar", ".tar.xz", ".tar.gz")


def renamed(candidates: Sequence[PromotedFile], change: RocmChange) -> tuple[PromotedFile, ...]:
    """Return by names alone what becomes of each file; sizes and digests are still the candidates'."""
    return tuple(
        _target(files_by_name[plan.source], plan)
        for _, files_by_name in _by_group(candidates)
        for plan in plan_set(files_by_name, change)
    )


def promised(facts: Facts, change: RocmChange) -> Promised:
    """Return what the source locks promise of a candidate's wheels, by artifact group.

    A distribution that locks of several torch refs promise in several versions is left out.
    """
    promised_versions: dict[str, dict[str, set[str]]] = {}
    for cell, versions in facts.promised.items():
        of_group = promised_versions.setdefault(cell.artifact_group or "", {})
        for distribution, version in versions.items():
            of_group.setdefault(distribution, set()).add(version)

    expectations: dict[str, Mapping[str, Expectation]] = {}
    for artifact_group, of_group in promised_versions.items():
        only_versions = {name: min(found) for name, found in of_group.items() if len(found) == 1}
        expectations[artifact_group] = _expectations(only_versions, change)
    return expectations


def _expectations(versions: Mapping[str, str], change: RocmChange) -> Mapping[str, Expectation]:
    requires: dict[str, tuple[str, ...]] = {}
    for component in COMPONENTS.values():
        wheels = [COMPONENTS[name].distribution for name in component.required_components]
        required = [f"{name}=={versions[name]}" for name in wheels if name in versions]
        if component.requires_rocm:
            required.insert(0, f"rocm[libraries]=={change.old}")
        requires[component.distribution] = tuple(required)

    # device code is the tested wheel's, to the byte
    return {
        name: Expectation(distribution=name, version=version, requires=requires.get(name, ()))
        for name, version in versions.items()
    }


def rewritten(
    bucket: Store,
    candidates: Sequence[PromotedFile],
    change: RocmChange,
    scratch: Path,
    expected: Promised | None = None,
) -> tuple[tuple[PromotedFile, ...], Origin]:
    """Fetch a candidate's files and write them again as the release's; return these, and where they are."""
    released: list[PromotedFile] = []
    paths: dict[str, Path] = {}
    sidecars: dict[str, bytes] = {}
    for artifact_group, files_by_name in _by_group(candidates):
        expectations = (expected or {}).get(artifact_group, {})
        distributions_there = {file.distribution for file in files_by_name.values()}
        absent = sorted(expectations.keys() - distributions_there)
        if absent:
            raise MissingInputError(
                f"The set of {artifact_group} has no wheel of {', '.join(absent)}, which its source lock "
                "promises.",
                hint="Stage it, or build it first.",
            )
        with console.group(f"rewrite {artifact_group}: {change.old} -> {change.new}"):
            folder = scratch / artifact_group
            fetched = _fetched(bucket, list(files_by_name.values()), folder / change.old)
            results = rewrite_set(fetched, folder / change.new, change, expected=expectations)
        for result in results:
            target = _target(files_by_name[result.plan.source], result.plan)
            paths[target.key] = path = result.file.path
            record, metadata = distributions.describe(path, key=target.key, sha256=result.file.sha256)
            sidecars[target.key] = metadata or b""
            released.append(target.model_copy(update=record.model_dump(exclude={"license"})))
    return tuple(sorted(released, key=lambda one: one.key)), rewritten_here(paths, sidecars)


def _by_group(candidates: Sequence[PromotedFile]) -> Sequence[tuple[str, Mapping[str, PromotedFile]]]:
    """Return the files of each artifact group, by name."""
    groups: dict[str, dict[str, PromotedFile]] = {}
    for candidate in sorted(candidates, key=lambda file: file.family):
        groups.setdefault(candidate.family, {})[candidate.name] = candidate
    return list(groups.items())


def _target(one: PromotedFile, plan: Renamed) -> PromotedFile:
    key = f"{documents.folder(documents.RELEASE, one.family)}/{plan.target}"
    return one.model_copy(update={"name": plan.target, "key": key, "version": plan.new})


def _fetched(bucket: Store, candidates: Sequence[PromotedFile], folder: Path) -> Sequence[Path]:
    def fetch(one: PromotedFile) -> Path:
        path = bucket.fetch(one.staged_key, folder)
        if files.sha256(path) != one.staged_sha256:
            raise StoreError(
                f"{one.staged_key} in {bucket.url} was replaced after the decision.",
                hint="Find out who replaced it, then test and promote again.",
            )
        return path

    return parallel.map_in_threads(fetch, candidates, jobs=_DOWNLOADS)


@dataclass(frozen=True, kw_only=True)
class Rewritten:
    """A wheel or sdist that was rewritten, and checked again."""

    plan: Renamed
    file: WrittenFile


def rewrite_set(
    paths: Sequence[Path],
    folder: Path,
    change: RocmChange,
    *,
    expected: Mapping[str, Expectation] | None = None,
) -> tuple[Rewritten, ...]:
    """Write every wheel and sdist of a set again under its new version, and check the results.

    The whole set is written and checked before one new file appears in `folder`; the old files
    stay as they are. The same files give the same bytes, so an interrupted call can be repeated.
    """
    sources = {path.name: path for path in paths}
    plans = plan_set(sources, change)
    done = []
    with temporary.folder("rewriting", within=files.made(folder)) as scratch:
        for plan in plans:
            started = time.monotonic()
            one = _rewrite(sources[plan.source], scratch, plan, change)
            if one.file.path.suffix == ".whl":
                _check(one, change, (expected or {}).get(plan.distribution))
            done.append(one)
            taken = console.duration(time.monotonic() - started)
            console.say(f"{plan.source} -> {plan.target}  {console.size(one.file.size)}  {taken}")
        return tuple(
            replace(one, file=replace(one.file, path=one.file.path.replace(folder / one.file.path.name)))
            for one in done
        )


def _rewrite(source: Path, folder: Path, plan: Renamed, change: RocmChange) -> Rewritten:
    if plan.kind == "constant":
        path = shutil.copyfile(source, folder / plan.target)
        file = WrittenFile(path=path, sha256=files.sha256(path), size=path.stat().st_size)
        return Rewritten(plan=plan, file=file)
    edits = MemberEdits(plan, change)
    edit_file = edit_wheel if plan.source.endswith(".whl") else edit_sdist
    edited = edit_file(source, folder, version=plan.new, edit=edits)
    edits.require_done(edited.members)
    if edited.path.name != plan.target:
        raise WheelError(f"{plan.source} would become {edited.path.name}, not {plan.target}.")
    return Rewritten(plan=plan, file=edited)


def _check(one: Rewritten, change: RocmChange, expectation: Expectation | None) -> None:
    """Check a rewritten wheel as a built one, in the one pass that inflates all of it."""
    path, plan = one.file.path, one.plan
    stated = read_metadata(path)
    if canonicalize_name(stated.name) != plan.distribution or stated.version != Version(plan.new):
        raise WheelError(f"METADATA of {plan.source} is that of {stated.name} {stated.version}.")
    if plan.kind == "pytorch":
        if expectation:
            requires = tuple(requirement(text, change) for text in expectation.requires)
            expectation = replace(expectation, version=plan.new, requires=requires)
        require_no_errors(check_wheel(path, expectation, options=CheckOptions(scratch=path.parent)))
        return
    edits = MemberEdits(plan, change)
    tars = Tap(wanted=lambda name, _: name.endswith(_TARS), inspect=edits.see_tar, folder=path.parent)
    problems = verify_record(path, tap=tars)
    if problems:
        raise WheelError(f"{plan.source}: {problems[0].message}", hint="Download or build it again.")
    edits.require_nothing_found()
