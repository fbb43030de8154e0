"""`in-image`: sessions inside a container image, with this checkout mounted: the nightly's builds."""

import argparse
import shlex
from collections.abc import Sequence
from pathlib import Path

from ci.jobs import common_options, store_options
from core import console, process
from core.cli.options import common_from
from core.env import engines
from core.errors import MissingInputError, UsageError

PASSES_REST = True
WORKSPACE = "/workspace"
# what a workflow's step says to sessions by variables; values stay off the command line
PASSED = (
    *("RELEASE_TYPE", "RUN_STORE", "SOURCE_LOCK", "MAX_JOBS"),
    *("ROCM_PACKAGE_INDEX_URL", "ROCM_PACKAGE_FIND_LINKS_URL", "ROCM_PACKAGE_VERSION"),
    "ROCM_PACKAGE_NO_INSTALL",
    *("CI", "GITHUB_ACTIONS", "GITHUB_REPOSITORY", "GITHUB_RUN_ID"),
)
# the image has the target's Python and ROCm, and not the tool's lock
_SCRIPT = (
    "python3 -m venv /tmp/tool"
    " && /tmp/tool/bin/python -m pip install --quiet --require-hashes -r requirements.txt"
    ' && exec /tmp/tool/bin/nox "$@"'
)


def add_options(parser: argparse.ArgumentParser) -> None:
    """Declare the verb's own options."""
    parser.add_argument("--image", required=True, metavar="NAME", help="the image, as its engine knows it")
    parser.add_argument("--archive", type=Path, metavar="FILE", help="load it from there first")
    parser.add_argument("--sessions", required=True, metavar="A B", help="what runs inside")
    what = "Python of the sessions, such as 3.11"
    parser.add_argument("--session-python", default="", metavar="V", help=what)
    parser.add_argument("--gpu", action="store_true", help="with this machine's GPUs")
    parser.add_argument("--engine", choices=engines.RUNNERS, help="default: the first that works")
    parser.epilog = "Unknown options go to the sessions."


def run(arguments: argparse.Namespace) -> None:
    """Load the image from its archive, if any, and run the sessions in it."""
    common = common_from(arguments)
    sessions = arguments.sessions.split()
    if not sessions:
        raise UsageError("--sessions is empty.")
    words = ["-s", *sessions, *(["-P", arguments.session_python] if arguments.session_python else [])]
    nox = [*words, "--", *common_options(common), *store_options(common), *arguments.rest]
    engine = arguments.engine or ("docker" if common.dry_run else engines.find_engine(*engines.RUNNERS))
    archive, gpu = arguments.archive, arguments.gpu
    planned = commands(engine, arguments.image, nox, root=common.root, archive=archive, gpu=gpu)
    if common.dry_run:
        for command in planned:
            console.result(shlex.join(command))
        return
    if archive and not archive.is_file():
        raise MissingInputError(f"{archive} does not exist.", hint="Build it: nox -s build_image.")
    for command in planned:
        process.run(command, cwd=common.root, env=process.inherited())


def commands(
    engine: engines.Engine, image: str, nox: Sequence[str], *, root: Path, archive: Path | None, gpu: bool
) -> Sequence[Sequence[str]]:
    """List what is run."""
    load = [[engine, "load", "--input", str(archive)]] if archive else []
    options = ["--rm", f"--volume={root}:{WORKSPACE}", f"--workdir={WORKSPACE}", "--ipc=host"]
    options += ["--device=/dev/kfd", "--device=/dev/dri", "--group-add=video"] if gpu else []
    options += [f"--env={name}" for name in PASSED]
    # a login shell reads where ROCm is
    inside = ["bash", "--login", "-c", _SCRIPT, "nox", *nox]
    return [*load, [engine, "run", *options, image, *inside]]
