"""Executing a build's plan in a source tree and a prepared environment: no decision is taken here."""

from __future__ import annotations

import os
import shutil
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from packaging.utils import canonicalize_name
from pydantic import ValidationError

from core import console, files, process, temporary
from core.causes import first
from core.data import Model
from core.env import Interpreter, installer
from core.environment import allowed
from core.errors import BuildError
from core.wheel import parse_wheel_name
from pytorch_build.build.configuration import verified
from pytorch_build.components import component_of
from pytorch_build.components.torch import ROCM_INIT
from rocm_packaging.packages.layouts import payload_folder

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from pytorch_build.build.cache_use import CacheUse
    from pytorch_build.build.metrics import Metrics
    from pytorch_build.build.plan import BuildPlan
    from pytorch_build.check import Expectation
    from pytorch_build.components.steps import Overlay
    from pytorch_build.platforms import Platform

CONFIGURATION_MARKER = ".configuration"


def execute(
    plan: BuildPlan,
    tree: Path,
    platform: Platform,
    *,
    base_env: Mapping[str, str],
    log: Path,
    metrics: Metrics,
    cache: CacheUse | None = None,
) -> Path:
    """Run a plan's commands and return the one wheel that they leave."""
    for note in plan.notes:
        console.say(note)
    env = platform.merge(allowed(base_env), plan.env, unset=plan.unset)
    if cache is not None:
        env = cache.environment(env)
    build = _choose_build_folder(plan, tree)
    # after the choice: what --clean removes must not come back from where it was kept
    for pattern in plan.removes:
        for path in tree.glob(pattern):
            _remove(path)
    files.write_text(build / CONFIGURATION_MARKER, plan.configuration)
    with ExitStack() as stack:
        stack.enter_context(metrics.followed(build, log))
        for overlay in plan.overlays:
            stack.enter_context(_overlaid(overlay, tree))
        for command in plan.commands:
            before = log.stat().st_size if log.is_file() else 0
            process.run(command.argv, cwd=Path(command.cwd), env=env, log=log)
            if plan.cmake_cache and (tree / plan.cmake_cache).is_file():
                # the first has seen CMake try flags; the log of what is compiled is long
                told = "configuration" in metrics.details
                said = None if told else log.read_bytes()[before:].decode("utf-8", errors="replace")
                found = verified(tree / plan.cmake_cache, said, env=env, compilers=plan.compilers)
                metrics.details.setdefault("configuration", found)
    return the_wheel(plan)


def the_wheel(plan: BuildPlan) -> Path:
    """Find the one wheel that a build left."""
    folder = Path(plan.wheel_dir)
    found = sorted(folder.glob(plan.wheel_glob))
    if len(found) != 1:
        what = ", ".join(path.name for path in found) or "none"
        raise BuildError(
            f"The build of {plan.project} must leave one {plan.wheel_glob} in {folder}, and left: {what}.",
            hint="See the build's log; --clean starts from an empty build folder.",
        )
    version = str(parse_wheel_name(found[0].name).version)
    if version != plan.version:
        raise BuildError(
            f"{found[0].name} has version {version}; the source lock promises {plan.version}.",
            hint="Check that the source's setup.py takes its version from the environment.",
        )
    return found[0]


def install_requirements(
    target: Interpreter,
    plan: BuildPlan,
    tree: Path,
    locked: installer.Install | None,
    cache_dir: Path | None,
) -> None:
    """Install the project's own requirements, beyond the locked ones."""
    names = dict.fromkeys((*plan.uninstall, plan.distribution))
    # what is not installed is not an error to uv
    process.capture(
        [installer.uv_program(), "pip", "uninstall", "--quiet", "--python", target.executable, *names]
    )
    paths = tuple(tree / name for name in plan.requirements_files)
    if paths or plan.requirements:
        call = installer.Install(files=paths, requirements=plan.requirements)
        installer.install(target, call, cache_dir=cache_dir)
    if locked:  # last, whatever the project's own requirements brought
        installer.install(target, locked, cache_dir=cache_dir)


def check_import(target: Interpreter, promised: Expectation, wheel: Path, cache_dir: Path | None) -> None:
    """Install the wheel where it was built, and import it."""
    # with what it requires of third parties; torch, triton and ROCm are there, and satisfy it
    call = installer.Install(requirements=(str(wheel),))
    installer.install(target, call, cache_dir=cache_dir)
    installer.require_planned(target, call.planned)
    _require_import(promised, wheel, target.executable, cwd=target.prefix)
    console.echo(f"{wheel.name} imports")


def check_bare_import(target: Interpreter, promised: Expectation, wheel: Path, *, preloads: bool) -> None:
    """Import an installed wheel without ROCm's development tree, and without torch's preloads.

    Both hide search paths that lead nowhere. The environment is copied with hard links, in about a second.
    """
    prefix = target.prefix
    with temporary.folder("bare", within=prefix.parent) as folder:
        bare = Path(folder) / prefix.name
        ignored = shutil.ignore_patterns(f"{payload_folder('devel')}*", "rocm_sdk_devel*")
        shutil.copytree(prefix, bare, symlinks=True, ignore=ignored, copy_function=_link)
        init = bare / target.purelib.relative_to(prefix) / ROCM_INIT
        if init.is_file() and not preloads:
            files.write_text(init, "def initialize():\n    pass\n")
        python = bare / target.scripts.relative_to(prefix) / target.executable.name
        where = ", where ROCm's development tree is not installed and nothing was loaded before"
        _require_import(promised, wheel, python, cwd=bare, where=where)
    console.echo(f"{wheel.name} imports beside ROCm's run-time packages")


def _link(source: str, target: str) -> str:
    """Link a file; copy it where the file system has no hard links."""
    try:
        os.link(source, target)
    except OSError:
        shutil.copy2(source, target)
    return target


def _require_import(promised: Expectation, wheel: Path, python: Path, *, cwd: Path, where: str = "") -> None:
    env = process.handed_on(LD_LIBRARY_PATH=None)
    command = import_command(python, promised.distribution, promised.version)
    done = process.capture(command, cwd=cwd, env=env, check=False)
    if problems := read_report(done.returncode, done.stdout, done.stderr):
        problem = BuildError(
            f"{wheel.name} cannot be imported{where}:\n" + "\n".join(problems),
            hint=f"Try it by hand: {python} -c 'import {promised.distribution}'",
        )
        problem.cause = first(done.stderr.splitlines())
        raise problem


@contextmanager
def _overlaid(overlay: Overlay, tree: Path) -> Iterator[None]:
    path = tree / overlay.path
    before = path.read_bytes() if path.is_file() else None
    path.parent.mkdir(parents=True, exist_ok=True)
    try:
        if overlay.source is not None:
            shutil.copyfile(Path(overlay.source), path)
        else:
            files.write_text(path, overlay.content or "")
        yield
    finally:
        if before is None:
            path.unlink(missing_ok=True)
        else:
            path.write_bytes(before)


def _choose_build_folder(plan: BuildPlan, tree: Path) -> Path:
    """Let the build find its own build folder: one a configuration, as a folder keeps its settings."""
    # beside `dist`: up to triton 3.3 both lie in python/
    build, aside = Path(plan.wheel_dir).parent / "build", tree.parent / ".builds"
    made_with = _configuration_of(build)
    if made_with == plan.configuration:
        return build
    # libraries of the other configuration, which upstream's build would pack as its own
    spared = f"--exclude=!/{build.relative_to(tree).as_posix()}"
    process.capture(["git", "clean", "-ffdXq", spared], cwd=tree)
    # named by the tree: CMake's folders hold its path, and developers' trees share what is beside them
    if build.is_dir() and made_with:
        _remove(aside / f"{tree.name}-{made_with[:12]}")
        aside.mkdir(exist_ok=True)
        build.replace(aside / f"{tree.name}-{made_with[:12]}")
    _remove(build)
    kept = aside / f"{tree.name}-{plan.configuration[:12]}"
    if _configuration_of(kept) == plan.configuration:
        kept.replace(build)
    return build


def _configuration_of(build: Path) -> str:
    marker = build / CONFIGURATION_MARKER
    return marker.read_text(encoding="utf-8") if marker.is_file() else ""


def _remove(path: Path) -> None:
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)


SCRIPT = Path(__file__).parents[1] / "check" / "import_check.py"


class _Report(Model):
    problems: tuple[str, ...]


def import_command(python: Path, distribution: str, version: str) -> tuple[str, ...]:
    """Return the command that imports a distribution's module."""
    name = canonicalize_name(distribution)
    component = component_of(name)
    lacks_local_part = component is not None and component.version_rule.module_lacks_local_part
    # -I: neither the working folder nor PYTHONPATH may answer for what is installed.
    return (
        *(str(python), "-I", str(SCRIPT)),
        *("--distribution", name, "--version", version, "--module", name.replace("-", "_")),
        *(("--public",) if lacks_local_part else ()),
    )


def read_report(returncode: int, stdout: str, stderr: str) -> tuple[str, ...]:
    """Return the problems that the script found, one sentence each."""
    try:
        problems = _Report.model_validate_json(stdout).problems
    except ValidationError:
        last = next((line for line in reversed(stderr.strip().splitlines()) if line.strip()), "no output")
        return (f"The import check died with status {returncode}: {last.strip()}",)
    if returncode and not problems:
        # The report was written, then a destructor or an exit handler brought the process down.
        return (f"Python died with status {returncode} when it ended.",)
    return problems
