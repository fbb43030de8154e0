import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from core import junit
from core.errors import CheckError, SourceError, UsageError
from core.junit import Case
from core.run import records
from pytorch_build.test import file_run, gpus, shards, torch_run
from pytorch_build.test.file_run import FileRun
from pytorch_build.test.gpus import Gpu, Machine, assignments, without_gpu
from pytorch_build.test.shards import Durations, FileDuration, Shard
from pytorch_build.test.torch_run import Bench, TorchTests, environment, perform_tests
from pytorch_build.test.upstream_tests import Tests, Torch

ONE = "1" * 40
MI300 = Machine(gpus=(Gpu(target="gfx942", uuid="GPU-1"), Gpu(target="gfx1100", uuid="GPU-2")), vendor="amd")
INPUTS = {"files": {"torch.whl": "ab" * 32}, "installed": True, "prebuilt": []}


@pytest.fixture
def bench(run: Any, tmp_path: Path) -> Bench:
    tree = tmp_path / "tree"
    (tree / "test").mkdir(parents=True)
    for name in ("autograd", "nn", "torch"):
        (tree / "test" / f"test_{name}.py").write_text("")
    return Bench(
        context=run.context("cpu"),
        target=run.target(executable=Path(sys.executable)),
        tests=Tests(tree=tree, version="2.10.0a0", commit=ONE),
        torch=Torch(version="2.10.0a0+cpu.sample", commit=ONE),
        assignments=[without_gpu()],
    )


@pytest.fixture
def ran(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """Let every file pass one test, or what a test puts there by its name; keep what was run."""
    calls: list[Any] = []

    def run_file(file: Any, setting: Any, *, part: Any, name: str) -> FileRun:
        log = setting.logs / f"{name}.log"
        log.parent.mkdir(parents=True, exist_ok=True)
        log.write_text(f"log of {name}\n")
        calls.append((file, setting, part, name))
        outcome = OUTCOMES.get(file.module, "passed")
        case = Case(test=f"{file.file}::test_x", file=file.file, outcome=outcome, line="why", seconds=1.0)
        return FileRun(file=file.file, cases=(case,), collected=(case.test,), seconds=2.0, log=log, whole=1)

    OUTCOMES.clear()
    monkeypatch.setattr(file_run, "run_file", run_file)
    return calls


OUTCOMES: dict[str, Any] = {}


def record(run: Any, name: str = "test_torch-sample-cp312") -> Any:
    return records.read(run.store, run.common().outputs, "cpu", name)


def test_passing_tests_are_recorded_with_the_wheels_and_not_run_again(
    run: Any, bench: Bench, ran: list[Any], capsys: pytest.CaptureFixture[str]
) -> None:
    perform_tests(bench, TorchTests(), INPUTS)
    assert [name for *_, name in ran] == ["test_autograd", "test_nn", "test_torch"]
    made = record(run)
    assert made.inputs["files"] == INPUTS["files"]
    assert made.inputs["arguments"] == []
    assert made.inputs["tests"]["commit"] == ONE
    assert made.details["tests"] == {
        **dict.fromkeys(("failures", "errors", "skipped", "unexplained"), 0),
        "tests": 3,
        "existing": 3,
    }
    report = made.details["report"]
    assert run.store.digest(report["key"]) == report["sha256"]
    document = junit.read_file(run.root / "out" / report["key"])
    assert document.properties["config"] == "default"
    logs = run.store.read("local-linux/logs/cpu/test_torch-sample-cp312/test_nn.log")
    assert logs == b"log of test_nn\n"
    capsys.readouterr()
    perform_tests(bench, TorchTests(), INPUTS)
    assert len(ran) == 3
    assert "test_torch: unchanged" in capsys.readouterr().err
    # other wheels, other rules, another choice: other results
    perform_tests(bench, TorchTests(), {**INPUTS, "files": {"torch.whl": "cd" * 32}})
    assert len(ran) == 6
    perform_tests(bench, TorchTests(expression="nn"), INPUTS)
    assert (record(run).inputs["arguments"], record(run).inputs["selection"]) == ([], ["-k", "nn"])
    perform_tests(bench, TorchTests(include=("test_nn",)), INPUTS)
    assert "2 of 3 test files did not run. It counts as missing" in capsys.readouterr().err
    assert record(run).details["left_out"] == "2 of 3 test files did not run"


@pytest.mark.usefixtures("ran")
def test_a_failure_fails_the_stage_and_its_report_is_kept(run: Any, bench: Bench) -> None:
    OUTCOMES["test_nn"] = "crashed"
    with pytest.raises(CheckError, match=r"1 of 3 failed.\n  test/test_nn.py::test_x crashed: why") as caught:
        perform_tests(bench, TorchTests(), INPUTS)
    assert caught.value.hint.endswith(" --include test_nn -k test_x")
    assert record(run) is None
    failed = record(run, "test_torch-sample-cp312.failed")
    assert (failed.exit_code, failed.log) == (9, "local-linux/logs/cpu/test_torch-sample-cp312.log")
    assert run.store.read(failed.log) == b"log of test_nn\n", "those of the files that failed"
    assert run.store.find("local-linux/reports/cpu/torch-sample-cp312.xml")
    assert run.store.find("local-linux/logs/cpu/test_torch-sample-cp312/test_nn.log")


def test_shards_share_the_files_and_have_records_of_their_own(run: Any, bench: Bench, ran: list[Any]) -> None:
    for index in (1, 2):
        perform_tests(bench, TorchTests(shard=Shard(index=index, count=2)), INPUTS)
    assert sorted(name for *_, name in ran) == ["test_autograd", "test_nn", "test_torch"]
    found = [record(run, f"test_torch-{index}-of-2-sample-cp312") for index in (1, 2)]
    assert [one.inputs["shard"] for one in found] == ["1/2", "2/2"]
    assert found[0].inputs["plan"] == found[1].inputs["plan"]
    assert record(run) is None


def test_a_tree_without_the_configurations_files_is_tested_by_name(
    run: Any, bench: Bench, ran: list[Any]
) -> None:
    for path in (bench.tests.tree / "test").iterdir():
        path.rename(path.with_name("test_mine.py"))
    with pytest.raises(UsageError, match="No test file is left"):
        perform_tests(bench, TorchTests(), INPUTS)
    perform_tests(bench, TorchTests(include=("test_mine",)), INPUTS)
    assert [name for *_, name in ran] == ["test_mine"]
    assert record(run).details["left_out"] == "the tree has no test file of the configuration"


def test_tests_of_another_torch_are_refused(bench: Bench, ran: list[Any]) -> None:
    other = replace(bench, torch=replace(bench.torch, commit="2" * 40))
    with pytest.raises(SourceError, match="was built from"):
        perform_tests(other, TorchTests(), INPUTS)
    assert ran == []
    perform_tests(other, TorchTests(allow_version_mismatch=True), INPUTS)
    assert len(ran) == 3


def on_gpus(bench: Bench, run: Any, monkeypatch: pytest.MonkeyPatch, *targets: str) -> Bench:
    monkeypatch.setattr(gpus, "this_machine", lambda: MI300)
    context = run.context("gfx94X-dcgpu;gfx110X-all")
    torch = Torch(version="2.10.0a0+rocm", commit=ONE, hip="7.1", targets=targets)
    (bench.tests.tree / "test" / "test_cuda.py").write_text("")
    return replace(bench, context=context, torch=torch, assignments=assignments(context, {}))


def test_each_architecture_runs_every_file(
    run: Any, bench: Bench, ran: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    both = on_gpus(bench, run, monkeypatch, "gfx942:sramecc+", "gfx1100")
    perform_tests(both, TorchTests(), INPUTS)
    assert [name for *_, name in ran] == [
        f"test_{name}@{target}"
        for target in ("gfx942", "gfx1100")
        for name in ("autograd", "cuda", "nn", "torch")
    ]
    seen = {setting.env["HIP_VISIBLE_DEVICES"] for _, setting, *_ in ran}
    assert seen == {"0", "1"}
    group = both.context.artifact_group
    (key,) = [one.key for one in run.store.list(f"local-linux/reports/{group}") if one.key.endswith(".xml")]
    document = junit.read_file(run.root / "out" / key)
    assert "test/test_nn.py@gfx942::test_x" in {case.test for case in document.cases}
    assert len(document.cases) == 8


def test_a_gpu_that_the_wheel_has_no_code_for_is_an_error(
    run: Any, bench: Bench, ran: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    one = on_gpus(bench, run, monkeypatch, "gfx942")
    with pytest.raises(CheckError, match="has device code for gfx942, and none for gfx1100"):
        perform_tests(one, TorchTests(), INPUTS)
    assert ran == []


def test_what_was_chosen_among_the_tests_is_told() -> None:
    assert TorchTests(shard=Shard(index=2, count=6), workers=4).replaced == []
    asked = TorchTests(
        include=("test_nn",),
        exclude=("test_torch",),
        tree=Path("/t"),
        pytest_arguments=("-x",),
        allow_version_mismatch=True,
        other_gpu=True,
        skips=(Path("/s.toml"),),
    )
    assert asked.selection == ["--include", "test_nn", "--exclude", "test_torch", "-x"]
    given = ["--pytorch-dir", "/t", "--allow-version-mismatch", "--other-gpu", "--skips", "/s.toml"]
    assert asked.replaced == given


def test_processes_have_caches_of_their_own_and_nothing_of_the_callers(
    run: Any, bench: Bench, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LD_LIBRARY_PATH", "/opt/rocm/lib")
    monkeypatch.setenv("GPU_DEVICE_ORDINAL", "1")
    monkeypatch.setenv("PYTHONDONTWRITEBYTECODE", "1")
    folder = tmp_path / "own"
    env = environment(bench, bench.assignments[0], folder)
    assert not {"LD_LIBRARY_PATH", "GPU_DEVICE_ORDINAL", "PYTHONDONTWRITEBYTECODE"} & set(env)
    assert env["PYTHONPYCACHEPREFIX"] == str(tmp_path / "bytecode"), "of all processes"
    for name in ("HOME", "TMPDIR", "TRITON_CACHE_DIR", "TORCHINDUCTOR_CACHE_DIR", "MIOPEN_CUSTOM_CACHE_DIR"):
        assert Path(env[name]).is_dir()
        assert Path(env[name]).is_relative_to(folder)
    assert env["PYTORCH_TESTING_DEVICE_ONLY_FOR"] == "cpu"
    assert env["PYTORCH_TEST_WITH_ROCM"] == "0"
    assert env["CUDA_VISIBLE_DEVICES"] == ""
    assert env["PYTHONPATH"].split(":")[0] == str(bench.tests.tree / "test")
    both = on_gpus(bench, run, monkeypatch, "gfx942")
    env = environment(both, both.assignments[0], folder)
    assert env["PYTORCH_TESTING_DEVICE_ONLY_FOR"] == "cuda"
    assert (env["PYTORCH_TEST_WITH_ROCM"], env["HIP_VISIBLE_DEVICES"]) == ("1", "0")


def test_long_logs_keep_their_beginning_and_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch_run, "_LOG_BYTES", 10)
    log = tmp_path / "log"
    log.write_bytes(b"0123456789")
    assert torch_run._shortened(log) == b"0123456789"
    log.write_bytes(b"01234-----56789")
    assert torch_run._shortened(log) == "01234\n… 5 bytes left out …\n56789".encode()


def test_the_plan_is_made_of_recorded_durations(bench: Bench, ran: list[Any]) -> None:
    common = bench.context.common
    seconds = {"test/test_autograd.py": 100, "test/test_nn.py": 50, "test/test_torch.py": 50}
    known = Durations(files={name: FileDuration(seconds=value) for name, value in seconds.items()})
    shards.record(common.open_store(), common.outputs, bench.context.artifact_group, "default", known)
    perform_tests(bench, TorchTests(shard=Shard(index=1, count=2)), INPUTS)
    assert [name for *_, name in ran] == ["test_autograd"]
