"""One build as a value: what was chosen, what it is made from, and what makes it unchanged."""

from __future__ import annotations

import re
import shutil
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from core import console, files
from core.env.installer import Install
from core.env.locks import BUILDS, locked_call, target_lock
from core.environment import need_of
from core.errors import MissingInputError, RocmError, UsageError
from core.packages.search import others_required_by_lines
from core.run import records, stage
from core.wheel import distributions, read_metadata
from pytorch_build.build import refused
from pytorch_build.build.metrics import Metrics
from pytorch_build.platforms import PLATFORMS, Platform
from pytorch_build.refs.torch_refs import DISTRIBUTIONS, ProjectSource

if TYPE_CHECKING:
    from core.env import Interpreter
    from core.status import Pending
    from pytorch_build.build.cache import CompilerCache
    from pytorch_build.check.policy import Policy
    from pytorch_build.context import Context
    from pytorch_build.sdk import RocmOptions
    from pytorch_build.sources.trees import Tree
    from rocm_packaging.origin import RocmSource

# what each project's build stands on, in the order of installation
NEEDS: dict[str, tuple[str, ...]] = {
    "triton": (),
    "torch": ("triton",),
    "audio": ("triton", "torch"),
    "vision": ("triton", "torch"),
    "apex": ("triton", "torch"),
}
# a borrowed wheel's record has in its details whose it is
BORROWED = "borrowed"
# what CI servers set to another value for every job, and what says how fast to build
_PASSING = frozenset(
    {"BUILD_ID", "BUILD_NUMBER", "BUILD_TAG", "BUILD_URL", "CMAKE_BUILD_PARALLEL_LEVEL", "PYTORCH_ROCM_ARCH"}
)
# the rules that builds follow: a changed rule is a changed input
_CODE = ("build/execution.py", "build/plans/*.py", "build/stage.py", "platforms.*", "split/*.py")
_TARGET = re.compile(r"gfx[0-9a-f]{3,4}(?::[a-z]+[+-])*", re.ASCII)


@dataclass(frozen=True, kw_only=True)
class BuildChoices:
    """What the user chose about a build."""

    rocm: RocmOptions
    own_trees: Mapping[str, Path]
    gpu_targets: str = ""
    flash_attention: bool | None = None
    split: bool = True
    compiler_cache: CompilerCache | None = None
    max_jobs: str = ""
    clean: bool = False
    ignore_needs: bool = False
    update: bool = False
    depth: int = 1
    output_dir: Path | None = None
    policy: Policy | None = None
    mirrors: Mapping[str, str]


@dataclass(frozen=True, kw_only=True)
class Dependency:
    """One project that is installed before a build: a wheel of the run, or a prebuilt requirement."""

    project: str
    requirement: str
    version: str = ""
    digest: str = ""
    others: tuple[str, ...] = ()

    @property
    def identity(self) -> dict[str, str]:
        """What a build's inputs say of it."""
        return {"digest": self.digest} if self.digest else {"requirement": self.requirement}


@dataclass(frozen=True, kw_only=True)
class Build:
    """Everything that one build follows from."""

    context: Context
    choices: BuildChoices
    target: Interpreter
    project: str
    tree: Tree
    rocm: RocmSource | None
    dependencies: Sequence[Dependency]
    base_env: Mapping[str, str]

    @property
    def platform(self) -> Platform:
        """The platform that the wheel is for."""
        return PLATFORMS[self.context.common.outputs.platform]

    @property
    def source(self) -> ProjectSource:
        """What the torch ref says of the project; its build requirements replace locked ones."""
        return self.context.ref.projects[self.project]

    @property
    def gpu_targets(self) -> tuple[str, ...]:
        """The gfx targets of device code; empty for family cpu."""
        if not self.context.gpu:
            return ()
        inherited = self.base_env.get("PYTORCH_ROCM_ARCH", "")
        return gpu_targets(chosen=self.choices.gpu_targets, inherited=inherited, sdk=self.context.gpu_targets)

    @property
    def splits(self) -> bool:
        """Whether the wheel's device code goes into wheels of its own, as ROCm's does."""
        split = self.rocm is not None and self.rocm.layout == "split"
        # the others have no fat binaries: apex ships sources that are compiled when they are first used
        return split and self.choices.split and self.project in {"torch", "vision"}

    @property
    def foreign_torch(self) -> bool:
        """Whether the torch below was built elsewhere: it may find ROCm only when that is loaded first."""
        torch = self.dependency("torch")
        return torch is not None and not torch.digest

    @property
    def flags(self) -> dict[str, str]:
        """The user's variables that change what upstream's builds and compilers make; values are masked."""
        return {
            name: console.mask(value)
            for name, value in sorted(self.base_env.items())
            if need_of(name) == "build flags" and name not in _PASSING
        }

    def dependency(self, project: str) -> Dependency | None:
        """Find one of the dependencies."""
        return next((one for one in self.dependencies if one.project == project), None)

    @property
    def dependency_inputs(self) -> dict[str, Any]:
        """What the build's inputs say of its dependencies."""
        return {one.project: one.identity for one in self.dependencies}

    def environment_calls(self, rocm: Install | None) -> list[Install]:
        """Return the installer calls that make the target environment: lock, ROCm, triton and torch."""
        wanted = self.source.build_requirements
        # ours by their files alone, what they require of others by name
        ours = [
            Install(
                requirements=(one.requirement,),
                dependencies=not one.digest,
                whose="ours" if one.digest else "prebuilt",
            )
            for one in self.dependencies
        ]
        others = tuple(sorted({line for one in self.dependencies for line in one.others}))
        return [
            locked_call(self.context.common, self.target, replaced=wanted),
            *([Install(requirements=wanted)] if wanted else []),
            *([rocm] if rocm else []),
            *ours,
            *([Install(requirements=others)] if others else []),
        ]


def stage_of(build: Build) -> stage.Stage:
    """Return the stage that a build is."""
    return stage.Stage(
        name=f"build_{build.project}",
        common=build.context.common,
        artifact_group=build.context.artifact_group,
        cell=build.context.cell(build.target.tag),
        output_dir=build.choices.output_dir,
    )


def perform(build: Build) -> records.Record | Pending:
    """Build one wheel into the run's outputs, unless a record says that nothing has changed, or say why."""
    run, metrics, known = stage_of(build), Metrics(), inputs(build)

    def work() -> stage.StageResult:
        # imported where there is work: most runs find that nothing has changed
        from pytorch_build.build.stage import make

        before = None if run.common.force else refused.kept(run, files.digest_of(known))
        return make(build, run, metrics, before)

    done = stage.perform(run, known, work, so_far=metrics.details)
    if metrics.details:  # it worked, and what was refused before is out of date
        shutil.rmtree(refused.folder(run), ignore_errors=True)
    return done


def inputs(build: Build) -> dict[str, Any]:
    """Return everything that the wheel depends on."""
    common, gpu, rocm = build.context.common, build.context.gpu, build.rocm
    lock = target_lock(common, build.target) or common.root / "requirements" / f"{BUILDS}.in"
    here = Path(__file__).parents[1]
    code = {str(path.relative_to(here)): files.sha256(path) for rule in _CODE for path in here.glob(rule)}
    return {
        "source": build.tree.inputs,
        "version": build.tree.version,
        "python": build.target.version,
        "rocm": rocm and [rocm.version, rocm.layout, dict(rocm.digests) or rocm.origin],
        "rocm_extras": list(build.choices.rocm.extras) if gpu else [],
        "gpu_targets": list(build.gpu_targets),
        "dependencies": build.dependency_inputs,
        "ref_env": dict(build.source.env),
        "build_requirements": list(build.source.build_requirements),
        "flash_attention": build.choices.flash_attention,
        "split": build.splits,
        "flags": build.flags,
        "lock": files.sha256(lock),
        "code": files.digest_of(code),
    }


def gpu_targets(*, chosen: str, inherited: str, sdk: Iterable[str]) -> tuple[str, ...]:
    """Choose the GPU targets: the command line, else PYTORCH_ROCM_ARCH, else what the SDK is for."""
    for source, text in (("--pytorch-rocm-arch", chosen), ("PYTORCH_ROCM_ARCH", inherited)):
        words = tuple(dict.fromkeys(word for word in re.split(r"[,;\s]+", text) if word))
        if wrong := [word for word in words if not _TARGET.fullmatch(word)]:
            raise UsageError(f"{wrong[0]!r} in {source} is not a GPU target.", hint="Write it like gfx942.")
        if words:
            return words
    if found := tuple(dict.fromkeys(sdk)):
        return found
    raise RocmError("The ROCm SDK names no GPU targets.", hint="Give them: --pytorch-rocm-arch gfx942.")


def dependencies(
    context: Context, target: Interpreter, project: str, *, own: bool = False
) -> Iterator[Dependency]:
    """Find what a project's build stands on, in the order of installation; an `own` tree may lack triton."""
    for name in needed(context, project):
        source = context.ref.projects.get(name)
        if source is not None and source.prebuilt:
            yield Dependency(project=name, requirement=source.prebuilt)
        elif (wheel := _wheel(context, target, name)) is not None:
            yield wheel
        elif name == "torch":
            raise _missing(context, target.tag, name)
        elif project == "torch" and name in context.ref.components:
            missing = _missing(context, target.tag, name)
            # a run that others use must not get a lesser wheel
            if context.common.outputs.immutable and not own:
                raise missing
            console.warn(
                f"{missing.message} This torch gets no flash attention and does not require triton, "
                "unlike those of releases, and check_wheels will say so."
            )


def needed(context: Context, project: str) -> tuple[str, ...]:
    """Return the projects that a project's build stands on; family ``cpu`` has no use for triton."""
    return tuple(name for name in NEEDS[project] if context.gpu or name != "triton")


def built(context: Context, tag: str, project: str) -> records.Record | None:
    """Find the record of a wheel that the run has, for this ref, family and Python."""
    store, outputs = context.common.open_for_reading(), context.common.outputs
    name = records.record_name(f"build_{project}", context.cell(tag))
    record = records.read(store, outputs, context.artifact_group, name)
    held = record is not None and record.files and all(store.find(one.key) for one in record.files)
    return record if held else None


def borrow(context: Context, lender: Context, tag: str, project: str) -> None:
    """Put another run's wheels of a project into this one, with a record that says whose they are."""
    record = built(lender, tag, project)
    if record is None:
        raise _missing(lender, tag, project)
    common, group = context.common, context.artifact_group
    there, store = lender.common.open_for_reading(), common.open_store()
    fetched = (there.fetch(one.key, common.cache / "fetched") for one in record.files)
    files = tuple(distributions.publish(store, common.outputs, group, path) for path in fetched)
    details = {**record.details, BORROWED: lender.common.run_id}
    taken = record.model_copy(update={"run_id": common.run_id, "files": files, "details": details})
    records.write(store, common.outputs, group, taken)


def _wheel(context: Context, target: Interpreter, project: str) -> Dependency | None:
    record = built(context, target.tag, project)
    if record is None:
        return None
    store, outputs, wheel = context.common.open_for_reading(), context.common.outputs, record.files[0]
    path = store.fetch(wheel.key, context.common.cache / "fetched" / outputs.prefix)
    return Dependency(
        project=project,
        requirement=str(path),
        version=wheel.version,
        digest=wheel.sha256,
        others=others_required_by_lines(read_metadata(path).requires_dist, where=path.name),
    )


def _missing(context: Context, tag: str, project: str) -> MissingInputError:
    python = f"3.{tag.removeprefix('cp3')}"
    return MissingInputError(
        f"Run {context.common.run_id} has no {DISTRIBUTIONS[project]} wheel of {context.ref.name} for "
        f"{context.gpu_family} and Python {python}.",
        hint=f"Build it first: nox -s build_{project} -P {python} -- {context.words}",
    )
