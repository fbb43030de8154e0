"""A build of the sample's torch, of which every part is a value."""

from collections.abc import Mapping
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from core.packages import Offer
from core.packages.sources import PackageSource
from pytorch_build.build.build import Build, BuildChoices, Dependency
from pytorch_build.sdk import RocmOptions
from rocm_packaging.origin import RocmSource

FILE = Offer(name="rocm.tar.gz", distribution="rocm", version="7.1.0", sha256="aa", url="/rocm/rocm.tar.gz")
ROCM = RocmSource(version="7.1.0", packages=PackageSource(find_links=("/rocm",)), files=(FILE,))
VERSION = "2.10.0a0+devrocm7.99.0.dev0.sample"


def fake_tree(path: Path, *, version: str = VERSION, inputs: Mapping[str, Any] | None = None) -> Any:
    """A tree that lies there, ready."""
    given = {"commit": "1" * 40, "hipify": True} if inputs is None else inputs
    return SimpleNamespace(path=path, version=version, inputs=given, checked_out=lambda: nullcontext(path))


@pytest.fixture
def build(run: Any) -> Build:
    requirements = run.root / "requirements"
    requirements.mkdir()
    (requirements / "target-linux-3.12.txt").write_text("setuptools==80.0 \\\n    --hash=sha256:aa\n")
    (requirements / "target.in").write_text("numpy\n")
    tree = run.root / "src"
    tree.mkdir()
    (tree / "setup.py").write_text("# 10 bytes")
    return Build(
        context=run.context(),
        choices=BuildChoices(rocm=RocmOptions(), own_trees={}, mirrors={}),
        target=run.target(),
        project="torch",
        tree=fake_tree(path=tree),
        rocm=ROCM,
        dependencies=(
            Dependency(project="triton", requirement="/run/triton.whl", version="3.6.0", digest="bb"),
        ),
        base_env={"PATH": "/usr/bin", "HOME": "/home/me"},
    )
