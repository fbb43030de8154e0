import sys
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest

from core import process
from core.data import validated
from core.env import Interpreter
from core.errors import DataError, EnvironmentSetupError, SourceError, UsageError
from pytorch_build.sources import checkout
from pytorch_build.sources.checkout import SourceTree
from pytorch_build.test import upstream_tests
from pytorch_build.test.upstream_tests import TestFile
from tests.kit.builds import LocalRun
from tests.kit.machines import target_in
from tests.kit.repos import commit_files, run_git, write_files

COMMIT = "1" * 40
OTHER_COMMIT = "2" * 40


def tree_tests(commit: str = COMMIT, *, version: str = "2.10.0a0") -> upstream_tests.UpstreamTests:
    """Return the tests of a tree; "" is unknown."""
    return upstream_tests.UpstreamTests(tree=Path("/src/pytorch"), commit=commit, version=version)


def torch_of(commit: str = COMMIT, *, version: str = "2.10.0a0+rocm7.1.0") -> upstream_tests.InstalledTorch:
    """Return an installed torch; an empty commit is unknown."""
    return upstream_tests.InstalledTorch(version=version, commit=commit)


@pytest.mark.parametrize(
    ("torch", "tests"),
    [
        pytest.param(torch_of(), tree_tests(), id="same commit"),
        pytest.param(torch_of(version="2.11.0"), tree_tests(), id="same commit, whatever the versions"),
        pytest.param(torch_of(""), tree_tests(OTHER_COMMIT), id="unknown commit of torch"),
        pytest.param(torch_of(), tree_tests("", version="2.10.0"), id="unknown commit of the tests"),
    ],
)
def test_tests_of_the_same_source_fit_their_torch(
    torch: upstream_tests.InstalledTorch, tests: upstream_tests.UpstreamTests
) -> None:
    assert upstream_tests.describe_mismatch(torch, tests) == ""


@pytest.mark.parametrize(
    ("torch", "tests", "names"),
    [
        pytest.param(
            torch_of(), tree_tests(OTHER_COMMIT), ["2.10.0a0+rocm7.1.0", "111111111111"], id="commits"
        ),
        pytest.param(
            torch_of(""), tree_tests(version="2.10.1"), ["2.10.0a0+rocm7.1.0", "2.10.1"], id="versions"
        ),
        pytest.param(torch_of(), tree_tests("", version="2.9.0a0"), ["2.9.0a0"], id="version of the tests"),
        pytest.param(torch_of(), tree_tests("", version=""), ["version.txt"], id="tests without a version"),
    ],
)
def test_tests_of_another_source_do_not_fit(
    torch: upstream_tests.InstalledTorch, tests: upstream_tests.UpstreamTests, names: list[str]
) -> None:
    mismatch = upstream_tests.describe_mismatch(torch, tests)

    for name in names:
        assert name in mismatch


def test_refuses_tests_of_another_source() -> None:
    with pytest.raises(SourceError) as caught:
        upstream_tests.require_matching_tests(torch_of(), tree_tests(OTHER_COMMIT), allowed=False)

    assert "--allow-version-mismatch" in caught.value.hint


def test_warns_of_tests_of_another_source_that_are_allowed(capsys: pytest.CaptureFixture[str]) -> None:
    upstream_tests.require_matching_tests(torch_of(), tree_tests(OTHER_COMMIT), allowed=True)

    assert capsys.readouterr().err.startswith("warning: torch 2.10.0a0+rocm7.1.0")


def test_accepts_tests_of_the_same_source_in_silence(capsys: pytest.CaptureFixture[str]) -> None:
    upstream_tests.require_matching_tests(torch_of(), tree_tests(), allowed=False)

    assert capsys.readouterr().err == ""


def test_checks_the_locks_commit_out_without_what_only_builds_need(
    run: LocalRun, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls: list[tuple[str, Path, Any]] = []

    def check_out(locked: Any, path: Path, options: Any) -> SourceTree:
        calls.append((locked.commit, path, options))
        write_files(path, {"version.txt": "2.10.0a0\n"})
        return SourceTree(path=path, commit=locked.commit, head=locked.commit, changed_by_checkout=True)

    monkeypatch.setattr(checkout, "checkout", check_out)
    monkeypatch.setattr(upstream_tests, "checkout_options", lambda *_: checkout.CheckoutOptions(hipify=True))

    tests = upstream_tests.check_out_tests(run.context(), run.lock(), {})

    ((commit, path, options),) = calls
    assert commit == run.lock().project("torch").commit
    assert tests.commit == commit
    assert tests.version == "2.10.0a0"
    assert path == run.root / "src" / "sample" / "torch-tests"
    assert options.depth == 1
    assert not options.submodules
    assert not options.hipify


def test_a_folder_that_does_not_exist_is_refused(tmp_path: Path) -> None:
    with pytest.raises(SourceError, match="absent"):
        upstream_tests.tests_of_tree(tmp_path / "absent")


@pytest.mark.processes
def test_a_folder_without_a_repository_has_no_commit(tmp_path: Path) -> None:
    assert upstream_tests.tests_of_tree(tmp_path) == upstream_tests.UpstreamTests(
        tree=tmp_path, version="", commit=""
    )


@pytest.mark.processes
def test_a_repository_is_known_by_its_commit(tmp_path: Path) -> None:
    commit = commit_files(tmp_path, {"version.txt": "2.9.1\n"})

    assert upstream_tests.tests_of_tree(tmp_path) == upstream_tests.UpstreamTests(
        tree=tmp_path, version="2.9.1", commit=commit, head=commit
    )


@pytest.mark.processes
def test_a_hipified_repository_is_known_by_upstreams_commit(tmp_path: Path) -> None:
    upstream_commit = commit_files(tmp_path, {"version.txt": "2.9.1\n"})
    run_git(tmp_path, "tag", "THEROCK_UPSTREAM_DIFFBASE")
    hipified_commit = commit_files(tmp_path, {"a.hip": ""})

    tests = upstream_tests.tests_of_tree(tmp_path)

    assert tests.commit == upstream_commit
    # Torch was built from a checkout of ours, or from this tree as a developer's own.
    assert upstream_tests.describe_mismatch(torch_of(upstream_commit), tests) == ""
    assert upstream_tests.describe_mismatch(torch_of(hipified_commit), tests) == ""
    assert upstream_tests.describe_mismatch(torch_of(OTHER_COMMIT), tests)


@dataclass(frozen=True, kw_only=True)
class Packages:
    """An interpreter, and the folder of packages that it imports although it is isolated."""

    target: Interpreter
    folder: Path

    @property
    def variables(self) -> dict[str, str]:
        """Return the environment of its processes."""
        return dict(process.inherited(PYTHONPATH=str(self.folder)))


@pytest.fixture
def packages(run: LocalRun, tmp_path: Path) -> Packages:
    program = tmp_path / "python"
    program.write_text(f'#!/bin/sh\nshift\nexec {sys.executable} "$@"\n')
    program.chmod(0o755)
    return Packages(target=replace(run.target(), executable=program), folder=tmp_path / "packages")


def write_torch(packages: Packages, *, version: str, extension: str) -> None:
    """Write a small torch."""
    package = "from torch import _C, version\n__version__ = '2.10.0'\n"
    write_files(
        packages.folder / "torch", {"__init__.py": package, "version.py": version, "_C.py": extension}
    )


@pytest.mark.processes
def test_an_installed_torch_says_its_commit_and_targets(packages: Packages) -> None:
    write_torch(
        packages,
        version=f"git_version = '{COMMIT}'\nhip = '7.1'\ncuda = None\n",
        extension="def _cuda_getArchFlags(): return 'gfx942 gfx1100'\n",
    )

    torch = upstream_tests.query_torch(packages.target, packages.variables)

    assert torch == upstream_tests.InstalledTorch(
        version="2.10.0", commit=COMMIT, hip="7.1", targets=("gfx942", "gfx1100")
    )


@pytest.mark.processes
def test_a_torch_built_outside_of_git_has_no_commit(packages: Packages) -> None:
    write_torch(packages, version="git_version = 'Unknown'\n", extension="")

    torch = upstream_tests.query_torch(packages.target, packages.variables)

    assert torch == upstream_tests.InstalledTorch(version="2.10.0")


@pytest.mark.processes
def test_a_torch_that_cannot_be_imported_is_an_error(packages: Packages) -> None:
    with pytest.raises(EnvironmentSetupError, match="'torch'"):
        upstream_tests.query_torch(packages.target, packages.variables)


KNOWN = (
    "distributed/fsdp/test_fsdp_core",
    "distributed/test_store",
    "inductor/test_torchinductor",
    "test_autograd",
    "test_binary_ufuncs",
    "test_cuda",
    "test_nn",
    "test_ops",
    "test_torch",
    "test_unary_ufuncs",
)
VERIFY_DYNAMO = "tools/dynamo/verify_dynamo"


def choose_files(
    configuration: str = "default",
    *,
    gpu: bool = False,
    scripts: bool = True,
    include: Sequence[str] = (),
    exclude: Sequence[str] = (),
) -> tuple[TestFile, ...]:
    """Choose among the known files and upstream's look at the compiler."""
    return upstream_tests.choose_files(
        upstream_tests.find_configuration(configuration),
        (VERIFY_DYNAMO, *KNOWN),
        gpu=gpu,
        scripts=scripts,
        include=include,
        exclude=exclude,
    )


def modules_of(files: Sequence[TestFile]) -> list[str]:
    """Return the names of test files."""
    return [file.module for file in files]


def test_a_tree_has_upstreams_look_at_the_compiler_or_not(tmp_path: Path) -> None:
    configuration = upstream_tests.find_configuration("inductor")
    assert upstream_tests.list_scripts(configuration, tmp_path) == ()

    write_files(tmp_path, {f"{VERIFY_DYNAMO}.py": ""})

    assert upstream_tests.list_scripts(configuration, tmp_path) == (VERIFY_DYNAMO,)


def test_inductor_begins_with_upstreams_look_at_the_compiler() -> None:
    first_file = choose_files("inductor")[0]

    assert first_file.file == f"{VERIFY_DYNAMO}.py"
    assert first_file.runner == "script"


def test_upstreams_look_at_the_compiler_may_be_chosen_alone() -> None:
    (file,) = choose_files("inductor", include=[f"{VERIFY_DYNAMO}.py"])

    assert file.module == VERIFY_DYNAMO


@pytest.mark.parametrize(
    "choice",
    [
        pytest.param({"configuration": "inductor", "scripts": False}, id="tests are chosen by name"),
        pytest.param({"configuration": "inductor", "exclude": [VERIFY_DYNAMO]}, id="excluded"),
        pytest.param({"configuration": "default"}, id="other configuration"),
    ],
)
def test_upstreams_look_at_the_compiler_is_left_out(choice: dict[str, Any]) -> None:
    assert VERIFY_DYNAMO not in modules_of(choose_files(**choice))


def test_included_files_take_the_place_of_the_configurations() -> None:
    files = choose_files(include=["test/test_ops.py", "test_cuda", "test_nn@gfx942"])

    assert modules_of(files) == ["test_ops", "test_cuda", "test_nn"]
    assert [file.parallel for file in files] == [False, False, True]


def test_files_may_be_included_by_a_pattern() -> None:
    assert modules_of(choose_files(include=["distributed/**/test_*"])) == list(KNOWN[:2])


def test_excluded_files_are_left_out() -> None:
    files = choose_files(exclude=["test_*_ufuncs", "test_nn"])

    assert modules_of(files) == ["test_autograd", "test_torch"]


@pytest.mark.parametrize(
    ("choice", "names"),
    [
        pytest.param({"include": ["test_n"]}, ["--include test_n", "'test_nn'"], id="included file"),
        pytest.param({"exclude": ["test_x"]}, ["--exclude test_x"], id="excluded file"),
        pytest.param({"configuration": "inducter"}, ["'inductor'"], id="configuration"),
    ],
)
def test_names_that_nothing_has_are_refused(choice: dict[str, Any], names: list[str]) -> None:
    with pytest.raises(UsageError) as caught:
        choose_files(**choice, gpu=True)

    for name in names:
        assert name in str(caught.value)


@pytest.mark.parametrize(
    ("step", "problem"),
    [
        pytest.param({"files": []}, "at least 1 item", id="no file"),
        pytest.param({"files": ["a"], "arguments": ["-x"]}, "'arguments'", id="arguments of pytest"),
        pytest.param(
            {"files": ["a"], "runner": "run_test", "parallel": ["a"]}, "'parallel'", id="parallel runner"
        ),
        pytest.param({"files": ["test_nn"], "parallel": ["test_n"]}, "'test_nn'", id="unknown parallel file"),
        pytest.param({"files": ["a"], "gpu_files": ["a"]}, "twice", id="file twice"),
        pytest.param({"files": ["a"], "file": 1}, "'files'", id="unknown key"),
    ],
)
def test_a_step_that_contradicts_itself_is_refused(step: dict[str, Any], problem: str) -> None:
    with pytest.raises(DataError, match=problem):
        validated({"gpus": "all", "steps": [step]}, upstream_tests.Configuration, where="x.toml")


def test_a_limit_of_nothing_is_refused() -> None:
    limits = {"test_seconds": 0, "file_seconds": 1, "restarts": 1, "log_megabytes": 1}

    with pytest.raises(DataError, match=r"limits\.test_seconds"):
        validated({"limits": limits, "configurations": {}}, upstream_tests.ConfigurationsFile, where="x.toml")


def test_a_trees_test_files_are_named_as_upstream_names_them(tmp_path: Path) -> None:
    names = ("test_nn.py", "dynamo/test_misc.py", "conftest.py", "run_test.py")
    write_files(tmp_path / "test", dict.fromkeys(names, ""))

    assert upstream_tests.list_modules(tmp_path) == ("dynamo/test_misc", "test_nn")
    assert upstream_tests.module_name(r"test\dynamo\test_misc.py") == "dynamo/test_misc"


def test_a_tree_without_test_files_is_refused(tmp_path: Path) -> None:
    with pytest.raises(SourceError) as caught:
        upstream_tests.list_modules(tmp_path)

    assert str(tmp_path) in caught.value.message


UPSTREAMS_CI = Path(__file__).with_name("recorded").joinpath("requirements-ci.txt").read_text()
LOCKED = {"numpy", "scipy", "pytest", "click"}


@pytest.mark.parametrize(
    ("python", "requirements"),
    [("3.11.7", ("numpy==1.26.2", "scipy==1.10.1")), ("3.13.5", ("numpy==2.1.2", "scipy==1.14.1"))],
)
def test_a_trees_versions_win_over_the_locks(
    tmp_path: Path, python: str, requirements: tuple[str, ...]
) -> None:
    write_files(tmp_path, {".ci/docker/requirements-ci.txt": UPSTREAMS_CI})
    target = target_in(tmp_path / "env", version=python)

    assert upstream_tests.requirements_of_tree(tmp_path, target, LOCKED) == requirements


def test_an_older_tree_names_no_versions(tmp_path: Path) -> None:
    assert upstream_tests.requirements_of_tree(tmp_path, target_in(tmp_path / "env"), LOCKED) == ()
