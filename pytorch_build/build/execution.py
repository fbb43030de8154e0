"""Executing a build's plan in a source tree and a prepared environment: no decision is taken here."""

from __future__ import annotations

import os
import re
import shutil
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from packaging.utils import canonicalize_name

from core import console, files, process, temporary
from core.causes import first
from core.data import json_object
from core.env import Interpreter, installer
from core.environment import allowed
from core.errors import BuildError, DataError
from core.wheel import parse_wheel_name
from pytorch_build.build.machine import memory_bytes
from pytorch_build.components import component_of
from pytorch_build.components.torch import ROCM_INIT
from pytorch_build.sources.git import Repository
from rocm_packaging.packages.layouts import payload_folder

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from pytorch_build.build.cache_use import CacheUse
    from pytorch_build.build.plan import BuildPlan
    from pytorch_build.check import Expectation
    from pytorch_build.components.steps import Overlay
    from pytorch_build.platforms import Platform


# What a build folder was made with lies there.
CONFIGURATION_MARKER = ".configuration"
# Folders of other configurations lie beside the trees.
_PUT_ASIDE = ".builds"
IMPORT_SCRIPT = Path(__file__).parents[1] / "check" / "import_check.py"


# --- Commands ---------------------------------------------------------------------------------


def execute(
    plan: BuildPlan,
    tree: Path,
    platform: Platform,
    *,
    base_env: Mapping[str, str],
    log: Path,
    cache: CacheUse | None = None,
) -> Path:
    """Run a build plan's commands in the source tree, and return the one wheel that they leave.

    Args:
        plan: What to do.
        tree: The source tree.
        platform: The platform that it is done on.
        base_env: The user's variables.
        log: Where the commands' output goes.
        cache: The compiler cache, where one is in use.
    """
    for note in plan.notes:
        console.say(note)
    env = platform.merge(allowed(base_env), plan.env, unset=plan.unset)
    if cache is not None:
        env = cache.environment(env)

    build_folder = _prepare_build_folder(plan, tree)
    # After the choice: what --clean removes must not come back from where it was kept.
    for pattern in plan.removes:
        for path in tree.glob(pattern):
            _remove(path)
    files.write_text(build_folder / CONFIGURATION_MARKER, plan.configuration)

    with ExitStack() as stack:
        for overlay in plan.overlays:
            stack.enter_context(_apply_overlay(overlay, tree))
        for command in plan.commands:
            process.run(
                command.argv,
                cwd=Path(command.cwd),
                env=env,
                log=log,
            )
    return find_wheel(plan)


def find_wheel(plan: BuildPlan) -> Path:
    """Return the one wheel that a build left."""
    folder = Path(plan.wheel_dir)
    wheels = sorted(folder.glob(plan.wheel_glob))
    if len(wheels) != 1:
        names = ", ".join(wheel.name for wheel in wheels) or "none"
        raise BuildError(
            f"The build of {plan.project} must leave one {plan.wheel_glob} in {folder}, and left: {names}.",
            hint="See the build's log; --clean starts from an empty build folder.",
        )

    (wheel,) = wheels
    version = str(parse_wheel_name(wheel.name).version)
    if version != plan.version:
        raise BuildError(
            f"{wheel.name} has version {version}; the source lock promises {plan.version}.",
            hint="Check that the source's setup.py takes its version from the environment.",
        )
    return wheel


@contextmanager
def _apply_overlay(overlay: Overlay, tree: Path) -> Iterator[None]:
    """Put a file into the source tree for the block, and restore what was in its place."""
    path = tree / overlay.path
    content_before = path.read_bytes() if path.is_file() else None
    path.parent.mkdir(
        parents=True,
        exist_ok=True,
    )
    try:
        if overlay.source is not None:
            shutil.copyfile(Path(overlay.source), path)
        else:
            files.write_text(path, overlay.content or "")
        yield
    finally:
        if content_before is None:
            path.unlink(missing_ok=True)
        else:
            path.write_bytes(content_before)


# --- Build folders ----------------------------------------------------------------------------


def _prepare_build_folder(plan: BuildPlan, tree: Path) -> Path:
    """Swap in the build folder that a plan's configuration used before, if any, and return its path."""
    # It lies beside `dist`: up to triton 3.3 both are in python/.
    build_folder = Path(plan.wheel_dir).parent / "build"
    previous_configuration = _configuration_of(build_folder)
    if previous_configuration == plan.configuration:
        return build_folder

    # Libraries of the other configuration, which upstream's build would pack as its own.
    spared = f"--exclude=!/{build_folder.relative_to(tree).as_posix()}"
    Repository(path=tree).run("clean", "-ffdXq", spared)

    if previous_configuration is not None:
        aside = _folder_aside(tree, previous_configuration)
        _remove(aside)
        aside.parent.mkdir(exist_ok=True)
        build_folder.replace(aside)
    _remove(build_folder)

    aside = _folder_aside(tree, plan.configuration)
    if _configuration_of(aside) == plan.configuration:
        aside.replace(build_folder)
    return build_folder


def _folder_aside(tree: Path, configuration: str) -> Path:
    """Return where the build folder of a configuration is kept while another configuration is built.

    It is named by the tree: CMake's folders hold its path, and developers' trees share what is beside them.
    """
    return tree.parent / _PUT_ASIDE / f"{tree.name}-{configuration[:12]}"


def _configuration_of(build_folder: Path) -> str | None:
    """Return the configuration digest in a build folder's marker file; None where it has no marker."""
    marker = build_folder / CONFIGURATION_MARKER
    if not marker.is_file():
        return None
    return marker.read_text(encoding="utf-8")


def _remove(path: Path) -> None:
    """Remove a file, a link or a folder; one that does not exist is no error."""
    if path.is_dir() and not path.is_symlink():
        files.remove_folder(path)
    else:
        path.unlink(missing_ok=True)


# --- Requirements -----------------------------------------------------------------------------


def install_requirements(
    target: Interpreter,
    plan: BuildPlan,
    tree: Path,
    locked: installer.InstallerCall | None,
    cache_dir: Path | None,
) -> None:
    """Uninstall older wheels of a project, then install what its own files require, locked ones last."""
    # An older wheel of the project goes. What is not installed is not an error to uv.
    names = dict.fromkeys((*plan.uninstall, plan.distribution))
    process.capture(
        [installer.uv_program(), "pip", "uninstall", "--quiet", "--python", target.executable, *names]
    )

    paths = tuple(tree / name for name in plan.requirements_files)
    if paths or plan.requirements:
        call = installer.InstallerCall(
            files=paths,
            requirements=plan.requirements,
        )
        installer.install(target, call, cache_dir=cache_dir)
    # Last, whatever the project's own requirements brought.
    if locked is not None:
        installer.install(target, locked, cache_dir=cache_dir)


# --- Imports ----------------------------------------------------------------------------------


def check_import(target: Interpreter, expectation: Expectation, wheel: Path, cache_dir: Path | None) -> None:
    """Install the wheel into the environment that it was built in, and fail unless it imports there."""
    # With what it requires of third parties; torch, triton and ROCm are there, and satisfy it.
    call = installer.InstallerCall(requirements=(str(wheel),))
    installer.install(target, call, cache_dir=cache_dir)
    installer.require_planned(target, call.planned)

    _require_import(expectation, wheel, target.executable, folder=target.prefix)
    console.echo(f"{wheel.name} imports")


def check_bare_import(
    target: Interpreter, expectation: Expectation, wheel: Path, *, keeps_preloads: bool
) -> None:
    """Fail unless a wheel imports without ROCm's development tree, and without preloaded libraries.

    Both hide search paths that lead nowhere. The environment is copied with hard links, in about a second.
    """
    prefix = target.prefix
    with temporary.folder("bare", within=prefix.parent) as folder:
        copied_prefix = folder / prefix.name
        without_development_tree = shutil.ignore_patterns(f"{payload_folder('devel')}*", "rocm_sdk_devel*")
        shutil.copytree(
            prefix, copied_prefix, symlinks=True, ignore=without_development_tree, copy_function=_link_or_copy
        )

        preloader = copied_prefix / target.purelib.relative_to(prefix) / ROCM_INIT
        if preloader.is_file() and not keeps_preloads:
            files.write_text(preloader, "def initialize():\n    pass\n")

        python = copied_prefix / target.scripts.relative_to(prefix) / target.executable.name
        circumstances = ", where ROCm's development tree is not installed and nothing was loaded before"
        _require_import(
            expectation,
            wheel,
            python,
            folder=copied_prefix,
            circumstances=circumstances,
        )
    console.echo(f"{wheel.name} imports beside ROCm's run-time packages")


def _link_or_copy(source: str, target: str) -> str:
    """Link a file; copy it where the file system has no hard links."""
    try:
        os.link(source, target)
    except OSError:
        shutil.copy2(source, target)
    return target


def _require_import(
    expectation: Expectation, wheel: Path, python: Path, *, folder: Path, circumstances: str = ""
) -> None:
    """Fail unless an environment's Python imports an installed wheel in its version.

    Args:
        expectation: What the wheel must be.
        wheel: The wheel.
        python: The Python that has it installed.
        folder: Where it is started.
        circumstances: What is special there, for the error.
    """
    completed = process.capture(
        import_command(python, expectation.distribution, expectation.version),
        cwd=folder,
        env=process.handed_on(LD_LIBRARY_PATH=None),
        check=False,
    )
    problems = read_import_report(completed.returncode, completed.stdout, completed.stderr)
    if problems:
        error = BuildError(
            f"{wheel.name} cannot be imported{circumstances}:\n" + "\n".join(problems),
            hint=f"Try it by hand: {python} -c 'import {expectation.distribution}'",
        )
        error.cause = first(completed.stderr.splitlines())
        raise error


def import_command(python: Path, distribution: str, version: str) -> tuple[str, ...]:
    """Return the command that imports a distribution's module."""
    name = canonicalize_name(distribution)
    # -I: neither the working folder nor PYTHONPATH may answer for what is installed.
    command = [str(python), "-I", str(IMPORT_SCRIPT), "--distribution", name]
    command += ["--version", version, "--module", name.replace("-", "_")]

    component = component_of(name)
    if component is not None and component.version_rule.module_lacks_local_part:
        command.append("--public")
    return tuple(command)


def read_import_report(returncode: int, stdout: str, stderr: str) -> tuple[str, ...]:
    """Return the problems that the import check printed, a sentence each; one if the check crashed."""
    try:
        problems = tuple(json_object(stdout, where="The import check")["problems"])
    except (DataError, KeyError, TypeError):
        lines = [line.strip() for line in stderr.splitlines() if line.strip()]
        last_line = lines[-1] if lines else "no output"
        return (f"The import check died with status {returncode}: {last_line}",)

    if returncode and not problems:
        # The report was written, then a destructor or an exit handler brought the process down.
        return (f"Python died with status {returncode} when it ended.",)
    return problems


# Bounds of what a record keeps.
_MOST_FAILED = 5
_MOST_LETTERS = 200
# Bytes of a log's end that are read: the last command's errors may be long.
_TAIL = 4 << 20

# "[12/1758] Building …", unless NINJA_STATUS is set.
_PROGRESS = re.compile(r"^\[(\d{1,9})/(\d{1,9})\] ", re.MULTILINE)
# Since ninja 1.13 a failure has a code.
_FAILED = re.compile(r"^FAILED: (?:\[code=-?\d+\] )?(\S+)", re.MULTILINE)


@contextmanager
def record_metrics(details: dict[str, Any], log: Path) -> Iterator[None]:
    """Add the block's peak memory to a record's details, and where it fails also ninja's progress."""
    try:
        yield
    except BaseException:
        reached = progress_in(process.tail(log, lines=_TAIL, limit=_TAIL))
        if reached is not None:
            details["reached"] = reached
        raise
    finally:
        # Windows does not say what the largest process took that has ended.
        if sys.platform != "win32":
            import resource

            peak = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss << 10
            details["memory"] = {"peak": peak, "total": memory_bytes()}


def progress_in(output: str) -> dict[str, Any] | None:
    """Return ninja's last step, step count and failed outputs in a build's output; None where it has none."""
    steps = _PROGRESS.findall(output)
    failed = tuple(dict.fromkeys(_FAILED.findall(output)))
    if not steps and not failed:
        return None

    progress: dict[str, Any] = {}
    if steps:
        step, last_step = steps[-1]
        progress["done"] = int(step)
        progress["total"] = int(last_step)
    progress["failed"] = [_short_path(path) for path in failed[:_MOST_FAILED]]
    return progress


def _short_path(path: str) -> str:
    """Return a path's last parts without the folders of this machine, bounded in length."""
    path = path.replace("\\", "/")
    if path.startswith("/") or path[1:3] == ":/":
        path = "/".join(["…", *path.split("/")[-3:]])
    if len(path) > _MOST_LETTERS:
        path = f"…{path[1 - _MOST_LETTERS :]}"
    return path
