from __future__ import annotations

import shlex
from pathlib import Path
from typing import Any

from pytorch_build.verbs import test_torch
from pytorch_build.verbs.test_torch import Container, command, devices_here, inside, passed_on

ROOT = Path("/home/me/checkout")


def made(**changes: Any) -> Container:
    return Container(**{"engine": "docker", "root": ROOT, "user": (1000, 1001), **changes})


def test_devices_groups_and_memory_are_those_that_gpu_machines_pass_on() -> None:
    words = command(made(groups=(44, 110, 992)), ["--gpu-family", "gfx950-dcgpu"])
    assert words[:3] == ("docker", "run", "--rm")
    for word in ("--device=/dev/kfd", "--device=/dev/dri", "--ipc=host"):
        assert word in words
    assert [word for word in words if word.startswith("--group-add")] == [
        "--group-add=video",
        "--group-add=render",
        "--group-add=110",
        "--group-add=44",
        "--group-add=992",
    ]
    assert words[words.index("--workdir") + 2] == test_torch.IMAGE


def test_without_a_gpu_no_device_is_asked_for() -> None:
    words = command(made(devices=()), [])
    assert not [word for word in words if word.startswith(("--device", "--group-add"))]
    assert "--ipc=host" in words


def test_files_belong_to_the_person_and_podman_keeps_their_groups() -> None:
    words = command(made(), [])
    assert "--user=1000:1001" in words
    assert not [word for word in words if word.startswith("--userns")]
    kept = command(made(engine="podman"), [])
    assert {"--user=1000:1001", "--userns=keep-id", "--group-add=keep-groups"} <= set(kept)
    # the engine takes no other group beside these
    assert len([word for word in kept if word.startswith("--group-add")]) == 1
    assert "--userns=keep-id" not in command(made(engine="podman", user=(0, 0)), [])


def test_a_person_without_a_name_inside_has_a_home_and_caches_that_stay() -> None:
    words = command(made(), [])
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


def test_folders_have_the_same_paths_inside() -> None:
    words = command(made(folders=(Path("/data/wheels"), ROOT)), [])
    volumes = [words[at + 1] for at, word in enumerate(words) if word == "--volume"]
    assert volumes == [f"{ROOT}:{ROOT}", "/data/wheels:/data/wheels"]


def test_the_session_runs_again_inside_with_its_words() -> None:
    words = command(made(engine="podman"), ["-k", "a b; rm", "--shard", "2/6"], python="3.12")
    assert words[0] == "podman"
    assert words[-3:-1] == ("bash", "-euc")
    session = shlex.split(words[-1].rpartition("exec ")[2])
    assert session == [
        *("nox", "-s", "test_torch", "-P", "3.12", "--"),
        *("-k", "a b; rm", "--shard", "2/6"),
    ]
    assert "NOX_ENVDIR=/tmp/nox" in words[-1]
    assert "-P" not in command(made(), [])[-1]


def test_values_of_variables_stand_in_no_command_line() -> None:
    env = {
        "AWS_SECRET_ACCESS_KEY": "hush-hush",
        "HIP_VISIBLE_DEVICES": "1",
        "https_proxy": "http://proxy",
        "HOME": "/root",
        "LD_PRELOAD": "x",
        "PIP_INDEX_URL": "http://mirror",
        "GITHUB_RUN_ID": "17",
        # files of this machine, which are not there inside
        "GITHUB_STEP_SUMMARY": "/home/runner/summary",
        "RUNNER_TEMP": "/home/runner/temp",
        "AWS_WEB_IDENTITY_TOKEN_FILE": "/run/token",
        "AWS_CA_BUNDLE": "/etc/ca.pem",
        "PIP_CERT": "/etc/ca.pem",
        "PIP_CACHE_DIR": "/home/me/.cache/pip",
        "UV_CACHE_DIR": "/home/me/.cache/uv",
    }
    names = passed_on(env)
    assert names == (
        *("AWS_SECRET_ACCESS_KEY", "GITHUB_RUN_ID"),
        *("HIP_VISIBLE_DEVICES", "PIP_INDEX_URL", "https_proxy"),
    )
    words = command(made(variables=names), [])
    assert "hush-hush" not in " ".join(words)
    handed = [words[at + 1] for at, word in enumerate(words) if word == "--env"]
    assert [one for one in handed if "=" not in one] == list(names)


def test_what_is_about_this_machine_does_not_go_inside() -> None:
    words = ["--container", "--python=/x/bin/python", "--image", "mine", "-k", "nn", "--", "--image", "-x"]
    kept = inside(words, flags=("--container",), options=("--python", "--image"))
    assert kept == ("-k", "nn", "--", "--image", "-x")
    assert inside(["--python", "/x", "-v"], flags=(), options=("--python",)) == ("-v",)
