"""The work of one build: tree, environment, plan, commands, checks."""

from __future__ import annotations

from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from typing import TYPE_CHECKING, Any

from core import console, files, process
from core.cli.options import source_date_epoch
from core.env import installed_version, installer
from core.env.locks import locked_call
from core.run.stage import Made
from core.wheel import CONTENTS, folder_sizes, parse_wheel_name
from pytorch_build.build import facts, preflight
from pytorch_build.build.bare_import import check_bare_import
from pytorch_build.build.dependencies import dependency_inputs
from pytorch_build.build.execution import check_import, execute, install_requirements
from pytorch_build.build.needs import max_jobs, need_of
from pytorch_build.build.plans import plan_build
from pytorch_build.build.request import build_request, environment_calls
from pytorch_build.build.rocm_init import query_code
from pytorch_build.build.rpaths import set_search_paths
from pytorch_build.check import Expectation, findings_table, require_no_errors
from pytorch_build.check.run import CheckOptions, check_wheel
from pytorch_build.refs.torch_refs import DISTRIBUTIONS
from pytorch_build.rocm.sdk import ask, link
from pytorch_build.split.parts import split
from pytorch_build.toolchain.pins import places

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence
    from pathlib import Path

    from pytorch_build.build.build import Build
    from pytorch_build.build.compiler_cache import CompilerCache
    from pytorch_build.build.compiler_cache_use import CacheInUse
    from pytorch_build.build.course import Course
    from pytorch_build.build.plans.types import BuildPlan
    from pytorch_build.rocm.sdk import RocmSdk

_GIB = 1 << 30


def make(build: Build, name: str, course: Course) -> Made:
    """Check out, prepare the environment, build, check; put the log among the run's outputs."""
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
                return _build(build, tree, sdk, log, course)
    finally:
        _keep_log(build, log)


def _build(build: Build, tree: Path, sdk: RocmSdk | None, log: Path, course: Course) -> Made:
    backend, cache_dir = build.choices.rocm.installer, build.choices.rocm.pip_cache_dir
    with _compiler_cache(build, tree) as cache:
        # a cache that cannot be had is none, and then no compiler is started through it
        plan = _plan(build, tree, sdk, cache.cache if cache else None)
        with console.group(f"requirements of {build.project}"):
            install_requirements(
                build.target,
                plan,
                tree,
                locked=lambda names: locked_call(build.context.common, build.target, only=names),
                backend=backend,
                cache_dir=cache_dir,
            )
        with console.group(f"build {build.project}"):
            env = _reproducible(build, tree)
            wheel = execute(
                plan, tree, platform=build.platform, base_env=env, log=log, course=course, cache=cache
            )
            layout, epoch = sdk.layout if sdk else None, source_date_epoch(env)
            wheel = set_search_paths(wheel, layout, build.context.gpu_family, epoch=epoch)
            if cache and (said := cache.details()) is not None:
                course.details["compiler_cache"] = said
    wheels = _parts(build, wheel)
    with console.group(f"check {wheel.name}"):
        check_import(build.target, plan, wheels[0], backend=backend, cache_dir=cache_dir)
        if sdk is not None and build.platform.NAME == "linux":
            torch = build.dependency("torch")
            # a torch from elsewhere may find ROCm only when it is loaded first
            check_bare_import(build.target, plan, wheels[0], preloads=torch is not None and not torch.digest)
        for one in wheels:
            _check(build, one)
    contents = {one.name: folder_sizes(one) for one in wheels}
    details: dict[str, Any] = {"source": build.tree.inputs, **course.details, CONTENTS: contents}
    return Made(files=wheels, details=details)


def _parts(build: Build, wheel: Path) -> tuple[Path, ...]:
    """Split a wheel as the ROCm that it was built against is; the host wheel comes first."""
    if not build.splits or build.rocm is None:
        return (wheel,)
    with console.group(f"split {wheel.name}"):
        return split(wheel, wheel.parent / "split", rocm_version=build.rocm.version)


def _compiler_cache(build: Build, tree: Path) -> AbstractContextManager[CacheInUse | None]:
    choices, common = build.choices, build.context.common
    cache = choices.compiler_cache
    if cache is None:
        return nullcontext()
    # imported where there is one: it brings settings of S3 with it
    from pytorch_build.build.compiler_cache_use import BaseDirs, in_use, located

    placed = located(
        cache,
        common,
        asked=choices.compiler_cache_store,
        read_only=choices.compiler_cache_read_only,
        env=build.base_env,
    )
    base_dirs = BaseDirs(tree=tree, environment=build.target.prefix, root=common.root)
    return in_use(placed, base_dirs=base_dirs, base_env=build.base_env)


def _plan(build: Build, tree: Path, sdk: RocmSdk | None, cache: CompilerCache | None) -> BuildPlan:
    request = build_request(
        build,
        tree=tree,
        python=build.target.executable,
        rocm=sdk,
        torch_version=installed_version(build.target, "torch") if build.dependency("torch") else "",
        cache=cache,
        max_jobs=jobs(build),
    )
    libraries = _libraries(build) if sdk else ()
    known = facts.build_facts(
        facts.tree_facts(tree),
        facts.rocm_facts(sdk.root, libraries) if sdk else None,
        platform=build.platform,
        base_env=build.base_env,
        provided=places(build.context.common.cache, build.platform.NAME),
        shared=build.context.common.outputs.immutable,
    )
    return plan_build(request, known, platform=build.platform, base_env=build.base_env)


def jobs(build: Build) -> int:
    """Say how many compilers run at a time on this machine."""
    return max_jobs(
        need_of(build.project, sample=_is_sample(build)),
        cores=facts.cores(),
        memory_gib=facts.memory_bytes() / _GIB,
        wanted=build.choices.max_jobs or build.base_env.get("MAX_JOBS", ""),
    )


@contextmanager
def _environment(build: Build, tree: Path) -> Iterator[RocmSdk | None]:
    """Prepare the target environment: locked requirements, ROCm, triton and torch."""
    common, context, choices = build.context.common, build.context, build.choices.rocm
    own = {name: files.sha256(tree / name) for name in _requirement_files(tree)}
    salt = [dependency_inputs(build.dependencies), own]
    with ExitStack() as stack:
        rocm = None
        here = bool(build.rocm and build.rocm.packages.installed)
        if build.rocm is not None and not here:
            rocm = stack.enter_context(build.rocm.opened_call(common.cache / "locks", context.gpu_family))
        calls = environment_calls(build, rocm)
        stack.enter_context(
            installer.prepared(
                build.target,
                calls,
                digest=installer.digest_of_calls(build.target, calls, salt=[*salt, here]),
                backend=choices.installer,
                cache_dir=choices.pip_cache_dir,
                force=common.force,
            )
        )
        if here:
            link(build.target)
        if build.rocm is None:
            yield None
        else:
            yield ask(
                build.target,
                version=build.rocm.version,
                layout=build.rocm.layout,
                family=context.gpu_family,
                targets=build.gpu_targets,
            )


def _requirement_files(tree: Path) -> Sequence[str]:
    names = ("requirements.txt", "requirements-build.txt", "python/requirements.txt", "pyproject.toml")
    return [name for name in names if (tree / name).is_file()]


def _is_sample(build: Build) -> bool:
    return bool(build.context.ref.local_label)


def _preflight(build: Build, tree: Path) -> None:
    """Say what will fail later, before hours are spent."""
    machine = facts.machine_facts(
        build.platform,
        python=build.target.executable,
        include=build.target.include,
        tree=tree,
        base_env=build.base_env,
    )
    preflight.require(preflight.check(build.project, machine, sample=_is_sample(build)))


def _libraries(build: Build) -> tuple[str, ...]:
    """Ask the SDK which of the libraries that torch loads first it has."""
    code = query_code(build.platform)
    return tuple(process.capture([build.target.executable, "-I", "-c", code]).stdout.split())


def _check(build: Build, wheel: Path) -> None:
    """Check the wheel before anybody else sees it."""
    promised = Expectation(
        distribution=DISTRIBUTIONS[build.project],
        version=build.tree.version,
        python_tag=build.target.tag if build.project != "apex" else "",
        gpu_targets=build.gpu_targets,
        local_label=build.context.ref.local_label,
    ).of_part(parse_wheel_name(wheel.name).distribution)
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


def _reproducible(build: Build, tree: Path) -> Mapping[str, str]:
    """Date the wheel's members by the commit, unless a person chose a date."""
    if "SOURCE_DATE_EPOCH" in build.base_env:
        return build.base_env
    seconds = process.capture(["git", "show", "--no-patch", "--format=%ct", "HEAD"], cwd=tree).stdout.strip()
    return {**build.base_env, "SOURCE_DATE_EPOCH": seconds}
