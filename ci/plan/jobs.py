"""The jobs of a plan: which sessions run where, for what; and what is left out."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from ci.plan import machines, variants
from ci.verbs.cells import BUILDS, missing
from ci.verbs.cells import Cell as MatrixCell
from core.errors import DataError, UsageError, nearest
from core.run.plan import Cell, LeftOut
from pytorch_build.lock.versions import python_tag
from pytorch_build.refs.torch_refs import PROJECTS

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from ci.plan.data import Test
    from ci.plan.machines import Machine
    from ci.plan.matrix import Matrix
    from ci.plan.question import Question
    from ci.plan.variants import Build
    from core.run.outputs import Platform
    from core.run.plan import Decision, Stage
    from pytorch_build.refs.torch_refs import TorchRef

CHECKS = ("check_wheels",)


_SAMPLE = "sample"


@dataclass(frozen=True, kw_only=True)
class Jobs:
    """Collects the jobs of one plan."""

    question: Question
    pytorch: Decision
    upload: Decision
    test_type: str
    test_labels: dict[Platform, tuple[str, ...]]
    cells: list[Cell] = field(default_factory=list)
    left_out: list[LeftOut] = field(default_factory=list)

    def add(self, build: Build) -> None:
        """Add the jobs of a family in a variant."""
        entry = build.entry
        reason = variants.without_pytorch(self.question, build, self.pytorch)
        wheels = [] if reason else self._pytorch_builds(build)
        if reason:
            self._leave(f"build_pytorch, {_where(entry.artifact_group, entry.platform)}", reason)
        if not variants.has_rocm(build):
            self._leave(
                f"build_rocm, {_where(entry.artifact_group, entry.platform)}", "family cpu has no ROCm"
            )
        elif wheels and not self.upload.value:
            where = _where(entry.artifact_group, entry.platform)
            self._leave(f"build_rocm, {where}", f"the PyTorch jobs build it: {self.upload.reason}")
        else:
            self.cells.append(self._rocm(build))
        self.cells.extend(wheels)
        if variants.has_rocm(build):
            self._rocm_test(build)
        for wheel in wheels:
            self._pytorch_test(build, wheel)
        for name, test in self.question.data.triggers.tests.items():
            if wheels and test.stage == "test_torch":
                self._torch_test(build, wheels, name, test)

    def _rocm(self, build: Build) -> Cell:
        return self._cell(
            build, "build_rocm", self._rocm_sessions(), build.entry.build_runner, torch_ref=self.own_rocm()
        )

    def _rocm_sessions(self) -> tuple[str, ...]:
        return ("build_rocm",) if self.own_rocm() else ("fetch_artifacts", "build_rocm")

    def own_rocm(self) -> str:
        """Name the ref that brings artifacts along, where all refs are built on these: the sample."""
        names = self._refs()
        refs = self.question.refs["linux"]
        return _SAMPLE if all(name in refs and refs[name].rocm_version for name in names) else ""

    def _refs(self) -> Sequence[str]:
        return self.question.inputs.pytorch_git_refs or self._matrix().torch_refs

    def _pytorch_builds(self, build: Build) -> list[Cell]:
        found = []
        for python in self.question.inputs.pytorch_python_versions or self._matrix().pythons:
            python_tag(python)  # a word that is no Python's version is said here
            for name in self._refs():
                cell = self._pytorch_build(build, python, name)
                found += [cell] if cell else []
        return found

    def _pytorch_build(self, build: Build, python: str, name: str) -> Cell | None:
        entry = build.entry
        ref = self._ref(name, entry.platform)
        wanted = MatrixCell(python=python, torch_ref=name, gpu_family=entry.gpu_family)
        reason = missing(wanted, self._matrix(), ref, entry.platform)
        components = self._components(ref, entry.platform)
        if not reason and not components:
            reason = "it has none of the components that are asked for"
        if reason:
            self._leave(
                f"build_pytorch, {_where(entry.artifact_group, entry.platform)}, {name}, Python {python}",
                reason,
            )
            return None
        first = self._rocm_sessions() if not self.upload.value and variants.has_rocm(build) else ()
        sessions = (*first, *(BUILDS[one] for one in components), *CHECKS)
        return self._cell(build, "build_pytorch", sessions, entry.build_runner, python=python, torch_ref=name)

    def _components(self, ref: TorchRef, platform: Platform) -> Sequence[str]:
        asked = self.question.inputs.pytorch_components
        for one in asked:
            if one not in PROJECTS:
                raise UsageError(f"The component {one!r} is not known. {nearest(one, PROJECTS)}")
        for one in asked:
            if one not in ref.components:
                left = LeftOut(what=f"{one} of {ref.name}", reason=f"not built on {platform}")
                self.left_out.extend([] if left in self.left_out else [left])
        # the others are built against the torch of their own run, and torch requires that run's triton, so
        # that nobody's else is installed beside it
        wanted = {*asked, "torch"} if {"audio", "vision", "apex"} & {*asked} else {*asked}
        wanted |= {"triton"} if "torch" in wanted else set()
        built = [one for one in ref.components if not asked or one in wanted]
        return built if not asked or {*asked} & {*built} else []

    def _ref(self, name: str, platform: Platform) -> TorchRef:
        refs = self.question.refs[platform]
        if name not in refs:
            kind = UsageError if self.question.inputs.pytorch_git_refs else DataError
            raise kind(f"The torch ref {name!r} is not known. {nearest(name, refs)}")
        return refs[name]

    def _rocm_test(self, build: Build) -> None:
        entry = build.entry
        what = f"test_rocm, {_where(entry.artifact_group, entry.platform)}"
        machine = machines.rocm_tester(self.question, build.chosen)
        sessions = self._sessions("test_rocm", entry.platform)
        if self._untested(build, what, machine, sessions):
            return
        python = (self.question.inputs.pytorch_python_versions or self._matrix().pythons)[0]
        cell = self._cell(
            build, "test_rocm", sessions, machine.label, python=python, torch_ref=self.own_rocm()
        )
        self.cells.append(
            cell.model_copy(update={"reason": "; ".join(filter(None, (cell.reason, machine.reason)))})
        )

    def _pytorch_test(self, build: Build, wheel: Cell) -> None:
        machine = machines.tester(
            self.question,
            build.chosen,
            f"test_pytorch {wheel.torch_ref} {wheel.python}",
            several_gpus=False,
        )
        sessions = self._sessions("test_pytorch", wheel.platform)
        what = f"test_pytorch, {wheel.name} on {wheel.platform}"
        if wheel.expect_failure:
            self._leave(what, "its build is expected to fail")
            return
        if self._untested(build, what, machine, sessions):
            return
        cell = self._cell(
            build, "test_pytorch", sessions, machine.label, python=wheel.python, torch_ref=wheel.torch_ref
        )
        self.cells.append(cell)

    def _torch_test(self, build: Build, wheels: Sequence[Cell], name: str, test: Test) -> None:
        """Add one kind of upstream's tests of torch: for each ref a job for every part of them."""
        entry = build.entry
        what = f"test_torch {test.config}"
        where = _where(entry.artifact_group, entry.platform)
        if test.platforms and entry.platform not in test.platforms:
            self._leave(f"{what}, {where}", f"tested on {' and '.join(test.platforms)} only")
            return
        anybody = machines.tester(self.question, build.chosen, what, several_gpus=test.several_gpus)
        wanted = self._wanted(name, test, entry.platform)
        if not wanted and not self.test_labels[entry.platform]:
            self._leave(
                f"{what}, {where}", f"not of test type {self.test_type}; label test:{name} asks for it"
            )
            return
        if self._untested(build, f"{what}, {where}", anybody, (test.session,) if wanted else ()):
            return
        for wheel in wheels:
            pythons = test.of([one.python for one in wheels if one.torch_ref == wheel.torch_ref])
            reason = ""
            if wheel.python not in pythons:
                reason = f"tested with Python {' and '.join(pythons)}"
            elif wheel.expect_failure:
                reason = "its build is expected to fail"
            elif "build_torch" not in wheel.sessions:
                reason = "torch is not built"
            if reason:
                self._leave(f"{what}, {wheel.name} on {entry.platform}", reason)
            else:
                self.cells.extend(self._torch_parts(build, wheel, test))

    def _torch_parts(self, build: Build, wheel: Cell, test: Test) -> Iterator[Cell]:
        """Give a job for every part of upstream's tests, on machines that share the work."""
        for number in range(1, test.shards + 1):
            shard = f"{number}/{test.shards}"
            key = f"test_torch {wheel.torch_ref} {wheel.python} {test.config} {shard}"
            machine = machines.tester(self.question, build.chosen, key, several_gpus=test.several_gpus)
            cell = self._cell(
                build,
                "test_torch",
                (test.session,),
                machine.label,
                python=wheel.python,
                torch_ref=wheel.torch_ref,
            )
            part = {"config": test.config, "shard": shard, "minutes": test.minutes}
            yield cell.model_copy(update={"name": f"{cell.name}, {test.config} {shard}", **part})

    def _untested(self, build: Build, what: str, machine: Machine, sessions: Sequence[str]) -> bool:
        """Leave a test out, where there is a reason to."""
        tested_on = build.variant.tested_on
        reason = ""
        if not self.upload.value:
            reason = f"nothing is uploaded that it could install: {self.upload.reason}"
        elif build.entry.expect_failure:
            reason = "its ROCm packages are expected to fail"
        elif tested_on and self.question.event.name not in tested_on:
            reason = f"{build.entry.build_variant} is tested on {' and '.join(tested_on)} only"
        elif not sessions:
            reason = "other tests are asked for"
        elif not self._asked_for(build) and not self.question.tests_reach(build.chosen.on.tests):
            reason = f"tested from {build.chosen.on.tests} on, or where it is asked for"
        elif not machine.label:
            reason = machine.reason
        if reason:
            self._leave(what, reason)
        return bool(reason)

    def _asked_for(self, build: Build) -> bool:
        """Say whether somebody asks for the family, or for a kernel that machines with it have."""
        return build.chosen.asked or bool(self.question.labels.kernel)

    def _sessions(self, stage: Stage, platform: Platform) -> tuple[str, ...]:
        """Give the sessions of the tests that are asked for, or of all of the test type."""
        return tuple(
            test.session
            for name, test in self.question.data.triggers.tests.items()
            if test.stage == stage and self._wanted(name, test, platform)
        )

    def _wanted(self, name: str, test: Test, platform: Platform) -> bool:
        """Say whether a test is asked for, or belongs to the test type where none is."""
        asked = self.test_labels[platform]
        return f"test:{name}" in asked if asked else not test.types or self.test_type in test.types

    def _cell(
        self,
        build: Build,
        stage: Stage,
        sessions: tuple[str, ...],
        runner: str,
        *,
        python: str = "",
        torch_ref: str = "",
    ) -> Cell:
        entry = build.entry
        named = (entry.artifact_group, torch_ref, f"Python {python}" if python else "")
        failure = variants.expected(self.question, build.chosen, stage, torch_ref)
        reason = entry.reason if stage.endswith("rocm") else f"{entry.reason}; {self.pytorch.reason}"
        return Cell(
            name=", ".join(filter(None, named)),
            platform=entry.platform,
            stage=stage,
            sessions=sessions,
            runner=runner,
            gpu_family=entry.gpu_family,
            artifact_group=entry.artifact_group,
            build_variant=entry.build_variant,
            python=python,
            torch_ref=torch_ref,
            expect_failure=entry.expect_failure or failure is not None,
            reason=f"{reason}; expected to fail until {failure.until}: {failure.reason}"
            if failure
            else reason,
        )

    def _matrix(self) -> Matrix:
        return self.question.data.matrix_of(
            self.question.type, named_pythons=bool(self.question.inputs.pytorch_python_versions)
        )

    def _leave(self, what: str, reason: str) -> None:
        self.left_out.append(LeftOut(what=what, reason=reason))


def _where(group: str, platform: str) -> str:
    return f"{group} on {platform}"
