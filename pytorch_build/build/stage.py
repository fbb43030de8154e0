"""The work of one build: tree, environment, facts, plan, commands, search paths, split, checks."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Any

from core import console, files
from core.cli.options import source_date_epoch
from core.env import installer
from core.env.locks import locked_call
from core.errors import FatalError, ServiceError
from core.packages.sources import InstalledPackages
from core.run.locations import origin_from, run_buckets
from core.run.stage import StageResult
from core.wheel import CONTENTS, folder_sizes, parse_wheel_name
from pytorch_build.build import machine, toolchain
from pytorch_build.build.cache import cache_of_run
from pytorch_build.build.execution import (
    check_bare_import,
    check_import,
    execute,
    install_requirements,
    record_metrics,
)
from pytorch_build.build.facts import observe_facts, versions_of_toolchain_parts
from pytorch_build.build.plan import plan_build, plan_environment
from pytorch_build.build.search_paths import find_search_paths, set_search_paths
from pytorch_build.check import Expectation, Finding, findings_table, require_no_errors
from pytorch_build.check.policy import CheckOptions, load_policy
from pytorch_build.check.run import check_built_wheel, loader_libraries
from pytorch_build.sdk import ask_sdk, link_rocm
from pytorch_build.sources.git import Repository
from pytorch_build.split.split_wheel import split_wheel

if TYPE_CHECKING:
    from pytorch_build.build.build import Work
    from pytorch_build.build.cache_use import CacheUse
    from pytorch_build.build.request import BuildRequest
    from pytorch_build.sdk import RocmSdk

_REQUIREMENTS = ("requirements.txt", "requirements-build.txt", "python/requirements.txt", "pyproject.toml")


def build_and_check(work: Work) -> StageResult:
    """Build a component's wheels in a prepared environment, check them, and return them for the run."""
    request = work.request
    console.say(
        f"{request.component.name} {work.inputs.version} for {request.context.gpu_family}, "
        f"Python {request.target.version}"
    )
    machine.refuse_problems(machine.find_problems(request))
    need = machine.find_machine_need(request.context, request.component)
    max_jobs = machine.max_jobs(need, request.requested_jobs)

    with work.tree.checked_out() as tree, _prepared_environment(work, tree) as rocm:
        wheels = _build_wheels(work, tree, rocm, max_jobs)
        return _accept_wheels(work, wheels)


# --- The environment --------------------------------------------------------------------------


@contextmanager
def _prepared_environment(work: Work, tree: Path) -> Iterator[RocmSdk | None]:
    """Prepare the target environment: locked requirements, ROCm, triton and torch; give the ROCm in it."""
    request = work.request
    common = request.context.common
    family = request.context.gpu_family
    rocm_source = work.rocm
    is_linked = rocm_source is not None and isinstance(rocm_source.packages, InstalledPackages)
    with ExitStack() as stack:
        rocm_call = None
        if rocm_source is not None and not is_linked:
            rocm_call = stack.enter_context(rocm_source.opened_call(common.cache / "locks", family))
        locked = locked_call(common, request.target, replaced=work.inputs.build_requirements)
        calls = plan_environment(
            work.inputs,
            locked=locked,
            rocm=rocm_call,
        )

        # What the tree requires is installed later: other requirements mean another environment.
        requirements = {name: files.sha256(tree / name) for name in _REQUIREMENTS if (tree / name).is_file()}
        salt = [work.inputs.dependency_identities, requirements, is_linked]
        prepared = installer.prepared(
            request.target,
            calls,
            digest=installer.digest_of_calls(request.target, calls, salt=salt),
            force=common.force,
            cache_dir=request.rocm.pip_cache_dir,
        )
        stack.enter_context(prepared)
        if is_linked:
            link_rocm(request.target)

        rocm = None
        if rocm_source is not None:
            rocm = ask_sdk(
                request.target,
                rocm_source,
                family=family,
                targets=work.inputs.gpu_targets,
                libraries=request.platform.preloads,
            )
        yield rocm


def provide_toolchain_parts(request: BuildRequest) -> None:
    """Build or download the libuv and OpenMP that a build needs and that nobody has named."""
    cache_dir = request.context.common.cache
    for name, version in versions_of_toolchain_parts(request).items():
        try:
            toolchain.provide_part(
                name,
                cache_dir,
                target=request.target,
                mirrors=request.mirrors,
            )
        except ServiceError as problem:
            # Wheels that stay on this machine may take Visual Studio's copy; without one the plan refuses.
            console.warn(f"{name} {version} was not downloaded: {problem.message}")


# --- The wheels -------------------------------------------------------------------------------


def _build_wheels(work: Work, tree: Path, rocm: RocmSdk | None, max_jobs: int) -> tuple[Path, ...]:
    """Run upstream's build, and return its wheel, or where it is split all wheels, the host first."""
    request = work.request
    name = request.component.name
    provide_toolchain_parts(request)
    with _compiler_cache(request, tree) as cache_use:
        facts = observe_facts(
            work,
            tree,
            rocm=rocm,
            cache_use=cache_use,
            max_jobs=max_jobs,
        )
        plan = plan_build(request.component, work.inputs, facts, clean=request.clean)
        with console.group(f"requirements of {name}"):
            locked = None
            if plan.as_locked:
                locked = locked_call(request.context.common, request.target, only=plan.as_locked)
            install_requirements(request.target, plan, tree, locked, request.rocm.pip_cache_dir)

        with console.group(f"build {name}"):
            env = _reproducible_env(request, tree)
            log = work.stage.log
            with record_metrics(work.details, log):
                wheel = execute(
                    plan,
                    tree,
                    request.platform,
                    base_env=env,
                    log=log,
                    cache=cache_use,
                )
            work.details["disk"] = files.measure_folder(tree)[0]
            if cache_use is not None and (statistics := cache_use.report_statistics()) is not None:
                work.details["compiler_cache"] = statistics

    # CMake leaves this machine's folders in the wheel. Nothing may see it before they are replaced.
    epoch = source_date_epoch(env)
    if plan.split_for is None:
        return (set_search_paths(wheel, plan.search_folders, epoch=epoch),)
    with console.group(f"split {name}"):
        return split_wheel(
            wheel,
            wheel.parent / "split",
            rocm_version=plan.split_for,
            new_search_paths=find_search_paths(wheel, plan.search_folders),
            epoch=epoch,
        )


def _compiler_cache(request: BuildRequest, tree: Path) -> AbstractContextManager[CacheUse | None]:
    """Return a context in which the user's compiler cache runs; it gives None where none was chosen."""
    cache = request.compiler_cache
    if cache is None:
        return nullcontext()

    # Imported where there is one: it brings boto3 with it.
    from pytorch_build.build.cache_use import use_cache

    common = request.context.common
    buckets = run_buckets()
    run_cache = cache_of_run(
        cache,
        run_store=common.store,
        release_type=common.release_type,
        origin=origin_from(request.user_env, buckets),
        buckets=buckets,
    )
    folders = (tree, request.target.prefix, common.root)
    return use_cache(
        run_cache,
        base_dirs=folders,
        base_env=request.user_env,
    )


def _reproducible_env(request: BuildRequest, tree: Path) -> Mapping[str, str]:
    """Return the user's variables with SOURCE_DATE_EPOCH, by default the time of the tree's commit."""
    if "SOURCE_DATE_EPOCH" in request.user_env:
        return request.user_env

    commit_date = Repository(path=tree).read_output("show", "--no-patch", "--format=%ct", "HEAD")
    return {**request.user_env, "SOURCE_DATE_EPOCH": commit_date}


# --- Checks -----------------------------------------------------------------------------------


def _accept_wheels(work: Work, wheels: tuple[Path, ...]) -> StageResult:
    """Import and check new wheels, and return them for the run; an error says where they are left."""
    request = work.request
    expectation = Expectation(
        distribution=request.component.distribution,
        version=work.inputs.version,
        python_tag="" if request.component.serves_every_python else request.target.tag,
        gpu_targets=work.inputs.gpu_targets,
        left_out_targets=request.left_out_targets,
        has_full_size=request.context.ref.has_full_size,
    )
    try:
        with console.group(f"check {request.component.name}"):
            check_import(request.target, expectation, wheels[0], request.rocm.pip_cache_dir)
            # On Linux, also where only ROCm's run-time packages are.
            if work.rocm is not None and not request.platform.windows:
                torch = work.inputs.dependency("torch")
                # A torch that was built elsewhere may find ROCm only when that is loaded first.
                is_foreign_torch = torch is not None and torch.digest is None
                check_bare_import(request.target, expectation, wheels[0], keeps_preloads=is_foreign_torch)
            work.details.update(_check_wheels(request, wheels, expectation))
    except FatalError as problem:
        problem.hint += (
            f"\nUntil the next build, what was built lies in {wheels[0].parent}: "
            "nox -s check_wheels -- FOLDER checks it, with --policy FILE by limits of your own."
        )
        raise

    details = {
        "source": work.inputs.source,
        "rocm_options": [] if work.rocm is None else work.rocm.options,
        **work.details,
        CONTENTS: {wheel.name: folder_sizes(wheel) for wheel in wheels},
    }
    return StageResult(
        files=wheels,
        details=details,
    )


def _check_wheels(
    request: BuildRequest, wheels: Sequence[Path], expectation: Expectation
) -> Mapping[str, Any]:
    """Check wheels, fail on errors, and return details for the record: policy, libraries of this machine."""
    policy = request.policy or load_policy()
    options = CheckOptions(
        build_paths=(str(request.context.common.root),),
        policy=policy,
        loader_libraries=loader_libraries(),
    )
    findings: list[Finding] = []
    machine_libraries: set[str] = set()
    for wheel in wheels:
        part = expectation.for_distribution(parse_wheel_name(wheel.name).distribution)
        wheel_findings, wheel_libraries = check_built_wheel(wheel, part, options)
        findings += wheel_findings
        machine_libraries |= wheel_libraries
    console.table(*findings_table(findings))
    require_no_errors(findings)

    details: dict[str, Any] = {"machine_libraries": sorted(machine_libraries)}
    if policy.source:
        details["policy"] = policy.source
    return details
