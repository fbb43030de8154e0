"""`in-image`: sessions inside a container image, with this checkout mounted: the nightly's builds."""

import argparse
import shlex
from collections.abc import Sequence
from pathlib import Path

from ci.jobs import common_options, store_options
from core import console, process
from core.cli.options import RUN_OPTIONS, common_from
from core.env import engines
from core.errors import MissingInputError, UsageError

PASSES_REST = True
WORKSPACE = "/workspace"
# What a workflow's step says to sessions by variables; their values stay off the command line.
PASSED_VARIABLES = (
    "RELEASE_TYPE",
    "RUN_STORE",
    "SOURCE_LOCK",
    "MAX_JOBS",
    "ROCM_PACKAGE_INDEX_URL",
    "ROCM_PACKAGE_FIND_LINKS_URL",
    "ROCM_PACKAGE_VERSION",
    "ROCM_PACKAGE_NO_INSTALL",
    "CI",
    "GITHUB_ACTIONS",
    "GITHUB_REPOSITORY",
    "GITHUB_RUN_ID",
)
# The image has the target's Python and ROCm, and not the packages that this tool is locked to.
_SCRIPT = (
    "python3 -m venv /tmp/tool"
    " && /tmp/tool/bin/python -m pip install --quiet --require-hashes -r requirements.txt"
    ' && exec /tmp/tool/bin/nox "$@"'
)

COMMON_OPTIONS = ("torch-ref", "gpu-family", *RUN_OPTIONS, "force", "dry-run")


def add_options(parser: argparse.ArgumentParser) -> None:
    """Declare the verb's own options."""
    add = parser.add_argument
    add(
        "--image",
        required=True,
        metavar="NAME",
        help="the image, as its engine knows it",
    )
    add(
        "--archive",
        type=Path,
        metavar="FILE",
        help="load it from there first",
    )
    add(
        "--sessions",
        required=True,
        metavar="A B",
        help="what runs inside",
    )
    add("--session-python", metavar="V", help="Python of the sessions, such as 3.11")
    add("--gpu", action="store_true", help="with this machine's GPUs")
    add("--engine", choices=engines.RUNNERS, help="default: the first that works")
    parser.epilog = "Unknown options go to the sessions."


def run(arguments: argparse.Namespace) -> None:
    """Load the image from its archive, if any, and run the sessions in it."""
    common = common_from(arguments)
    sessions = arguments.sessions.split()
    if not sessions:
        raise UsageError("--sessions is empty.")

    nox_words = ["-s", *sessions]
    if arguments.session_python:
        nox_words += ["-P", arguments.session_python]
    nox_words += ["--", *common_options(common), *store_options(common), *arguments.rest]
    commands = make_commands(
        _engine(arguments, is_dry_run=common.dry_run),
        arguments.image,
        nox_words,
        root=common.root,
        archive=arguments.archive,
        has_gpu=arguments.gpu,
    )
    if common.dry_run:
        for command in commands:
            console.result(shlex.join(command))
        return

    if arguments.archive and not arguments.archive.is_file():
        raise MissingInputError(
            f"{arguments.archive} does not exist.",
            hint="Build it: nox -s build_image.",
        )
    for command in commands:
        process.run(command, cwd=common.root, env=process.inherited())


def _engine(arguments: argparse.Namespace, *, is_dry_run: bool) -> engines.Engine:
    """Return the engine that runs the image; a dry run does not look for one."""
    engine: engines.Engine | None = arguments.engine
    if engine is not None:
        return engine
    if is_dry_run:
        return "docker"
    return engines.find_engine(*engines.RUNNERS)


def make_commands(
    engine: engines.Engine,
    image: str,
    nox_words: Sequence[str],
    *,
    root: Path,
    archive: Path | None,
    has_gpu: bool,
) -> Sequence[Sequence[str]]:
    """Return the commands that load an image, if it is in an archive, and run nox in it."""
    commands: list[Sequence[str]] = []
    if archive is not None:
        commands.append([engine, "load", "--input", str(archive)])

    run_command = [engine, "run", "--rm", f"--volume={root}:{WORKSPACE}", f"--workdir={WORKSPACE}"]
    run_command.append("--ipc=host")
    if has_gpu:
        run_command += ["--device=/dev/kfd", "--device=/dev/dri", "--group-add=video"]
    run_command += [f"--env={name}" for name in PASSED_VARIABLES]
    run_command.append(image)
    # A login shell reads where ROCm is.
    run_command += ["bash", "--login", "-c", _SCRIPT, "nox", *nox_words]
    commands.append(run_command)
    return commands
