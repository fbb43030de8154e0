"""One build, from source lock to recorded wheel: what it depends on, and the work where that has changed."""

from __future__ import annotations

from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from core import console, environments, files, process, stage
from core.installer import Install, configured
from core.records import Cell, record_name
from core.stage import Made, Stage
from pytorch_build import facts, preflight, rocm
from pytorch_build.builds import plan_build
from pytorch_build.builds.common import gpu_targets
from pytorch_build.builds.types import BuildOptions, BuildRequest
from pytorch_build.checks.findings import findings_table, require_no_errors
from pytorch_build.checks.run import CheckOptions, check_wheel
from pytorch_build.checks.view import Expectation
from pytorch_build.dependencies import dependency_inputs, wheel_paths
from pytorch_build.execution import check_import, execute, install_requirements
from pytorch_build.expected import DEVICE_CODE
from pytorch_build.needs import max_jobs, need_of
from pytorch_build.platforms import platform_named
from pytorch_build.refs import DISTRIBUTIONS
from pytorch_build.rocm_init import query_code
from pytorch_build.target import locked_call, target_lock

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from core.interpreters import Interpreter
    from core.records import Record
    from pytorch_build.build_options import BuildChoices
    from pytorch_build.builds.types import BuildPlan
    from pytorch_build.context import Context
    from pytorch_build.dependencies import Dependency
    from pytorch_build.platforms import Platform
    from pytorch_build.rocm import RocmSdk, RocmSource
    from pytorch_build.trees import Tree

# a person's variables that change what compilers make
_FLAGS = ("CC", "CXX", "CFLAGS", "CXXFLAGS", "CPPFLAGS", "LDFLAGS", "CMAKE_ARGS", "USE_KINETO", "DEBUG")
_GIB = 1 << 30
_CODE = ("builds", "platforms", "rocm_init.py", "execution.py")


@dataclass(frozen=True, kw_only=True)
class Build:
    """Everything that one build follows from.

    Attributes:
        context: Ref and family.
        choices: What a person chose.
        target: The target environment's interpreter.
        project: ``torch`` and so on.
        tree: The source tree to come.
        rocm: Where ROCm comes from; None for family cpu.
        dependencies: What is installed first.
        base_env: This process's environment.
    """

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
        return platform_named(self.context.common.outputs.platform)

    @property
    def gpu_targets(self) -> tuple[str, ...]:
        """The gfx targets of device code; empty for family cpu."""
        if not self.context.gpu:
            return ()
        inherited = self.base_env.get("PYTORCH_ROCM_ARCH", "")
        return gpu_targets(asked=self.choices.gpu_targets, inherited=inherited, sdk=self.context.gpu_targets)

    def dependency(self, project: str) -> Dependency | None:
        """Find one of the dependencies."""
        return next((one for one in self.dependencies if one.project == project), None)


def perform(build: Build) -> Record | None:
    """Build one wheel into the run's outputs, unless a record says that nothing has changed."""
    context = build.context
    cell = Cell(python=build.target.tag, torch_ref=context.ref.name, gpu_family=context.gpu_family)
    run = Stage(
        name=f"build_{build.project}",
        common=context.common,
        artifact_group=context.artifact_group,
        cell=cell,
        output_dir=build.choices.output_dir,
    )
    return stage.perform(run, inputs(build), lambda: _make(build, record_name(run.name, cell)))


def inputs(build: Build) -> dict[str, Any]:
    """Say everything that the wheel depends on."""
    lock = target_lock(build.context.common, build.target)
    source = build.context.ref.projects.get(build.project)
    return {
        "source": build.tree.inputs,
        "version": build.tree.version,
        "python": build.target.version,
        "rocm": None
        if build.rocm is None
        else [build.rocm.version, dict(build.rocm.digests) or build.rocm.origin],
        "rocm_extras": list(build.choices.rocm.extras) if build.context.gpu else [],
        "gpu_targets": list(build.gpu_targets),
        "dependencies": dependency_inputs(build.dependencies),
        "ref_env": dict(source.env) if source else {},
        "build_requirements": list(source.build_requirements) if source else [],
        "flash_attention": build.choices.flash_attention,
        "flags": {name: build.base_env[name] for name in _FLAGS if name in build.base_env},
        "lock": files.sha256(lock) if lock else "none",
        "code": _code_digest(),
    }


def _code_digest() -> str:
    """Hash the rules that builds follow, so that a changed rule is a changed input."""
    here = Path(__file__).parent
    paths = [
        path
        for name in _CODE
        for path in ([here / name] if name.endswith(".py") else (here / name).glob("*.py"))
    ]
    return files.digest_of({path.name: files.sha256(path) for path in sorted(paths)})


def _make(build: Build, name: str) -> Made:
    common = build.context.common
    log = common.cache / "logs" / common.outputs.prefix / build.context.artifact_group / f"{name}.log"
    log.unlink(missing_ok=True)
    console.say(
        f"{build.project} {build.tree.version} for {build.context.gpu_family}, Python {build.target.version}"
    )
    try:
        with build.tree.checked_out() as tree:
            _preflight(build, tree)
            with _environment(build, tree) as sdk:
                return _build(build, tree, sdk, log)
    finally:
        _keep_log(build, log)


def _build(build: Build, tree: Path, sdk: RocmSdk | None, log: Path) -> Made:
    plan = _plan(build, tree, sdk)
    backend, cache_dir = build.choices.rocm.installer, build.choices.rocm.pip_cache_dir
    with console.group(f"requirements of {build.project}"):
        install_requirements(build.target, plan, tree, backend=backend, cache_dir=cache_dir)
    with console.group(f"build {build.project}"):
        wheel, statistics = execute(plan, tree, platform=build.platform, base_env=build.base_env, log=log)
    with console.group(f"check {wheel.name}"):
        check_import(build.target, plan, wheel)
        _check(build, wheel)
    details: dict[str, Any] = {"source": build.tree.inputs}
    if statistics is not None:
        details["compiler_cache"] = {**asdict(statistics), "hit_rate": round(statistics.hit_rate, 4)}
    return Made(files=(wheel,), details=details)


def _plan(build: Build, tree: Path, sdk: RocmSdk | None) -> BuildPlan:
    source = build.context.ref.projects.get(build.project)
    torch, triton = build.dependency("torch"), build.dependency("triton")
    jobs = max_jobs(
        need_of(build.project, sample=_is_sample(build)),
        cores=facts.cores(),
        memory_gib=facts.memory_bytes() / _GIB,
        wanted=build.choices.max_jobs or build.base_env.get("MAX_JOBS", ""),
    )
    request = BuildRequest(
        project=build.project,
        version=build.tree.version,
        tree=tree,
        python=build.target.executable,
        rocm=sdk,
        gpu_targets=build.gpu_targets,
        torch_version=_installed(build, "torch") if torch else "",
        triton_version=triton.version if triton else "",
        ref_env=source.env if source else {},
        build_requirements=(),
        options=BuildOptions(
            compiler_cache=build.choices.compiler_cache,
            flash_attention=build.choices.flash_attention,
            clean=build.choices.clean,
            max_jobs=jobs,
        ),
    )
    libraries = _libraries(build) if sdk else ()
    known = facts.build_facts(
        facts.tree_facts(tree, managed=build.tree.managed),
        facts.rocm_facts(sdk.root, libraries) if sdk else None,
        platform=build.platform,
        base_env=build.base_env,
    )
    return plan_build(request, known, platform=build.platform, base_env=build.base_env)


@contextmanager
def _environment(build: Build, tree: Path) -> Iterator[RocmSdk | None]:
    """Prepare the target environment: locked requirements, ROCm, triton and torch."""
    common, context, choices = build.context.common, build.context, build.choices.rocm
    source = context.ref.projects.get(build.project)
    wanted = source.build_requirements if source else ()
    calls = [locked_call(common, build.target, replaced=wanted)]
    calls += [Install(requirements=wanted)] if wanted else []
    if build.rocm is not None:
        calls.append(rocm.install_call(build.rocm, context.gpu_family, choices.extras))
    folders = [str(folder) for folder in wheel_paths(build.dependencies)]
    calls += [
        Install(requirements=(one.requirement,), sources=configured().with_find_links(*folders))
        for one in build.dependencies
    ]
    own = {name: files.sha256(tree / name) for name in _requirement_files(tree)}
    salt = [dependency_inputs(build.dependencies), dict(build.rocm.digests) if build.rocm else {}, own]
    with environments.prepared(
        build.target,
        calls,
        digest=environments.digest_of_calls(build.target, calls, salt=salt),
        backend=choices.installer,
        cache_dir=choices.pip_cache_dir,
        force=common.force,
    ):
        if build.rocm is None:
            yield None
        else:
            env = process.inherited(ROCM_SDK_TARGET_FAMILY=context.gpu_family, PYTHONPATH=None)
            yield rocm.ask(build.target, version=build.rocm.version, family=context.gpu_family, env=env)


def _requirement_files(tree: Path) -> Sequence[str]:
    names = ("requirements.txt", "requirements-build.txt", "python/requirements.txt", "pyproject.toml")
    return [name for name in names if (tree / name).is_file()]


def _is_sample(build: Build) -> bool:
    return bool(build.context.ref.local_label)


def _preflight(build: Build, tree: Path) -> None:
    """Say what will fail later, before hours are spent.

    Raises:
        EnvironmentSetupError: The machine lacks something.
    """
    machine = facts.machine_facts(
        build.platform,
        python=build.target.executable,
        include=build.target.include,
        tree=tree,
        base_env=build.base_env,
    )
    preflight.require(preflight.check(build.project, machine, sample=_is_sample(build)))


def _installed(build: Build, distribution: str) -> str:
    """Ask the target environment for the full version of an installed distribution."""
    code = f"from importlib.metadata import version; print(version({distribution!r}))"
    return process.capture([build.target.executable, "-I", "-c", code]).stdout.strip()


def _libraries(build: Build) -> tuple[str, ...]:
    """Ask the SDK which of the libraries that torch loads first it has."""
    code = query_code(build.platform)
    return tuple(process.capture([build.target.executable, "-I", "-c", code]).stdout.split())


def _check(build: Build, wheel: Path) -> None:
    """Check the wheel before anybody else sees it.

    Raises:
        CheckError: There is an error finding.
    """
    promised = Expectation(
        distribution=DISTRIBUTIONS[build.project],
        version=build.tree.version,
        python_tag=build.target.tag if build.project != "apex" else "",
        gpu_targets=build.gpu_targets if build.project in DEVICE_CODE else (),
        local_label=build.context.ref.local_label,
    )
    paths = (str(build.context.common.root),)
    findings = check_wheel(wheel, promised, options=CheckOptions(build_paths=paths))
    console.table(*findings_table(findings))
    require_no_errors(findings)


def _keep_log(build: Build, log: Path) -> None:
    """Put the build's output among the run's, whether it ended well or not."""
    if not log.is_file():
        return
    key = f"{build.context.common.outputs.logs_prefix(build.context.artifact_group)}/{log.name}"
    store = build.context.common.open_store()
    store.put_file(key, log, sha256=files.sha256(log), replace=True)
