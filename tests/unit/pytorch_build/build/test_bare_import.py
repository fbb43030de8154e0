"""A real environment with a torch of one library, which is linked to a library of ROCm."""

from __future__ import annotations

import sys
import venv
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from core import process
from core.env import interpreter
from core.errors import BuildError
from pytorch_build.build.bare_import import check_bare_import
from tests.unit.pytorch_build.build.test_execution import VERSION, WHEEL, plan

if TYPE_CHECKING:
    from core.env import Interpreter

pytestmark = pytest.mark.processes

TORCH = f"""
import ctypes, pathlib
from torch import _rocm_init
_rocm_init.initialize()
ctypes.CDLL(str(pathlib.Path(__file__).parent / "lib" / "libtorch_hip.so"))
__version__ = {VERSION!r}
"""
PRELOADS = """
import ctypes, pathlib
def initialize():
    ctypes.CDLL(str(pathlib.Path(__file__).parents[1] / "_rocm_sdk_core" / "lib" / "libamdhip64.so.7"))
"""


@pytest.fixture
def target(tmp_path: Path) -> Interpreter:
    """Return an environment with ROCm's run-time library, and the same in its development tree."""
    folder = tmp_path / "environment"
    venv.create(folder, symlinks=True)
    target = interpreter(folder / "bin" / Path(sys.executable).name)
    core, devel = (target.purelib / one / "lib" for one in ("_rocm_sdk_core", "_rocm_sdk_devel"))
    info = target.purelib / f"torch-{VERSION}.dist-info"
    for one in (core, devel, info, target.purelib / "torch" / "lib"):
        one.mkdir(parents=True)
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: torch\nVersion: {VERSION}\n")
    (target.purelib / "torch" / "__init__.py").write_text(TORCH)
    (target.purelib / "torch" / "_rocm_init.py").write_text(PRELOADS)
    compiled(core / "libamdhip64.so.7", "int hip(void) { return 7; }\n", "-Wl,-soname,libamdhip64.so.7")
    (devel / "libamdhip64.so").symlink_to("../../_rocm_sdk_core/lib/libamdhip64.so.7")
    (devel / "libamdhip64.so.7").symlink_to("libamdhip64.so")
    return target


def compiled(path: Path, code: str, *flags: str) -> None:
    compiler = process.which("cc") or process.which("c++")
    assert compiler is not None
    source = path.with_suffix(".c")
    source.write_text(code)
    process.capture([compiler, "-shared", "-fPIC", source, "-o", path, *flags])


def link(target: Interpreter, rpath: str) -> None:
    devel = target.purelib / "_rocm_sdk_devel" / "lib"
    code = "int hip(void); int x(void) { return hip(); }\n"
    flags = (f"-L{devel}", "-lamdhip64", f"-Wl,-rpath,{rpath}", "-Wl,--disable-new-dtags")
    compiled(target.purelib / "torch" / "lib" / "libtorch_hip.so", code, *flags)


def check(target: Interpreter, *, preloads: bool = False) -> None:
    check_bare_import(target, plan(target.prefix), target.prefix / WHEEL, preloads=preloads)


def test_a_search_path_into_the_run_time_packages_is_enough(
    target: Interpreter, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    link(target, "$ORIGIN/../../_rocm_sdk_core/lib")
    check(target)
    assert "imports beside ROCm's run-time packages" in capsys.readouterr().err
    assert sorted(path.name for path in tmp_path.iterdir()) == ["environment"]
    assert (target.purelib / "torch" / "_rocm_init.py").read_text() == PRELOADS
    assert (target.purelib / "_rocm_sdk_devel").is_dir()


@pytest.mark.parametrize(
    "rpath", ["$ORIGIN", "$ORIGIN/../../_rocm_sdk_devel/lib", "$ORIGIN/../_rocm_sdk_core/lib"]
)
def test_other_search_paths_are_found_out(target: Interpreter, tmp_path: Path, rpath: str) -> None:
    link(target, rpath)
    with pytest.raises(BuildError, match="development tree is not installed") as caught:
        check(target)
    assert "libamdhip64.so.7" in caught.value.message
    assert sorted(path.name for path in tmp_path.iterdir()) == ["environment"]
    check(target, preloads=True)


def test_where_files_cannot_be_linked_they_are_copied(
    target: Interpreter, monkeypatch: pytest.MonkeyPatch
) -> None:
    link(target, "$ORIGIN/../../_rocm_sdk_core/lib")

    def refuses(*_: object) -> None:
        raise OSError("Invalid cross-device link")

    monkeypatch.setattr("os.link", refuses)
    check(target)
    assert (target.purelib / "torch" / "__init__.py").stat().st_nlink == 1
