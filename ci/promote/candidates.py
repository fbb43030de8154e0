"""A release candidate's set rewritten as the release's, and checked again.

``plan_set`` of `ci.promote.version_change` says by names alone what becomes of each file (a dry run needs no
bytes), `rewrite_set` does it for files here, `rewrite_candidate` for those of a store.
"""

from __future__ import annotations

import shutil
import time
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from packaging.utils import canonicalize_name
from packaging.version import Version

from ci.promote.edits import MemberEdits, change_requirement
from ci.promote.version_change import FileChange, RocmChange, change_file, group_files, plan_set
from core import console, files, parallel, temporary
from core.errors import MissingInputError, StoreError, WheelError
from core.stores import Store
from core.stores.directory import DirectoryStore
from core.wheel import distributions, read_metadata
from core.wheel.distributions import SIDECAR
from core.wheel.editor import edit_sdist, edit_wheel
from core.wheel.record import Tap, verify_record
from core.wheel.writer import WrittenFile
from pytorch_build.check import Expectation, require_no_errors
from pytorch_build.check.policy import CheckOptions
from pytorch_build.check.run import check_wheel
from pytorch_build.components import COMPONENTS

if TYPE_CHECKING:
    from ci.promote.documents import PromotedFile
    from ci.promote.facts import SetFacts

# What the wheels of one artifact group must be, by distribution.
Expectations = Mapping[str, Expectation]

MOST_DOWNLOADS = 4  # Files of gigabytes: more at a time are no faster.
_TAR_SUFFIXES = (".tar", ".tar.xz", ".tar.gz")


# What source locks promise


def promised_wheels(
    facts: SetFacts,
    change: RocmChange,
) -> Mapping[str, Expectations]:
    """Return what the source locks promise of a candidate's wheels, by artifact group.

    A distribution that locks of several torch refs promise in several versions is left out.
    """
    versions_by_group: defaultdict[str, defaultdict[str, set[str]]] = defaultdict(lambda: defaultdict(set))
    for lock in facts.locks:
        for distribution, version in lock.promised.items():
            versions_by_group[lock.place.artifact_group or ""][distribution].add(version)

    expectations: dict[str, Expectations] = {}
    for artifact_group, group_versions in versions_by_group.items():
        only_versions: dict[str, str] = {}
        for distribution, distribution_versions in group_versions.items():
            if len(distribution_versions) == 1:
                only_versions[distribution] = min(distribution_versions)
        expectations[artifact_group] = _expectations(only_versions, change)
    return expectations


def _expectations(
    versions: Mapping[str, str],
    change: RocmChange,
) -> Expectations:
    requirements: dict[str, tuple[str, ...]] = {}
    for component in COMPONENTS.values():
        pins: list[str] = []
        if component.requires_rocm:
            pins.append(f"rocm[libraries]=={change.old}")
        for name in component.required_components:
            distribution = COMPONENTS[name].distribution
            if distribution in versions:
                pins.append(f"{distribution}=={versions[distribution]}")
        requirements[component.distribution] = tuple(pins)

    # Nothing is expected of device code: it is the tested wheel's, to the byte.
    return {
        distribution: Expectation(
            distribution=distribution,
            version=version,
            requires=requirements.get(distribution, ()),
        )
        for distribution, version in versions.items()
    }


# The files of a store


def rewrite_candidate(
    store: Store,
    candidates: Sequence[PromotedFile],
    change: RocmChange,
    scratch: Path,
    expected: Mapping[str, Expectations] | None = None,
) -> tuple[tuple[PromotedFile, ...], Store]:
    """Fetch a candidate's files and write them again as the release's.

    Returns:
        What they became, and a store below `scratch` that has them and their sidecars under their keys.
    """
    released_files: list[PromotedFile] = []
    scratch_store = DirectoryStore(scratch / "released")
    for artifact_group, files_by_name in group_files(candidates).items():
        expectations = (expected or {}).get(artifact_group, {})
        _require_promised(artifact_group, files_by_name, expectations)

        with console.group(f"rewrite {artifact_group}: {change.old} -> {change.new}"):
            folder = scratch / artifact_group
            paths = _fetch_files(store, list(files_by_name.values()), folder / change.old)
            written_files = rewrite_set(paths, folder / change.new, change, expected=expectations)

        for file_change, written_file in written_files.items():
            planned_file = change_file(files_by_name[file_change.source], file_change)
            released_files.append(_put_file(scratch_store, planned_file, written_file))
    return tuple(sorted(released_files, key=lambda file: file.key)), scratch_store


def _require_promised(
    artifact_group: str,
    files_by_name: Mapping[str, PromotedFile],
    expectations: Expectations,
) -> None:
    """Refuse a set that lacks a distribution which its source lock promises."""
    distributions_of_set = {file.distribution for file in files_by_name.values()}
    absent_distributions = sorted(expectations.keys() - distributions_of_set)
    if absent_distributions:
        raise MissingInputError(
            f"The set of {artifact_group} has no wheel of {', '.join(absent_distributions)}, which its "
            "source lock promises.",
            hint="Stage it, or build it first.",
        )


def _put_file(
    store: Store,
    planned_file: PromotedFile,
    written_file: WrittenFile,
) -> PromotedFile:
    """Put a rewritten file and its sidecar into a store; return it as it is now."""
    key = planned_file.key
    record, sidecar = distributions.describe(
        written_file.path,
        key=key,
        sha256=written_file.sha256,
    )
    store.put_file(
        key,
        written_file.path,
        sha256=written_file.sha256,
        replace=True,
    )
    if sidecar is not None:
        store.put_bytes(f"{key}{SIDECAR}", sidecar)
    return planned_file.model_copy(update=record.model_dump(exclude={"license"}))


def _fetch_files(
    store: Store,
    candidates: Sequence[PromotedFile],
    folder: Path,
) -> Sequence[Path]:
    def fetch_file(candidate: PromotedFile) -> Path:
        path = store.fetch(candidate.staged_key, folder)
        if files.sha256(path) != candidate.staged_sha256:
            raise StoreError(
                f"{candidate.staged_key} in {store.url} was replaced after the decision.",
                hint="Find out who replaced it, then test and promote again.",
            )
        return path

    return parallel.map_in_threads(fetch_file, candidates, jobs=MOST_DOWNLOADS)


# Files of this machine


def rewrite_set(
    paths: Sequence[Path],
    folder: Path,
    change: RocmChange,
    *,
    expected: Expectations | None = None,
) -> Mapping[FileChange, WrittenFile]:
    """Write every wheel and sdist of a set again under its new version, and check the results.

    The whole set is written and checked before one new file appears in `folder`; the old files stay as they
    are. The same files give the same bytes, so an interrupted call can be repeated.
    """
    sources = {path.name: path for path in paths}
    file_changes = plan_set(sources, change)
    expectations = expected or {}

    written_files: dict[FileChange, WrittenFile] = {}
    with temporary.folder("rewriting", within=files.ensure_folder(folder)) as scratch:
        for file_change in file_changes:
            started = time.monotonic()
            written_file = _rewrite(sources[file_change.source], scratch, file_change, change)
            if file_change.source.endswith(".whl"):
                _check(written_file.path, file_change, change, expectations.get(file_change.distribution))
            written_files[file_change] = written_file

            size = console.size(written_file.size)
            duration = console.duration(time.monotonic() - started)
            console.say(f"{file_change.source} -> {file_change.target}  {size}  {duration}")

        finished_files: dict[FileChange, WrittenFile] = {}
        for file_change, written_file in written_files.items():
            path = written_file.path.replace(folder / file_change.target)
            finished_files[file_change] = replace(written_file, path=path)
        return finished_files


def _rewrite(
    source: Path,
    folder: Path,
    file_change: FileChange,
    change: RocmChange,
) -> WrittenFile:
    if file_change.kind == "constant":
        path = shutil.copyfile(source, folder / file_change.target)
        return WrittenFile(
            path=path,
            sha256=files.sha256(path),
            size=path.stat().st_size,
        )

    edits = MemberEdits(file_change, change)
    edit_file = edit_wheel if file_change.source.endswith(".whl") else edit_sdist
    written_file = edit_file(
        source,
        folder,
        version=file_change.new,
        edit=edits,
    )
    edits.require_done(written_file.members)
    if written_file.path.name != file_change.target:
        raise WheelError(
            f"{file_change.source} would become {written_file.path.name}, not {file_change.target}."
        )
    return written_file


def _check(
    path: Path,
    file_change: FileChange,
    change: RocmChange,
    expectation: Expectation | None,
) -> None:
    """Check a rewritten wheel as a built one, in the one pass that inflates all of it."""
    metadata = read_metadata(path)
    is_of_distribution = canonicalize_name(metadata.name) == file_change.distribution
    if not is_of_distribution or metadata.version != Version(file_change.new):
        raise WheelError(f"METADATA of {file_change.source} is that of {metadata.name} {metadata.version}.")

    if file_change.kind == "pytorch":
        if expectation is not None:
            requires = tuple(change_requirement(text, change) for text in expectation.requires)
            expectation = replace(
                expectation,
                version=file_change.new,
                requires=requires,
            )
        require_no_errors(check_wheel(path, expectation, options=CheckOptions(scratch=path.parent)))
        return

    edits = MemberEdits(file_change, change)
    tars = Tap(
        wanted=lambda name, _size: name.endswith(_TAR_SUFFIXES),
        inspect=edits.search_tar,
        folder=path.parent,
    )
    problems = verify_record(path, tap=tars)
    if problems:
        raise WheelError(f"{file_change.source}: {problems[0].message}", hint="Download or build it again.")
    edits.require_no_problems()
