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
from pytorch_build.components import TORCH
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
# A tree of its own: what builds work in is hipified, and has submodules that no test reads.
TREE_NAME = "torch-tests"
TESTS_FOLDER = "test"
Runner = Literal["pytest", "run_test", "script"]

_REQUIRED_TOOLS = ("pytest", "pytest-timeout")
# An import of torch reads gigabytes from a cold disk.
_IMPORT_SECONDS = 600


# --- The tree --------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class UpstreamTests:
    """Upstream's tests, in a source tree.

    Attributes:
        tree: Its folder.
        version: What its ``version.txt`` says; "" where it has none.
        commit: Upstream's commit; "" where it is unknown.
        head: What a tree of the user's has checked out, which may be a commit of ours on top.
    """

    tree: Path
    version: str
    commit: str
    head: str = ""


def check_out_tests(
    context: Context,
    lock: SourceLock,
    mirrors: Mapping[str, str],
) -> UpstreamTests:
    """Check upstream's tree out: one commit, without submodules, as upstream has it."""
    with console.group(f"checkout {TREE_NAME}"):
        tree = sources.checkout(
            lock.project(TORCH.name), _managed_path(context), _options_for_tests(context, mirrors)
        )
    return _tests_of(tree)


def find_checked_out_tests(
    context: Context,
    lock: SourceLock,
    mirrors: Mapping[str, str],
) -> UpstreamTests | None:
    """Return upstream's tree as it lies there; None where `check_out_tests` has something to do."""
    tree = sources.unchanged_tree(
        lock.project(TORCH.name), _managed_path(context), _options_for_tests(context, mirrors)
    )
    if tree is None:
        return None
    return _tests_of(tree)


def _tests_of(tree: sources.SourceTree) -> UpstreamTests:
    return UpstreamTests(
        tree=tree.path,
        version=_version_of(tree.path),
        commit=tree.commit,
    )


def _managed_path(context: Context) -> Path:
    return sources.tree_path(context.common.sources, context.ref.name, TREE_NAME)


def _options_for_tests(context: Context, mirrors: Mapping[str, str]) -> sources.CheckoutOptions:
    options = checkout_options(context, 1, mirrors, TORCH.name)
    return replace(options, submodules=False, hipify=False)


def tests_of_tree(tree: Path) -> UpstreamTests:
    """Take the user's own tree, as it is; one that `checkout` made counts by its upstream commit, too."""
    path = tree.expanduser().absolute()
    if not path.is_dir():
        raise SourceError(f"{path} does not exist.", hint="Give a PyTorch source tree: --pytorch-dir DIR.")
    version = _version_of(path)
    if not (path / ".git").exists():
        return UpstreamTests(
            tree=path,
            version=version,
            commit="",
        )

    repository = Repository(
        path=path,
        managed=False,
    )
    head = repository.commit_of("HEAD") or ""
    upstream_commit = repository.commit_of(UPSTREAM_TAG)
    return UpstreamTests(
        tree=path,
        version=version,
        commit=upstream_commit or head,
        head=head,
    )


def _version_of(tree: Path) -> str:
    path = tree / versions.VERSION_FILE
    if not path.is_file():
        return ""
    return versions.parse_version(read_text(path), str(path))


def requirements_of_tree(
    tree: Path,
    target: Interpreter,
    names_in_test_lock: Collection[str],
) -> tuple[str, ...]:
    """Return the versions that a tree's own CI tests with, of what is locked here, for a Python.

    pytest and its plugins stay as locked: this tool runs them.
    """
    path = tree / ".ci" / "docker" / "requirements-ci.txt"
    if not path.is_file():
        return ()

    environment = {"python_version": target.series, "python_full_version": target.version}
    requirements: dict[str, str] = {}
    for line in read_text(path).splitlines():
        try:
            requirement = Requirement(line.partition("#")[0])
        except InvalidRequirement:
            # An option of pip's.
            continue
        name = canonicalize_name(requirement.name)
        is_tool = name.startswith("pytest")
        if is_tool or name not in names_in_test_lock or not requirement.specifier:
            continue
        marker = requirement.marker
        if marker is None or marker.evaluate(environment):
            requirements[name] = f"{name}{requirement.specifier}"
    return tuple(requirements.values())


# --- The torch -------------------------------------------------------------------------------


class InstalledTorch(Model):
    """The installed torch that is tested; `commit` and `hip` are "" where it does not say them."""

    version: str
    commit: str = ""
    hip: str = ""
    targets: tuple[str, ...] = ()


def query_torch(target: Interpreter, env: Mapping[str, str]) -> InstalledTorch:
    """Return what the torch of an environment says of itself."""
    # Isolated, so that no source tree in the working folder is taken for the wheel.
    program = read_toml(QUERIES)["torch"]
    command: list[str | Path] = [target.executable, "-I", "-c", program]
    try:
        completed = process.capture(
            command,
            env=env,
            timeout=_IMPORT_SECONDS,
        )
    except ProcessError as problem:
        last_line = problem.output.splitlines()[-1:]
        raise EnvironmentSetupError(
            f"torch cannot be imported in {target.prefix}: {last_line or problem}",
            hint="See whether the wheel itself works: nox -s test_smoke.",
        ) from problem

    # Whatever torch prints when it is imported comes first.
    *_, answer = completed.stdout.splitlines()
    facts = json.loads(answer)
    commit = facts["commit"]
    return InstalledTorch(
        version=facts["version"],
        commit=commit if is_commit(commit) else "",
        hip=facts["hip"],
        targets=tuple(facts["targets"]),
    )


def require_tools(target: Interpreter) -> None:
    """Refuse an environment that cannot run the tests: each file would fail in pytest's words."""
    installed_names = {distribution.name for distribution in installed(target)}
    missing_names = [name for name in _REQUIRED_TOOLS if name not in installed_names]
    if missing_names:
        raise EnvironmentSetupError(
            f"{target.prefix} lacks {', '.join(missing_names)}, which the tests run with.",
            hint="Install what requirements/torch-tests.in names there, or leave --no-install out.",
        )


def require_matching_tests(
    torch: InstalledTorch,
    tests: UpstreamTests,
    *,
    allowed: bool,
) -> None:
    """Refuse tests of another version than torch's; warn of them where they are allowed."""
    difference = describe_mismatch(torch, tests)
    if not difference:
        return
    if not allowed:
        raise SourceError(
            difference,
            hint="Give a tree of that commit (--pytorch-dir), or run it all the same: "
            "--allow-version-mismatch.",
        )
    console.warn(difference)


def describe_mismatch(torch: InstalledTorch, tests: UpstreamTests) -> str:
    """Return how the torch and the tests differ: by commit where both are known, else by release; or ""."""
    if torch.commit and tests.commit:
        if torch.commit in {tests.commit, tests.head}:
            return ""
        return (
            f"torch {torch.version} was built from {torch.commit[:12]}, "
            f"and {tests.tree} is at {tests.commit[:12]} "
            f"({tests.version or 'no version.txt'})."
        )

    if not tests.version:
        return f"{tests.tree} has no {versions.VERSION_FILE}, so it is unknown which torch its tests are for."
    torch_release = Version(torch.version).release[:3]
    tests_release = Version(tests.version).release[:3]
    if torch_release == tests_release:
        return ""
    return f"torch is {torch.version}, and the tests in {tests.tree} are for {tests.version}."


# --- The configurations ----------------------------------------------------------------------


class LimitsTable(Model):
    """What a file may take; ``docs/testing.md`` describes what happens then."""

    test_seconds: float = Field(gt=0)
    file_seconds: float = Field(gt=0)
    restarts: int = Field(ge=0)
    log_megabytes: int = Field(gt=0)


class Step(Model):
    """Test files of a configuration that run alike.

    Attributes:
        runner: What runs them: pytest, or upstream's own ``run_test.py``.
        arguments: What ``run_test.py`` is told.
        files: Patterns of modules.
        gpu_files: Patterns of modules that are run on a GPU alone.
        parallel: Modules whose tests may run side by side.
    """

    runner: Literal["pytest", "run_test"] = "pytest"
    arguments: tuple[str, ...] = ()
    files: tuple[str, ...] = Field(min_length=1)
    gpu_files: tuple[str, ...] = ()
    parallel: tuple[str, ...] = ()

    @property
    def all_files(self) -> tuple[str, ...]:
        """The patterns of all its modules."""
        return (*self.files, *self.gpu_files)

    @model_validator(mode="after")
    def _is_consistent(self) -> Self:
        if self.arguments and self.runner == "pytest":
            raise ValueError("'arguments' are for runner = \"run_test\".")
        if self.parallel and self.runner != "pytest":
            raise ValueError("'parallel' is for runner = \"pytest\".")
        for name in self.parallel:
            if name not in self.all_files:
                raise ValueError(f"parallel: {nearest(name, self.all_files)}")
        return self


class Configuration(Model):
    """A set of upstream's test files, and how they run.

    Attributes:
        gpus: Whether a process gets one GPU, or all of its architecture.
        may_skip: The percentage of tests that may skip themselves by no rule.
        scripts: Programs of the tree that run before any test.
        steps: The test files.
    """

    gpus: Literal["unique", "all"]
    may_skip: int = Field(default=0, ge=0, lt=100)
    scripts: tuple[str, ...] = ()
    steps: tuple[Step, ...] = Field(min_length=1)

    @model_validator(mode="after")
    def _runs_each_file_once(self) -> Self:
        counts: Counter[str] = Counter()
        for step in self.steps:
            counts.update(step.all_files)
        repeated_names = [name for name, count in counts.items() if count > 1]
        if repeated_names:
            raise ValueError(f"{', '.join(repeated_names)} would run twice.")
        return self


class ConfigurationsFile(Model):
    """What ``configurations.toml`` holds: limits, folders of caches, and the configurations."""

    limits: LimitsTable
    folders: dict[str, str]
    configurations: dict[str, Configuration]


load_configurations = data_file(DATA, ConfigurationsFile)


def find_configuration(name: str) -> Configuration:
    """Return the configuration of a name that a user gave."""
    configurations = load_configurations().configurations
    if name not in configurations:
        raise UsageError(f"--config {name!r} is not a configuration. {nearest(name, configurations)}")
    return configurations[name]


# --- The files -------------------------------------------------------------------------------


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
        return module_name(self.file)


def module_name(name: str) -> str:
    """Return a test file's name as upstream has it, from that or its path, without ``@gfx942``."""
    path = name.partition("@")[0]
    path = path.replace("\\", "/").removeprefix("./")
    return path.removeprefix(f"{TESTS_FOLDER}/").removesuffix(".py")


def list_modules(tree: Path) -> tuple[str, ...]:
    """Return the test files of a source tree, as upstream names them, sorted."""
    folder = tree / TESTS_FOLDER
    paths = [path.relative_to(tree) for path in folder.rglob("test_*.py")]
    if not paths:
        raise SourceError(f"{folder} holds no test files.", hint="Give a PyTorch source tree: --pytorch-dir.")
    return tuple(sorted(module_name(path.as_posix()) for path in paths))


def list_scripts(configuration: Configuration, tree: Path) -> tuple[str, ...]:
    """Return the programs of a configuration that a tree has, named as test files are; versions differ."""
    scripts = [script for script in configuration.scripts if (tree / script).is_file()]
    return tuple(map(module_name, scripts))


def choose_files(
    configuration: Configuration,
    modules: Sequence[str],
    *,
    gpu: bool,
    scripts: bool = True,
    include: Sequence[str] = (),
    exclude: Sequence[str] = (),
) -> tuple[TestFile, ...]:
    """Return the files to run among a tree's modules; there may be none.

    Included modules take the place of the configuration's, and run as it says where it has them.
    """
    files: dict[str, TestFile] = {}
    if scripts or include:
        for script in configuration.scripts:
            module = module_name(script)
            if module in modules:
                files[module] = TestFile(
                    file=script,
                    runner="script",
                )
    for step in configuration.steps:
        patterns = step.all_files if gpu or include else step.files
        for module in _matching_modules(patterns, modules):
            # Of two steps the first one counts.
            test_file = TestFile(
                file=_path_of(module),
                runner=step.runner,
                arguments=step.arguments,
                parallel=module in step.parallel,
            )
            files.setdefault(module, test_file)

    if include:
        included_files: dict[str, TestFile] = {}
        for module in _require_modules(include, modules, "--include"):
            included_files[module] = files.get(module) or TestFile(file=_path_of(module))
        files = included_files
    for module in _require_modules(exclude, modules, "--exclude"):
        files.pop(module, None)
    return tuple(files.values())


def _path_of(module: str) -> str:
    return f"{TESTS_FOLDER}/{module}.py"


def _require_modules(
    patterns: Sequence[str],
    modules: Sequence[str],
    option: str,
) -> Sequence[str]:
    """Return the modules that an option names, by patterns; refuse a pattern that no module has."""
    named_modules: list[str] = []
    for pattern in map(module_name, patterns):
        matching_modules = _matching_modules([pattern], modules)
        if not matching_modules:
            raise UsageError(
                f"{option} {pattern}: the tree has no such test file. {nearest(pattern, modules)}"
            )
        named_modules += matching_modules
    return named_modules


def _matching_modules(patterns: Sequence[str], modules: Sequence[str]) -> Sequence[str]:
    """Return the modules that patterns match, in the patterns' order."""
    matching_modules: list[str] = []
    for pattern in patterns:
        matching_modules += filter(path_pattern(pattern).fullmatch, modules)
    return matching_modules
