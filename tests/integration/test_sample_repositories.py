"""Really builds the sample's projects with upstream's own commands; the pipeline builds them with ours."""

from __future__ import annotations

import json
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from core import process
from pytorch_build.sample import ensure_repositories

if TYPE_CHECKING:
    from collections.abc import Mapping

SUFFIX = "+cpu.sample"
VERSIONS = {"triton": "3.6.0", "torch": "2.10.0a0", "audio": "2.10.0a0", "vision": "0.25.0a0"}
VERSIONS["apex"] = "1.10.0"
BUILD = ("-m", "build", "--wheel", "--no-isolation")
SETUP = ("setup.py", "bdist_wheel")
APEX = (*BUILD, "-C--build-option=--cpp_ext", "-C--build-option=--cuda_ext")
TORCH = {"PYTORCH_VERSION": f"{VERSIONS['torch']}{SUFFIX}"}
# project -> its command, and the variables that upstream's builds set
COMMANDS: Mapping[str, tuple[tuple[str, ...], Mapping[str, str]]] = {
    "triton": (SETUP, {"TRITON_WHEEL_VERSION_SUFFIX": SUFFIX}),
    "torch": (
        BUILD,
        {
            "PYTORCH_BUILD_VERSION": TORCH["PYTORCH_VERSION"],
            "PYTORCH_BUILD_NUMBER": "1",
            "PYTORCH_EXTRA_INSTALL_REQUIREMENTS": f"|triton=={VERSIONS['triton']}{SUFFIX}",
            "USE_ROCM": "OFF",
            "USE_CUDA": "OFF",
        },
    ),
    "audio": (SETUP, {"USE_FFMPEG": "1", "BUILD_SOX": "0", **TORCH}),
    "vision": (SETUP, {"FORCE_CUDA": "1", **TORCH}),
    "apex": (APEX, {}),
}
UPDATE = ("-c", "protocol.file.allow=always", "submodule", "--quiet", "update", "--init", "--recursive")


@dataclass(frozen=True, kw_only=True)
class Workshop:
    """An environment, and the source trees that get built and installed into it."""

    folder: Path
    python: Path
    env: Mapping[str, str]
    origins: Mapping[str, Path]

    def tree(self, project: str) -> Path:
        return self.folder / "src" / project

    def evaluate(self, code: str, expression: str) -> Any:
        script = f"{code}\nimport json\nprint(json.dumps({expression}))"
        ended = process.capture([self.python, "-W", "error", "-c", script], cwd=self.folder, env=self.env)
        return json.loads(ended.stdout)

    def git(self, project: str, *arguments: str) -> str:
        return process.capture(["git", "-C", self.tree(project), *arguments]).stdout.strip()

    def uv(self, *words: str | Path) -> None:
        process.capture([Path(sys.executable).with_name("uv"), *words], cwd=self.folder)


@pytest.fixture(scope="module")
def cpu(tmp_path_factory: pytest.TempPathFactory) -> Workshop:
    folder = tmp_path_factory.mktemp("cpu")
    python = folder / "venv" / "bin" / "python"
    path = f"{python.parent}:{process.inherited()['PATH']}"
    env = process.inherited(PATH=path, PYTHONPATH=None)
    shop = Workshop(folder=folder, python=python, env=env, origins=ensure_repositories(folder / "repos"))
    shop.uv("venv", "--python", sys.executable, folder / "venv")
    for project in COMMANDS:
        process.capture(["git", "clone", "--quiet", shop.origins[project], shop.tree(project)])
        shop.git(project, *UPDATE)
    shop.git("triton", "checkout", "--quiet", "-B", "release/locked")  # else the commit is in its version
    install = ("pip", "install", "--python", python)
    shop.uv(*install, "-r", shop.tree("torch") / "requirements.txt", "build", "setuptools>=80")
    for project, (command, variables) in COMMANDS.items():
        own = {**env, "BUILD_VERSION": f"{VERSIONS[project]}{SUFFIX}", **variables}
        process.capture([python, *command], cwd=shop.tree(project), env=own)
        (wheel,) = (shop.tree(project) / "dist").glob("*.whl")
        shop.uv(*install, "--no-deps", "--reinstall", wheel)
    return shop


@pytest.mark.parametrize("project", COMMANDS)
def test_a_build_leaves_the_tree_as_git_knows_it(cpu: Workshop, project: str) -> None:
    assert cpu.git(project, "status", "--porcelain", "--ignore-submodules=none") == ""


def test_extensions_compute(cpu: Workshop) -> None:
    assert cpu.evaluate(
        "import torch, torchaudio, torchvision, triton, apex\n"
        "boxes = torch.tensor([[0, 0, 2, 2], [0, 0, 2, 1], [4, 4, 5, 5]])",
        "[torchaudio.functional.resample(torch.arange(3), 1, 2).tolist(),"
        " torchaudio.functional.amplitude_to_DB(torch.tensor([1, 10]), 20, 1e-9, 0).tolist(),"
        " torchvision.ops.box_iou(boxes, boxes).tolist(),"
        " torchvision.ops.nms(boxes, torch.tensor([0.5, 0.9, 0.1]), 0.4).tolist(),"
        " triton.cdiv(10, 4), triton.next_power_of_2(9),"
        " apex.fused_scale_bias_relu(torch.tensor([-1, 1]), 2, 1).tolist(),"
        " [m.__version__ for m in (torchaudio, torchvision, triton, apex)]]",
    ) == [
        [0, 0.5, 1, 1.5, 2, 2],
        [0, 20],
        [[1, 0.5, 0], [0.5, 1, 0], [0, 0, 1]],
        [1, 2],
        3,
        16,
        [0, 3],
        [VERSIONS[name] + SUFFIX for name in ("audio", "vision", "triton", "apex")],
    ]
