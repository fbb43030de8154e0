from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from core.data import validated
from core.errors import DataError, SourceError, UsageError
from pytorch_build.test import upstream_tests
from pytorch_build.test.upstream_tests import (
    Configuration,
    ConfigurationsFile,
    TestFile,
    chosen_files,
    configuration,
    module,
    modules_of,
    scripts_of,
)

if TYPE_CHECKING:
    from pathlib import Path

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


def names(found: tuple[TestFile, ...]) -> list[str]:
    return [one.module for one in found]


def test_the_data_holds_the_files_that_run_on_every_commit() -> None:
    found = chosen_files(configuration("default"), KNOWN, gpu=True)
    assert sorted(names(found)) == sorted(one for one in KNOWN if "/" not in one and one != "test_ops")
    assert {one.runner for one in found} == {"pytest"}
    assert found[0].file == "test/test_autograd.py"
    # files for GPUs alone have no test without one
    assert "test_cuda" not in names(chosen_files(configuration("default"), KNOWN, gpu=False))


def test_distributed_tests_go_through_upstreams_runner_on_every_gpu() -> None:
    chosen = configuration("distributed")
    found = chosen_files(chosen, KNOWN, gpu=True)
    assert names(found) == ["distributed/fsdp/test_fsdp_core", "distributed/test_store"]
    assert {(one.runner, one.arguments) for one in found} == {("run_test", ("--distributed-tests",))}
    assert chosen.gpus == "all"


def test_inductor_runs_operators_through_the_compiler_and_its_own_tests_without() -> None:
    found = {one.module: one for one in chosen_files(configuration("inductor"), KNOWN, gpu=True)}
    assert found["test_ops"].arguments == ("--inductor",)
    assert found["inductor/test_torchinductor"].runner == "pytest"
    assert VERIFY not in found


VERIFY = "tools/dynamo/verify_dynamo"


def test_inductor_begins_with_upstreams_own_look_at_the_compiler(tmp_path: Path) -> None:
    chosen = configuration("inductor")
    assert scripts_of(chosen, tmp_path) == ()
    (tmp_path / "tools" / "dynamo").mkdir(parents=True)
    (tmp_path / f"{VERIFY}.py").touch()
    assert scripts_of(chosen, tmp_path) == (VERIFY,)
    known = (VERIFY, *KNOWN)
    first = chosen_files(chosen, known, gpu=False)[0]
    assert (first.file, first.runner) == (f"{VERIFY}.py", "script")
    assert chosen_files(chosen, known, gpu=False, include=[f"{VERIFY}.py"]) == (first,)
    assert first not in chosen_files(chosen, known, gpu=False, scripts=False)
    assert first not in chosen_files(chosen, known, gpu=False, exclude=[VERIFY])
    assert first not in chosen_files(configuration("default"), known, gpu=False)


# upstream's lists, as ROCm's own CI runs them: what each configuration must at least hold
REFERENCE = {
    "default": {
        "pytest": {
            *("test_autograd", "test_binary_ufuncs", "test_cuda"),
            *("test_nn", "test_torch", "test_unary_ufuncs"),
        },
        "run_test": set(),
        "script": set(),
    },
    "distributed": {"pytest": set(), "run_test": {"distributed/**/test_*"}, "script": set()},
    "inductor": {
        "pytest": {
            *("inductor/test_aot_inductor", "inductor/test_torchinductor"),
            "inductor/test_torchinductor_opinfo",
        },
        "run_test": {"test_modules", "test_ops", "test_ops_gradients", "test_torch"},
        "script": {"tools/dynamo/verify_dynamo.py"},
    },
}


@pytest.mark.parametrize("name", REFERENCE)
def test_each_configuration_runs_what_the_reference_does_by_the_same_runner(name: str) -> None:
    chosen = configuration(name)
    runs: dict[str, set[str]] = {"pytest": set(), "run_test": set(), "script": set(chosen.scripts)}
    for step in chosen.steps:
        runs[step.runner] |= {*step.files, *step.gpu_files}
    assert runs == REFERENCE[name]


def test_what_is_included_takes_the_place_of_the_configuration() -> None:
    chosen = configuration("default")
    found = chosen_files(
        chosen, KNOWN, gpu=False, include=["test/test_ops.py", "test_cuda", "test_nn@gfx942"]
    )
    assert names(found) == ["test_ops", "test_cuda", "test_nn"]
    assert [one.parallel for one in found] == [False, False, True]
    assert names(chosen_files(chosen, KNOWN, gpu=False, include=["distributed/**/test_*"])) == list(KNOWN[:2])


def test_what_is_excluded_is_left_out() -> None:
    found = chosen_files(configuration("default"), KNOWN, gpu=False, exclude=["test_*_ufuncs", "test_nn"])
    assert names(found) == ["test_autograd", "test_torch"]


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        (
            {"include": ["test_n"]},
            r"--include test_n: the tree has no such test file\. Did you mean 'test_nn'",
        ),
        ({"exclude": ["test_x"]}, r"--exclude test_x: the tree has no such test file"),
        ({"include": ["test_nn"], "exclude": ["test_nn"]}, "No test file is left"),
    ],
)
def test_names_that_no_file_has_are_errors(changes: dict[str, Any], words: str) -> None:
    with pytest.raises(UsageError, match=words):
        chosen_files(configuration("default"), KNOWN, gpu=True, **changes)


def test_an_unknown_configuration_is_named_with_the_nearest() -> None:
    with pytest.raises(UsageError, match="Did you mean 'inductor'"):
        configuration("inducter")


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
        validated({"gpus": "all", "steps": [step]}, Configuration, where="x.toml")


def test_limits_are_positive() -> None:
    limits = {"test_seconds": 0, "file_seconds": 1, "restarts": 1, "log_megabytes": 1}
    with pytest.raises(DataError, match=r"limits\.test_seconds"):
        validated({"limits": limits, "configurations": {}}, ConfigurationsFile, where="x.toml")


def test_a_trees_test_files_are_listed_as_upstream_names_them(tmp_path: Path) -> None:
    (tmp_path / "test" / "dynamo").mkdir(parents=True)
    for name in ("test_nn.py", "dynamo/test_misc.py", "conftest.py", "run_test.py"):
        (tmp_path / "test" / name).touch()
    assert modules_of(tmp_path) == ("dynamo/test_misc", "test_nn")
    with pytest.raises(SourceError, match="holds no test files"):
        modules_of(tmp_path / "test" / "dynamo")
    assert module(r"test\dynamo\test_misc.py") == "dynamo/test_misc"


def test_every_file_of_the_data_is_named_as_upstream_names_it() -> None:
    for chosen in upstream_tests.load().configurations.values():
        for step in chosen.steps:
            for name in (*step.files, *step.gpu_files):
                assert module(name) == name
