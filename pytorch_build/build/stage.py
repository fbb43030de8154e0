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
from pytorch_build.build import machine
from pytorch_build.build.execution import check_bare_import, check_import, execute, install_requirements
from pytorch_build.build.plans.projects import plan_build
from pytorch_build.build.rpaths import set_search_paths
from pytorch_build.build.site import Site, tree_facts
from pytorch_build.build.toolchain import places, provided
from pytorch_build.check import Expectation, findings_table, require_no_errors
from pytorch_build.check.run import CheckOptions, check_wheel
from pytorch_build.refs.torch_refs import DISTRIBUTIONS
from pytorch_build.sdk import ask, link
from pytorch_build.split.parts import split

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from pathlib import Path

    from pytorch_build.build.build import Build
    from pytorch_build.build.cache_use import CacheUse
    from pytorch_build.build.metrics import Metrics
    from pytorch_build.sdk import RocmSdk

_REQUIREMENTS = ("requirements.txt", "requirements-build.txt", "python/requirements.txt", "pyproject.toml")


def make(build: Build, log: Path, metrics: Metrics) -> Made:
    """Check out, prepare the environment, build, check."""
    console.say(
        f"{build.project} {build.tree.version} for {build.context.gpu_family}, Python {build.target.version}"
    )
    with build.tree.checked_out() as tree:
        facts = machine.machine_facts(build.platform, target=build.target, tree=tree, base_env=build.base_env)
        sample = bool(build.context.ref.local_label)
        machine.require_none(list(machine.problems(build.project, facts, sample=sample)))
        with _environment(build, tree) as sdk:
            return _build(build, tree, sdk, log, metrics)


def _build(build: Build, tree: Path, sdk: RocmSdk | None, log: Path, metrics: Metrics) -> Made:
    rocm = build.choices.rocm
    how: Any = {"backend": rocm.installer, "cache_dir": rocm.pip_cache_dir}
    with _compiler_cache(build, tree) as cache:
        plan = plan_build(build, _site(build, tree, sdk, cache))
        with console.group(f"requirements of {build.project}"):
            common, target, names = build.context.common, build.target, plan.as_locked
            locked = locked_call(common, target, only=names) if names else None
            install_requirements(target, plan, tree, locked=locked, **how)
        with console.group(f"build {build.project}"):
            env = _reproducible(build, tree)
            wheel = execute(plan, tree, build.platform, base_env=env, log=log, metrics=metrics, cache=cache)
            layout, epoch = sdk.layout if sdk else None, source_date_epoch(env)
            wheel = set_search_paths(wheel, layout, build.context.gpu_family, epoch=epoch)
            if cache and (details := cache.details()) is not None:
                metrics.details["compiler_cache"] = details
    wheels: tuple[Path, ...] = (wheel,)
    if build.splits and build.rocm is not None:
        with console.group(f"split {build.project}"):
            wheels = split(wheel, wheel.parent / "split", rocm_version=build.rocm.version)
    with console.group(f"check {build.project}"):
        check_import(build.target, plan, wheels[0], **how)
        if sdk is not None and not build.platform.windows:
            check_bare_import(build.target, plan, wheels[0], preloads=build.foreign_torch)
        for one in wheels:
            _check(build, one)
    contents = {one.name: folder_sizes(one) for one in wheels}
    return Made(files=wheels, details={"source": build.tree.inputs, **metrics.details, CONTENTS: contents})


def _compiler_cache(build: Build, tree: Path) -> AbstractContextManager[CacheUse | None]:
    choices, root = build.choices, build.context.common.root
    if choices.compiler_cache is None:
        return nullcontext()
    # imported where there is one: it brings boto3 with it
    from pytorch_build.build.cache_use import in_use, located

    placed = located(
        choices.compiler_cache,
        build.context.common,
        location=choices.compiler_cache_store,
        read_only=choices.compiler_cache_read_only,
        env=build.base_env,
    )
    return in_use(placed, base_dirs=(tree, build.target.prefix, root), base_env=build.base_env)


def _site(build: Build, tree: Path, sdk: RocmSdk | None, cache: CacheUse | None) -> Site:
    common, platform = build.context.common, build.platform
    return Site(
        tree=tree,
        python=build.target.executable,
        facts=tree_facts(tree),
        rocm=sdk,
        provided=provided(
            places(common.cache, platform.name),
            platform=platform,
            base_env=build.base_env,
            redistributed=common.outputs.immutable,
        ),
        torch_version=installed_version(build.target, "torch") if build.dependency("torch") else "",
        # without one where it did not start: then no compiler is started through it
        cache=cache.cache if cache else None,
        max_jobs=jobs(build),
    )


def jobs(build: Build) -> int:
    """Return how many compilers run at a time on this machine."""
    need = machine.load_needs().of(build.project, sample=bool(build.context.ref.local_label))
    return machine.max_jobs(need, build.choices.max_jobs or build.base_env.get("MAX_JOBS", ""))


@contextmanager
def _environment(build: Build, tree: Path) -> Iterator[RocmSdk | None]:
    """Prepare the target environment: locked requirements, ROCm, triton and torch."""
    common, family, choices = build.context.common, build.context.gpu_family, build.choices.rocm
    own = {name: files.sha256(tree / name) for name in _REQUIREMENTS if (tree / name).is_file()}
    here = bool(build.rocm and build.rocm.packages.installed)
    with ExitStack() as stack:
        rocm = None
        if build.rocm is not None and not here:
            rocm = stack.enter_context(build.rocm.opened_call(common.cache / "locks", family))
        calls = build.environment_calls(rocm)
        salt = [build.dependency_inputs, own, here]
        stack.enter_context(
            installer.prepared(
                build.target,
                calls,
                digest=installer.digest_of_calls(build.target, calls, salt=salt),
                backend=choices.installer,
                cache_dir=choices.pip_cache_dir,
                force=common.force,
            )
        )
        if here:
            link(build.target)
        if build.rocm is None:
            yield None
            return
        preloads, targets = build.platform.preloads, build.gpu_targets
        yield ask(build.target, build.rocm, family=family, targets=targets, libraries=preloads)


def _check(build: Build, wheel: Path) -> None:
    """Check the wheel before it is put among the run's outputs."""
    promised = Expectation(
        distribution=DISTRIBUTIONS[build.project],
        version=build.tree.version,
        python_tag=build.target.tag if build.project != "apex" else "",
        gpu_targets=build.gpu_targets,
        local_label=build.context.ref.local_label,
    ).of_part(parse_wheel_name(wheel.name).distribution)
    paths = (str(build.context.common.root),)
    findings = check_wheel(wheel, promised, options=CheckOptions(build_paths=paths))
    shown = [one for one in findings if one.severity != "note" or console.echoes()]
    console.table(*findings_table(shown))
    require_no_errors(findings)


def _reproducible(build: Build, tree: Path) -> Mapping[str, str]:
    """Date the wheel's members by the commit, unless SOURCE_DATE_EPOCH is set."""
    if "SOURCE_DATE_EPOCH" in build.base_env:
        return build.base_env
    seconds = process.capture(["git", "show", "--no-patch", "--format=%ct", "HEAD"], cwd=tree).stdout.strip()
    return {**build.base_env, "SOURCE_DATE_EPOCH": seconds}
