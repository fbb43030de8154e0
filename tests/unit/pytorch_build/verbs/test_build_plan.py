"""`build … --dry-run`: the plan of the sample's projects, on either platform, with nothing written."""

import json
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from core.cli.options import Common
from core.process import capture
from core.run import this_platform
from pytorch_build.refs.torch_refs import PROJECTS
from pytorch_build.sample import ensure_repositories
from pytorch_build.verbs import build as verb

pytestmark = pytest.mark.processes

SAMPLE = ("--torch-ref", "sample", "--dry-run")
VERSION = "2.10.0a0+devrocm7.99.0.dev0.sample"


@pytest.fixture
def planned(front: Any, run: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Any]:
    """Return a plan as JSON; nothing but the cache may have been written for it."""
    monkeypatch.setattr(verb, "require", lambda _python: replace(run.target(), virtual=True))
    ensure_repositories(tmp_path / ".cache" / "sample" / "repos")
    shutil.copytree(Common().root / "requirements", tmp_path / "requirements")

    def asked(project: str, *words: str) -> Any:
        answer = front("build", project, *SAMPLE, "--json", *words)
        assert answer.code == 0, answer.said
        assert {path.name for path in tmp_path.iterdir()} <= {".cache", "own", "requirements"}
        return json.loads(answer.out)

    return asked


@pytest.mark.parametrize("platform", ["linux", "windows"])
@pytest.mark.parametrize("project", PROJECTS)
def test_every_project_is_planned_for_both(planned: Callable[..., Any], project: str, platform: str) -> None:
    made = planned(project, "--platform", platform)
    assert (made["project"], made["platform"], made["gpu_targets"]) == (project, platform, ["gfx942"])
    assert made["commands"]
    assert made["wheel"]["version"] == made["version"]
    assert made["env"]["ROCM_HOME"].startswith("C:\\" if platform == "windows" else "/")
    assert "rocm-sdk-libraries==7.99.0.dev0+sample" in made["environment"][1]["requirements"]
    assert any("split" in sentence for sentence in made["assumptions"])
    steps = " | ".join(made["after"])
    assert ("RPATH" in steps) is (platform == "linux")
    assert ("host wheel" in steps) is (project in {"torch", "vision"})


def test_a_developers_own_tree_is_only_read(front: Any, planned: Callable[..., Any], tmp_path: Path) -> None:
    own = tmp_path / "own"
    capture(["git", "clone", "--quiet", tmp_path / ".cache" / "sample" / "repos" / "torch", own])
    (own / "requirements-build.txt").unlink()
    made = planned("torch", "--pytorch-dir", str(own))
    assert made["requirements_files"] == ["requirements.txt"]
    assert made["commands"][0]["cwd"].startswith(str(tmp_path / "src" / ".own" / "torch-"))
    assert made["source"]["tree"] == str(own)
    assert "cannot be run yet: ROCm" in made["rebuild"][0]
    said = front("build", "torch", *SAMPLE, "--pytorch-dir", str(own)).said
    assert "own are not initialised: third_party/miniblas." in said
    (own / "setup.py").write_text("")
    assert planned("torch", "--pytorch-dir", str(own))["source"]["diff"] != made["source"]["diff"]


def test_values_are_told_with_origins(planned: Callable[..., Any], monkeypatch: pytest.MonkeyPatch) -> None:
    mine = {"USE_MINE": "1", "USE_KINETO": "OFF", "OMP_NUM_THREADS": "3", "CXXFLAGS": "-O1"}
    hidden = dict.fromkeys(("GITHUB_ENV", "LD_PRELOAD", "MY_SETTING", "TORCH_SECRET"), "of-the-job")
    for name, value in (mine | hidden | {"https_proxy": "http://user:of-the-job@proxy:3128"}).items():
        monkeypatch.setenv(name, value)
    made = planned("torch", "--gpu-family", "cpu")
    assert made["env"].keys() == made["env_from"].keys()
    assert "of-the-job" not in json.dumps(made)
    assert mine.items() <= {**made["env"], "CXXFLAGS": made["env"]["CXXFLAGS"].split()[0]}.items()
    assert [made["env_from"][name] for name in (*mine, "USE_GLOO")] == [
        *("your environment: build flags", "your environment: build flags", "your environment: threads"),
        *("the plan, with yours", "the plan"),
    ]
    assert made["rebuild"] == ["it was not done yet"]


def test_for_people_it_says_what_is_missing(front: Any, planned: Callable[..., Any]) -> None:
    planned("torch")
    answer = front("build", "torch", *SAMPLE)
    assert answer.code == 0, answer.said
    assert "variables of the plan\n" in answer.said
    assert "\n  USE_FLASH_ATTENTION=ON\n" in answer.said
    assert "assumption: " in answer.said
    assert "cannot be run yet: ROCm 7.99.0.dev0+sample" in answer.said


@pytest.mark.usefixtures("planned")
def test_another_platform_is_only_planned(front: Any) -> None:
    other = "linux" if this_platform() == "windows" else "windows"
    answer = front("build", "torch", "--torch-ref", "sample", "--platform", other)
    assert answer.errors == [f"error: Wheels for {other} are built on {other}."]
