"""What the documentation promises of `build_rocm`."""

from pathlib import Path
from unittest.mock import Mock

import pytest

from core.cli import main
from core.wheel.writer import WrittenFile
from rocm_packaging.__main__ import VERBS
from rocm_packaging.packages.build import BuiltPackages
from tests.kit.artifacts import write_base_artifact
from tests.kit.wheels import sha256, write_wheel


def test_packages_lie_in_the_group_where_their_family_has_its_pytorch_wheels(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    artifacts = tmp_path / "artifacts"
    write_base_artifact(artifacts, is_split=False)
    wheel = write_wheel(tmp_path, name="rocm-sdk-core", version="10.1.0")
    written = WrittenFile(path=wheel, sha256=sha256(wheel), size=wheel.stat().st_size, members=())
    plan = Mock(distribution=Mock(version="10.1.0"), built=("gfx942",), unused=(), lacking=())
    packages = BuiltPackages(plan=plan, files=(written,))
    monkeypatch.setattr("rocm_packaging.packages.build.build", lambda _request: packages)
    options = [f"--artifact-dir={artifacts}", f"--store={tmp_path / 'out'}", "--gpu-family=gfx94X-dcgpu"]

    status = main("rocm_packaging", "", VERBS, ["build", *options])

    assert status == 0
    assert (tmp_path / "out/local-linux/python/gfx94X-dcgpu" / wheel.name).is_file()
