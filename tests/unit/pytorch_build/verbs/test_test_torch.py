import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from core import process
from core.env import InstalledDistribution, engines
from core.run.records import FileRecord
from pytorch_build.build.container import ContainerSession
from pytorch_build.test import gpus, upstream_tests
from pytorch_build.verbs import test_torch
from pytorch_build.verbs.test_torch import command, devices_here
from tests.kit.builds import LocalRun
from tests.kit.front_doors import FrontDoorResult

Front = Callable[..., FrontDoorResult]

COMMIT = "1" * 40
SAMPLE = ("test-torch", "--torch-ref", "sample", "--gpu-family", "cpu")


def installed(*names: str) -> list[InstalledDistribution]:
    """Return what an environment holds."""
    return [InstalledDistribution(name=name, version="1", extras=(), folder=Path()) for name in names]


@pytest.fixture
def steps(run: LocalRun, prepared: list[Any], monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> list[Any]:
    """Return what is installed and tested, in order; the environment holds a torch of the lock's commit."""
    torch = upstream_tests.Torch(version="2.10.0a0+cpu.sample", commit=COMMIT)
    tests = upstream_tests.Tests(tree=tmp_path, version="2.10.0a0", commit=COMMIT)
    monkeypatch.setattr(test_torch, "require", lambda _python: run.target())
    monkeypatch.setattr(test_torch, "perform_tests", lambda *arguments: prepared.append(arguments))
    monkeypatch.setattr(gpus, "this_machine", gpus.Machine)
    monkeypatch.setattr(upstream_tests, "installed_torch", lambda *_: torch)
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
@pytest.mark.parametrize(
    ("options", "tools"),
    [
        pytest.param((), ["pytest-timeout"], id="one at a time"),
        pytest.param(("--workers", "2"), ["pytest-timeout", "pytest-xdist"], id="several workers"),
    ],
)
def test_an_environment_without_the_tests_tools_is_refused(
    front: Front,
    steps: list[Any],
    monkeypatch: pytest.MonkeyPatch,
    options: tuple[str, ...],
    tools: list[str],
) -> None:
    monkeypatch.setattr(upstream_tests, "installed", lambda _: installed("pytest"))

    result = front(*SAMPLE, "--no-install", *options)

    assert result.exit_code == 13
    assert ", ".join(tools) in result.report
    assert steps == []


def test_wheels_are_installed_by_digest_with_the_tests_tools(
    front: Front, steps: list[Any], torch: FileRecord
) -> None:
    result = front(*SAMPLE)

    (calls, _options), (_bench, _request, inputs) = steps
    tools, ours = calls
    assert result.exit_code == 0, result.report
    assert "pytest==1 " in tools.files[0].read_text()
    assert tools.files[0].name == "torch-tests-linux-3.12.txt"
    assert f"--hash=sha256:{torch.sha256}" in ours.files[0].read_text()
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
    words = ("--include", "test_nn", "test_torch", "--exclude", "test_cuda", "--include", "dynamo/test_misc")

    result = front(*SAMPLE, *words, "-k", "relu")

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
    assert set(test_torch.CONFIGS) == set(upstream_tests.load().configurations)


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


# In a container.


@pytest.fixture
def container_commands(monkeypatch: pytest.MonkeyPatch) -> list[list[str]]:
    """Return the command lines of containers, on a machine with one GPU and docker."""
    commands: list[list[str]] = []
    monkeypatch.setattr(engines, "find_engine", lambda *names, **_: names[0])
    monkeypatch.setattr(process, "run", lambda argv, **_: commands.append(argv))
    monkeypatch.setattr(test_torch, "devices_here", lambda: ((Path("/dev/kfd"),), (992,)))
    return commands


def test_a_container_runs_the_same_words(
    front: Front,
    steps: list[Any],
    container_commands: list[list[str]],
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    links = tmp_path_factory.mktemp("links")
    options = ("--container", "--image", "mine:1", "--find-links", f"{links}", f"--python={sys.executable}")

    result = front("test-torch", "--gpu-family", "gfx950-dcgpu", *options, "-k", "nn", "--", "--image", "-x")

    (words,) = container_commands
    inner_words = f"--gpu-family gfx950-dcgpu --find-links {links} -k nn -- --image -x"
    assert result.exit_code == 0, result.report
    # The machine's environments, in the same checkout, are made for its own libraries.
    assert words[-1].endswith(f"nox --envdir /tmp/nox -s test_torch -P 3.12 -- {inner_words}")
    assert "mine:1" in words
    assert f"type=bind,source={links},target={links}" in words
    assert steps == []


def test_a_container_of_a_gpu_family_gets_the_devices(
    front: Front, container_commands: list[list[str]]
) -> None:
    front("test-torch", "--gpu-family", "gfx950-dcgpu", "--container")

    (words,) = container_commands
    assert words[0] == "docker"
    assert "--device=/dev/kfd" in words
    assert "--group-add=992" in words


def test_a_container_without_a_gpu_gets_no_device(front: Front, container_commands: list[list[str]]) -> None:
    front("test-torch", "--gpu-family", "cpu", "--container")

    (words,) = container_commands
    assert not [word for word in words if word.startswith(("--device", "--group-add"))]


def test_a_container_gets_no_other_vendors_devices(front: Front, container_commands: list[list[str]]) -> None:
    result = front("test-torch", "--gpu-family", "gfx950-dcgpu", "--container", "--other-gpu")

    assert result.exit_code == 2
    assert "--other-gpu" in result.errors[0]
    assert container_commands == []


ROOT = Path("/home/me/checkout")


def job(
    *words: str, user: tuple[int, int] = (1000, 1001), present: frozenset[str] = frozenset()
) -> ContainerSession:
    """Return a job of a user, in whose environment variables are set."""
    return ContainerSession(
        name="test_torch", arguments=words, python="", root=ROOT, user=user, present=present
    )


def option_values(words: tuple[str, ...], option: str) -> list[str]:
    """Return the words behind an option."""
    return [words[index + 1] for index, word in enumerate(words) if word == option]


def test_a_container_gets_devices_groups_and_memory_as_on_gpu_machines() -> None:
    words = command("docker", job("--gpu-family", "gfx950-dcgpu"), groups=(44, 110, 992))

    groups = [word.partition("=")[2] for word in words if word.startswith("--group-add")]
    assert words[:3] == ("docker", "run", "--rm")
    assert {"--device=/dev/kfd", "--device=/dev/dri", "--ipc=host"} <= set(words)
    assert groups == ["video", "render", "110", "44", "992"]
    assert words[words.index("bash") - 1] == test_torch.IMAGE


def test_files_of_a_container_belong_to_the_user() -> None:
    words = command("docker", job(), devices=())

    assert "1000:1001" in words
    assert not [word for word in words if word.startswith(("--userns", "--device", "--group-add"))]


def test_podman_keeps_the_users_groups() -> None:
    words = command("podman", job())

    # The engine takes no other group beside these.
    assert [word for word in words if word.startswith("--group-add")] == ["--group-add=keep-groups"]
    assert "1000:1001" in words
    assert "keep-id" in words


def test_podman_maps_no_user_for_root() -> None:
    assert "keep-id" not in command("podman", job(user=(0, 0)))


def test_a_user_whom_the_image_does_not_know_has_a_home_and_caches_that_stay() -> None:
    words = command("docker", job())

    home = "/tmp/home"  # noqa: S108 - the container's own
    assert dict(value.split("=") for value in option_values(words, "--env")) == {
        "HOME": home,
        "USER": "tests",
        "PIP_CACHE_DIR": f"{ROOT}/.cache/container/pip",
        "UV_CACHE_DIR": f"{ROOT}/.cache/container/uv",
    }
    assert f"mkdir -p {home}" in words[-1]


def test_absent_devices_are_not_passed_on(tmp_path: Path) -> None:
    assert devices_here((tmp_path / "kfd", tmp_path / "dri")) == ((), ())


def test_present_devices_are_passed_on_with_their_groups(tmp_path: Path) -> None:
    kfd = tmp_path / "kfd"
    dri = tmp_path / "dri"
    kfd.touch()
    dri.mkdir()
    (dri / "renderD128").touch()
    (dri / "by-path").mkdir()

    assert devices_here((kfd, dri)) == ((kfd, dri), (kfd.stat().st_gid,))


PASSED_VARIABLES = frozenset(
    {"AWS_SECRET_ACCESS_KEY", "HIP_VISIBLE_DEVICES", "https_proxy", "PIP_INDEX_URL", "GITHUB_RUN_ID"}
)
# Of this machine: its users, and files that do not exist inside.
LOCAL_VARIABLES = frozenset(
    {
        *("HOME", "LD_PRELOAD", "GITHUB_STEP_SUMMARY", "RUNNER_TEMP", "AWS_WEB_IDENTITY_TOKEN_FILE"),
        *("AWS_CA_BUNDLE", "PIP_CERT", "PIP_CACHE_DIR", "UV_CACHE_DIR"),
    }
)


def test_variables_are_passed_on_by_name_alone() -> None:
    words = command("docker", job(present=PASSED_VARIABLES | LOCAL_VARIABLES))

    # A value would be readable in the list of processes.
    names = [value for value in option_values(words, "--env") if "=" not in value]
    assert names == sorted(PASSED_VARIABLES)
