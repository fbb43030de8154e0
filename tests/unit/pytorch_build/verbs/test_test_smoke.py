import json
import shutil
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest

from core import files
from core.env import installer
from core.errors import CheckError, MissingInputError
from core.packages.options import SourceOptions
from core.run import records
from core.run.records import FileRecord, Record
from pytorch_build.context import Context, find_context
from pytorch_build.test import gpus, installation, smoke_run, tested_packages
from pytorch_build.test.record import read_details, read_inputs
from pytorch_build.test.record_validity import why_incomplete
from pytorch_build.verbs import test_smoke
from pytorch_build.verbs.test_smoke import SmokeOptions, perform_smoke_tests
from tests.kit import wheels
from tests.kit.builds import LocalRun
from tests.kit.machines import Answer, Call, VirtualEnvironment, answer_processes, put_distribution

FAMILY = "gfx94X-dcgpu"
ROCM_VERSION = "7.99.0.dev0+sample"
TORCH_VERSION = "2.10.0a0+cpu.sample"
RECORD = "test_smoke-sample-cp312"

PASSES = "def test_passes():\n    assert True\n"
DIES = "import os\ndef test_dies():\n    os._exit(3)\n"
SKIPS = "import pytest\ndef test_skips():\n    pytest.skip('torch sees no GPU in this machine')\n"

# What uv answers when it resolves what other people's packages are installed.
RESOLVED_VISION = """\
lock-version = "1.0"
created-by = "uv"
[[packages]]
name = "torchvision"
version = "0.25.0"
wheels = [{ url = "https://invalid/torchvision-0.25.0-py3-none-any.whl", hashes = { sha256 = "%s" } }]
""" % ("b" * 64)


@pytest.fixture(autouse=True)
def _machine_without_gpu(prepared: list[Any], monkeypatch: pytest.MonkeyPatch) -> None:
    assert prepared == []
    monkeypatch.setattr(gpus, "detect_machine", gpus.Machine)
    monkeypatch.setattr(tested_packages, "detect", lambda: ())


@pytest.fixture
def smoke_tests(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return a folder of smoke tests with one test, in the place of the project's."""
    folder = tmp_path / "smoke"
    folder.mkdir()
    (folder / "pytest.ini").write_text("[pytest]\naddopts = -ra\n")
    (folder / "test_it.py").write_text(PASSES)
    monkeypatch.setattr(smoke_run, "SMOKE_TESTS", folder)
    return folder


def publish_torch(run: LocalRun, *, content: str = "") -> FileRecord:
    """Put a torch without ROCm into the run, with its record and the page that lists it."""
    path = wheels.write_wheel(
        run.root / "made",
        name="torch",
        version=TORCH_VERSION,
        tag="cp312-cp312-linux_x86_64",
        files={"torch.py": content},
    )
    file: FileRecord = run.publish(path, group="cpu")
    cell: dict[str, Any] = {"torch_ref": "sample", "gpu_family": "cpu", "python": "cp312"}
    run.record("build_torch", file, group="cpu", inputs={"rocm": None}, **cell)
    put_page(run, file, group="cpu")
    return file


def put_page(run: LocalRun, *files: FileRecord, group: str) -> None:
    """Write the run's package index."""
    lines = [f'<a href="{file.name}#sha256={file.sha256}">{file.name}</a>' for file in files]
    run.store.put_bytes(f"local-linux/python/{group}/index.html", "\n".join(lines).encode())


@pytest.fixture
def torch(run: LocalRun) -> FileRecord:
    run.put_lock()
    return publish_torch(run)


def read_record(run: LocalRun, name: str = RECORD, *, group: str = "cpu") -> Record | None:
    """Return a record of the local run; None where there is none."""
    return records.read(run.store, run.common().outputs, group, name)


def require_record(run: LocalRun, name: str = RECORD, *, group: str = "cpu") -> Record:
    """Return a record that must be there."""
    record = read_record(run, name, group=group)
    assert record is not None
    return record


# With a pytest that answers without a process: one test, which passes.


@dataclass
class Machine:
    """A machine with uv, and an environment with pytest; `outcomes` are those of the smoke tests."""

    environment: VirtualEnvironment
    outcomes: dict[str, str] = field(default_factory=lambda: {"test_it.py::test_passes": "passed"})
    message: str = ""
    calls: list[Call] = field(default_factory=list)

    @property
    def test_calls(self) -> list[Call]:
        """Return the calls that ran tests."""
        return [call for call in self.calls if "pytest" in call.words and "--collect-only" not in call.words]

    def run(self, call: Call) -> Answer:
        """Answer for a program."""
        if "pytest" in call.words:
            return self.run_pytest(call)
        if call.words[1:3] == ("pip", "compile"):
            return Answer(stdout=RESOLVED_VISION)
        return self.environment.run(call)

    def run_pytest(self, call: Call) -> Answer:
        """Answer for pytest with the project's plugin, which writes its events down."""
        tests = list(self.outcomes)
        events: list[dict[str, object]] = [
            {"kind": "collected", "tests": tests, "deselected": [], "rules": {}}
        ]
        if "--collect-only" not in call.words:
            for test, outcome in self.outcomes.items():
                events.append({"kind": "started", "test": test})
                events.append({"kind": "ended", "test": test, "outcome": outcome, "message": self.message})
        has_failed = "failed" in self.outcomes.values()

        settings = json.loads(Path(call.option("--wheel-tests")).read_text())
        lines = [json.dumps({"time": 1.0, **event}) + "\n" for event in events]
        Path(settings["events"], "1.jsonl").write_text("".join(lines))
        return Answer(status=int(has_failed))


@pytest.fixture
def machine(run: LocalRun, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Machine:
    """Return a machine on which pytest and uv answer without processes."""
    machine = Machine(environment=VirtualEnvironment(folder=tmp_path / "env"))
    machine.calls = answer_processes(monkeypatch, machine.run)

    interpreter = run.target(executable=machine.environment.python)
    monkeypatch.setattr(test_smoke, "require", lambda _python: interpreter)
    return machine


@dataclass
class RecordedTest:
    """Smoke tests as they are called: what is tested, and how."""

    run: LocalRun
    context: Context
    options: SmokeOptions
    smoke_tests: Path
    monkeypatch: pytest.MonkeyPatch

    def perform(self) -> None:
        """Test, unless the record says that it was done."""
        perform_smoke_tests(self.context, self.options)

    def change_options(self, **changes: Any) -> None:
        """Ask for something else."""
        self.options = replace(self.options, **changes)

    def change_rocm(self, **changes: Any) -> None:
        """Ask for another way to install."""
        self.options = replace(self.options, rocm=replace(self.options.rocm, **changes))

    def change_gpu(self, target: str) -> None:
        """Put another GPU into the machine."""
        machine = machine_with(target, vendor="nvidia")
        self.monkeypatch.setattr(gpus, "detect_machine", lambda: machine)

    def rebuild_torch(self, *, content: str = "# other bytes") -> None:
        """Build a torch of the same name; a context reads the records of its run once."""
        publish_torch(self.run, content=content)
        self.context = self.run.context("cpu")

    def add_prebuilt_project(self) -> None:
        """Let the torch ref take its vision from elsewhere, and its environment have it."""
        put_distribution(self.run.target().purelib, "torchvision", "0.25.0")
        ref = self.context.ref
        vision = replace(ref.projects["vision"], prebuilt="torchvision==0.25.0")
        self.context = replace(self.context, ref=replace(ref, projects={**ref.projects, "vision": vision}))

    def name_a_source(self) -> None:
        """Take the same wheel from a folder."""
        (wheel,) = (self.run.root / "made").glob("torch-*.whl")
        folder = self.run.root / "links"
        folder.mkdir()
        shutil.copy(wheel, folder)
        self.change_options(source=SourceOptions(find_links=(str(folder),)))

    def stage_wheels(self) -> None:
        """Take the same wheel from staging."""
        lock = self.run.lock()
        self.run.put_lock(self.run.lock(projects={"torch": lock.projects["torch"]}))
        self.change_options(source=self.run.stage())

    def update_tools(self) -> None:
        """Lock another version of pytest."""
        lock = self.run.root / "requirements" / "target-linux-3.12.txt"
        lock.write_text(lock.read_text().replace("pytest==1", "pytest==2"))

    def update_python(self) -> None:
        """Take the next patch of Python."""
        interpreter = self.run.target("3.12.99")
        self.monkeypatch.setattr(test_smoke, "require", lambda _python: interpreter)

    def write_test(self, name: str, content: str) -> None:
        """Change a file of the smoke tests."""
        (self.smoke_tests / name).write_text(content)


@pytest.fixture
def recorded_test(
    run: LocalRun, machine: Machine, smoke_tests: Path, torch: FileRecord, monkeypatch: pytest.MonkeyPatch
) -> RecordedTest:
    """Return smoke tests on a GPU, which have passed and been recorded."""
    assert torch.distribution == "torch"
    test = RecordedTest(
        run=run,
        context=run.context("cpu"),
        options=SmokeOptions(other_gpu=True),
        smoke_tests=smoke_tests,
        monkeypatch=monkeypatch,
    )
    test.change_gpu("sm_90")
    test.perform()
    assert len(machine.test_calls) == 1
    machine.calls.clear()
    return test


@pytest.mark.parametrize(
    "change",
    [
        pytest.param(RecordedTest.rebuild_torch, id="wheels"),
        pytest.param(RecordedTest.add_prebuilt_project, id="prebuilt projects"),
        pytest.param(RecordedTest.name_a_source, id="source of the wheels"),
        pytest.param(RecordedTest.stage_wheels, id="wheels in staging"),
        pytest.param(lambda test: test.write_test("test_it.py", f"# new\n{PASSES}"), id="smoke test"),
        pytest.param(lambda test: test.write_test("test_new.py", PASSES), id="number of smoke tests"),
        pytest.param(lambda test: test.write_test("pytest.ini", "[pytest]\n"), id="settings of pytest"),
        pytest.param(lambda test: test.write_test("reasons.toml", ""), id="reasons to skip"),
        pytest.param(lambda test: test.change_options(pytest_arguments=("-x",)), id="arguments of pytest"),
        pytest.param(lambda test: test.change_gpu("sm_100"), id="GPU"),
        pytest.param(lambda test: test.change_options(other_gpu=False), id="no GPU"),
        pytest.param(lambda test: test.change_options(install=False), id="who installed them"),
        pytest.param(RecordedTest.update_tools, id="lock of the tests' tools"),
        pytest.param(RecordedTest.update_python, id="patch of Python"),
    ],
)
def test_tests_again_when_one_input_changes(
    recorded_test: RecordedTest, machine: Machine, change: Any
) -> None:
    change(recorded_test)

    recorded_test.perform()

    assert len(machine.test_calls) == 1


@pytest.mark.parametrize(
    "change",
    [
        pytest.param(lambda _test: None, id="nothing"),
        pytest.param(lambda test: test.change_options(allow_no_gpu=True), id="permission to lack a GPU"),
        pytest.param(
            lambda test: test.change_rocm(pip_cache_dir=Path("/cache")), id="cache of the installer"
        ),
        pytest.param(lambda test: test.rebuild_torch(content=""), id="the same wheels built again"),
    ],
)
def test_does_nothing_when_no_input_changes(
    recorded_test: RecordedTest, machine: Machine, capsys: pytest.CaptureFixture[str], change: Any
) -> None:
    change(recorded_test)

    recorded_test.perform()

    assert machine.test_calls == []
    assert "unchanged" in capsys.readouterr().err


def test_tests_again_what_a_record_of_before_says_less_of(
    recorded_test: RecordedTest, machine: Machine, run: LocalRun
) -> None:
    record = require_record(run)
    for name in ("python", "tools"):
        del record.inputs[name]
    older_record = record.model_copy(update={"input_digest": files.digest_of(record.inputs)})
    records.write(run.store, run.common().outputs, "cpu", older_record)

    recorded_test.perform()

    assert read_inputs(older_record).tested_files
    assert len(machine.test_calls) == 1


@pytest.mark.parametrize("report", [None, b"<testsuites/>"], ids=["gone", "replaced"])
def test_tests_again_without_the_recorded_report(
    recorded_test: RecordedTest, machine: Machine, run: LocalRun, report: bytes | None
) -> None:
    key = require_record(run).details["report"]["key"]
    if report is None:
        run.store.delete(key)
    else:
        run.store.put_bytes(key, report)

    recorded_test.perform()

    assert len(machine.test_calls) == 1


def test_tests_a_filled_environment_each_time(recorded_test: RecordedTest, machine: Machine) -> None:
    recorded_test.change_options(install=False)

    recorded_test.perform()
    recorded_test.perform()

    assert len(machine.test_calls) == 2


def test_a_filled_environment_stands_for_no_installation(
    recorded_test: RecordedTest, machine: Machine
) -> None:
    recorded_test.change_options(install=False)
    recorded_test.perform()
    machine.calls.clear()

    recorded_test.change_options(install=True)
    recorded_test.perform()

    assert len(machine.test_calls) == 1


def test_tests_again_what_passed_before_a_failure(
    recorded_test: RecordedTest, machine: Machine, run: LocalRun
) -> None:
    recorded_test.write_test("test_it.py", "# it fails")
    machine.outcomes = {"test_it.py::test_passes": "failed"}
    with pytest.raises(CheckError):
        recorded_test.perform()

    # The failure's report is in the place of the one that the success's record names.
    recorded_test.write_test("test_it.py", PASSES)
    machine.outcomes = {"test_it.py::test_passes": "passed"}
    recorded_test.perform()

    report = require_record(run).details["report"]
    assert len(machine.test_calls) == 2
    assert run.store.digest(report["key"]) == report["sha256"]


def test_tests_again_what_was_incomplete(recorded_test: RecordedTest, machine: Machine) -> None:
    recorded_test.rebuild_torch()
    machine.outcomes["test_it.py::test_skips"] = "skipped"
    machine.message = "for no known reason"
    recorded_test.perform()

    recorded_test.perform()

    assert len(machine.test_calls) == 2


@pytest.mark.usefixtures("smoke_tests", "torch")
@pytest.mark.parametrize("outcome", ["failed", "skipped"])
def test_files_the_report_of_what_did_not_pass(run: LocalRun, machine: Machine, outcome: str) -> None:
    machine.outcomes = {"test_it.py::test_it": outcome}

    with pytest.raises(CheckError):
        perform_smoke_tests(run.context("cpu"), SmokeOptions())

    failed_record = require_record(run, f"{RECORD}.failed")
    assert read_record(run) is None
    assert failed_record.exit_code == CheckError.exit_code
    # Comparisons of runs read what failed from records alone.
    assert ("failing" in failed_record.details) == (outcome == "failed")
    assert run.store.find("local-linux/reports/cpu/smoke-sample-cp312.xml")


def test_refuses_wheels_that_do_not_fit_together(
    recorded_test: RecordedTest, machine: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    conflict = "The package `torch` requires `triton==3.6.0`, but it's not installed"
    monkeypatch.setattr(installer, "missing_dependencies", lambda _target: (conflict,))
    recorded_test.rebuild_torch()

    with pytest.raises(CheckError, match=r"triton==3\.6\.0"):
        recorded_test.perform()

    assert machine.test_calls == []


def machine_with(*targets: str, vendor: Any) -> gpus.Machine:
    """Return a machine with GPUs of one vendor."""
    return gpus.Machine(
        gpus=tuple(gpus.Gpu(target=target, uuid="GPU-1") for target in targets), vendor=vendor
    )


@pytest.mark.parametrize(
    ("hardware", "family", "other_gpu", "variables"),
    [
        pytest.param(gpus.Machine(), "cpu", False, {"SMOKE_GPU": None}, id="no GPU"),
        pytest.param(
            machine_with("sm_90", vendor="nvidia"), "cpu", False, {"SMOKE_GPU": None}, id="GPU of no family"
        ),
        pytest.param(
            machine_with("sm_90", vendor="nvidia"),
            "cpu",
            True,
            {"SMOKE_GPU": "sm_90", "CUDA_VISIBLE_DEVICES": "GPU-1"},
            id="other GPU asked for",
        ),
        pytest.param(
            machine_with("gfx942", "gfx942", vendor="amd"),
            FAMILY,
            False,
            {"SMOKE_GPU": "gfx942", "HIP_VISIBLE_DEVICES": "0"},
            id="two GPUs of the family",
        ),
    ],
)
@pytest.mark.usefixtures("smoke_tests")
def test_tells_the_tests_which_gpu_torch_must_see(
    run: LocalRun,
    machine: Machine,
    monkeypatch: pytest.MonkeyPatch,
    hardware: gpus.Machine,
    family: str,
    variables: Mapping[str, str | None],
    *,
    other_gpu: bool,
) -> None:
    nightly = run.context(family, ref="nightly")
    nothing_prebuilt = replace(nightly, ref=replace(nightly.ref, projects={}))
    monkeypatch.setattr(gpus, "detect_machine", lambda: hardware)
    run.put_lock(run.lock(torch_ref="nightly"))
    run.built("torch", gpu_family=family, ref="nightly")

    perform_smoke_tests(nothing_prebuilt, SmokeOptions(other_gpu=other_gpu, install=False))

    (call,) = machine.test_calls
    assert {name: call.variables.get(name) for name in variables} == variables


@pytest.mark.usefixtures("smoke_tests")
def test_tells_the_tests_which_versions_are_installed(
    run: LocalRun, machine: Machine, torch: FileRecord
) -> None:
    perform_smoke_tests(run.context("cpu"), SmokeOptions())

    (call,) = machine.test_calls
    assert json.loads(call.variables["SMOKE_EXPECT"]) == {"torch": torch.version}
    assert json.loads(call.variables["SMOKE_MODULES"]) == {"torch": [torch.version]}


@pytest.mark.usefixtures("smoke_tests")
def test_triton_may_state_its_public_version_alone(
    recorded_test: RecordedTest, run: LocalRun, machine: Machine
) -> None:
    triton = run.built("triton", gpu_family="cpu")
    put_page(run, triton, group="cpu")
    recorded_test.context = run.context("cpu")

    recorded_test.perform()

    (call,) = machine.test_calls
    public_version = triton.version.partition("+")[0]
    assert json.loads(call.variables["SMOKE_MODULES"])["triton"] == [triton.version, public_version]


@pytest.mark.usefixtures("smoke_tests", "torch")
def test_miniatures_alone_are_excused_for_what_they_lack(run: LocalRun, machine: Machine) -> None:
    sample = run.context("cpu")
    run.put_lock(run.lock(torch_ref="nightly"))
    run.built("torch", gpu_family="cpu", ref="nightly")
    nightly = run.context("cpu", ref="nightly")
    nothing_prebuilt = replace(nightly, ref=replace(nightly.ref, projects={}))

    perform_smoke_tests(sample, SmokeOptions(install=False))
    perform_smoke_tests(nothing_prebuilt, SmokeOptions(install=False))

    miniature, full_size = [call.variables.get("SMOKE_MINIATURE") for call in machine.test_calls]
    assert miniature
    assert not full_size


@pytest.mark.usefixtures("machine")
def test_refuses_a_gpu_familys_wheels_without_a_gpu(run: LocalRun) -> None:
    with pytest.raises(CheckError) as caught:
        perform_smoke_tests(run.context("gfx110X-all", ref="nightly"), SmokeOptions())

    assert "--allow-no-gpu" in caught.value.hint


@pytest.mark.usefixtures("machine")
def test_needs_wheels_next_when_a_gpu_may_be_absent(run: LocalRun) -> None:
    run.put_lock(run.lock(torch_ref="nightly"))

    with pytest.raises(MissingInputError, match="nightly"):
        perform_smoke_tests(run.context("gfx110X-all", ref="nightly"), SmokeOptions(allow_no_gpu=True))


@pytest.mark.usefixtures("machine", "smoke_tests")
def test_requires_the_page_of_a_run_that_others_read(run: LocalRun) -> None:
    run.put_lock(run_id="77")
    run.built("torch", gpu_family="cpu", run_id="77")

    with pytest.raises(MissingInputError) as caught:
        perform_smoke_tests(run.context("cpu", run_id="77"), SmokeOptions())

    assert "404" in caught.value.message


@pytest.mark.usefixtures("machine", "smoke_tests")
def test_refuses_a_page_that_lists_other_bytes(run: LocalRun) -> None:
    run.put_lock(run_id="77")
    torch = run.built("torch", gpu_family="cpu", run_id="77")
    page = f'<a href="{torch.name}#sha256={"0" * 64}">{torch.name}</a>'
    run.store.put_bytes("77-linux/python/cpu/index.html", page.encode())

    with pytest.raises(MissingInputError) as caught:
        perform_smoke_tests(run.context("cpu", run_id="77"), SmokeOptions())

    assert torch.name in caught.value.message
    assert "nox -s index" in caught.value.hint


def test_each_family_of_a_group_has_its_record_and_report(
    run: LocalRun, machine: Machine, smoke_tests: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert smoke_tests.is_dir()
    group = "gfx942-gfx1100"
    publish_two_families(run, group=group)
    monkeypatch.setattr(installation, "require_device_code", lambda *_: None)

    for family in ("gfx942", "gfx1100"):
        family_context = find_context(run.common(gpu_family=family), group=group)
        perform_smoke_tests(family_context, SmokeOptions(allow_no_gpu=True))

        tested_files = require_record(run, f"{RECORD}-{family}", group=group).inputs["files"]
        device_files = {name.split("-")[0] for name in tested_files if "_device_" in name}
        assert device_files == {f"rocm_sdk_device_{family}", f"amd_torch_device_{family}"}
        assert run.store.find(f"local-linux/reports/{group}/smoke-sample-cp312-{family}.xml")

    assert len(machine.test_calls) == 2


def publish_two_families(run: LocalRun, *, group: str) -> None:
    """Put split packages of ROCm and torch for two families into one group of the run."""
    run.put_lock()
    torch = run.built("torch", gpu_family=group)

    versions = dict.fromkeys(("rocm-sdk-core", "rocm-sdk-libraries", "rocm-sdk-devel"), ROCM_VERSION)
    for family in ("gfx942", "gfx1100"):
        versions[f"rocm-sdk-device-{family}"] = ROCM_VERSION
        versions[f"amd-torch-device-{family}"] = torch.version
    paths = [run.wheel(name, version) for name, version in versions.items()]
    files = [run.publish(path, group=group) for path in paths]

    cell: dict[str, Any] = {"torch_ref": "sample", "python": "cp312", "gpu_family": "gfx942;gfx1100"}
    run.record("build_torch", torch, *files, group=group, **cell)
    put_page(run, torch, *files, group=group)


# With the pytest of this interpreter, in processes.


@pytest.fixture
def target(run: LocalRun, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Return this interpreter, as if the wheels were in its environment."""
    interpreter = run.target(executable=Path(sys.executable))
    monkeypatch.setattr(test_smoke, "require", lambda _python: interpreter)
    return interpreter


@pytest.mark.processes
@pytest.mark.usefixtures("target", "torch")
def test_records_passed_and_skipped_tests(run: LocalRun, smoke_tests: Path) -> None:
    (smoke_tests / "test_more.py").write_text(SKIPS)

    perform_smoke_tests(run.context("cpu"), SmokeOptions())

    record = require_record(run)
    report = record.details["report"]
    assert record.details["tests"] == {
        "tests": 2,
        "existing": 2,
        "skipped": 1,
        "failures": 0,
        "errors": 0,
        "unexplained": 0,
    }
    assert report["key"] == "local-linux/reports/cpu/smoke-sample-cp312.xml"
    assert run.store.digest(report["key"]) == report["sha256"]


@pytest.mark.processes
@pytest.mark.usefixtures("target", "torch")
@pytest.mark.parametrize(
    ("content", "arguments", "failing"),
    [
        pytest.param(DIES, (), ["test_it.py::test_dies"], id="crash"),
        pytest.param(PASSES, ("-k", "nothing"), [], id="nothing chosen"),
        pytest.param(PASSES, ("--setup-only",), [], marks=pytest.mark.nightly, id="set-up only"),
        pytest.param(PASSES, ("--co",), [], marks=pytest.mark.nightly, id="collection only"),
        pytest.param(PASSES, ("--no-such-option",), [], marks=pytest.mark.nightly, id="unknown option"),
    ],
)
def test_records_as_failed_what_did_not_pass(
    run: LocalRun, smoke_tests: Path, content: str, arguments: tuple[str, ...], failing: list[str]
) -> None:
    (smoke_tests / "test_it.py").write_text(content)

    with pytest.raises(CheckError):
        perform_smoke_tests(run.context("cpu"), SmokeOptions(pytest_arguments=arguments))

    failed_record = require_record(run, f"{RECORD}.failed")
    assert read_record(run) is None
    assert failed_record.exit_code == CheckError.exit_code
    # Comparisons of runs read what failed from records alone.
    assert failed_record.details.get("failing", []) == failing


# A plugin of the user's that skips all tests but the first.
LAZY_PLUGIN = """
import pytest
def pytest_collection_modifyitems(items):
    for test in items[1:]:
        test.add_marker(pytest.mark.skip(reason="too slow"))
"""
THREE_TESTS = f"{PASSES}def test_second(): pass\ndef test_third(): pass\n"


@pytest.mark.processes
@pytest.mark.usefixtures("target", "torch")
@pytest.mark.parametrize(
    ("argument", "reason"),
    [
        pytest.param("-kpasses", "1 of 3", marks=pytest.mark.nightly, id="an expression"),
        pytest.param("-plazy", "2 of 3", id="a plugin"),
    ],
)
def test_records_a_part_of_the_tests_as_incomplete(
    run: LocalRun, smoke_tests: Path, argument: str, reason: str
) -> None:
    (smoke_tests / "test_it.py").write_text(THREE_TESTS)
    (smoke_tests / "lazy.py").write_text(LAZY_PLUGIN)
    arguments = (argument, f"-opythonpath={smoke_tests}")

    perform_smoke_tests(run.context("cpu"), SmokeOptions(pytest_arguments=arguments))

    assert reason in why_incomplete(read_details(require_record(run)))


@pytest.mark.processes
@pytest.mark.usefixtures("target", "torch")
def test_a_file_that_cannot_be_collected_leaves_the_total_unknown(run: LocalRun, smoke_tests: Path) -> None:
    torn = smoke_tests / "test_torn.py"
    torn.write_text(f"import nowhere\n{PASSES}")

    perform_smoke_tests(run.context("cpu"), SmokeOptions(pytest_arguments=(f"--ignore={torn}",)))

    assert "existing" not in require_record(run).details["tests"]
