"""Which of upstream's test files a configuration runs, and how: the data beside this module."""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Literal, Self

from pydantic import Field, model_validator

from core.data import Model, load_toml
from core.errors import SourceError, UsageError, nearest

if TYPE_CHECKING:
    from collections.abc import Sequence

DATA = Path(__file__).with_name("configurations.toml")
TESTS = "test"

Runner = Literal["pytest", "run_test", "script"]


class LimitsTable(Model):
    """What a file may take; ``docs/testing.md`` tells what happens then."""

    test_seconds: float = Field(gt=0)
    file_seconds: float = Field(gt=0)
    restarts: int = Field(ge=0)
    log_megabytes: int = Field(gt=0)


class Step(Model):
    """Files that are run alike."""

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
    scripts: tuple[str, ...] = ()
    steps: tuple[Step, ...] = Field(min_length=1)

    @model_validator(mode="after")
    def _each_file_once(self) -> Self:
        counted = Counter(name for step in self.steps for name in (*step.files, *step.gpu_files))
        twice = [name for name, count in counted.items() if count > 1]
        if twice:
            raise ValueError(f"{', '.join(twice)} would run twice.")
        return self


class ConfigurationsFile(Model):
    """The data file."""

    limits: LimitsTable
    configurations: dict[str, Configuration]


@dataclass(frozen=True, kw_only=True)
class TestFile:
    """One of upstream's test files, and how it is run."""

    __test__ = False

    file: str
    runner: Runner = "pytest"
    arguments: tuple[str, ...] = ()
    parallel: bool = False

    @property
    def module(self) -> str:
        """Its name as upstream has it: ``test_nn``, ``dynamo/test_misc``."""
        return module(self.file)


def load() -> ConfigurationsFile:
    """Read the data."""
    return load_toml(DATA, ConfigurationsFile)


def configuration(name: str) -> Configuration:
    """Find a configuration."""
    known = load().configurations
    if name not in known:
        raise UsageError(f"--config {name!r} is no configuration. {nearest(name, known)}")
    return known[name]


def module(name: str) -> str:
    """Give a test file's name as upstream has it, of that or its path; ``@gfx942`` behind it says nothing."""
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
    """Choose the files to run."""
    wanted = [module(name) for name in include]
    unwanted = {one for name in exclude for one in _named(module(name), known, "--exclude")}
    by_module = {
        module(one): TestFile(file=one, runner="script")
        for one in chosen.scripts
        if module(one) in known and (scripts or wanted)
    }
    for step in chosen.steps:
        listed = (*step.files, *(step.gpu_files if gpu or wanted else ()))
        parallel = set(step.parallel)
        for pattern in listed:
            for name in _matching(pattern, known):
                file = _file(name, runner=step.runner, arguments=step.arguments, parallel=name in parallel)
                by_module.setdefault(name, file)
    if wanted:
        names = [one for name in wanted for one in _named(name, known, "--include")]
        by_module = {name: by_module.get(name) or _file(name) for name in names}
    found = tuple(file for name, file in by_module.items() if name not in unwanted)
    if not found:
        raise UsageError("No test file is left to run.", hint="See --include, --exclude and --config.")
    return found


def _file(
    name: str, *, runner: Runner = "pytest", arguments: tuple[str, ...] = (), parallel: bool = False
) -> TestFile:
    return TestFile(file=f"{TESTS}/{name}.py", runner=runner, arguments=arguments, parallel=parallel)


def _named(pattern: str, known: Sequence[str], option: str) -> Sequence[str]:
    found = _matching(pattern, known)
    if not found:
        raise UsageError(f"{option} {pattern}: the tree has no such test file. {nearest(pattern, known)}")
    return found


def _matching(pattern: str, known: Sequence[str]) -> Sequence[str]:
    """List the names that a pattern takes; of a file that a version of upstream lacks there is none."""
    parts = re.split(r"(\*\*/|\*)", pattern)
    written = {"**/": "(?:[^/]+/)*", "*": "[^/]*"}
    expression = re.compile("".join(written.get(part, re.escape(part)) for part in parts))
    return [name for name in known if expression.fullmatch(name)]
