from __future__ import annotations

import shlex
from pathlib import Path
from typing import Any

from pytorch_build.testing import container
from pytorch_build.testing.container import Container, command, inside, passed_on

ROOT = Path("/home/me/checkout")


def made(**changes: Any) -> Container:
    return Container(**{"engine": "docker", "root": ROOT, **changes})


def test_devices_groups_and_memory_are_those_that_gpu_machines_pass_on() -> None:
    words = command(made(), ["--gpu-family", "gfx950-dcgpu"])
    assert words[:3] == ("docker", "run", "--rm")
    for word in ("--device=/dev/kfd", "--device=/dev/dri", "--ipc=host"):
        assert word in words
    assert [word for word in words if word.startswith("--group-add")] == [
        "--group-add=video",
        "--group-add=render",
        "--group-add=110",
    ]
    assert words[words.index("--workdir") + 2] == container.IMAGE


def test_without_a_gpu_no_device_is_asked_for() -> None:
    words = command(made(gpu=False), [])
    assert not [word for word in words if word.startswith(("--device", "--group-add"))]


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
    }
    names = passed_on(env)
    assert names == ("AWS_SECRET_ACCESS_KEY", "HIP_VISIBLE_DEVICES", "https_proxy")
    words = command(made(variables=names), [])
    assert "hush-hush" not in " ".join(words)
    assert [words[at + 1] for at, word in enumerate(words) if word == "--env"] == list(names)


def test_what_is_about_this_machine_does_not_go_inside() -> None:
    words = ["--container", "--python=/x/bin/python", "--image", "mine", "-k", "nn", "--", "--image", "-x"]
    kept = inside(words, flags=("--container",), options=("--python", "--image"))
    assert kept == ("-k", "nn", "--", "--image", "-x")
    assert inside(["--python", "/x", "-v"], flags=(), options=("--python",)) == ("-v",)
