"""The runs of a store among which is searched: those that built one cell."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from functools import cached_property
from typing import TYPE_CHECKING

from ci.bisection.differences import RevisionFacts, facts_of_run
from ci.bisection.local_builds import build_packages, make_local_run
from ci.bisection.search import Revision, find_revision
from ci.report.facts import read_run
from ci.report.names import cell_text, natural_key
from ci.report.stored_runs import built_cells, list_runs
from core.cell import GroupCell
from core.data import AnyModel, parse_json
from core.errors import DataError, MissingInputError, UsageError
from core.packages.groups import RunGroup
from core.packages.sources import PackageIndex, combine_sources
from core.parallel import map_in_threads
from core.run import RunOutputs, is_local, records
from core.run.plan import Plan, RocmOrigin
from pytorch_build.lock.source_lock import SourceLock
from rocm_packaging.origin import has_rocm, release_index_url

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ci import install
    from ci.bisection.request import BisectRequest
    from core.cli.options import Common
    from core.packages.package_source import PackageSource
    from core.stores import Store

BUILD_ROCM = "build_rocm"


@dataclass(frozen=True, kw_only=True)
class StoredRuns:
    """The runs of a store that built one cell: a torch ref, GPU family and Python, or a family's ROCm."""

    request: BisectRequest
    rocm_only: bool

    @cached_property
    def _store(self) -> Store:
        return self.request.common.open_for_reading()

    @property
    def description(self) -> str:
        """What a search that is continued knows its runs by."""
        return f"{self._store.url}, {cell_text(self.cell)}"

    @property
    def python(self) -> str | None:
        """The Python that the options name, else the cell's."""
        return self.request.python or self.cell.python

    # --- Which runs

    @cached_property
    def _run_ids(self) -> Sequence[str]:
        """The runs there are, the last one last; this machine's own only where they are named."""
        ends = {self.request.good, self.request.bad}
        outputs = self.request.common.outputs
        run_ids = list(list_runs(self._store, outputs))
        run_ids.reverse()
        return [run_id for run_id in run_ids if run_id in ends or not is_local(run_id)]

    @cached_property
    def cell(self) -> GroupCell:
        """The cell that both ends have, by the options."""
        ends = [run_id for run_id in (self.request.good, self.request.bad) if run_id in self._run_ids]
        if not ends:
            ends = list(self._run_ids[-1:])
        common_cells = self._cells_in_common(ends)
        names = " and ".join(ends)
        if not common_cells:
            raise UsageError(
                f"Nothing that {names} built can be compared.",
                hint="Name runs that built the same torch ref, GPU family and Python.",
            )

        requested_cells = [cell for cell in common_cells if self._is_requested(cell)]
        if len(requested_cells) == 1:
            return requested_cells[0]

        count = len(requested_cells) or "none"
        listed_cells = [f"\n  {cell}" for cell in requested_cells or common_cells]
        raise UsageError(
            f"One cell is searched, and the options leave {count} of those that {names} have in common:"
            + "".join(listed_cells),
            hint="Choose with --torch-ref, --gpu-family and --python, or name other runs.",
        )

    def _cells_in_common(self, run_ids: Sequence[str]) -> Sequence[GroupCell]:
        cells_of_runs: list[set[GroupCell]] = []
        for run_id in run_ids:
            # An end may have built nothing; the other one says then what is searched.
            with suppress(MissingInputError):
                cells_of_runs.append(self._cells_of_run(run_id))
        if not cells_of_runs:
            ends = f"{self.request.good} or {self.request.bad}"
            raise MissingInputError(
                f"{self._store.url} has no run {ends} with records of builds.",
                hint="Name a store of runs with --store, or runs that built something.",
            )
        return sorted(set.intersection(*cells_of_runs))

    def _cells_of_run(self, run_id: str) -> set[GroupCell]:
        """Return the cells that a run built, or the artifact groups whose ROCm it packaged."""
        whole_run = replace(
            self.request.common,
            run_id=run_id,
            torch_ref="",
            gpu_family="",
        )
        facts = read_run(whole_run, tests=False)
        if not self.rocm_only:
            return set(built_cells(facts))

        cells: set[GroupCell] = set()
        for group in facts.groups:
            if any(record.stage == BUILD_ROCM for record in group.records):
                cells.add(GroupCell(artifact_group=group.name))
        return cells

    def _is_requested(self, cell: GroupCell) -> bool:
        """Return whether a cell is one that the options name; what they leave out is any."""
        common = self.request.common
        if common.artifact_group not in {"", cell.artifact_group}:
            return False
        if self.rocm_only:
            return True
        has_ref = common.torch_ref in {"", cell.torch_ref}
        return has_ref and self._requested_python_tag in {None, cell.python_tag}

    @cached_property
    def _requested_python_tag(self) -> str | None:
        """The ABI tag of the Python that the options name."""
        if self.request.python is None:
            return None
        return self.request.interpreter(self.request.python).tag

    def list_revisions(self) -> Sequence[Revision]:
        """Return the runs of the cell and of the bad end's release type, by their records' time.

        A lock and a record are read of each; of CI's runs, whose ids are numbers, only between the ends.
        """
        runs = map_in_threads(self._read_revision, self._run_ids_between_ends())
        revisions = [run for run in runs if run is not None]
        revisions.sort(key=lambda revision: (revision.started, natural_key(revision.name)))
        kind = find_revision(revisions, self.request.bad).kind
        return [revision for revision in revisions if revision.kind == kind]

    def _run_ids_between_ends(self) -> Sequence[str]:
        ends = (self.request.good, self.request.bad)
        if not all(end in self._run_ids and end.isdecimal() for end in ends):
            return self._run_ids
        low, high = sorted(map(int, ends))
        numbers = [run_id for run_id in self._run_ids if run_id.isdecimal()]
        return [number for number in numbers if low <= int(number) <= high]

    # --- What is known of a run

    @property
    def _artifact_group(self) -> str:
        return self.cell.artifact_group or ""

    @property
    def _torch_ref(self) -> str:
        return self.cell.torch_ref or ""

    def _outputs(self, run_id: str) -> RunOutputs:
        return replace(self.request.common.outputs, run_id=run_id)

    def _read(self, key: str, model: type[AnyModel]) -> AnyModel | None:
        """Return a document; None where there is none that can be read."""
        with suppress(MissingInputError, DataError):
            text = self._store.read(key).decode(errors="replace")
            return parse_json(text, model, where=key)
        return None

    def _read_lock(self, run_id: str) -> SourceLock | None:
        """Return the source lock of a run; ROCm alone has none."""
        if self.rocm_only:
            return None
        key = self._outputs(run_id).source_lock_key(self._torch_ref)
        return self._read(key, SourceLock)

    def _read_revision(self, run_id: str) -> Revision | None:
        """Return a run; None for one of other cells."""
        lock = self._read_lock(run_id)
        if lock is None and not self.rocm_only:
            return None
        recorded_cell = GroupCell(torch_ref=self.cell.torch_ref, python=self.cell.python)
        step = BUILD_ROCM if self.rocm_only else "build_torch"
        name = records.record_name(step, recorded_cell)
        record = self._read_record(run_id, name)
        if lock is None and record is None:
            return None

        reason = f"it has no {name}"
        started = self._time_of_lock(run_id, lock)
        if record is not None:
            reason = _reason_of_failure(name, record)
            started = record.started
        return Revision(
            name=run_id,
            started=started,
            names=tuple(sorted(_names_of_run(lock, record))),
            lacks=reason,
            kind="" if lock is None else lock.release_type,
        )

    def _read_record(self, run_id: str, name: str) -> records.Record | None:
        """Return the record of a step's last success, else that of its failure."""
        outputs = self._outputs(run_id)
        for record_name in (name, f"{name}.failed"):
            key = outputs.record_key(self._artifact_group, record_name)
            record = self._read(key, records.Record)
            if record is not None:
                return record
        return None

    def _time_of_lock(self, run_id: str, lock: SourceLock | None) -> str:
        """Return when the lock of a run was resolved, in ISO 8601."""
        if lock is not None and lock.resolved is not None:
            return lock.resolved
        # Locks of older runs do not say it, and a copied run has the modification times of its copy.
        key = self._outputs(run_id).source_lock_key(self._torch_ref)
        stored_lock = self._store.find(key)
        seconds = 0.0
        if stored_lock is not None:
            seconds = stored_lock.modified
        return datetime.fromtimestamp(seconds, UTC).isoformat(timespec="seconds")

    def read_facts(self, revision: Revision) -> RevisionFacts:
        """Return what the run's lock, plan and records say."""
        outputs = self._outputs(revision.name)
        plan = self._read(outputs.plan_key, Plan)
        origins: list[RocmOrigin] = []
        for origin in () if plan is None else plan.rocm.origins:
            if origin.platform != outputs.platform:
                continue
            if origin.artifact_group == self._artifact_group:
                origins.append(origin)
        builds = self._read_builds(self._group_with_packages(revision))
        return facts_of_run(self._read_lock(revision.name), origins, builds)

    # --- The packages of a run

    def _group_with_packages(self, revision: Revision) -> RunGroup:
        """Return where the packages of a run are: of one that lacks them, in a run of this machine."""
        if revision.lacks:
            local_run = self._local_run(revision)
            return RunGroup(
                store=local_run.open_store(),
                outputs=local_run.outputs,
                name=self._artifact_group,
            )
        return self._stored_group(revision)

    def _stored_group(self, revision: Revision) -> RunGroup:
        return RunGroup(
            store=self._store,
            outputs=self._outputs(revision.name),
            name=self._artifact_group,
        )

    def _read_builds(self, group: RunGroup) -> Sequence[records.Record]:
        """Return what builds of the cell, and of its ROCm, recorded."""
        builds: list[records.Record] = []
        for record in records.read_all(group.store, group.outputs, group.name):
            is_build = record.stage.startswith("build_")
            if not is_build or record.status != "ok":
                continue
            is_of_ref = record.cell.torch_ref == self.cell.torch_ref
            is_of_cell = is_of_ref and record.cell.python == self.cell.python
            if record.stage == BUILD_ROCM or is_of_cell:
                builds.append(record)
        return builds

    def request_packages(self, revision: Revision) -> install.InstallRequest:
        """Return what the run built, built first where it lacks it; a ROCm that it lacks is an index's."""
        if revision.lacks:
            self._build_missing_packages(revision)
        group = self._group_with_packages(revision)
        family = group.family
        if family:
            family = self.request.common.gpu_family or family

        source: PackageSource = group
        if family and not self.rocm_only and not has_rocm(group):
            source = combine_sources([group, self._source_of_rocm(family)])
        versions: dict[str, str] = {}
        for record in self._read_builds(group):
            versions |= {file.distribution: file.version for file in record.files}
        return self.request.request_installation(
            source,
            versions=versions,
            family=family,
            python=self.python,
        )

    def _source_of_rocm(self, family: str) -> PackageSource:
        """Return where the ROCm of runs is that hold none: as the options say, else the release index."""
        source = self.request.source
        if source.index_urls or source.find_links:
            return source
        return PackageIndex(url=release_index_url("", family))

    def _local_run(self, revision: Revision) -> Common:
        """Return the run of this machine in which what another one lacks is built."""
        lock = self._read_lock(revision.name)
        return make_local_run(self.request.common, revision.name, self.cell, lock)

    def _build_missing_packages(self, revision: Revision) -> None:
        """Build what a run lacks, on its ROCm."""
        lending_run = self._stored_group(revision)
        rocm_builds = [record for record in self._read_builds(lending_run) if record.stage == BUILD_ROCM]
        build_packages(
            self._local_run(revision),
            self._read_lock(revision.name),
            lending_run,
            rocm_builds,
            packages=self.request.packages,
            python=self.python,
        )


def _names_of_run(lock: SourceLock | None, record: records.Record | None) -> set[str]:
    """Return what else a run may be called: its lock's digest, the versions of that and of its files."""
    names: set[str] = set()
    if lock is not None:
        names |= {lock.digest(), lock.rocm_version}
        for project in lock.projects.values():
            names.update(project.versions.values())
    if record is not None:
        names.update(file.version for file in record.files)
    return names


def _reason_of_failure(name: str, record: records.Record) -> str:
    """Return why there is nothing to install of a build; "" where it was successful."""
    if record.status == "ok":
        return ""
    first_line, _, _ = record.error.partition("\n")
    return f"{name}: {first_line or 'failed'}"
