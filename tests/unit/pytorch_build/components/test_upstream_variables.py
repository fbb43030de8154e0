"""Our plans beside what upstream's builder does, as upstream.toml has it: differences have reasons there."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cache
from itertools import product
from pathlib import Path
from typing import Any

import pytest

from core.data import read_toml
from pytorch_build.build.facts import TreeFacts
from pytorch_build.refs.torch_refs import TorchRef, load_refs
from tests.kit.build_plans import PROJECTS, SDK_ROOTS, plan_project, rocm_sdk

FACTS = read_toml(Path(__file__).with_name("upstream.toml"))
ROCM_VERSION = FACTS["rocm_version"]
VERSION = "1.2.3+rocm"
PLATFORMS = ("linux", "windows")
# Targets with kernels for flash attention, and targets without.
TARGETS = ("gfx942;gfx1100", "gfx1030;gfx908")
TREE_FILES = {
    "triton": frozenset({"setup.py", "pyproject.toml", "python/requirements.txt"}),
    "torch": frozenset({"setup.py", "pyproject.toml", "requirements.txt", "requirements-build.txt"}),
    "audio": frozenset({"setup.py"}),
    "vision": frozenset({"setup.py"}),
    "apex": frozenset({"setup.py", "pyproject.toml"}),
}


@dataclass(frozen=True, kw_only=True)
class Case:
    """A build that both builders can do."""

    torch_ref: str
    platform: str
    project: str
    targets: str
    has_triton: bool

    @property
    def name(self) -> str:
        """How pytest shows it."""
        triton = "triton" if self.has_triton else "no triton"
        return f"{self.torch_ref}, {self.platform}, {self.project}, {self.targets}, {triton}"

    @property
    def build_backend(self) -> str:
        """What torch's tree is built with; other projects have setuptools."""
        backend: str = FACTS["backends"][self.torch_ref]
        return backend if self.project == "torch" else "setuptools.build_meta"


@cache
def refs_of(platform: str) -> dict[str, TorchRef]:
    """Return the torch refs of a platform."""
    return dict(load_refs(platform=platform))


def list_cases() -> list[Case]:
    """Return every ref, platform, project and set of targets that upstream was seen building."""
    cases: list[Case] = []
    for platform in PLATFORMS:
        compared_refs = [name for name in FACTS["backends"] if name in refs_of(platform)]
        projects = [project for project in PROJECTS if project in FACTS[platform]]
        for torch_ref, project, targets in product(compared_refs, projects, TARGETS):
            cases += [
                Case(
                    torch_ref=torch_ref,
                    platform=platform,
                    project=project,
                    targets=targets,
                    has_triton=has_triton,
                )
                for has_triton in triton_choices(platform, project)
            ]
    return cases


def triton_choices(platform: str, project: str) -> Sequence[bool]:
    """Return whether triton is installed; only torch on Linux is built both with it and without it."""
    if platform == "windows":
        return (False,)
    return (True, False) if project == "torch" else (True,)


CASES = list_cases()


@dataclass(kw_only=True)
class Behaviour:
    """What a builder does: variables, arguments, files that it adds, and steps before the build."""

    env: dict[str, str]
    arguments: list[str]
    files: set[str] = field(default_factory=set)
    steps_before: set[str] = field(default_factory=set)


def our_behaviour(case: Case) -> Behaviour:
    """Return what our plan does."""
    is_triton = case.project == "triton"
    has_installed_triton = case.has_triton and not is_triton
    source = refs_of(case.platform)[case.torch_ref].projects[case.project]
    plan = plan_project(
        case.project,
        case.platform,
        sdk=rocm_sdk(case.platform, version=ROCM_VERSION),
        gpu_targets=tuple(case.targets.split(";")),
        version=FACTS["triton_version"] if is_triton else VERSION,
        torch_version="" if case.project in {"triton", "torch"} else "2.12.0",
        triton_version=FACTS["triton_version"] if has_installed_triton else "",
        ref_env=source.env,
        base_env={"PATH": "%PATH%" if case.platform == "windows" else "$PATH"},
        facts=TreeFacts(files=TREE_FILES[case.project], build_backend=case.build_backend),
    )

    (command,) = plan.commands
    locked_steps = [f"as locked: {name}" for name in plan.as_locked]
    return Behaviour(
        env={name: value.replace("\\", "/") for name, value in plan.env.items()},
        arguments=[argument.replace("\\", "/") for argument in command.argv],
        files={overlay.path for overlay in plan.overlays},
        steps_before={*plan.requirements_files, *plan.uninstall, *locked_steps},
    )


def upstreams_behaviour(case: Case) -> Behaviour:
    """Return what upstream's builder was seen doing."""
    platform_facts: dict[str, Any] = FACTS[case.platform]
    project_facts = platform_facts[case.project]
    triton = " triton" if case.has_triton else ""
    flash = FACTS["flash"][f"{case.platform} {case.targets}{triton}"]

    env = dict(platform_facts["common"])
    if case.project != "triton":
        env |= platform_facts["process"]
    env |= project_facts.get("env", {})
    if case.project == "torch" and not case.has_triton:
        env["PYTORCH_EXTRA_INSTALL_REQUIREMENTS"] = f"rocm[libraries]=={ROCM_VERSION}"

    arguments = list(project_facts["command"])
    if case.build_backend.startswith("scikit"):
        arguments += project_facts["scikit"]
        if flash == "ON":
            arguments += project_facts.get("scikit_flash", [])

    # ``uninstall NAME``, ``-r FILE`` and ``build -r FILE``
    steps = [step.rpartition("-r ")[2] for step in project_facts.get("before", [])]
    return Behaviour(
        env={name: fill_in(value, case, flash) for name, value in env.items()},
        arguments=[fill_in(argument, case, flash) for argument in arguments],
        files=set(project_facts.get("files", [])),
        steps_before={step.removeprefix("uninstall ") for step in steps},
    )


def fill_in(template: str, case: Case, flash: str) -> str:
    """Return a value of upstream.toml for one case."""
    python = "C:/env/Scripts/python.exe" if case.platform == "windows" else "/env/bin/python"
    values = {
        "{rocm}": SDK_ROOTS[case.platform].as_posix(),
        "{python}": python,
        "{targets}": case.targets,
        "{version}": VERSION,
        "{flash}": flash,
        "{libuv}": "C:/uv",
    }
    for placeholder, value in values.items():
        template = template.replace(placeholder, value)
    return template


@cache
def differences(case: Case) -> frozenset[str]:
    """Return what only one of the builders does, or both in another way."""
    our = our_behaviour(case)
    upstream = upstreams_behaviour(case)

    names = our.env.keys() | upstream.env.keys()
    differing = {name for name in names if our.env.get(name) != upstream.env.get(name)}
    differing |= set(our.arguments) ^ set(upstream.arguments)
    differing |= our.files ^ upstream.files
    differing |= {f"uninstall {name}" for name in upstream.steps_before - our.steps_before}
    return frozenset(differing)


@pytest.mark.parametrize("case", CASES, ids=[case.name for case in CASES])
def test_a_build_does_what_upstreams_does(case: Case) -> None:
    explained = {
        difference["what"]
        for difference in FACTS["differences"]
        if case.project in difference.get("projects", PROJECTS)
    }

    assert differences(case) <= explained, "explain it in upstream.toml, or correct the plan"


@pytest.mark.parametrize("difference", FACTS["differences"], ids=lambda difference: difference["what"])
def test_every_explained_difference_exists(difference: dict[str, Any]) -> None:
    for project in difference.get("projects", [None]):
        cases = [case for case in CASES if project in {None, case.project}]

        assert any(difference["what"] in differences(case) for case in cases), project


@pytest.mark.parametrize("difference", FACTS["differences"], ids=lambda difference: difference["what"])
def test_every_difference_has_a_reason(difference: dict[str, Any]) -> None:
    assert difference["reason"]


def test_compares_torch_from_2_9_to_2_14_and_nightly() -> None:
    compared = {(case.torch_ref, case.platform) for case in CASES}

    assert len(compared) >= 12
    assert {torch_ref for torch_ref, _platform in compared} >= {"release/2.9", "release/2.14", "nightly"}
