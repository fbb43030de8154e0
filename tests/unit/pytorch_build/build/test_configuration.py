from pathlib import Path

import pytest

from core.errors import BuildError
from pytorch_build.build.compilers import Compiler
from pytorch_build.build.configuration import asked, differences, flag_checks, turned, verified

RECORDED = Path(__file__).with_name("recorded")
# Lines of PyTorch 2.6's cache, configured by clang.
CACHE = RECORDED.joinpath("CMakeCache.txt").read_text(encoding="utf-8")
# CMake's output, with a place for how the checks of compiler flags end.
CHECKS = RECORDED.joinpath("cmake-checks.txt").read_text(encoding="utf-8")
CLANG = {"CXX": Compiler(path="/usr/bin/clang++-19", kind="clang", version="19.1.7")}
ENV = {"CXXFLAGS": "-O1", "LDFLAGS": "-fuse-ld=lld", "USE_OPENMP": "1", "BUILD_TEST": "0", "USE_GLOO": "ON"}


@pytest.fixture
def cache(tmp_path: Path) -> Path:
    """Return the cache that CMake left in a build folder."""
    path = tmp_path / "build" / "CMakeCache.txt"
    path.parent.mkdir()
    path.write_text(CACHE)
    return path


def test_accepts_a_cache_that_was_configured_as_requested(cache: Path) -> None:
    configuration = verified(cache, CHECKS.format("Success"), env=ENV, compilers=CLANG)

    assert configuration["compilers"] == {"CXX": "clang 19.1.7"}
    assert configuration["settings"]["CMAKE_BUILD_TYPE"] == "Release"
    assert configuration["switches"] == {"BUILD_TEST": "False", "USE_GLOO": "ON", "USE_OPENMP": "ON"}


def test_prints_the_build_type_and_how_many_flags_the_compiler_takes(
    cache: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    verified(cache, CHECKS.format("Success"), env=ENV, compilers=CLANG)

    printed = capsys.readouterr().err
    assert "Release" in printed
    assert "4 of 5" in printed


@pytest.mark.parametrize(
    ("changes", "facts"),
    [
        ({"DEBUG": "1"}, ["CMAKE_BUILD_TYPE", "Release", "Debug"]),
        ({"REL_WITH_DEB_INFO": "ON"}, ["CMAKE_BUILD_TYPE", "RelWithDebInfo"]),
        ({"CMAKE_BUILD_TYPE": "MinSizeRel", "DEBUG": "1"}, ["CMAKE_BUILD_TYPE", "MinSizeRel"]),
        ({"CXXFLAGS": "-O1 -g"}, ["CMAKE_CXX_FLAGS", "-O1 -Wno-unknown-warning-option", "-O1 -g"]),
        ({"LDFLAGS": "-fuse-ld=mold"}, ["CMAKE_SHARED_LINKER_FLAGS", "-fuse-ld=lld", "-fuse-ld=mold"]),
    ],
    ids=["DEBUG", "REL_WITH_DEB_INFO", "CMAKE_BUILD_TYPE", "CXXFLAGS", "LDFLAGS"],
)
def test_rejects_a_cache_that_was_configured_otherwise(
    cache: Path, changes: dict[str, str], facts: list[str]
) -> None:
    with pytest.raises(BuildError) as caught:
        verified(cache, "", env=ENV | changes, compilers=CLANG)

    assert [fact for fact in facts if fact not in caught.value.message] == []


@pytest.mark.parametrize(
    ("name", "is_same"), [("c++", True), ("clang++", False)], ids=["link to it", "another compiler"]
)
def test_rejects_another_compiler_and_accepts_another_name_for_it(
    tmp_path: Path, name: str, *, is_same: bool
) -> None:
    (tmp_path / "g++-14").touch()
    (tmp_path / "c++").symlink_to(tmp_path / "g++-14")
    requested = asked({}, {"CXX": Compiler(path=str(tmp_path / name), kind="gcc", version="14")})

    differing = differences({"CMAKE_CXX_COMPILER": str(tmp_path / "g++-14")}, requested)

    assert (differing == ()) is is_same


def test_reports_switches_that_upstream_turned() -> None:
    cache = {"USE_MKLDNN": "OFF", "USE_OPENMP": "ON"}
    env = {**ENV, "USE_MKLDNN": "1", "USE_NOWHERE": "1"}

    (turned_switch,) = turned(cache, env)

    assert "USE_MKLDNN=1" in turned_switch
    assert turned_switch.endswith("OFF")


def test_counts_no_flag_checks_in_no_output() -> None:
    assert flag_checks("") == (0, ())


def test_rejects_a_compiler_that_takes_no_flag(cache: Path) -> None:
    with pytest.raises(BuildError, match=r"clang 19\.1\.7") as caught:
        verified(cache, CHECKS.format("Failed"), env=ENV, compilers=CLANG)

    assert "CMakeConfigureLog.yaml" in caught.value.hint
