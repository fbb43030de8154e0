"""Where a build runs and what lies there: the facts that its plan, which is pure, is computed from."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path, PurePath
from typing import TYPE_CHECKING, Any

from core import process
from core.data import json_object, parse_toml
from core.errors import DataError, MissingInputError
from pytorch_build.lock.versions import SETUP_FILES, adds_commit

if TYPE_CHECKING:
    from pytorch_build.build.cache import CompilerCache
    from pytorch_build.build.compilers import Compiler
    from pytorch_build.build.toolchain import Provided
    from pytorch_build.sdk import RocmSdk

_BUILD_ENV, _LLVM_HASH = "build_env.json", "cmake/llvm-hash.txt"
_PROJECT_FILES = (
    *("pyproject.toml", "setup.py", "python/setup.py"),
    *("python/requirements.txt", "requirements.txt", "requirements-build.txt"),
)
READ = (*_PROJECT_FILES, _BUILD_ENV, _LLVM_HASH)


@dataclass(frozen=True, kw_only=True)
class TreeFacts:
    """What a source tree holds."""

    files: frozenset[str]
    build_backend: str = ""
    build_requires: tuple[str, ...] = ()
    build_env: Mapping[str, str] = field(default_factory=dict)
    reads_build_version: bool = True
    configures_alone: bool = False
    git_suffix: str = ""
    llvm_hash: str = ""


@dataclass(frozen=True, kw_only=True)
class Site:
    """Where a build runs. Paths are pure, so that a Windows build can be planned anywhere."""

    tree: PurePath
    python: PurePath
    facts: TreeFacts
    rocm: RocmSdk | None = None
    provided: Provided
    torch_version: str = ""
    cache: CompilerCache | None = None
    compilers: Mapping[str, Compiler] = field(default_factory=dict)
    max_jobs: int | None = None


def tree_facts(tree: Path) -> TreeFacts:
    """Read what a build has to know of a source tree."""
    if not tree.is_dir():
        raise MissingInputError(f"There is no source tree at {tree}.", hint="Fetch it: nox -s checkout.")
    texts = {
        name: (tree / name).read_text(encoding="utf-8", errors="replace")
        for name in READ
        if (tree / name).is_file()
    }
    return facts_of_texts(texts, where=tree, git_suffix=lambda: _git_suffix(tree))


def facts_of_texts(texts: Mapping[str, str], *, where: PurePath, git_suffix: Callable[[], str]) -> TreeFacts:
    """Return what a build has to know of a tree whose files of `READ` have these texts."""
    setup = next((texts[name] for name in SETUP_FILES if name in texts), "")
    pyproject = where / "pyproject.toml"
    table: Any = parse_toml(texts.get(pyproject.name, ""), where=str(pyproject)).get("build-system", {})
    requires = table.get("requires", [])
    if not isinstance(requires, list) or not all(isinstance(entry, str) for entry in requires):
        raise DataError(f"{pyproject}: build-system.requires is not a list of requirements.")
    variables, hint = str(where / _BUILD_ENV), "Run nox -s checkout again."
    build_env = json_object(texts.get(_BUILD_ENV, "{}"), where=variables, hint=hint)
    if not all(isinstance(value, str) for value in build_env.values()):
        raise DataError(f"{variables} is not a table of variables.", hint=hint)
    return TreeFacts(
        files=frozenset(texts).intersection(_PROJECT_FILES),
        build_backend=str(table.get("build-backend", "")),
        build_requires=tuple(requires),
        build_env=build_env,
        reads_build_version="BUILD_VERSION" in setup,
        configures_alone="--cmake-only" in setup,
        git_suffix=git_suffix() if adds_commit(setup) else "",
        llvm_hash=texts.get(_LLVM_HASH, "").strip(),
    )


def _git_suffix(tree: Path) -> str:
    """Return what triton's setup.py adds: the commit, except on a branch of a release."""
    if not (tree / ".git").is_dir():
        return ""
    branch = process.capture(["git", "rev-parse", "--abbrev-ref", "HEAD"], cwd=tree).stdout.strip()
    if branch.startswith("release"):
        return ""
    return "+git" + process.capture(["git", "rev-parse", "--short=8", "HEAD"], cwd=tree).stdout.strip()
