import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from core import process
from core.env import Installed, engines
from pytorch_build.build.container import Job
from pytorch_build.test import gpus, upstream_tests
from pytorch_build.verbs import test_torch
from pytorch_build.verbs import test_torch as verb
from pytorch_build.verbs.test_torch import command, devices_here

Front = Callable[..., Any]

ONE = "1" * 40
SAMPLE = ("test-torch", "--torch-ref", "sample", "--gpu-family", "cpu")


def held(*names: str) -> list[Installed]:
    return [Installed(name=name, version="1", extras=(), folder=Path()) for name in names]


@pytest.fixture
def done(run: Any, prepared: list[Any], monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> list[Any]:
    """Keep what would be installed and run; the environment holds a torch of the lock's commit."""
    monkeypatch.setattr(verb, "require", lambda _python: run.target())
    monkeypatch.setattr(verb, "perform_tests", lambda *given: prepared.append(given))
    monkeypatch.setattr(gpus, "this_machine", gpus.Machine)
    torch = upstream_tests.Torch(version="2.10.0a0+cpu.sample", commit=ONE)
    monkeypatch.setattr(upstream_tests, "installed_torch", lambda *_: torch)
    monkeypatch.setattr(upstream_tests, "installed", lambda _: held("pytest", "pytest-timeout"))
    tests = upstream_tests.Tests(tree=tmp_path, version="2.10.0a0", commit=ONE)
    monkeypatch.setattr(upstream_tests, "checked_out", lambda *_: tests)
    return prepared


def test_an_environment_without_the_tests_tools_is_refused_at_once(
    run: Any, front: Front, done: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    put_torch(run)
    monkeypatch.setattr(upstream_tests, "installed", lambda _: held("pytest"))
    answer = front(*SAMPLE, "--no-install")
    assert answer.code == 13
    assert "lacks pytest-timeout, which the tests run with" in answer.said
    assert "lacks pytest-timeout, pytest-xdist" in front(*SAMPLE, "--no-install", "--workers", "2").said
    assert done == []


def put_torch(run: Any) -> Any:
    run.put_lock()
    file = run.built("torch", gpu_family="cpu")
    page = f'<a href="{file.name}#sha256={file.sha256}">{file.name}</a>'
    run.store.put_bytes("local-linux/python/cpu/index.html", page.encode())
    return file


def test_wheels_are_installed_by_digest_with_what_tests_need(run: Any, front: Front, done: list[Any]) -> None:
    file = put_torch(run)
    words = ("--shard", "2/6", "-k", "nn and not x", "--test-timeout", "5", "--tb=short", "--", "-k", "mine")
    answer = front(*SAMPLE, *words)
    assert answer.code == 0, answer.said
    (calls, _), (bench, asked, inputs) = done
    tools, ours = calls
    assert "pytest==1 " in (tools.files[0]).read_text()
    assert f"--hash=sha256:{file.sha256}" in ours.files[0].read_text()
    assert inputs["files"] == {file.name: file.sha256}
    assert inputs["installed"] is True
    assert (str(asked.shard), asked.expression) == ("2/6", "nn and not x")
    # what is not ours, and all behind a second --, is pytest's
    assert asked.pytest_arguments == ("--tb=short", "-k", "mine")
    assert asked.limits.test_seconds == 5
    assert asked.limits.file_seconds > 5
    assert bench.tests.commit == ONE


def test_what_is_installed_is_tested_each_time(run: Any, front: Front, done: list[Any]) -> None:
    run.put_lock()
    assert front(*SAMPLE, "--no-install").code == 0
    ((bench, _, inputs),) = done
    assert inputs == {"files": {}, "installed": False}
    assert bench.context.common.force


@pytest.mark.usefixtures("done")
@pytest.mark.parametrize(
    ("words", "code", "said"),
    [
        (("--shard", "7/6"), 2, "not K/N with K from 1 to N"),
        (("--config", "inducter"), 2, "invalid choice"),
        (("--workers", "0"), 2, "--workers 0"),
        (("--test-timeout", "-1"), 2, "--test-timeout -1 is not a limit"),
        (("--gpus", "both"), 2, "invalid choice"),
        ((), 4, "has no wheels of sample for cpu and Python 3.12"),
        (("--no-install",), 4, "has no source lock of sample"),
        (("--no-install", "--pytorch-dir", "/nowhere"), 6, "/nowhere does not exist"),
    ],
)
def test_bad_input_is_told_before_anything_is_installed(
    front: Front, words: tuple[str, ...], code: int, said: str, done: list[Any]
) -> None:
    answer = front(*SAMPLE, *words)
    assert said in answer.said
    assert answer.code == code, answer.said
    assert done == []


def test_the_options_configurations_are_those_of_the_data() -> None:
    assert set(verb.CONFIGS) == set(upstream_tests.load().configurations)


def test_a_family_without_a_gpu_is_told_before_gigabytes_are_fetched(front: Front, done: list[Any]) -> None:
    answer = front("test-torch", "--torch-ref", "nightly", "--gpu-family", "gfx950-dcgpu")
    assert answer.code == 9
    assert "no GPU driver is loaded" in answer.said
    assert done == []


def test_a_dry_run_says_what_it_would_test(front: Front, done: list[Any]) -> None:
    answer = front(*SAMPLE, "--dry-run")
    assert answer.code == 0
    assert "Would test the wheels of run local on no GPU." in answer.said
    assert "Would test what the environment holds" in front(*SAMPLE, "--dry-run", "--no-install").said
    assert done == []


def test_a_container_runs_the_same_words(
    front: Front, done: list[Any], monkeypatch: pytest.MonkeyPatch, tmp_path_factory: pytest.TempPathFactory
) -> None:
    ran: list[Any] = []
    wheels = tmp_path_factory.mktemp("wheels")
    monkeypatch.setattr(engines, "find_engine", lambda *names, **_: names[0])
    monkeypatch.setattr(process, "run", lambda argv, **_: ran.append(argv))
    monkeypatch.setattr(test_torch, "devices_here", lambda: ((Path("/dev/kfd"),), (992,)))
    words = ("--container", "--image", "mine:1", "--find-links", f"{wheels}", f"--python={sys.executable}")
    answer = front("test-torch", "--gpu-family", "gfx950-dcgpu", *words, "-k", "nn", "--", "--image", "-x")
    assert answer.code == 0, answer.said
    (argv,) = ran
    assert argv[0] == "docker"
    assert "mine:1" in argv
    assert {"--device=/dev/kfd", "--group-add=992"} <= set(argv)
    assert f"type=bind,source={wheels},target={wheels}" in argv
    inside = f"--gpu-family gfx950-dcgpu --find-links {wheels} -k nn -- --image -x"
    assert argv[-1].endswith(f"nox -s test_torch -P 3.12 -- {inside}")
    assert done == []
    front("test-torch", "--gpu-family", "cpu", "--container")
    assert not [word for word in ran[-1] if word.startswith(("--device", "--group-add"))]
    refused = front("test-torch", "--gpu-family", "gfx950-dcgpu", "--container", "--other-gpu")
    assert refused.code == 2
    assert "--container passes on AMD's devices" in refused.said
    assert len(ran) == 2


ROOT = Path("/home/me/checkout")


def job(*words: str, **changes: Any) -> Job:
    known = {"python": "", "root": ROOT, "user": (1000, 1001), "present": frozenset(), **changes}
    return Job(session="test_torch", words=words, **known)


def test_devices_groups_and_memory_are_those_that_gpu_machines_pass_on() -> None:
    words = command("docker", job("--gpu-family", "gfx950-dcgpu"), groups=(44, 110, 992))
    assert words[:3] == ("docker", "run", "--rm")
    for word in ("--device=/dev/kfd", "--device=/dev/dri", "--ipc=host"):
        assert word in words
    groups = [word.partition("=")[2] for word in words if word.startswith("--group-add")]
    assert groups == ["video", "render", "110", "44", "992"]
    assert words[words.index("bash") - 1] == verb.IMAGE


def test_files_belong_to_the_user_and_podman_keeps_their_groups() -> None:
    words = command("docker", job(), devices=())
    assert {"1000:1001", "--ipc=host"} <= set(words)
    assert not [word for word in words if word.startswith(("--userns", "--device", "--group-add"))]
    kept = command("podman", job())
    assert {"1000:1001", "keep-id", "--group-add=keep-groups"} <= set(kept)
    # the engine takes no other group beside these
    assert len([word for word in kept if word.startswith("--group-add")]) == 1
    assert "keep-id" not in command("podman", job(user=(0, 0)))


def test_a_user_without_a_name_inside_has_a_home_and_folders_that_stay() -> None:
    words = command("docker", job())
    said = dict(words[at + 1].split("=") for at, word in enumerate(words) if word == "--env")
    assert said == {
        "HOME": "/tmp/home",  # noqa: S108 - the container's own
        "USER": "tests",
        "PIP_CACHE_DIR": f"{ROOT}/.cache/container/pip",
        "UV_CACHE_DIR": f"{ROOT}/.cache/container/uv",
    }
    assert "mkdir -p /tmp/home" in words[-1]


def test_only_devices_that_are_there_are_handed_on(tmp_path: Path) -> None:
    kfd, dri = tmp_path / "kfd", tmp_path / "dri"
    assert devices_here((kfd, dri)) == ((), ())
    kfd.touch()
    dri.mkdir()
    (dri / "renderD128").touch()
    (dri / "by-path").mkdir()
    assert devices_here((kfd, dri)) == ((kfd, dri), (kfd.stat().st_gid,))


def test_values_of_variables_stand_in_no_command_line() -> None:
    env = {
        "AWS_SECRET_ACCESS_KEY": "hush-hush",
        "HIP_VISIBLE_DEVICES": "1",
        "https_proxy": "http://proxy",
        "HOME": "/root",
        "LD_PRELOAD": "x",
        "PIP_INDEX_URL": "http://mirror",
        "GITHUB_RUN_ID": "17",
        # files of this machine, which do not exist inside
        "GITHUB_STEP_SUMMARY": "/home/runner/summary",
        "RUNNER_TEMP": "/home/runner/temp",
        "AWS_WEB_IDENTITY_TOKEN_FILE": "/run/token",
        "AWS_CA_BUNDLE": "/etc/ca.pem",
        "PIP_CERT": "/etc/ca.pem",
        "PIP_CACHE_DIR": "/home/me/.cache/pip",
        "UV_CACHE_DIR": "/home/me/.cache/uv",
    }
    words = command("docker", job(present=frozenset(env)))
    assert "hush-hush" not in " ".join(words)
    handed = [words[at + 1] for at, word in enumerate(words) if word == "--env"]
    assert [one for one in handed if "=" not in one] == [
        *("AWS_SECRET_ACCESS_KEY", "GITHUB_RUN_ID"),
        *("HIP_VISIBLE_DEVICES", "PIP_INDEX_URL", "https_proxy"),
    ]
