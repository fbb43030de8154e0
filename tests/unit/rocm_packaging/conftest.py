"""`rocm_sdk` installed from its templates."""

import importlib
import sys
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import pytest

from rocm_packaging.packages import wheels
from rocm_packaging.packages.plan import Distribution


@pytest.fixture
def installed_sdk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., Path]]:
    """Return what installs the runtime, version 1.0.0 for GPU families, into a site on the path."""
    site = tmp_path / "site"

    def install(families: Mapping[str, tuple[str, ...]], *libraries: str, split: bool = False) -> Path:
        made = Distribution(
            version="1.0.0", platform="linux", families=families, libraries=libraries, split=split
        )
        sources = {name: path.read_bytes() for name, path in wheels.runtime_sources()}
        sources["src/rocm_sdk/_dist_info.py"] = wheels.dist_info(made, "")
        for name, source in sources.items():
            if name.startswith("src/"):
                target = site / name.removeprefix("src/")
                target.parent.mkdir(parents=True, exist_ok=True)
                target.write_bytes(source)
        importlib.invalidate_caches()
        return site

    monkeypatch.syspath_prepend(str(site))
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    yield install
    for name in [name for name in sys.modules if name.partition(".")[0] in {"rocm_sdk", "rocm_sdk_core"}]:
        del sys.modules[name]
