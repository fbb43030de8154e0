import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from core import process
from core.data import validated
from core.env import Interpreter
from core.errors import DataError, EnvironmentSetupError, SourceError, UsageError
from pytorch_build.sources import checkout as sources
from pytorch_build.sources.checkout import SourceTree
from pytorch_build.test import upstream_tests
from tests.kit.machines import target_in

ONE, TWO = "1" * 40, "2" * 40
TREE = Path("/src/pytorch")


def given(commit: str = ONE, version: str = "2.10.0a0") -> upstream_tests.Tests:
    return upstream_tests.Tests(tree=TREE, commit=commit, version=version)


def torch(commit: str = ONE, version: str = "2.10.0a0+rocm7.1.0") -> upstream_tests.Torch:
    return upstream_tests.Torch(version=version, commit=commit)


@pytest.mark.parametrize(
    ("one", "other", "words"),
    [
        (torch(), given(), ""),
        # the commit says it, whatever the versions say
        (torch(version="2.11.0"), given(), ""),
        (torch(), given(TWO), "torch 2.10.0a0+rocm7.1.0 was built from 111111111111"),
        (torch(""), given(TWO), ""),
        (torch(""), given(version="2.10.1"), "torch is 2.10.0a0+rocm7.1.0, and the tests"),
        (torch(), given("", "2.10.0"), ""),
        (torch(), given("", "2.9.0a0"), "are for 2.9.0a0"),
        (torch(), given("", ""), "has no version.txt"),
    ],
)
def test_tests_fit_their_torch(one: upstream_tests.Torch, other: upstream_tests.Tests, words: str) -> None:
    assert words in upstream_tests.mismatch(one, other)
    assert bool(upstream_tests.mismatch(one, other)) == bool(words)


def test_other_tests_are_refused_unless_told_otherwise(capsys: pytest.CaptureFixture[str]) -> None:
    upstream_tests.require_match(torch(), given(), allowed=False)
    with pytest.raises(SourceError, match="was built from") as caught:
        upstream_tests.require_match(torch(), given(TWO), allowed=False)
    assert "--allow-version-mismatch" in caught.value.hint
    upstream_tests.require_match(torch(), given(TWO), allowed=True)
    assert "warning: torch 2.10.0a0+rocm7.1.0 was built from" in capsys.readouterr().err


def test_the_locks_commit_is_checked_out_bare_and_apart(run: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[Any] = []

    def checkout(locked: Any, path: Path, options: Any) -> SourceTree:
        asked.append((locked.commit, path, options))
        path.mkdir(parents=True)
        (path / "version.txt").write_text("2.10.0a0\n")
        return SourceTree(path=path, commit=locked.commit, head=locked.commit, changed=True)

    monkeypatch.setattr(sources, "checkout", checkout)
    monkeypatch.setattr(upstream_tests, "checkout_options", lambda *_: sources.CheckoutOptions(hipify=True))
    found = upstream_tests.checked_out(run.context(), run.lock(), {})
    (commit, path, options) = asked[0]
    assert commit == run.lock().project("torch").commit == found.commit
    assert path == run.root / "src" / "sample" / "torch-tests"
    assert (options.depth, options.submodules, options.hipify) == (1, False, False)
    assert found.version == "2.10.0a0"


@pytest.mark.processes
def test_a_repository_is_known_by_its_commit_and_a_hipified_one_by_upstreams(tmp_path: Path) -> None:
    def git(*words: str) -> str:
        own = ("-c", "user.name=x", "-c", "user.email=x@example.com")
        return process.capture(["git", *own, *words], cwd=tmp_path).stdout.strip()

    with pytest.raises(SourceError, match="does not exist"):
        upstream_tests.own_tree(tmp_path / "none")
    assert upstream_tests.own_tree(tmp_path) == upstream_tests.Tests(tree=tmp_path, version="", commit="")
    (tmp_path / "version.txt").write_text("2.9.1\n")
    git("init", "-q")
    git("commit", "-q", "--allow-empty", "-m", "upstream")
    upstream = git("rev-parse", "HEAD")
    assert upstream_tests.own_tree(tmp_path) == upstream_tests.Tests(
        tree=tmp_path, version="2.9.1", commit=upstream, head=upstream
    )
    git("tag", "THEROCK_UPSTREAM_DIFFBASE")
    git("commit", "-q", "--allow-empty", "-m", "DO NOT SUBMIT: HIPIFY")
    hipified = upstream_tests.own_tree(tmp_path)
    assert hipified.commit == upstream
    for built_from in (
        upstream,
        git("rev-parse", "HEAD"),
    ):  # by checkout's builds, and as a tree of one's own
        assert not upstream_tests.mismatch(torch(built_from), hipified)
    assert upstream_tests.mismatch(torch(TWO), hipified)


@pytest.fixture
def miniature(run: Any, tmp_path: Path) -> tuple[Interpreter, Path]:
    """Return an interpreter, and a folder whose torch it imports where isolation is not asked for."""
    program = tmp_path / "python"
    program.write_text(f'#!/bin/sh\nshift\nexec {sys.executable} "$@"\n')
    program.chmod(0o755)
    return replace(run.target(), executable=program), tmp_path / "packages"


@pytest.mark.processes
def test_torch_says_itself_what_it_is(miniature: tuple[Interpreter, Path]) -> None:
    target, packages = miniature
    (packages / "torch").mkdir(parents=True)
    text = "from torch import _C, version\n__version__ = '2.10.0'\n"
    (packages / "torch" / "__init__.py").write_text(text)
    (packages / "torch" / "version.py").write_text(f"git_version = '{ONE}'\nhip = '7.1'\ncuda = None\n")
    (packages / "torch" / "_C.py").write_text("def _cuda_getArchFlags(): return 'gfx942 gfx1100'\n")
    env = process.inherited(PYTHONPATH=str(packages))
    found = upstream_tests.installed_torch(target, env)
    assert found == upstream_tests.Torch(
        version="2.10.0", commit=ONE, hip="7.1", targets=("gfx942", "gfx1100")
    )
    # of a build outside of git
    (packages / "torch" / "version.py").write_text("git_version = 'Unknown'\n")
    (packages / "torch" / "_C.py").write_text("")
    assert upstream_tests.installed_torch(target, env) == upstream_tests.Torch(version="2.10.0")


@pytest.mark.processes
def test_a_torch_that_cannot_be_imported_is_an_error(miniature: tuple[Interpreter, Path]) -> None:
    target, packages = miniature
    with pytest.raises(EnvironmentSetupError, match="torch cannot be imported") as caught:
        upstream_tests.installed_torch(target, process.inherited(PYTHONPATH=str(packages)))
    assert "No module named 'torch'" in caught.value.message


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


def names(found: tuple[upstream_tests.TestFile, ...]) -> list[str]:
    return [one.module for one in found]


VERIFY = "tools/dynamo/verify_dynamo"


def test_inductor_begins_with_upstreams_own_look_at_the_compiler(tmp_path: Path) -> None:
    chosen = upstream_tests.configuration("inductor")
    assert upstream_tests.scripts_of(chosen, tmp_path) == ()
    (tmp_path / "tools" / "dynamo").mkdir(parents=True)
    (tmp_path / f"{VERIFY}.py").touch()
    assert upstream_tests.scripts_of(chosen, tmp_path) == (VERIFY,)
    known = (VERIFY, *KNOWN)
    first = upstream_tests.chosen_files(chosen, known, gpu=False)[0]
    assert (first.file, first.runner) == (f"{VERIFY}.py", "script")
    assert upstream_tests.chosen_files(chosen, known, gpu=False, include=[f"{VERIFY}.py"]) == (first,)
    assert first not in upstream_tests.chosen_files(chosen, known, gpu=False, scripts=False)
    assert first not in upstream_tests.chosen_files(chosen, known, gpu=False, exclude=[VERIFY])
    assert first not in upstream_tests.chosen_files(upstream_tests.configuration("default"), known, gpu=False)


def test_what_is_included_takes_the_place_and_what_is_excluded_is_left_out() -> None:
    chosen = upstream_tests.configuration("default")
    found = upstream_tests.chosen_files(
        chosen, KNOWN, gpu=False, include=["test/test_ops.py", "test_cuda", "test_nn@gfx942"]
    )
    assert names(found) == ["test_ops", "test_cuda", "test_nn"]
    assert [one.parallel for one in found] == [False, False, True]
    assert names(
        upstream_tests.chosen_files(chosen, KNOWN, gpu=False, include=["distributed/**/test_*"])
    ) == list(KNOWN[:2])
    left = upstream_tests.chosen_files(chosen, KNOWN, gpu=False, exclude=["test_*_ufuncs", "test_nn"])
    assert names(left) == ["test_autograd", "test_torch"]


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"include": ["test_n"]}, r"--include test_n: the tree has no such test file. Did you mean 'test_nn"),
        ({"exclude": ["test_x"]}, r"--exclude test_x: the tree has no such test file"),
        ({"name": "inducter"}, "Did you mean 'inductor'"),
    ],
)
def test_names_that_no_file_has_are_errors(changes: dict[str, Any], words: str) -> None:
    with pytest.raises(UsageError, match=words):
        upstream_tests.chosen_files(
            upstream_tests.configuration(changes.pop("name", "default")), KNOWN, gpu=True, **changes
        )


@pytest.mark.parametrize(
    ("step", "words"),
    [
        ({"files": []}, "at least 1 item"),
        ({"files": ["a"], "arguments": ["-x"]}, "'arguments' are for runner"),
        ({"files": ["a"], "runner": "run_test", "parallel": ["a"]}, "'parallel' is for runner"),
        ({"files": ["test_nn"], "parallel": ["test_n"]}, "Did you mean 'test_nn'"),
        ({"files": ["a"], "gpu_files": ["a"]}, "a would run twice"),
        ({"files": ["a"], "file": 1}, "unknown key. Did you mean 'files'"),
    ],
)
def test_data_that_contradicts_itself_is_refused(step: dict[str, Any], words: str) -> None:
    with pytest.raises(DataError, match=words):
        validated({"gpus": "all", "steps": [step]}, upstream_tests.Configuration, where="x.toml")
    limits = {"test_seconds": 0, "file_seconds": 1, "restarts": 1, "log_megabytes": 1}
    with pytest.raises(DataError, match=r"limits\.test_seconds"):
        validated({"limits": limits, "configurations": {}}, upstream_tests.ConfigurationsFile, where="x.toml")


def test_a_trees_test_files_are_listed_as_upstream_names_them(tmp_path: Path) -> None:
    (tmp_path / "test" / "dynamo").mkdir(parents=True)
    for name in ("test_nn.py", "dynamo/test_misc.py", "conftest.py", "run_test.py"):
        (tmp_path / "test" / name).touch()
    assert upstream_tests.modules_of(tmp_path) == ("dynamo/test_misc", "test_nn")
    with pytest.raises(SourceError, match="holds no test files"):
        upstream_tests.modules_of(tmp_path / "test" / "dynamo")
    assert upstream_tests.module(r"test\dynamo\test_misc.py") == "dynamo/test_misc"


CI = Path(__file__).with_name("recorded").joinpath("requirements-ci.txt").read_text()


@pytest.mark.parametrize(
    ("python", "own"),
    [("3.11.7", ("numpy==1.26.2", "scipy==1.10.1")), ("3.13.5", ("numpy==2.1.2", "scipy==1.14.1"))],
)
def test_a_trees_own_versions_win_over_the_locks(tmp_path: Path, python: str, own: tuple[str, ...]) -> None:
    target = target_in(tmp_path / "env", version=python)
    locked = {"numpy", "scipy", "pytest", "click"}
    assert upstream_tests.own_requirements(tmp_path, target, locked) == (), "an older tree names none"
    (tmp_path / ".ci" / "docker").mkdir(parents=True)
    (tmp_path / ".ci" / "docker" / "requirements-ci.txt").write_text(CI)
    assert upstream_tests.own_requirements(tmp_path, target, locked) == own
