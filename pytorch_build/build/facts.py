"""What is known of machine, tree and ROCm when a build is planned.

A real build observes these facts and a dry run assumes some of them (`gather_facts`); the plan that follows
from them is the same (`plan`). Paths are pure, so that a build for Windows can be planned on Linux.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path, PurePath
from typing import TYPE_CHECKING, Any

from core.data import json_object, parse_toml
from core.errors import DataError, MissingInputError
from pytorch_build.lock.versions import SETUP_FILES, adds_commit
from pytorch_build.sources.git import Repository

if TYPE_CHECKING:
    from pytorch_build.build.cache import CompilerCache
    from pytorch_build.build.compilers import Compiler
    from pytorch_build.build.toolchain import Provided
    from pytorch_build.platforms import Platform
    from pytorch_build.sdk import RocmSdk

_BUILD_ENV = "build_env.json"
_LLVM_HASH = "cmake/llvm-hash.txt"
_PROJECT_FILES = (
    "pyproject.toml",
    "setup.py",
    "python/setup.py",
    "python/requirements.txt",
    "requirements.txt",
    "requirements-build.txt",
)

# The few files of a tree that a plan depends on.
PLANNED_FROM = (*_PROJECT_FILES, _BUILD_ENV, _LLVM_HASH)


@dataclass(frozen=True, kw_only=True)
class TreeFacts:
    """What a source tree says of its build.

    Attributes:
        files: Which of the files that builds use there are.
        build_backend: pyproject.toml's build backend.
        build_requires: pyproject.toml's build requirements.
        build_env: The variables that the checkout left for the build.
        reads_build_version: Whether setup.py takes the version from BUILD_VERSION.
        git_suffix: What setup.py adds to the version by itself; "" for nothing.
        llvm_hash: The commit of the LLVM that triton is built against.
    """

    files: frozenset[str]
    build_backend: str = ""
    build_requires: tuple[str, ...] = ()
    build_env: Mapping[str, str] = field(default_factory=dict)
    reads_build_version: bool = True
    git_suffix: str = ""
    llvm_hash: str = ""

    @property
    def uses_scikit_build_core(self) -> bool:
        """Whether scikit-build-core makes the wheel, as of torch 2.14, and not setuptools."""
        return self.build_backend.startswith("scikit_build_core.")


@dataclass(frozen=True, kw_only=True)
class BuildFacts:
    """What the planner has to know besides the inputs.

    Attributes:
        platform: The platform that the wheel is for.
        gpu_family: The GPU family; ``cpu`` for none.
        tree: Where the source tree is.
        python: The Python of the environment that the wheel is built in.
        tree_facts: What the tree says of its build.
        rocm: The ROCm in the environment; None for CPUs.
        provided: What Windows' builds link or ship besides ROCm.
        torch_version: The version of the torch in the environment; None where there is none.
        compiler_cache: What compilers are started through.
        compilers: The compilers for C and C++, by the variables that name them.
        max_jobs: How many compilers run at a time; None where the machine is not known.
        user_env: The user's variables.
    """

    platform: Platform
    gpu_family: str
    tree: PurePath
    python: PurePath
    tree_facts: TreeFacts
    rocm: RocmSdk | None = None
    provided: Provided
    torch_version: str | None = None
    compiler_cache: CompilerCache | None = None
    compilers: Mapping[str, Compiler] = field(default_factory=dict)
    max_jobs: int | None = None
    user_env: Mapping[str, str]

    def variable(self, name: str) -> str:
        """Return the user's value of a variable; "" where it is unset, which upstream treats alike."""
        return self.platform.find_variable(self.user_env, name)

    def extend_path(self, name: str, folder: PurePath) -> str:
        """Return the user's list of folders in a variable, with another one in front."""
        folders = [str(folder)]
        if user_folders := self.user_env.get(name, ""):
            folders.append(user_folders)
        return self.platform.path_separator.join(folders)

    def compiler_flags(self) -> dict[str, str]:
        """Return the user's flags with what the compiler needs behind them, by variable, on Linux."""
        if self.platform.windows:
            return {}

        # Where CXXFLAGS is not set, upstream takes CFLAGS for C++, too.
        user_flags = {
            "CXXFLAGS": self.user_env.get("CXXFLAGS", self.user_env.get("CFLAGS", "")),
            "CPPFLAGS": self.user_env.get("CPPFLAGS", ""),
        }
        needed_flags: tuple[str, ...] = ()
        if "CXX" in self.compilers:
            needed_flags = self.compilers["CXX"].flags

        flags: dict[str, str] = {}
        for name, text in user_flags.items():
            joined = " ".join([text.strip(), *needed_flags]).strip()
            if joined:
                flags[name] = joined
        return flags


def read_tree_facts(tree: Path) -> TreeFacts:
    """Return what a source tree on this machine says of its build."""
    if not tree.is_dir():
        raise MissingInputError(f"There is no source tree at {tree}.", hint="Fetch it: nox -s checkout.")

    texts: dict[str, str] = {}
    for name in PLANNED_FROM:
        if (tree / name).is_file():
            texts[name] = (tree / name).read_text(encoding="utf-8", errors="replace")
    return tree_facts_from(texts, tree=tree, git_suffix=lambda: _git_suffix(tree))


def tree_facts_from(
    texts: Mapping[str, str],
    *,
    tree: PurePath,
    git_suffix: Callable[[], str],
) -> TreeFacts:
    """Return what a tree says of its build, from the texts of its files.

    Args:
        texts: Those of the files in `PLANNED_FROM` that there are.
        tree: Where the tree is, for errors.
        git_suffix: Answers what a setup.py that adds the commit to the version would add.
    """
    setup_text = next((texts[name] for name in SETUP_FILES if name in texts), "")
    build_system = _read_build_system(texts.get("pyproject.toml", ""), path=tree / "pyproject.toml")
    return TreeFacts(
        files=frozenset(texts).intersection(_PROJECT_FILES),
        build_backend=str(build_system.get("build-backend", "")),
        build_requires=tuple(build_system.get("requires", [])),
        build_env=_read_build_env(texts.get(_BUILD_ENV, "{}"), path=tree / _BUILD_ENV),
        reads_build_version="BUILD_VERSION" in setup_text,
        git_suffix=git_suffix() if adds_commit(setup_text) else "",
        llvm_hash=texts.get(_LLVM_HASH, "").strip(),
    )


def _read_build_system(text: str, *, path: PurePath) -> Mapping[str, Any]:
    table: Mapping[str, Any] = parse_toml(text, where=str(path)).get("build-system", {})
    requires = table.get("requires", [])
    if not isinstance(requires, list) or not all(isinstance(line, str) for line in requires):
        raise DataError(f"{path}: build-system.requires is not a list of requirements.")
    return table


def _read_build_env(text: str, *, path: PurePath) -> Mapping[str, str]:
    hint = "Run nox -s checkout again."
    variables = json_object(text, where=str(path), hint=hint)
    if not all(isinstance(value, str) for value in variables.values()):
        raise DataError(f"{path} is not a table of variables.", hint=hint)
    return variables


def _git_suffix(tree: Path) -> str:
    """Return what triton's setup.py adds: the commit, except on a branch of a release."""
    if not (tree / ".git").is_dir():
        return ""

    git = Repository(path=tree)
    if git.out("rev-parse", "--abbrev-ref", "HEAD").startswith("release"):
        return ""
    return f"+git{git.out('rev-parse', '--short=8', 'HEAD')}"
