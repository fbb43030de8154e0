from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest

from core.errors import CheckError, SourceError, UsageError
from core.run import records
from core.run.records import Record
from pytorch_build.test import file_run, gpus, shards
from pytorch_build.test.file_run import FileResults
from pytorch_build.test.gpus import Assignment, Gpu, Machine, assign_gpus, assignment_without_gpu
from pytorch_build.test.junit.document import Case
from pytorch_build.test.junit.reader import read_junit_file
from pytorch_build.test.shards import Durations, FileDuration, Shard
from pytorch_build.test.torch_run import (
    Bench,
    TorchTestRequest,
    find_recorded_torch,
    perform_tests,
    process_environment,
)
from pytorch_build.test.upstream_tests import InstalledTorch, LimitsTable, UpstreamTests
from tests.kit.builds import LocalRun
from tests.kit.repos import write_files

COMMIT = "1" * 40
TWO_GPUS = Machine(
    gpus=(Gpu(target="gfx942", uuid="GPU-1"), Gpu(target="gfx1100", uuid="GPU-2")), vendor="amd"
)
INPUTS = {"files": {"torch.whl": "ab" * 32}, "installed": True, "prebuilt": [], "source": ""}
RECORD = "test_torch-sample-cp312"
LIMITS = LimitsTable(test_seconds=5, file_seconds=50, restarts=1, log_megabytes=1)
SKIP_RULE = '[rules.moon]\ntests = ["test/test_nn.py::test_x"]\nreason = "It fails on a full moon."\n'


@dataclass
class FileRunner:
    """Stands in for `file_run.run_file`: every file has one test, with the outcome that `outcomes` names."""

    outcomes: dict[str, Any] = field(default_factory=dict)
    log: bytes | None = None
    names: list[str] = field(default_factory=list)
    variables: list[Mapping[str, str]] = field(default_factory=list)

    def __call__(self, file: Any, settings: Any, *, name: str) -> FileResults:
        """Run a test file."""
        self.names.append(name)
        self.variables.append(settings.env)

        log = settings.logs / f"{name}.log"
        log.parent.mkdir(parents=True, exist_ok=True)
        log.write_bytes(self.log or f"log of {name}\n".encode())

        outcome = self.outcomes.get(file.module, "passed")
        case = Case(test=f"{file.file}::test_x", file=file.file, outcome=outcome, line="why", seconds=1.0)
        existing = frozenset({case.test})
        return FileResults(file=file.file, cases=(case,), existing=existing, seconds=2.0, logs=(log,))


@pytest.fixture
def runner(monkeypatch: pytest.MonkeyPatch) -> FileRunner:
    file_runner = FileRunner()
    monkeypatch.setattr(file_run, "run_file", file_runner)
    return file_runner


@pytest.fixture
def bench(run: LocalRun, tmp_path: Path) -> Bench:
    """Return a torch without ROCm, beside a tree with three test files."""
    tree = tmp_path / "tree"
    write_files(tree / "test", dict.fromkeys(("test_autograd.py", "test_nn.py", "test_torch.py"), ""))
    return Bench(
        context=run.context("cpu"),
        target=run.target(),
        tests=UpstreamTests(tree=tree, version="2.10.0a0", commit=COMMIT),
        torch=InstalledTorch(version="2.10.0a0+cpu.sample", commit=COMMIT),
        assignments=[assignment_without_gpu()],
    )


def read_record(bench: Bench, name: str = RECORD) -> Record | None:
    """Return a record of the bench's run; None where there is none."""
    common = bench.context.common
    return records.read(common.open_store(), common.outputs, bench.context.artifact_group, name)


def require_record(bench: Bench, name: str = RECORD) -> Record:
    """Return a record that must be there."""
    record = read_record(bench, name)
    assert record is not None
    return record


def test_records_the_tested_files_and_totals(bench: Bench, runner: FileRunner) -> None:
    perform_tests(bench, TorchTestRequest(), INPUTS)

    record = require_record(bench)
    assert runner.names == ["test_autograd", "test_nn", "test_torch"]
    assert record.inputs["files"] == INPUTS["files"]
    assert record.inputs["arguments"] == []
    assert record.inputs["tests"]["commit"] == COMMIT
    assert record.details["tests"] == {
        "tests": 3,
        "existing": 3,
        "failures": 0,
        "errors": 0,
        "skipped": 0,
        "unexplained": 0,
    }


@pytest.mark.usefixtures("runner")
def test_files_the_report_and_each_files_log(run: LocalRun, bench: Bench) -> None:
    perform_tests(bench, TorchTestRequest(), INPUTS)

    report = require_record(bench).details["report"]
    document = read_junit_file(run.root / "out" / report["key"])
    assert run.store.digest(report["key"]) == report["sha256"]
    assert document.properties["config"] == "default"
    assert run.store.read(f"local-linux/logs/cpu/{RECORD}/test_nn.log") == b"log of test_nn\n"


def test_files_the_beginning_and_the_end_of_a_long_log(
    run: LocalRun, bench: Bench, runner: FileRunner
) -> None:
    runner.log = b"the beginning" + bytes(9 << 20) + b"the end"

    perform_tests(bench, TorchTestRequest(include=("test_nn",)), INPUTS)

    log = run.store.read(f"local-linux/logs/cpu/{RECORD}/test_nn.log")
    assert log.startswith(b"the beginning")
    assert log.endswith(b"the end")
    assert len(log) < 9 << 20


@pytest.mark.usefixtures("runner")
def test_records_a_choice_among_the_tests_as_incomplete(
    bench: Bench, capsys: pytest.CaptureFixture[str]
) -> None:
    perform_tests(bench, TorchTestRequest(include=("test_nn",), expression="not slow"), INPUTS)

    record = require_record(bench)
    assert record.inputs["arguments"] == []
    assert record.inputs["selection"] == ["--include", "test_nn", "-k", "not slow"]
    assert "2 of 3" in record.details["left_out"]
    assert "2 of 3" in capsys.readouterr().err


@dataclass
class RecordedTest:
    """A test as it is called: the request, the bench and the inputs of the installation."""

    bench: Bench
    request: TorchTestRequest
    inputs: dict[str, Any]
    rules: Path

    def perform(self) -> None:
        """Run it, unless its record says that it was done."""
        perform_tests(self.bench, self.request, self.inputs)

    def change_request(self, **changes: Any) -> None:
        """Ask for something else."""
        self.request = replace(self.request, **changes)

    def change_tests(self, **changes: Any) -> None:
        """Take other tests."""
        self.bench = replace(self.bench, tests=replace(self.bench.tests, **changes))

    def change_configuration(self) -> None:
        """Ask for the tests of the compiler."""
        write_files(self.bench.tests.tree / "test", {"inductor/test_torchinductor.py": ""})
        self.change_request(config="inductor", shard=Shard())

    def change_gpu(self, target: str) -> None:
        """Put another GPU in the machine; no rule of the project distinguishes it."""
        self.bench = replace(self.bench, assignments=[assignment(target)])

    def change_durations(self) -> None:
        """Learn that one file takes as long as all others, which moves files between shards."""
        common = self.bench.context.common
        seconds = {"test/test_autograd.py": 1000, "test/test_nn.py": 1, "test/test_torch.py": 1}
        durations = Durations(files={name: FileDuration(seconds=value) for name, value in seconds.items()})
        group = self.bench.context.artifact_group
        shards.record_durations(common.open_store(), common.outputs, group, self.request.config, durations)


def assignment(target: str) -> Assignment:
    """Return one GPU of a machine."""
    return Assignment(target=target, devices=(), env={})


@pytest.fixture
def recorded_test(bench: Bench, runner: FileRunner, tmp_path: Path) -> RecordedTest:
    """Return the second half of a test on a GPU, which has passed and been recorded."""
    rules = tmp_path / "mine.toml"
    rules.write_text(SKIP_RULE)
    test = RecordedTest(
        bench=replace(bench, assignments=[assignment("sm_90")]),
        request=TorchTestRequest(
            shard=Shard(index=2, count=2), skips=(rules,), tree=bench.tests.tree, allow_version_mismatch=True
        ),
        inputs=dict(INPUTS),
        rules=rules,
    )
    test.perform()
    runner.names.clear()
    return test


@pytest.mark.parametrize(
    "change",
    [
        pytest.param(lambda test: test.inputs.update(files={"torch.whl": "cd" * 32}), id="wheels"),
        pytest.param(lambda test: test.inputs.update(installed=False), id="who installed them"),
        pytest.param(lambda test: test.inputs.update(prebuilt=["torch==2.10.0"]), id="prebuilt projects"),
        pytest.param(lambda test: test.inputs.update(source="/links"), id="source of the wheels"),
        pytest.param(RecordedTest.change_configuration, id="configuration"),
        pytest.param(lambda test: test.change_request(tree=None), id="origin of the tests"),
        pytest.param(lambda test: test.change_request(allow_version_mismatch=False), id="mismatch allowed"),
        pytest.param(lambda test: test.change_request(other_gpu=True), id="other GPUs allowed"),
        pytest.param(lambda test: test.change_request(skips=()), id="files of rules"),
        pytest.param(lambda test: test.change_request(exclude=("test_torch",)), id="left out files"),
        pytest.param(lambda test: test.change_request(expression="nn"), id="expression"),
        pytest.param(lambda test: test.change_request(pytest_arguments=("-x",)), id="arguments of pytest"),
        pytest.param(lambda test: test.change_request(shard=Shard(index=1, count=2)), id="shard"),
        pytest.param(lambda test: test.change_tests(commit="2" * 40), id="commit of the tests"),
        pytest.param(lambda test: test.change_tests(version="2.10.1"), id="version of the tests"),
        pytest.param(
            lambda test: test.rules.write_text(SKIP_RULE.replace("test_x", "test_y")), id="test of a rule"
        ),
        pytest.param(
            lambda test: test.rules.write_text(f'{SKIP_RULE}action = "xfail"\n'), id="action of a rule"
        ),
        pytest.param(
            lambda test: test.rules.write_text(f'{SKIP_RULE}os = ["windows"]\n'), id="rule that ends"
        ),
        pytest.param(lambda test: test.change_gpu("sm_100"), id="GPU"),
        pytest.param(RecordedTest.change_durations, id="plan of the shards"),
    ],
)
def test_tests_again_when_one_input_changes(
    recorded_test: RecordedTest, runner: FileRunner, change: Any
) -> None:
    change(recorded_test)

    recorded_test.perform()

    assert runner.names


@pytest.mark.parametrize(
    "change",
    [
        pytest.param(lambda _test: None, id="nothing"),
        pytest.param(lambda test: test.change_request(workers=4), id="workers"),
        pytest.param(lambda test: test.change_request(limits=LIMITS), id="limits of time"),
        pytest.param(lambda test: test.change_request(mirrors={"https://invalid/": "/m/"}), id="mirrors"),
        pytest.param(
            lambda test: test.rules.write_text(
                SKIP_RULE + SKIP_RULE.replace("moon", "sun") + 'os = ["windows"]\n'
            ),
            id="rule that does not apply",
        ),
        pytest.param(
            lambda test: test.rules.write_text(f"# mine\n{SKIP_RULE}"), id="comment among the rules"
        ),
    ],
)
def test_does_nothing_when_no_input_changes(
    recorded_test: RecordedTest, runner: FileRunner, capsys: pytest.CaptureFixture[str], change: Any
) -> None:
    change(recorded_test)

    recorded_test.perform()

    assert runner.names == []
    assert "unchanged" in capsys.readouterr().err


def test_remembers_the_torch_of_the_packages_that_were_tested(recorded_test: RecordedTest) -> None:
    bench = recorded_test.bench

    def find_torch(
        inputs: Mapping[str, Any], request: TorchTestRequest = recorded_test.request
    ) -> InstalledTorch | None:
        return find_recorded_torch(bench.context, bench.target, request, inputs)

    assert find_torch(recorded_test.inputs) == bench.torch
    assert find_torch({**INPUTS, "files": {"torch.whl": "cd" * 32}}) is None
    assert find_torch(recorded_test.inputs, TorchTestRequest()) is None


def test_tests_again_when_rules_of_the_second_gpu_change(
    recorded_test: RecordedTest, runner: FileRunner
) -> None:
    two_gpus = [assignment("gfx942"), assignment("gfx1100")]
    recorded_test.bench = replace(recorded_test.bench, assignments=two_gpus)
    recorded_test.perform()
    runner.names.clear()

    rule_of_a_gpu = SKIP_RULE.replace("moon", "sun") + 'gpu = ["gfx1100"]\n'
    recorded_test.rules.write_text(SKIP_RULE + rule_of_a_gpu)
    recorded_test.perform()

    assert runner.names


@pytest.mark.parametrize("report", [None, b"<testsuites/>"], ids=["gone", "replaced"])
def test_tests_again_without_the_recorded_report(
    recorded_test: RecordedTest, runner: FileRunner, run: LocalRun, report: bytes | None
) -> None:
    key = require_record(recorded_test.bench, "test_torch-2-of-2-sample-cp312").details["report"]["key"]
    if report is None:
        run.store.delete(key)
    else:
        run.store.put_bytes(key, report)

    recorded_test.perform()

    assert runner.names


def test_tests_again_when_forced(recorded_test: RecordedTest, runner: FileRunner) -> None:
    context = recorded_test.bench.context
    forced = replace(context, common=replace(context.common, force=True))
    recorded_test.bench = replace(recorded_test.bench, context=forced)

    recorded_test.perform()

    assert runner.names


def test_tests_again_after_a_failure(bench: Bench, runner: FileRunner) -> None:
    runner.outcomes["test_nn"] = "failed"
    with pytest.raises(CheckError):
        perform_tests(bench, TorchTestRequest(), INPUTS)
    runner.names.clear()
    runner.outcomes.clear()

    perform_tests(bench, TorchTestRequest(), INPUTS)

    assert runner.names == ["test_autograd", "test_nn", "test_torch"]


def test_names_the_failed_test_and_how_to_repeat_it(bench: Bench, runner: FileRunner) -> None:
    runner.outcomes["test_nn"] = "crashed"

    with pytest.raises(CheckError) as caught:
        perform_tests(bench, TorchTestRequest(), INPUTS)

    assert "test/test_nn.py::test_x crashed" in caught.value.message
    assert "--include test_nn -k test_x" in caught.value.hint


def test_keeps_report_and_logs_of_a_failure(run: LocalRun, bench: Bench, runner: FileRunner) -> None:
    runner.outcomes["test_nn"] = "crashed"

    with pytest.raises(CheckError):
        perform_tests(bench, TorchTestRequest(), INPUTS)

    failed_record = require_record(bench, f"{RECORD}.failed")
    assert read_record(bench) is None
    assert failed_record.exit_code == CheckError.exit_code
    # The stage's own log has those of the files that failed.
    assert run.store.read(failed_record.log) == b"log of test_nn\n"
    assert run.store.find("local-linux/reports/cpu/torch-sample-cp312.xml")
    assert run.store.find(f"local-linux/logs/cpu/{RECORD}/test_nn.log")


def test_shards_share_the_files_and_have_their_own_records(bench: Bench, runner: FileRunner) -> None:
    for index in (1, 2):
        perform_tests(bench, TorchTestRequest(shard=Shard(index=index, count=2)), INPUTS)

    first, second = (require_record(bench, f"test_torch-{index}-of-2-sample-cp312") for index in (1, 2))
    assert sorted(runner.names) == ["test_autograd", "test_nn", "test_torch"]
    assert first.inputs["shard"] == "1/2"
    assert second.inputs["shard"] == "2/2"
    assert first.inputs["plan"] == second.inputs["plan"]
    assert read_record(bench) is None


def test_plans_shards_by_recorded_durations(bench: Bench, runner: FileRunner) -> None:
    common = bench.context.common
    seconds = {"test/test_autograd.py": 100, "test/test_nn.py": 50, "test/test_torch.py": 50}
    durations = Durations(files={name: FileDuration(seconds=value) for name, value in seconds.items()})
    shards.record_durations(
        common.open_store(), common.outputs, bench.context.artifact_group, "default", durations
    )

    perform_tests(bench, TorchTestRequest(shard=Shard(index=1, count=2)), INPUTS)

    assert runner.names == ["test_autograd"]


@pytest.fixture
def own_bench(bench: Bench) -> Bench:
    """Return a bench whose tree has one test file, of which no configuration knows."""
    folder = bench.tests.tree / "test"
    for path in folder.iterdir():
        path.unlink()
    (folder / "test_mine.py").touch()
    return bench


def test_refuses_to_run_no_test_file(own_bench: Bench) -> None:
    with pytest.raises(UsageError) as caught:
        perform_tests(own_bench, TorchTestRequest(), INPUTS)

    assert "--include" in caught.value.hint


def test_runs_a_named_file_that_no_configuration_knows(own_bench: Bench, runner: FileRunner) -> None:
    perform_tests(own_bench, TorchTestRequest(include=("test_mine",)), INPUTS)

    assert runner.names == ["test_mine"]
    assert "configuration" in require_record(own_bench).details["left_out"]


def test_refuses_tests_of_another_torch(bench: Bench, runner: FileRunner) -> None:
    other_torch = replace(bench, torch=bench.torch.model_copy(update={"commit": "2" * 40}))

    with pytest.raises(SourceError) as caught:
        perform_tests(other_torch, TorchTestRequest(), INPUTS)

    assert "222222222222" in caught.value.message
    assert runner.names == []


def test_runs_tests_of_another_torch_when_allowed(bench: Bench, runner: FileRunner) -> None:
    other_torch = replace(bench, torch=bench.torch.model_copy(update={"commit": "2" * 40}))

    perform_tests(other_torch, TorchTestRequest(allow_version_mismatch=True), INPUTS)

    assert len(runner.names) == 3


def gpu_bench(
    bench: Bench, run: LocalRun, monkeypatch: pytest.MonkeyPatch, *, targets: tuple[str, ...]
) -> Bench:
    """Return a bench on a machine with two GPUs, and a torch with device code for targets."""
    monkeypatch.setattr(gpus, "detect_machine", lambda: TWO_GPUS)
    context = run.context("gfx94X-dcgpu;gfx110X-all")
    torch = InstalledTorch(version="2.10.0a0+rocm", commit=COMMIT, hip="7.1", targets=targets)
    (bench.tests.tree / "test" / "test_cuda.py").touch()
    return replace(bench, context=context, torch=torch, assignments=assign_gpus(context, {}))


def test_runs_every_file_on_each_architecture(
    run: LocalRun, bench: Bench, runner: FileRunner, monkeypatch: pytest.MonkeyPatch
) -> None:
    two_gpus = gpu_bench(bench, run, monkeypatch, targets=("gfx942:sramecc+", "gfx1100"))

    perform_tests(two_gpus, TorchTestRequest(), INPUTS)

    files = ("test_autograd", "test_cuda", "test_nn", "test_torch")
    assert runner.names == [f"{file}@{target}" for target in ("gfx942", "gfx1100") for file in files]
    assert {variables["HIP_VISIBLE_DEVICES"] for variables in runner.variables} == {"0", "1"}


@pytest.mark.usefixtures("runner")
def test_reports_the_tests_of_each_architecture(
    run: LocalRun, bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    two_gpus = gpu_bench(bench, run, monkeypatch, targets=("gfx942", "gfx1100"))

    perform_tests(two_gpus, TorchTestRequest(), INPUTS)

    report = require_record(two_gpus).details["report"]
    document = read_junit_file(run.root / "out" / report["key"])
    assert "test/test_nn.py@gfx942::test_x" in {case.test for case in document.cases}
    assert len(document.cases) == 8


def test_refuses_a_gpu_without_device_code(
    run: LocalRun, bench: Bench, runner: FileRunner, monkeypatch: pytest.MonkeyPatch
) -> None:
    two_gpus = gpu_bench(bench, run, monkeypatch, targets=("gfx942",))

    with pytest.raises(CheckError) as caught:
        perform_tests(two_gpus, TorchTestRequest(), INPUTS)

    assert "none for gfx1100" in caught.value.message
    assert runner.names == []


def test_a_request_without_a_choice_replaces_nothing() -> None:
    request = TorchTestRequest(shard=Shard(index=2, count=6), workers=4)

    assert request.replacing_options == []
    assert request.selecting_options == []


def test_a_request_tells_what_it_chose_and_replaced() -> None:
    request = TorchTestRequest(
        include=("test_nn",),
        exclude=("test_torch",),
        tree=Path("/t"),
        pytest_arguments=("-x",),
        allow_version_mismatch=True,
        other_gpu=True,
        skips=(Path("/s.toml"),),
    )

    assert request.selecting_options == ["--include", "test_nn", "--exclude", "test_torch", "-x"]
    assert request.replacing_options == [
        *("--pytorch-dir", "/t"),
        *("--allow-version-mismatch", "--other-gpu"),
        *("--skips", "/s.toml"),
    ]


def test_processes_get_nothing_of_the_callers_environment(
    bench: Bench, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("LD_LIBRARY_PATH", "GPU_DEVICE_ORDINAL", "PYTHONDONTWRITEBYTECODE"):
        monkeypatch.setenv(name, "1")

    variables = process_environment(bench, bench.assignments[0], tmp_path / "own")

    assert "LD_LIBRARY_PATH" not in variables
    assert "GPU_DEVICE_ORDINAL" not in variables
    assert "PYTHONDONTWRITEBYTECODE" not in variables
    assert variables["PYTHONPATH"].split(":")[0] == str(bench.tests.tree / "test")


def test_processes_share_byte_code_alone(bench: Bench, tmp_path: Path) -> None:
    folder = tmp_path / "own"

    variables = process_environment(bench, bench.assignments[0], folder)

    assert variables["PYTHONPYCACHEPREFIX"] == str(tmp_path / "bytecode")
    for name in ("HOME", "TMPDIR", "TRITON_CACHE_DIR", "TORCHINDUCTOR_CACHE_DIR", "MIOPEN_CUSTOM_CACHE_DIR"):
        assert Path(variables[name]).is_dir()
        assert Path(variables[name]).is_relative_to(folder)


def test_processes_without_a_gpu_test_the_processor(bench: Bench, tmp_path: Path) -> None:
    variables = process_environment(bench, bench.assignments[0], tmp_path / "own")

    assert variables["PYTORCH_TESTING_DEVICE_ONLY_FOR"] == "cpu"
    assert variables["PYTORCH_TEST_WITH_ROCM"] == "0"
    assert variables["CUDA_VISIBLE_DEVICES"] == ""


def test_processes_see_their_gpu_alone(
    run: LocalRun, bench: Bench, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    two_gpus = gpu_bench(bench, run, monkeypatch, targets=("gfx942",))

    variables = process_environment(two_gpus, two_gpus.assignments[0], tmp_path / "own")

    assert variables["PYTORCH_TESTING_DEVICE_ONLY_FOR"] == "cuda"
    assert variables["PYTORCH_TEST_WITH_ROCM"] == "1"
    assert variables["HIP_VISIBLE_DEVICES"] == "0"
