"""Upstream's tests: a source tree at the lock's commit, or a person's own, held against the torch tested."""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from packaging.version import Version

from core import console, process
from core.data import read_text
from core.errors import EnvironmentSetupError, ProcessError, SourceError
from pytorch_build.lock import pins
from pytorch_build.sources import checkout as sources
from pytorch_build.sources.checkout import tree_path
from pytorch_build.sources.edits import UPSTREAM_TAG
from pytorch_build.sources.git import Repository, is_commit
from pytorch_build.sources.trees import checkout_options

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from core.env.interpreters import Interpreter
    from pytorch_build.context import Context
    from pytorch_build.lock.source_lock import SourceLock

# a tree of its own: what builds work in is hipified, and has submodules that no test reads
FOLDER = "torch-tests"
_TOOLS = ("pytest", "pytest-timeout")
_SIDE_BY_SIDE = "pytest-xdist"
_ASK = """
import json, sys, torch
from importlib import metadata

def lacks(name):
    try:
        return not metadata.version(name)
    except metadata.PackageNotFoundError:
        return True

version = torch.version
flags = getattr(torch._C, "_cuda_getArchFlags", lambda: "")() or ""
print(json.dumps({
    "version": torch.__version__,
    "commit": getattr(version, "git_version", None) or "",
    "hip": getattr(version, "hip", None) or "",
    "cuda": getattr(version, "cuda", None) or "",
    "targets": flags.split(),
    "lacks": [name for name in sys.argv[1:] if lacks(name)],
}))
"""


@dataclass(frozen=True, kw_only=True)
class Tests:
    """A source tree with tests."""

    __test__ = False

    tree: Path
    version: str
    commit: str
    own: bool = False


@dataclass(frozen=True, kw_only=True)
class Torch:
    """The torch that is tested, by its own words."""

    version: str
    commit: str = ""
    hip: str = ""
    cuda: str = ""
    targets: tuple[str, ...] = ()
    lacks: tuple[str, ...] = ()


def checked_out(context: Context, lock: SourceLock, mirrors: Mapping[str, str]) -> Tests:
    """Check upstream's tree out: one commit, without submodules, as upstream has it."""
    locked = lock.project("torch")
    options = replace(checkout_options(context, 1, mirrors, "torch"), submodules=False, hipify=False)
    path = tree_path(context.common.sources, context.ref.name, FOLDER)
    with console.group(f"checkout {FOLDER}"):
        tree = sources.checkout(locked, path, options)
    return Tests(tree=tree.path, version=_version(tree.path), commit=tree.commit)


def own_tree(tree: Path) -> Tests:
    """Take a person's own tree, as it is; a managed one of a build counts by its upstream commit."""
    path = tree.expanduser().absolute()
    if not path.is_dir():
        raise SourceError(f"{path} is not there.", hint="Give a PyTorch source tree: --pytorch-dir DIR.")
    commit = ""
    if (path / ".git").exists():
        git = Repository(path=path, managed=False)
        commit = git.commit_of(UPSTREAM_TAG) or git.commit_of("HEAD")
    return Tests(tree=path, version=_version(path), commit=commit, own=True)


def _version(tree: Path) -> str:
    path = tree / pins.VERSION_FILE
    return pins.parse_version(read_text(path), str(path)) if path.is_file() else ""


def installed_torch(target: Interpreter, env: Mapping[str, str]) -> Torch:
    """Ask the torch of an environment what it is."""
    try:
        # isolated, so that no source tree in the working folder is taken for the wheel
        asked: list[str | Path] = [target.executable, "-I", "-c", _ASK, *_TOOLS, _SIDE_BY_SIDE]
        said = process.capture(asked, env=env, timeout=600).stdout
    except ProcessError as problem:
        raise EnvironmentSetupError(
            f"torch cannot be imported in {target.prefix}: {problem.output.splitlines()[-1:] or problem}",
            hint="See whether the wheel itself works: nox -s test_smoke.",
        ) from problem
    facts = json.loads(said.strip().splitlines()[-1])
    return Torch(
        version=facts["version"],
        commit=facts["commit"] if is_commit(facts["commit"]) else "",
        hip=facts["hip"],
        cuda=facts["cuda"],
        targets=tuple(facts["targets"]),
        lacks=tuple(facts["lacks"]),
    )


def require_tools(target: Interpreter, torch: Torch, *, workers: int) -> None:
    """Refuse an environment that cannot run the tests: each file would say so in pytest's words."""
    needed = (*_TOOLS, _SIDE_BY_SIDE) if workers > 1 else _TOOLS
    absent = [name for name in needed if name in torch.lacks]
    if absent:
        raise EnvironmentSetupError(
            f"{target.prefix} lacks {', '.join(absent)}, which the tests run with.",
            hint="Install what requirements/torch-tests.in names there, or leave --no-install out.",
        )


def mismatch(torch: Torch, tests: Tests) -> str:
    """Say how the torch and the tests differ: by commit where both are known, else by release."""
    if torch.commit and tests.commit:
        if torch.commit == tests.commit:
            return ""
        return (
            f"torch {torch.version} was built from {torch.commit[:12]}, and {tests.tree} is at "
            f"{tests.commit[:12]} ({tests.version or 'no version.txt'})."
        )
    if not tests.version:
        return f"{tests.tree} has no {pins.VERSION_FILE}, so nobody knows which torch its tests are for."
    if Version(torch.version).release[:3] == Version(tests.version).release[:3]:
        return ""
    return f"torch is {torch.version}, and the tests in {tests.tree} are for {tests.version}."


def require_match(torch: Torch, tests: Tests, *, allowed: bool) -> None:
    """Refuse tests of another version."""
    said = mismatch(torch, tests)
    if not said:
        return
    if not allowed:
        raise SourceError(
            said,
            hint="Give a tree of that commit (--pytorch-dir), or run it all the same: "
            "--allow-version-mismatch.",
        )
    console.warn(said)
