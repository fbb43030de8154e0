"""`build … --dry-run`: the plan of the sample's projects, on either platform, with nothing written."""

import json
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from core.cli.options import Common
from core.errors import UsageError
from core.run import this_platform
from pytorch_build.components import COMPONENTS
from pytorch_build.sample import ensure_repositories
from pytorch_build.verbs import build as verb
from tests.kit.builds import LocalRun
from tests.kit.front_doors import FrontDoorResult
from tests.kit.repos import run_git

pytestmark = pytest.mark.processes

Front = Callable[..., FrontDoorResult]
PlanBuild = Callable[..., Any]

SAMPLE = ("--torch-ref", "sample", "--dry-run")


@pytest.fixture
def plan_build(front: Front, run: LocalRun, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> PlanBuild:
    """Return what plans a build, and returns the plan; nothing but the cache may be written for it."""
    monkeypatch.setattr(verb, "require", lambda _python: replace(run.target(), virtual=True))
    ensure_repositories(tmp_path / ".cache" / "sample" / "repos")
    shutil.copytree(Common().root / "requirements", tmp_path / "requirements")

    def plan(project: str, *options: str | Path) -> Any:
        result = front("build", project, *SAMPLE, "--json", *options)
        assert result.exit_code == 0, result.report
        assert {path.name for path in tmp_path.iterdir()} <= {".cache", "own", "requirements"}
        return json.loads(result.output)

    return plan


@pytest.mark.parametrize("platform", ["linux", pytest.param("windows", marks=pytest.mark.nightly)])
@pytest.mark.parametrize("project", COMPONENTS)
def test_plans_every_project_for_both_platforms(plan_build: PlanBuild, project: str, platform: str) -> None:
    plan = plan_build(project, "--platform", platform)

    assert plan["project"] == project
    assert plan["platform"] == platform
    assert plan["gpu_targets"] == ["gfx942"]
    assert plan["commands"]
    assert plan["wheel"]["version"] == plan["version"]

    # What becomes of the wheel.
    steps = " | ".join(plan["after"])
    assert ("RPATH" in steps) is (platform == "linux")
    assert ("host wheel" in steps) is (project in {"torch", "vision"})


@pytest.mark.parametrize(("platform", "root"), [("linux", "/"), ("windows", "C:\\")])
def test_plans_with_rocm_of_the_platform(plan_build: PlanBuild, platform: str, root: str) -> None:
    plan = plan_build("torch", "--platform", platform)

    assert plan["env"]["ROCM_HOME"].startswith(root)
    assert "rocm-sdk-libraries==7.99.0.dev0+sample" in plan["environment"][1]["requirements"]
    assert any("split" in assumption for assumption in plan["assumptions"])


@pytest.fixture
def own_tree(plan_build: PlanBuild, tmp_path: Path) -> Path:
    """Return a developer's tree of torch, which differs from its commit."""
    assert callable(plan_build)
    tree = tmp_path / "own"
    repository = tmp_path / ".cache" / "sample" / "repos" / "torch"
    run_git(tmp_path, "clone", "--quiet", repository, tree)
    (tree / "requirements-build.txt").unlink()
    return tree


def test_plans_a_developers_tree_in_a_copy(plan_build: PlanBuild, own_tree: Path, tmp_path: Path) -> None:
    plan = plan_build("torch", "--pytorch-dir", own_tree)

    assert plan["source"]["tree"] == str(own_tree)
    assert plan["requirements_files"] == ["requirements.txt"]
    assert plan["commands"][0]["cwd"].startswith(str(tmp_path / "src" / ".own" / "torch-"))
    assert "ROCm" in plan["rebuild"][0]


def test_a_plan_knows_a_developers_changes(plan_build: PlanBuild, own_tree: Path) -> None:
    plan = plan_build("torch", "--pytorch-dir", own_tree)

    (own_tree / "setup.py").write_text("")

    assert plan_build("torch", "--pytorch-dir", own_tree)["source"]["diff"] != plan["source"]["diff"]


@pytest.mark.parametrize("as_json", [True, False])
def test_plans_without_a_network(front: Front, plan_build: PlanBuild, *, as_json: bool) -> None:
    assert callable(plan_build)
    # Nothing listens there, as on a machine without a network.
    index = "http://127.0.0.1:9/simple/"

    result = front("build", "torch", *SAMPLE, "--rocm-index-url", index, *(["--json"] if as_json else []))

    assert result.exit_code == 0, result.report
    assert "127.0.0.1:9" in (json.loads(result.output)["rebuild"][0] if as_json else result.report)


def test_prints_json_of_a_plan_alone(front: Front) -> None:
    result = front("build", "torch", "--torch-ref", "sample", "--json")

    assert result.exit_code == UsageError.exit_code
    assert "--dry-run" in result.report


def test_a_plan_names_a_developers_missing_submodules(front: Front, own_tree: Path) -> None:
    result = front("build", "torch", *SAMPLE, "--pytorch-dir", own_tree)

    assert "third_party/miniblas" in result.report


OWN_VARIABLES = {
    "USE_MINE": "your environment: build flags",
    "USE_KINETO": "your environment: build flags",
    "OMP_NUM_THREADS": "your environment: threads",
    "CXXFLAGS": "the plan, with yours",
}


@pytest.mark.parametrize("name", OWN_VARIABLES)
def test_a_plan_tells_where_a_variable_comes_from(
    plan_build: PlanBuild, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    monkeypatch.setenv(name, "3")

    plan = plan_build("torch", "--gpu-family", "cpu")

    assert plan["env"][name].split()[0] == "3"
    assert plan["env_from"][name] == OWN_VARIABLES[name]
    assert plan["env_from"]["USE_GLOO"] == "the plan"
    assert plan["env"].keys() == plan["env_from"].keys()


def test_a_plan_hides_the_other_variables_of_its_job(
    plan_build: PlanBuild, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("GITHUB_ENV", "LD_PRELOAD", "MY_SETTING", "TORCH_SECRET"):
        monkeypatch.setenv(name, "of-the-job")
    monkeypatch.setenv("https_proxy", "http://user:of-the-job@proxy:3128")

    plan = plan_build("torch", "--gpu-family", "cpu")

    assert "of-the-job" not in json.dumps(plan)
    assert plan["rebuild"] == ["it was not done yet"]


@pytest.mark.usefixtures("plan_build")
def test_a_plan_for_people_says_what_is_missing(front: Front) -> None:
    result = front("build", "torch", *SAMPLE)

    assert result.exit_code == 0, result.report
    assert "\n  USE_FLASH_ATTENTION=ON\n" in result.report
    assert "assumption: " in result.report
    assert "ROCm 7.99.0.dev0+sample" in result.report


@pytest.mark.usefixtures("plan_build")
def test_another_platform_is_only_planned(front: Front) -> None:
    other_platform = "linux" if this_platform() == "windows" else "windows"

    result = front("build", "torch", "--torch-ref", "sample", "--platform", other_platform)

    (error,) = result.errors
    assert other_platform in error
