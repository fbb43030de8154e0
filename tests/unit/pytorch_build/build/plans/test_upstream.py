"""Our plans beside what upstream's builder does, as upstream.toml has it: differences have reasons there."""

from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath, PureWindowsPath
from typing import Any

import pytest

from core.data import read_toml
from pytorch_build.build.plans.common import BuildPlan
from pytorch_build.refs.torch_refs import load_refs
from tests.unit.pytorch_build.build.plans.conftest import Plan

FACTS = read_toml(Path(__file__).with_name("upstream.toml"))
ROCM, VERSION = FACTS["rocm_version"], "1.2.3+rocm"
TORCH_FILES = frozenset({"setup.py", "pyproject.toml", "requirements.txt", "requirements-build.txt"})
TREES = {
    "triton": frozenset({"setup.py", "pyproject.toml", "python/requirements.txt"}),
    "torch": TORCH_FILES,
    "audio": frozenset({"setup.py"}),
    "vision": frozenset({"setup.py"}),
    "apex": frozenset({"setup.py", "pyproject.toml"}),
}
ROOTS = {"linux": PurePosixPath("/env/rocm"), "windows": PureWindowsPath("C:/env/rocm")}
CASES = [
    (ref, platform, project, targets, triton)
    for platform in ("linux", "windows")
    for ref in FACTS["backends"]
    if ref in load_refs(platform=platform)
    for project in ("triton", "torch", "audio", "vision", "apex")
    if project in FACTS[platform]
    for targets in ("gfx942;gfx1100", "gfx1030;gfx908")
    for triton in ((True, False) if platform == "linux" and project == "torch" else (platform == "linux",))
]


@dataclass
class Both:
    """What a build does, ours or upstream's."""

    env: dict[str, str]
    arguments: list[str]
    files: set[str] = field(default_factory=set)
    before: set[str] = field(default_factory=set)


def ours(plan: Plan, ref: str, platform: str, project: str, targets: str, *, triton: bool) -> Both:
    source = load_refs(platform=platform)[ref].projects[project]
    version = FACTS["triton_version"] if project == "triton" else VERSION
    made: BuildPlan = plan(
        project,
        platform,
        sdk={
            "root": ROOTS[platform],
            "bin": ROOTS[platform] / "bin",
            "cmake": ROOTS[platform] / "lib" / "cmake",
            "version": ROCM,
        },
        gpu_targets=tuple(targets.split(";")),
        version=version,
        torch_version="" if project in {"triton", "torch"} else "2.12.0",
        triton_version=FACTS["triton_version"] if triton and project != "triton" else "",
        ref_env=source.env,
        base_env={"PATH": "%PATH%" if platform == "windows" else "$PATH"},
        tree={
            "files": TREES[project],
            "build_backend": FACTS["backends"][ref] if project == "torch" else "setuptools.build_meta",
        },
    )
    (command,) = made.commands
    return Both(
        env={name: value.replace("\\", "/") for name, value in made.env.items()},
        arguments=[word.replace("\\", "/") for word in command.argv],
        files={drop.path for drop in made.overlays},
        before={*made.requirements_files, *made.uninstall, *(f"as locked: {one}" for one in made.as_locked)},
    )


def upstreams(ref: str, platform: str, project: str, targets: str, *, triton: bool) -> Both:
    facts: dict[str, Any] = FACTS[platform]
    own = facts[project]
    flash = FACTS["flash"][f"{platform} {targets}{' triton' if triton else ''}"]
    words = {
        "{rocm}": ROOTS[platform].as_posix(),
        "{python}": "C:/env/Scripts/python.exe" if platform == "windows" else "/env/bin/python",
        "{targets}": targets,
        "{version}": VERSION,
        "{flash}": flash,
        "{libuv}": "C:/uv",
    }

    def filled(text: str) -> str:
        for word, value in words.items():
            text = text.replace(word, value)
        return text

    process = facts["process"] if project != "triton" else {}
    env = {**facts["common"], **process, **own.get("env", {})}
    if project == "torch" and not triton:
        env["PYTORCH_EXTRA_INSTALL_REQUIREMENTS"] = f"rocm[libraries]=={ROCM}"
    arguments = list(own["command"])
    if project == "torch" and FACTS["backends"][ref].startswith("scikit"):
        arguments += [*own["scikit"], *(own.get("scikit_flash", []) if flash == "ON" else [])]
    steps = {word for step in own.get("before", []) for word in [step.rpartition("-r ")[2]]}
    return Both(
        env={name: filled(value) for name, value in env.items()},
        arguments=[filled(word) for word in arguments],
        files=set(own.get("files", [])),
        before={step.removeprefix("uninstall ") for step in steps},
    )


def differing(one: Both, other: Both) -> set[str]:
    """Name what only one of them does, or both in another way."""
    names = one.env.keys() | other.env.keys()
    found = {name for name in names if one.env.get(name) != other.env.get(name)}
    found |= set(one.arguments) ^ set(other.arguments)
    found |= one.files ^ other.files
    return found | {f"uninstall {name}" for name in other.before - one.before}


@pytest.mark.parametrize(("ref", "platform", "project", "targets", "triton"), CASES)
def test_a_build_does_what_upstreams_does(
    plan: Plan, ref: str, platform: str, project: str, targets: str, *, triton: bool
) -> None:
    found = differing(
        ours(plan, ref, platform, project, targets, triton=triton),
        upstreams(ref, platform, project, targets, triton=triton),
    )
    explained = {one["what"] for one in FACTS["differences"] if project in one.get("projects", [project])}
    assert found <= explained, "explain it in upstream.toml, or correct the plan"


def test_every_difference_is_one_and_has_a_reason(plan: Plan) -> None:
    left = {(project, one["what"]) for one in FACTS["differences"] for project in one.get("projects", [""])}
    for ref, platform, project, targets, triton in CASES:
        cell = (ref, platform, project, targets)
        found = differing(ours(plan, *cell, triton=triton), upstreams(*cell, triton=triton))
        left -= {(name, what) for what in found for name in ("", project)}
    assert left == set()
    assert all(one["reason"] for one in FACTS["differences"])


def test_torch_from_2_9_to_2_14_and_nightly_are_compared() -> None:
    compared = {(ref, platform) for ref, platform, *_ in CASES}
    assert len(compared) >= 12
    assert {ref for ref, _ in compared} >= {"release/2.9", "release/2.14", "nightly"}
