"""Where the ROCm of a plan comes from: the artifacts of a run, or the packages of a release index.

One answer serves every family of a build variant, on every platform of the plan.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from ci import fetching
from ci.runs import RunQuery, find_run
from core.errors import ArtifactError, FatalError, MissingInputError
from core.families import family
from core.outputs import PLAIN
from core.package_sources import PackageSource
from core.plans import Decision, LeftOut, Plan, RocmOrigin
from rocm_packaging.sources import newest, release_index_url, with_layout

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from ci.artifact_places import Place
    from ci.configuration.data import ArtifactRuns, RocmData, Way
    from ci.runs import Run, RunSource
    from core.outputs import Platform
    from core.plans import Cell, RocmPackages

FETCH, PACKAGE = "fetch_artifacts", "build_rocm"
_HINT = (
    "Name an artifact run (the input artifact_run_id), or correct [rocm] of the data: "
    "ci/rocm.toml, or the file that CI_CONFIG names."
)


@dataclass(frozen=True, kw_only=True)
class Need:
    """One artifact group that needs ROCm."""

    platform: Platform
    artifact_group: str
    gpu_family: str


@dataclass(frozen=True, kw_only=True)
class Search:
    """A search for the ROCm of one plan.

    Attributes:
        asked: What the event asks for.
        repository: Whose run the plan is for.
        release_type: Its release type.
        data: What is tried.
        source: Where runs are looked up.
        place: Finds a run's artifacts: repository, run id, whether it built a fork's commit, platform, store.
        notes: What was tried in vain, for the plan.
    """

    asked: RocmPackages
    repository: str
    release_type: str
    data: RocmData
    source: RunSource
    place: Callable[[str, str, bool, Platform, str], Place]
    notes: list[str]

    @property
    def runs(self) -> ArtifactRuns:
        """Whose runs count."""
        return self.data.of(self.release_type)

    def origins(self, wanted: Mapping[str, Sequence[Need]]) -> tuple[RocmOrigin, ...]:
        """Find where the ROCm of each build variant comes from.

        Args:
            wanted: Build variant -> the groups that need it.

        Raises:
            MissingInputError: It comes from nowhere; the message says what was looked for.
        """
        found: list[RocmOrigin] = []
        run, variant = self._asked(wanted) if self.asked.artifact_run_id else (None, "")
        for name, needs in wanted.items():
            found += self._given(name, needs, run) if name == variant else self._tried(name, needs)
        return tuple(found)

    def _asked(self, wanted: Mapping[str, Sequence[Need]]) -> tuple[Run | None, str]:
        """Say which run is asked for, and whose variant's artifacts it has.

        A run in a store that somebody names is taken as it is: GitHub need not know it.
        """
        asked = self.asked
        alone = PLAIN if PLAIN in wanted else next(iter(wanted))
        if asked.artifact_store:
            return None, alone
        run = self.source.run(self._repository, asked.artifact_run_id)
        built = next((name for name, file in self.runs.workflows.items() if file == run.workflow), alone)
        if built not in wanted:
            raise MissingInputError(
                f"Artifact run {run.run_id} of {self._repository} has builds of the variant {built} "
                f"({run.workflow}), and the plan has {' and '.join(wanted)}.",
                hint=self._instead(alone, wanted[alone]),
            )
        return run, built

    @property
    def _repository(self) -> str:
        return self.asked.artifact_repository or self.runs.repository

    def _given(self, variant: str, needs: Sequence[Need], run: Run | None) -> tuple[RocmOrigin, ...]:
        """Pin the run that is asked for.

        Raises:
            MissingInputError: It does not do; the newest that would is named.
        """
        run_id = self.asked.artifact_run_id
        try:
            if run and self.data.require_successful and not run.successful:
                raise MissingInputError(f"It is not green: {run.conclusion or run.status}.")  # noqa: TRY301
            reason = f"run {run_id} is asked for"
            return self._pinned(run_id, needs, fork=bool(run and run.fork), reason=reason)
        except (MissingInputError, ArtifactError) as problem:
            raise MissingInputError(
                f"Artifact run {run_id} of {self._repository} does not do. {problem.message}",
                hint=self._instead(variant, needs),
            ) from problem

    def _instead(self, variant: str, needs: Sequence[Need]) -> str:
        try:
            return f"The newest that would do: {self._newest(variant, needs)[0].run_id}."
        except FatalError as problem:
            return f"No other one would do: {problem.message}"

    def _tried(self, variant: str, needs: Sequence[Need]) -> tuple[RocmOrigin, ...]:
        """Try what the data says, in its order."""
        ways = {"newest": self._newest, "index": self._index}
        order = [one for one in self._order if not self._excluded(one)]
        tried = []
        for way in order:
            try:
                return ways[way](variant, needs)
            except FatalError as problem:
                tried.append(f"{way}: {problem.message}")
                self.notes.append(
                    f"ROCm of the variant {variant} does not come from {way}: {problem.message}"
                )
        families = ", ".join(dict.fromkeys(f"{one.gpu_family} on {one.platform}" for one in needs))
        raise MissingInputError(
            f"There is no ROCm for {families} (variant {variant}). Looked for:\n"
            + "\n".join(f"  {one}" for one in tried or ["nothing: use_prebuilt_artifacts leaves no way"]),
            hint=_HINT,
        )

    @property
    def _order(self) -> Sequence[Way]:
        return ("index",) if self.asked.index_url else self.data.order_of(self.repository)

    def _excluded(self, way: str) -> bool:
        return way == "index" and self.asked.use_prebuilt_artifacts

    def _newest(self, variant: str, needs: Sequence[Need]) -> tuple[RocmOrigin, ...]:
        """Pin the newest run that has everything."""
        workflow = self.runs.workflows.get(variant, "")
        if not workflow:
            raise MissingInputError(f"No workflow of {self.runs.repository} is known to build {variant}.")
        found: dict[str, tuple[RocmOrigin, ...]] = {}

        def holds(run: Run) -> bool:
            try:
                reason = f"the newest run of {workflow} that has every family, {run.created}"
                found[run.run_id] = self._pinned(run.run_id, needs, fork=run.fork, reason=reason)
            except (MissingInputError, ArtifactError):
                return False
            return True

        query = RunQuery(
            repository=self.runs.repository,
            workflow=workflow,
            branch=self.runs.branch,
            require_successful=self.data.require_successful,
        )
        return found[find_run(self.source, query, holds).run_id]

    def _pinned(
        self, run_id: str, needs: Sequence[Need], *, fork: bool, reason: str
    ) -> tuple[RocmOrigin, ...]:
        """Pin a run with the digests of what each group needs of it."""
        store = self.asked.artifact_store if run_id == self.asked.artifact_run_id else ""
        repository = self._repository if run_id == self.asked.artifact_run_id else self.runs.repository
        found = []
        for platform in dict.fromkeys(one.platform for one in needs):
            place = self.place(repository, run_id, fork, platform, store or self.runs.store)
            here = [one for one in needs if one.platform == platform]
            chosen = {
                one: fetching.choose(place.listed, family(one.gpu_family), where=place.where) for one in here
            }
            digests = fetching.digests(place.store, {one for some in chosen.values() for one in some})
            for need, listed in chosen.items():
                found.append(
                    RocmOrigin(
                        platform=platform,
                        artifact_group=need.artifact_group,
                        run_id=run_id,
                        repository=repository,
                        store=place.named,
                        external_repo=place.external_repo,
                        artifacts={one.name.filename: digests[one.name.filename] for one in listed},
                        version=self.asked.version,
                        reason=reason,
                    )
                )
        return tuple(found)

    def _index(self, variant: str, needs: Sequence[Need]) -> tuple[RocmOrigin, ...]:
        """Take the packages of the release index, all of one version."""
        if variant != PLAIN:
            raise MissingInputError(f"A release index has no builds of the variant {variant}.")
        given = self.asked.index_url
        urls = {one: given or release_index_url(self.runs.index, one.gpu_family) for one in needs}
        version = self.asked.version if self.asked.version_named else ""
        for need, url in urls.items():
            packages = PackageSource(index_urls=(url,))
            version = version or newest(packages)
            with_layout(packages, version, need.gpu_family)
        return tuple(
            RocmOrigin(
                platform=need.platform,
                artifact_group=need.artifact_group,
                index_url=url,
                version=version,
                reason="it is asked for" if given else f"the release index {self.runs.index or 'by default'}",
            )
            for need, url in urls.items()
        )


def needs(plan: Plan) -> Mapping[str, Sequence[Need]]:
    """List the groups of a plan that need ROCm from elsewhere, by build variant."""
    found: dict[str, dict[Need, None]] = {}
    for cell in plan.cells:
        if FETCH in cell.sessions:
            need = Need(
                platform=cell.platform, artifact_group=cell.artifact_group, gpu_family=cell.gpu_family
            )
            found.setdefault(cell.build_variant, {})[need] = None
    return {variant: tuple(some) for variant, some in found.items()}


def completed(plan: Plan, origins: Sequence[RocmOrigin], notes: Sequence[str] = ()) -> Plan:
    """Write into a plan where its ROCm comes from; what an index has is neither built nor tested here."""
    indexed = {(one.platform, one.artifact_group): one for one in origins if one.index_url}
    left_out = list(plan.left_out)
    cells: list[Cell] = []
    for cell in plan.cells:
        origin = indexed.get((cell.platform, cell.artifact_group))
        if origin is None:
            cells.append(cell)
        elif cell.stage.endswith("rocm"):
            what = f"{cell.stage}, {cell.artifact_group} on {cell.platform}"
            reason = f"ROCm {origin.version} comes from {origin.index_url}"
            left_out.append(LeftOut(what=what, reason=reason))
        else:
            sessions = tuple(one for one in cell.sessions if one not in {FETCH, PACKAGE})
            cells.append(cell.model_copy(update={"sessions": sessions}))
    version = next((one.version for one in indexed.values()), plan.rocm.version)
    held = {(one.platform, one.artifact_group) for one in cells}
    enabled = plan.enable_build_jobs
    if plan.cells and not cells:
        reason = f"ROCm {version} comes from an index, and PyTorch is not built: {plan.build_pytorch.reason}"
        enabled = Decision(value=False, reason=reason)
    return plan.model_copy(
        update={
            "enable_build_jobs": enabled,
            "rocm": plan.rocm.model_copy(update={"version": version, "origins": tuple(origins)}),
            "variants": tuple(one for one in plan.variants if (one.platform, one.artifact_group) in held),
            "cells": tuple(cells),
            "left_out": tuple(left_out),
            "notes": (*plan.notes, *notes),
        }
    )
