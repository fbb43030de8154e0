"""Upstream's tests: the tree that holds them, the torch that they test, and the files of a configuration."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Literal, Self

from packaging.requirements import InvalidRequirement, Requirement
from packaging.utils import canonicalize_name
from packaging.version import Version
from pydantic import Field, model_validator

from core import console, process
from core.data import Model, data_file, read_text, read_toml
from core.env import Interpreter, installed
from core.errors import EnvironmentSetupError, ProcessError, SourceError, UsageError, nearest
from core.files import path_pattern
from pytorch_build.lock import versions
from pytorch_build.sdk import QUERIES
from pytorch_build.sources import checkout as sources
from pytorch_build.sources.edits import UPSTREAM_TAG
from pytorch_build.sources.git import Repository, is_commit
from pytorch_build.sources.trees import checkout_options

if TYPE_CHECKING:
    from pytorch_build.context import Context
    from pytorch_build.lock.source_lock import SourceLock

DATA = Path(__file__).with_name("configurations.toml")
# a tree of its own: what builds work in is hipified, and has submodules that no test reads
FOLDER = "torch-tests"
TESTS = "test"
Runner = Literal["pytest", "run_test", "script"]

_TOOLS = ("pytest", "pytest-timeout", "pytest-xdist")


@dataclass(frozen=True, kw_only=True)
class Tests:
    """A source tree with tests; `head` is what one that `checkout` made has checked out."""

    tree: Path
    version: str
    commit: str
    head: str = ""


def own_requirements(tree: Path, target: Interpreter, locked: Collection[str]) -> tuple[str, ...]:
    """Return the versions that a tree's own CI tests with, of what is `locked` here, for a Python.

    pytest and its plugins stay as locked: this tool runs them. Source: .ci/docker/requirements-ci.txt.
    """
    path, found = tree / ".ci" / "docker" / "requirements-ci.txt", dict[str, str]()
    here = {"python_version": target.series, "python_full_version": target.version}
    for line in read_text(path).splitlines() if path.is_file() else ():
        try:
            one = Requirement(line.partition("#")[0])
        except InvalidRequirement:  # a comment, or an option of pip's
            continue
        name = canonicalize_name(one.name)
        counts = one.specifier and (one.marker is None or one.marker.evaluate(here))
        if counts and name in locked and not name.startswith("pytest"):
            found[name] = f"{name}{one.specifier}"
    return tuple(found.values())


@dataclass(frozen=True, kw_only=True)
class Torch:
    """The installed torch that is tested."""

    version: str
    commit: str = ""
    hip: str = ""
    targets: tuple[str, ...] = ()


def checked_out(context: Context, lock: SourceLock, mirrors: Mapping[str, str]) -> Tests:
    """Check upstream's tree out: one commit, without submodules, as upstream has it."""
    path = sources.tree_path(context.common.sources, context.ref.name, FOLDER)
    with console.group(f"checkout {FOLDER}"):
        tree = sources.checkout(lock.project("torch"), path, _checkout_options(context, mirrors))
    return Tests(tree=tree.path, version=_version(tree.path), commit=tree.commit)


def already_checked_out(context: Context, lock: SourceLock, mirrors: Mapping[str, str]) -> Tests | None:
    """Return upstream's tree as it lies there; None where `checked_out` has something to do."""
    path = sources.tree_path(context.common.sources, context.ref.name, FOLDER)
    tree = sources.unchanged_tree(lock.project("torch"), path, _checkout_options(context, mirrors))
    if tree is None:
        return None
    return Tests(tree=tree.path, version=_version(tree.path), commit=tree.commit)


def _checkout_options(context: Context, mirrors: Mapping[str, str]) -> sources.CheckoutOptions:
    options = checkout_options(context, 1, mirrors, "torch")
    return replace(options, submodules=False, hipify=False)


def own_tree(tree: Path) -> Tests:
    """Take the user's own tree, as it is; one that `checkout` made counts by its upstream commit, too."""
    path = tree.expanduser().absolute()
    if not path.is_dir():
        raise SourceError(f"{path} does not exist.", hint="Give a PyTorch source tree: --pytorch-dir DIR.")
    commit = head = ""
    if (path / ".git").exists():
        git = Repository(path=path, managed=False)
        head = git.commit_of("HEAD") or ""
        commit = git.commit_of(UPSTREAM_TAG) or head
    return Tests(tree=path, version=_version(path), commit=commit, head=head)


def _version(tree: Path) -> str:
    path = tree / versions.VERSION_FILE
    return versions.parse_version(read_text(path), str(path)) if path.is_file() else ""


def installed_torch(target: Interpreter, env: Mapping[str, str]) -> Torch:
    """Query the torch of an environment."""
    # isolated, so that no source tree in the working folder is taken for the wheel
    argv: list[str | Path] = [target.executable, "-I", "-c", read_toml(QUERIES)["torch"]]
    try:
        printed = process.capture(argv, env=env, timeout=600).stdout
    except ProcessError as problem:
        raise EnvironmentSetupError(
            f"torch cannot be imported in {target.prefix}: {problem.output.splitlines()[-1:] or problem}",
            hint="See whether the wheel itself works: nox -s test_smoke.",
        ) from problem
    facts = json.loads(printed.strip().splitlines()[-1])
    return Torch(
        version=facts["version"],
        commit=facts["commit"] if is_commit(facts["commit"]) else "",
        hip=facts["hip"],
        targets=tuple(facts["targets"]),
    )


def require_tools(target: Interpreter, *, workers: int) -> None:
    """Refuse an environment that cannot run the tests: each file would fail in pytest's words."""
    needed, held = _TOOLS if workers > 1 else _TOOLS[:2], {one.name for one in installed(target)}
    if absent := [name for name in needed if name not in held]:
        raise EnvironmentSetupError(
            f"{target.prefix} lacks {', '.join(absent)}, which the tests run with.",
            hint="Install what requirements/torch-tests.in names there, or leave --no-install out.",
        )


def mismatch(torch: Torch, tests: Tests) -> str:
    """Explain how the torch and the tests differ: by commit where both are known, else by release."""
    if torch.commit and tests.commit:
        return (
            f"torch {torch.version} was built from {torch.commit[:12]}, and {tests.tree} is at "
            f"{tests.commit[:12]} ({tests.version or 'no version.txt'})."
            if torch.commit not in {tests.commit, tests.head}
            else ""
        )
    if not tests.version:
        return f"{tests.tree} has no {versions.VERSION_FILE}, so it is unknown which torch its tests are for."
    if Version(torch.version).release[:3] == Version(tests.version).release[:3]:
        return ""
    return f"torch is {torch.version}, and the tests in {tests.tree} are for {tests.version}."


def require_match(torch: Torch, tests: Tests, *, allowed: bool) -> None:
    """Refuse tests of another version."""
    difference = mismatch(torch, tests)
    if difference and not allowed:
        raise SourceError(
            difference,
            hint="Give a tree of that commit (--pytorch-dir), or run it all the same: "
            "--allow-version-mismatch.",
        )
    if difference:
        console.warn(difference)


class LimitsTable(Model):
    """What a file may take; ``docs/testing.md`` describes what happens then."""

    test_seconds: float = Field(gt=0)
    file_seconds: float = Field(gt=0)
    restarts: int = Field(ge=0)
    log_megabytes: int = Field(gt=0)


class Step(Model):
    """Files that run alike."""

    runner: Literal["pytest", "run_test"] = "pytest"
    arguments: tuple[str, ...] = ()
    files: tuple[str, ...] = Field(min_length=1)
    gpu_files: tuple[str, ...] = ()
    parallel: tuple[str, ...] = ()

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        if self.arguments and self.runner == "pytest":
            raise ValueError("'arguments' are for runner = \"run_test\".")
        if self.parallel and self.runner != "pytest":
            raise ValueError("'parallel' is for runner = \"pytest\".")
        for name in self.parallel:
            if name not in (*self.files, *self.gpu_files):
                raise ValueError(f"parallel: {nearest(name, (*self.files, *self.gpu_files))}")
        return self


class Configuration(Model):
    """One configuration."""

    gpus: Literal["unique", "all"]
    may_skip: int = Field(default=0, ge=0, lt=100)
    scripts: tuple[str, ...] = ()
    steps: tuple[Step, ...] = Field(min_length=1)

    @model_validator(mode="after")
    def _each_file_once(self) -> Self:
        counted = Counter(name for step in self.steps for name in (*step.files, *step.gpu_files))
        if twice := [name for name, count in counted.items() if count > 1]:
            raise ValueError(f"{', '.join(twice)} would run twice.")
        return self


class ConfigurationsFile(Model):
    """The data file."""

    limits: LimitsTable
    folders: dict[str, str]
    configurations: dict[str, Configuration]


@dataclass(frozen=True, kw_only=True)
class TestFile:
    """One of upstream's test files, and how it runs."""

    file: str
    runner: Runner = "pytest"
    arguments: tuple[str, ...] = ()
    parallel: bool = False

    @property
    def module(self) -> str:
        """Its name as upstream has it: ``test_nn``, ``dynamo/test_misc``."""
        return module(self.file)


load = data_file(DATA, ConfigurationsFile)


def configuration(name: str) -> Configuration:
    """Find a configuration."""
    known = load().configurations
    if name not in known:
        raise UsageError(f"--config {name!r} is not a configuration. {nearest(name, known)}")
    return known[name]


def module(name: str) -> str:
    """Return a test file's name as upstream has it, from that or its path, without ``@gfx942``."""
    plain = name.partition("@")[0].replace("\\", "/").removeprefix("./")
    return plain.removeprefix(f"{TESTS}/").removesuffix(".py")


def modules_of(tree: Path) -> tuple[str, ...]:
    """List the test files of a source tree, as upstream names them, sorted."""
    folder = tree / TESTS
    found = sorted(module(path.relative_to(tree).as_posix()) for path in folder.rglob("test_*.py"))
    if not found:
        raise SourceError(f"{folder} holds no test files.", hint="Give a PyTorch source tree: --pytorch-dir.")
    return tuple(found)


def scripts_of(chosen: Configuration, tree: Path) -> tuple[str, ...]:
    """List the programs of a configuration that a tree has, named as test files are; versions differ."""
    return tuple(module(one) for one in chosen.scripts if (tree / one).is_file())


def chosen_files(
    chosen: Configuration,
    known: Sequence[str],
    *,
    gpu: bool,
    scripts: bool = True,
    include: Sequence[str] = (),
    exclude: Sequence[str] = (),
) -> tuple[TestFile, ...]:
    """Choose the files to run; there may be none."""
    unwanted = {one for name in exclude for one in _named(name, known, "--exclude")}
    by_module = {
        module(one): TestFile(file=one, runner="script")
        for one in chosen.scripts
        if module(one) in known and (scripts or include)
    }
    for step in chosen.steps:
        for pattern in (*step.files, *(step.gpu_files if gpu or include else ())):
            for name in _matching(pattern, known):
                file = TestFile(
                    file=_path(name),
                    runner=step.runner,
                    arguments=step.arguments,
                    parallel=name in step.parallel,
                )
                by_module.setdefault(name, file)
    if include:
        names = [one for name in include for one in _named(name, known, "--include")]
        by_module = {name: by_module.get(name) or TestFile(file=_path(name)) for name in names}
    return tuple(file for name, file in by_module.items() if name not in unwanted)


def _path(name: str) -> str:
    return f"{TESTS}/{name}.py"


def _named(name: str, known: Sequence[str], option: str) -> Sequence[str]:
    pattern = module(name)
    if not (found := _matching(pattern, known)):
        raise UsageError(f"{option} {pattern}: the tree has no such test file. {nearest(pattern, known)}")
    return found


def _matching(pattern: str, known: Sequence[str]) -> Sequence[str]:
    return [name for name in known if path_pattern(pattern).fullmatch(name)]
