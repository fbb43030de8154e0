import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from core import process
from core.env import InstalledDistribution, engines
from core.run.records import FileRecord
from pytorch_build.test import container_run, file_run, gpus, torch_run, upstream_tests
from pytorch_build.test.container_run import Devices
from pytorch_build.test.file_run import FileResults
from pytorch_build.test.junit.document import Case
from pytorch_build.verbs import test_torch
from tests.kit.builds import LocalRun
from tests.kit.front_doors import FrontDoorResult
from tests.kit.repos import write_files
from tests.kit.windows import not_on_windows

Front = Callable[..., FrontDoorResult]

COMMIT = "1" * 40
SAMPLE = ("test-torch", "--torch-ref", "sample", "--gpu-family", "cpu")


def pass_file(file: Any, _settings: Any, *, name: str) -> FileResults:  # noqa: ARG001 - as file_run has it
    """Stand in for the run of a test file, whose one test passes."""
    case = Case(test=f"{file.file}::test_x", file=file.file, outcome="passed", seconds=1.0)
    return FileResults(file=file.file, cases=(case,), existing=frozenset({case.test}), seconds=1.0, logs=())


def installed(*names: str) -> list[InstalledDistribution]:
    """Return what an environment holds."""
    return [InstalledDistribution(name=name, version="1", extras=(), folder=Path()) for name in names]


@pytest.fixture
def steps(run: LocalRun, prepared: list[Any], monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> list[Any]:
    """Return what is installed and tested, in order; the environment holds a torch of the lock's commit."""
    torch = upstream_tests.InstalledTorch(version="2.10.0a0+cpu.sample", commit=COMMIT)
    tests = upstream_tests.UpstreamTests(tree=tmp_path, version="2.10.0a0", commit=COMMIT)
    monkeypatch.setattr(test_torch, "require", lambda _python: run.target())
    monkeypatch.setattr(test_torch, "perform_tests", lambda *arguments: prepared.append(arguments))
    monkeypatch.setattr(gpus, "detect_machine", gpus.Machine)
    monkeypatch.setattr(upstream_tests, "query_torch", lambda *_: torch)
    monkeypatch.setattr(upstream_tests, "installed", lambda _: installed("pytest", "pytest-timeout"))
    monkeypatch.setattr(upstream_tests, "check_out_tests", lambda *_: tests)
    return prepared


@pytest.fixture
def torch(run: LocalRun) -> FileRecord:
    """Put a torch into the run, with its lock and the page that lists it."""
    run.put_lock()
    file: FileRecord = run.built("torch", gpu_family="cpu")
    page = f'<a href="{file.name}#sha256={file.sha256}">{file.name}</a>'
    run.store.put_bytes("local-linux/python/cpu/index.html", page.encode())
    return file


@pytest.mark.usefixtures("torch")
def test_an_environment_without_the_tests_tools_is_refused(
    front: Front, steps: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(upstream_tests, "installed", lambda _: installed("pytest"))

    result = front(*SAMPLE, "--no-install")

    assert result.exit_code == 13
    assert "pytest-timeout" in result.report
    assert steps == []


def test_wheels_are_installed_by_digest_with_the_tests_tools(
    front: Front, steps: list[Any], torch: FileRecord
) -> None:
    result = front(*SAMPLE)

    (calls, _options), (_bench, _request, inputs) = steps
    tools, wheels = calls
    assert result.exit_code == 0, result.report
    assert "pytest==1 " in tools.files[0].read_text()
    assert tools.files[0].name == "torch-tests-linux-3.12.txt"
    assert f"--hash=sha256:{torch.sha256}" in wheels.files[0].read_text()
    assert inputs["files"] == {torch.name: torch.sha256}
    assert inputs["installed"] is True


@pytest.mark.usefixtures("torch")
def test_options_choose_among_the_tests(front: Front, steps: list[Any]) -> None:
    result = front(*SAMPLE, "--shard", "2/6", "-k", "nn and not x", "--test-timeout", "5")

    _installation, (bench, request, _inputs) = steps
    assert result.exit_code == 0, result.report
    assert str(request.shard) == "2/6"
    assert request.expression == "nn and not x"
    assert request.limits.test_seconds == 5
    assert request.limits.file_seconds > 5
    assert bench.tests.commit == COMMIT


@pytest.mark.usefixtures("torch")
def test_several_files_may_follow_an_option_as_upstream_has_it(front: Front, steps: list[Any]) -> None:
    options = (
        "--include",
        "test_nn",
        "test_torch",
        "--exclude",
        "test_cuda",
        "--include",
        "dynamo/test_misc",
    )

    result = front(*SAMPLE, *options, "-k", "relu")

    _installation, (_bench, request, _inputs) = steps
    assert result.exit_code == 0, result.report
    assert request.include == ("test_nn", "test_torch", "dynamo/test_misc")
    assert request.exclude == ("test_cuda",)
    assert request.pytest_arguments == ()


@pytest.mark.usefixtures("torch")
def test_unknown_options_and_all_behind_two_dashes_are_pytests(front: Front, steps: list[Any]) -> None:
    result = front(*SAMPLE, "-k", "nn", "--tb=short", "--", "-k", "mine")

    _installation, (_bench, request, _inputs) = steps
    assert result.exit_code == 0, result.report
    assert request.expression == "nn"
    assert request.pytest_arguments == ("--tb=short", "-k", "mine")


def test_a_filled_environment_is_tested_each_time(run: LocalRun, front: Front, steps: list[Any]) -> None:
    run.put_lock()

    result = front(*SAMPLE, "--no-install")

    ((bench, _request, inputs),) = steps
    assert result.exit_code == 0
    assert inputs == {"files": {}, "installed": False}
    assert bench.context.common.force


@pytest.mark.usefixtures("torch")
def test_an_environment_is_not_filled_for_what_was_tested_before(
    front: Front, steps: list[Any], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    write_files(tmp_path / "test", {"test_nn.py": ""})
    monkeypatch.setattr(file_run, "run_file", pass_file)
    monkeypatch.setattr(test_torch, "perform_tests", torch_run.perform_tests)

    first_result = front(*SAMPLE)
    assert first_result.exit_code == 0, first_result.report
    assert len(steps) == 1
    second_result = front(*SAMPLE)

    assert "unchanged" in second_result.report
    assert len(steps) == 1
    front(*SAMPLE, "--force")
    assert len(steps) == 2


@pytest.mark.parametrize(
    ("options", "exit_code", "name"),
    [
        pytest.param(("--shard", "7/6"), 2, "K/N", id="shard"),
        pytest.param(("--config", "inducter"), 2, "inducter", id="configuration"),
        pytest.param(("--workers", "0"), 2, "--workers 0", id="workers"),
        pytest.param(("--test-timeout", "-1"), 2, "--test-timeout -1", id="limit"),
        pytest.param(("--gpus", "both"), 2, "both", id="GPUs"),
        pytest.param((), 4, "Python 3.12", id="no wheels"),
        pytest.param(("--no-install",), 4, "source lock", id="no source lock"),
        pytest.param(("--no-install", "--pytorch-dir", "/nowhere"), 6, "/nowhere", id="no tree"),
    ],
)
def test_bad_input_is_refused_before_anything_is_installed(
    front: Front, steps: list[Any], options: tuple[str, ...], exit_code: int, name: str
) -> None:
    result = front(*SAMPLE, *options)

    assert result.exit_code == exit_code, result.report
    assert name in result.report
    assert steps == []


def test_the_options_configurations_are_those_of_the_data() -> None:
    assert set(test_torch.CONFIGS) == set(upstream_tests.load_configurations().configurations)


def test_a_family_without_its_gpu_is_refused_before_anything_is_installed(
    front: Front, steps: list[Any]
) -> None:
    result = front("test-torch", "--torch-ref", "nightly", "--gpu-family", "gfx950-dcgpu")

    assert result.exit_code == 9
    assert "GPU" in result.errors[0]
    assert steps == []


@pytest.mark.parametrize(
    ("options", "name"),
    [
        pytest.param((), "run local", id="wheels of a run"),
        pytest.param(("--no-install",), "environment", id="a filled environment"),
    ],
)
def test_a_dry_run_says_what_it_would_test(
    front: Front, steps: list[Any], options: tuple[str, ...], name: str
) -> None:
    result = front(*SAMPLE, "--dry-run", *options)

    assert result.exit_code == 0
    assert name in result.report
    assert steps == []


@pytest.mark.usefixtures("torch", "steps")
def test_takes_what_is_not_named_from_the_runs_wheels(front: Front) -> None:
    result = front("test-torch", "--dry-run")

    assert result.exit_code == 0
    assert "torch ref: sample" in result.report
    assert "GPU family: cpu" in result.report


@pytest.mark.usefixtures("torch", "steps")
def test_takes_the_defaults_for_wheels_of_another_source(front: Front, tmp_path: Path) -> None:
    result = front("test-torch", "--dry-run", "--gpu-family", "cpu", "--find-links", str(tmp_path))

    assert result.exit_code == 0
    assert "torch ref: nightly" in result.report


# In a container.


@pytest.fixture
def container_commands(monkeypatch: pytest.MonkeyPatch) -> list[list[str]]:
    """Return the command lines of containers, on a machine with one GPU and docker."""
    commands: list[list[str]] = []
    monkeypatch.setattr(engines, "find_engine", lambda *names, **_: names[0])
    monkeypatch.setattr(process, "run", lambda argv, **_: commands.append(argv))
    devices = Devices(paths=(Path("/dev/kfd"),), groups=(992,))
    monkeypatch.setattr(container_run, "find_devices", lambda: devices)
    return commands


@not_on_windows("containers with a GPU's devices run on Linux alone")
def test_a_container_runs_the_same_words(
    front: Front,
    steps: list[Any],
    container_commands: list[list[str]],
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    links = tmp_path_factory.mktemp("links")
    options = ("--container", "--image", "mine:1", "--find-links", f"{links}", f"--python={sys.executable}")

    result = front("test-torch", "--gpu-family", "gfx950-dcgpu", *options, "-k", "nn", "--", "--image", "-x")

    (command,) = container_commands
    inner_words = f"--gpu-family gfx950-dcgpu --find-links {links} -k nn -- --image -x"
    assert result.exit_code == 0, result.report
    # The machine's environments, in the same checkout, are made for its own libraries.
    assert command[-1].endswith(f"nox --envdir /tmp/nox -s test_torch -P 3.12 -- {inner_words}")
    assert "mine:1" in command
    assert f"type=bind,source={links},target={links}" in command
    assert steps == []


@not_on_windows("containers with a GPU's devices run on Linux alone")
def test_a_container_of_a_gpu_family_gets_the_devices(
    front: Front, container_commands: list[list[str]]
) -> None:
    front("test-torch", "--gpu-family", "gfx950-dcgpu", "--container")

    (command,) = container_commands
    assert command[0] == "docker"
    assert "--device=/dev/kfd" in command
    assert "--group-add=992" in command


def test_a_container_without_a_gpu_gets_no_device(front: Front, container_commands: list[list[str]]) -> None:
    front("test-torch", "--gpu-family", "cpu", "--container")

    (command,) = container_commands
    assert not [argument for argument in command if argument.startswith(("--device", "--group-add"))]


def test_a_container_gets_no_other_vendors_devices(front: Front, container_commands: list[list[str]]) -> None:
    result = front("test-torch", "--gpu-family", "gfx950-dcgpu", "--container", "--other-gpu")

    assert result.exit_code == 2
    assert "--other-gpu" in result.errors[0]
    assert container_commands == []
