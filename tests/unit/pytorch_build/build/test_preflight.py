from __future__ import annotations

from dataclasses import replace
from pathlib import PurePosixPath, PureWindowsPath
from typing import Any

import pytest

from core.errors import EnvironmentSetupError, UsageError
from pytorch_build.build.machine import MachineFacts, Problem, check, require

LINUX = MachineFacts(
    platform="linux",
    python=PurePosixPath("/env/bin/python"),
    python_headers=True,
    tree=PurePosixPath("/src/torch"),
    compiler="/usr/bin/g++",
    cmake="3.31.0",
    ninja="1.12.1",
    disk_gib=200,
    memory_gib=64,
    cores=16,
)
WINDOWS = replace(
    LINUX, platform="windows", python=PureWindowsPath("C:/Python312/python.exe"), ninja="1.13.1"
)
PROJECTS = ("triton", "torch", "audio", "vision", "apex")


@pytest.mark.parametrize("project", PROJECTS)
def test_a_good_machine_has_no_problems(project: str) -> None:
    assert check(project, LINUX) == ()
    assert check(project, WINDOWS) == ()
    assert check(project, replace(LINUX, cmake="", ninja="")) == (), "requirements bring both"


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"compiler": ""}, "no C++ compiler"),
        ({"cmake": "3.16.3"}, "cmake 3.16.3"),
        ({"ninja": "1.7"}, "ninja 1.7"),
        ({"disk_gib": 10.5}, "10.5 GiB free"),
        ({"memory_gib": 3.9}, "there are 3.9 GiB"),
        ({"python_headers": False}, "no Python.h"),
    ],
)
def test_what_fails_a_build_on_linux(changes: dict[str, Any], message: str) -> None:
    (problem,) = check("torch", replace(LINUX, **changes))
    assert message in problem.message
    assert problem.hint.endswith(".") or "CXX" in problem.hint


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"compiler": ""}, "no C++ compiler"),
        ({"ninja": "1.7"}, "ninja 1.7"),
        ({"ninja": "1.11.1.git.kitware.jobserver-1"}, ""),
        ({"python": PureWindowsPath("C:/Program Files/Python312/python.exe")}, "has a space"),
        ({"long_paths": False}, "260 characters"),
    ],
)
def test_what_fails_a_build_on_windows(changes: dict[str, Any], message: str) -> None:
    problems = check("vision", replace(WINDOWS, **changes))
    assert [message in problem.message for problem in problems] == ([True] if message else [])


def test_windows_rules_are_windows() -> None:
    spaced = replace(LINUX, python=PurePosixPath("/my env/bin/python"), long_paths=False, ninja="1.11.1")
    assert check("torch", spaced) == ()


@pytest.mark.parametrize("project", PROJECTS)
def test_the_sample_takes_little(project: str) -> None:
    small = replace(LINUX, disk_gib=1, memory_gib=1, python_headers=False)
    assert check(project, small, sample=True) == ()
    assert len(check(project, small)) == 3


def test_the_sample_still_needs_a_compiler() -> None:
    (problem,) = check("audio", replace(LINUX, compiler=""), sample=True)
    assert "compiler" in problem.message


def test_an_unknown_project() -> None:
    with pytest.raises(UsageError, match="'torhc'"):
        check("torhc", LINUX)


def test_problems_end_the_stage_together() -> None:
    require(())
    one = Problem(message="A is missing.", hint="Install A.")
    with pytest.raises(EnvironmentSetupError, match=r"^A is missing\.\nInstall A\.$"):
        require((one,))
    two = Problem(message="B is old.", hint="Install a newer B.")
    with pytest.raises(EnvironmentSetupError, match="2 reasons") as both:
        require((one, two))
    assert "A is missing. Install A.\n  B is old. Install a newer B." in both.value.message
