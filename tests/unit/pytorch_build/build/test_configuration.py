from pathlib import Path

import pytest

from core.errors import BuildError
from pytorch_build.build.compilers import Compiler
from pytorch_build.build.configuration import asked, differences, flag_checks, turned, verified

# lines of PyTorch 2.6's, configured by clang
CACHE = Path(__file__).with_name("recorded").joinpath("CMakeCache.txt").read_text()
CLANG = {"CXX": Compiler(path="/usr/bin/clang++-19", kind="clang", version="19.1.7")}
ENV = {"CXXFLAGS": "-O1", "LDFLAGS": "-fuse-ld=lld", "USE_OPENMP": "1", "BUILD_TEST": "0", "USE_GLOO": "ON"}
CHECKS = Path(__file__).with_name("recorded").joinpath("cmake-checks.txt").read_text()


@pytest.fixture
def cache(tmp_path: Path) -> Path:
    path = tmp_path / "build" / "CMakeCache.txt"
    path.parent.mkdir()
    path.write_text(CACHE)
    return path


def test_a_cache_is_what_was_asked_for(cache: Path, capsys: pytest.CaptureFixture[str]) -> None:
    found = verified(cache, CHECKS.format("Success"), env=ENV, compilers=CLANG)
    assert found["compilers"] == {"CXX": "clang 19.1.7"}
    assert found["settings"]["CMAKE_BUILD_TYPE"] == "Release"
    assert found["switches"] == {"BUILD_TEST": "False", "USE_GLOO": "ON", "USE_OPENMP": "ON"}
    assert "configured: Release, 4 of 5 compiler flags taken" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"DEBUG": "1"}, "CMAKE_BUILD_TYPE is Release, and Debug was asked for"),
        ({"REL_WITH_DEB_INFO": "ON"}, "RelWithDebInfo was asked for"),
        ({"CMAKE_BUILD_TYPE": "MinSizeRel", "DEBUG": "1"}, "MinSizeRel was asked for"),
        ({"CXXFLAGS": "-O1 -g"}, "CMAKE_CXX_FLAGS is -O1 -Wno-unknown-warning-option, and -O1 -g was"),
        ({"LDFLAGS": "-fuse-ld=mold"}, "CMAKE_SHARED_LINKER_FLAGS is -fuse-ld=lld, and"),
    ],
)
def test_a_folder_that_was_configured_otherwise_is_an_error(
    cache: Path, changes: dict[str, str], said: str
) -> None:
    with pytest.raises(BuildError, match="is not what this build asks for") as caught:
        verified(cache, "", env=ENV | changes, compilers=CLANG)
    assert said in caught.value.message


def test_another_compiler_is_an_error_and_another_name_for_it_is_not(tmp_path: Path) -> None:
    real, link = tmp_path / "g++-14", tmp_path / "c++"
    real.touch()
    link.symlink_to(real)
    found = {"CMAKE_CXX_COMPILER": str(real)}
    for path, same in ((link, True), (tmp_path / "clang++", False)):
        wanted = asked({}, {"CXX": Compiler(path=str(path), kind="gcc", version="14")})
        assert (differences(found, wanted) == ()) is same


def test_switches_that_upstream_turned_are_told() -> None:
    cache, env = {"USE_MKLDNN": "OFF", "USE_OPENMP": "ON"}, {"USE_MKLDNN": "1", "USE_NOWHERE": "1"}
    assert turned(cache, ENV | env) == ("USE_MKLDNN=1 became OFF",)


def test_a_compiler_that_takes_no_flag_at_all_is_an_error(cache: Path) -> None:
    assert flag_checks("") == (0, ())
    with pytest.raises(BuildError, match=r"tried 5 compiler flags, and clang 19\.1\.7 took none") as caught:
        verified(cache, CHECKS.format("Failed"), env=ENV, compilers=CLANG)
    assert "CMakeConfigureLog.yaml" in caught.value.hint
