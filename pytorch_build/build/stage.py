"""The work of one build: tree, environment, plan, commands, search paths, checks.

CMake leaves the folders of the machine that built it, and of ROCm's development tree, which is not
there where torch only runs. They are replaced once, before anything else sees the wheel.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Any

from core import console, files, process
from core.archive import DeferredFile, Member
from core.binaries import rpath
from core.cli.options import source_date_epoch
from core.env import installed_version, installer
from core.env.locks import locked_call
from core.errors import FatalError, ServiceError
from core.packages.sources import InstalledPackages
from core.run.stage import Stage, StageResult
from core.wheel import CONTENTS, folder_sizes, parse_wheel_name
from core.wheel.editor import Additions, edit_wheel
from core.wheel.record import require_listing
from pytorch_build.build import machine, refused, toolchain
from pytorch_build.build.compilers import compilers
from pytorch_build.build.execution import check_bare_import, check_import, execute, install_requirements
from pytorch_build.build.plans.projects import plan_build
from pytorch_build.build.plans.torch import is_distributed
from pytorch_build.build.site import Site, tree_facts
from pytorch_build.build.toolchain import places, provided
from pytorch_build.check import Expectation, WheelMember, findings_table, require_no_errors
from pytorch_build.check.policy import load_policy
from pytorch_build.check.run import CheckOptions, check_built_wheel, loader_libraries
from pytorch_build.refs.torch_refs import DISTRIBUTIONS
from pytorch_build.sdk import RocmSdk, ask, link
from pytorch_build.split.parts import split
from pytorch_build.standalone.libraries import Binary, RocmFile, extract_with_search_path, read_members
from rocm_packaging.packages.layouts import Layout, packages, payload_folder

if TYPE_CHECKING:
    from core.archive.zips import ZipMember
    from core.run.records import Record
    from pytorch_build.build.build import Build
    from pytorch_build.build.cache_use import CacheUse
    from pytorch_build.build.metrics import Metrics

_REQUIREMENTS = ("requirements.txt", "requirements-build.txt", "python/requirements.txt", "pyproject.toml")


def make(build: Build, run: Stage, metrics: Metrics, before: Record | None = None) -> StageResult:
    """Check out, prepare the environment, build, check; or check what was built before and refused."""
    console.say(
        f"{build.project} {build.tree.version} for {build.context.gpu_family}, Python {build.target.version}"
    )
    if before:
        return _again(build, run, metrics, before)
    need = machine.need_of(build.context, build.project)
    machine.require_none(machine.look(build.context, build.choices, build.project, build.target, need))
    with build.tree.checked_out() as tree:
        own = {name: files.sha256(tree / name) for name in _REQUIREMENTS if (tree / name).is_file()}
        with _environment(build, own) as sdk:
            wheels = _build(build, tree, sdk, run.log, metrics, jobs(build, need))
            metrics.details[refused.REFUSED] = {"requirements": own, "imported": False}
            return _accepted(build, run, wheels, sdk, metrics)


def _again(build: Build, run: Stage, metrics: Metrics, record: Record) -> StageResult:
    """Go on with wheels that were refused, without their tree."""
    console.say("built before and refused: checked again, not built (--force builds it anew)")
    metrics.details |= record.details
    known = record.details[refused.REFUSED]
    wheels = tuple(refused.folder(run) / name for name in known["wheels"])
    if record.log:
        files.copy(run.store.fetch(record.log, run.common.cache / "fetched"), run.log)
    with nullcontext() if known["imported"] else _environment(build, known["requirements"]) as sdk:
        return _accepted(build, run, wheels, sdk, metrics)


def _build(
    build: Build, tree: Path, sdk: RocmSdk | None, log: Path, metrics: Metrics, most_jobs: int
) -> tuple[Path, ...]:
    cache_dir = build.choices.rocm.pip_cache_dir
    if build.platform.windows and build.project == "torch":
        provide_parts(build)
    with _compiler_cache(build, tree) as cache:
        plan = plan_build(build, _site(build, tree, sdk, cache, most_jobs))
        with console.group(f"requirements of {build.project}"):
            common, target, names = build.context.common, build.target, plan.as_locked
            locked = locked_call(common, target, only=names) if names else None
            install_requirements(target, plan, tree, locked, cache_dir)
        with console.group(f"build {build.project}"):
            env = _reproducible(build, tree)
            wheel = execute(plan, tree, build.platform, base_env=env, log=log, metrics=metrics, cache=cache)
            metrics.details["disk"] = files.measured(tree)[0]
            layout, epoch = build.rocm.layout if build.rocm else None, source_date_epoch(env)
            wheel = set_search_paths(wheel, layout, build.context.gpu_family, epoch=epoch)
            if cache and (details := cache.details()) is not None:
                metrics.details["compiler_cache"] = details
    if build.splits and build.rocm is not None:
        with console.group(f"split {build.project}"):
            return split(wheel, wheel.parent / "split", rocm_version=build.rocm.version)
    return (wheel,)


def _accepted(
    build: Build, run: Stage, wheels: tuple[Path, ...], sdk: RocmSdk | None, metrics: Metrics
) -> StageResult:
    """Import and check wheels before they are put among the run's outputs; keep what is refused."""
    known = metrics.details.pop(refused.REFUSED)
    promised = Expectation(
        distribution=DISTRIBUTIONS[build.project],
        version=build.tree.version,
        python_tag=build.target.tag if build.project != "apex" else "",
        gpu_targets=build.gpu_targets,
        local_label=build.context.ref.local_label,
    )
    try:
        with console.group(f"check {build.project}"):
            if not known["imported"]:
                check_import(build.target, promised, wheels[0], build.choices.rocm.pip_cache_dir)
                if sdk is not None and not build.platform.windows:
                    check_bare_import(build.target, promised, wheels[0], preloads=build.foreign_torch)
                known = {**known, "imported": True}
            metrics.details |= _check(build, wheels, promised)
    except FatalError as problem:
        metrics.details[refused.REFUSED] = {**known, **refused.keep(run, wheels, problem)}
        raise
    contents = {one.name: folder_sizes(one) for one in wheels}
    source = {"source": build.tree.inputs, "rocm_options": build.rocm.options if build.rocm else []}
    return StageResult(files=wheels, details={**source, **metrics.details, CONTENTS: contents})


def provide_parts(build: Build) -> None:
    """Provide what torch links or ships on Windows besides ROCm, where it is not there and not named."""
    common, platform = build.context.common, build.platform
    has_own_libuv = bool(platform.find_variable(build.base_env, "libuv_ROOT"))
    for part in toolchain.plan(common.cache, platform.name):
        if part.name == "libuv" and (has_own_libuv or not is_distributed(build)):
            continue
        try:
            toolchain.provide([part], platform.name, target=build.target, mirrors=build.choices.mirrors)
        except ServiceError as problem:
            # Wheels that stay on this machine may take Visual Studio's copy; without one the plan refuses.
            console.warn(f"{part.name} {part.version} was not downloaded: {problem.message}")


def _compiler_cache(build: Build, tree: Path) -> AbstractContextManager[CacheUse | None]:
    cache = build.choices.compiler_cache
    if cache is None:
        return nullcontext()
    # imported where there is one: it brings boto3 with it
    from pytorch_build.build.cache_use import in_use, located

    placed = located(cache, build.context.common, env=build.base_env)
    folders = (tree, build.target.prefix, build.context.common.root)
    return in_use(placed, base_dirs=folders, base_env=build.base_env)


def _site(build: Build, tree: Path, sdk: RocmSdk | None, cache: CacheUse | None, most_jobs: int) -> Site:
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
        compilers=compilers(platform, {**build.base_env, **build.source.env}),
        max_jobs=most_jobs,
    )


def jobs(build: Build, need: machine.Need) -> int:
    """Return how many compilers run at a time on this machine."""
    wanted = build.choices.max_jobs or build.base_env.get("MAX_JOBS", "")
    return machine.max_jobs(need, wanted)


@contextmanager
def _environment(build: Build, own: Mapping[str, str]) -> Iterator[RocmSdk | None]:
    """Prepare the target environment: locked requirements, ROCm, triton and torch."""
    common, family = build.context.common, build.context.gpu_family
    here = build.rocm is not None and isinstance(build.rocm.packages, InstalledPackages)
    with ExitStack() as stack:
        rocm = None
        if build.rocm is not None and not here:
            rocm = stack.enter_context(build.rocm.opened_call(common.cache / "locks", family))
        calls = build.environment_calls(rocm)
        salt = [build.dependency_inputs, own, here]
        digest = installer.digest_of_calls(build.target, calls, salt=salt)
        environment = installer.prepared(
            build.target,
            calls,
            digest=digest,
            force=common.force,
            cache_dir=build.choices.rocm.pip_cache_dir,
        )
        stack.enter_context(environment)
        if here:
            link(build.target)
        if build.rocm is None:
            yield None
            return
        preloads, targets = build.platform.preloads, build.gpu_targets
        yield ask(build.target, build.rocm, family=family, targets=targets, libraries=preloads)


def _check(build: Build, wheels: Sequence[Path], promised: Expectation) -> Mapping[str, Any]:
    """Check wheels; return whose policy it was, and which libraries of this machine they need."""
    policy, paths = build.choices.policy or load_policy(), (str(build.context.common.root),)
    options = CheckOptions(build_paths=paths, policy=policy, loader=loader_libraries())
    parts = [promised.of_part(parse_wheel_name(one.name).distribution) for one in wheels]
    checked = [check_built_wheel(one, part, options) for one, part in zip(wheels, parts, strict=True)]
    findings = [one for found, _ in checked for one in found]
    console.table(*findings_table(findings))
    require_no_errors(findings)
    needed = sorted({name for _, names in checked for name in names})
    return {"machine_libraries": needed, **({"policy": policy.source} if policy.source else {})}


def _reproducible(build: Build, tree: Path) -> Mapping[str, str]:
    """Date the wheel's members by the commit, unless SOURCE_DATE_EPOCH is set."""
    if "SOURCE_DATE_EPOCH" in build.base_env:
        return build.base_env
    seconds = process.capture(["git", "show", "--no-patch", "--format=%ct", "HEAD"], cwd=tree).stdout.strip()
    return {**build.base_env, "SOURCE_DATE_EPOCH": seconds}


_WINDOWS = (".dll", ".pyd", ".exe")


def rocm_folders(layout: Layout | None, family: str) -> tuple[str, ...]:
    """Return the folders of ROCm's run-time packages that hold libraries, below site-packages."""
    if layout is None:
        return ()
    core = payload_folder("core")
    libraries = payload_folder("libraries", family if layout == "unsplit" else "")
    inside = packages().libraries.rpath_core
    return (*(f"{core}/{folder}" for folder in inside), f"{libraries}/lib")


def search_paths(member: str, layout: Layout | None, family: str, own: Sequence[str] = ()) -> tuple[str, ...]:
    """Return the DT_RPATH of a file: ROCm's folders, then its own, then what it leads to besides."""
    kept = rpath.relative(own)
    if not member:
        return tuple(dict.fromkeys(kept))
    folder = str(PurePosixPath(member).parent)
    beside = (folder, "torch/lib") if folder == "torch" else (folder,)
    return tuple(dict.fromkeys((*rpath.ways(member, (*rocm_folders(layout, family), *beside)), *kept)))


def planned(
    binaries: Mapping[str, Binary], layout: Layout | None, family: str
) -> Mapping[str, tuple[str, ...]]:
    """Return what must change in a wheel, path -> search path; static programs stay as they are."""
    changes = {}
    for name, binary in binaries.items():
        installed = WheelMember(name=name, size=0).installed
        wanted = search_paths(installed, layout, family, binary.search)
        right = binary.search == wanted and (binary.is_rpath or not wanted)
        if not right and (binary.needed or binary.search):
            changes[name] = wanted
    return changes


def set_search_paths(wheel: Path, layout: Layout | None, family: str, *, epoch: int | None = None) -> Path:
    """Set the search path of every ELF file of a wheel; only those that change are compressed again."""
    candidates = {
        member.name: member for member in require_listing(wheel).members if not member.name.endswith(_WINDOWS)
    }
    changes = planned(read_members(wheel, candidates.values()), layout, family)
    if not changes:
        return wheel
    console.echo(f"{wheel.name}: search paths of {console.counted(len(changes), 'file')} set")
    with tempfile.TemporaryDirectory(prefix=".rpaths-", dir=wheel.parent) as scratch:
        members = tuple(
            _member(wheel, candidates[name], search, Path(scratch))
            for name, search in sorted(changes.items())
        )
        version = str(parse_wheel_name(wheel.name).version)
        made = edit_wheel(
            wheel, wheel.parent, version=version, additions=Additions(members=members), epoch=epoch
        )
    return made.path


def _member(wheel: Path, member: ZipMember, search: Sequence[str], scratch: Path) -> Member:
    """Return a member of the new wheel, which is unpacked and patched when its turn comes."""
    file = RocmFile(path=member.name, root="", source=wheel, member=member)
    return Member(
        name=member.name,
        source=DeferredFile(size=member.size, make=lambda: extract_with_search_path(file, search, scratch)),
        executable=member.is_executable,
    )
