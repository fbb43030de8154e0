"""The sample's projects read what upstream's read of what our builds set, and link as upstream's link."""

import re
from pathlib import Path

import pytest

from core.cli.options import ROOT
from tests.kit.build_plans import plan_project

SAMPLE = ROOT / "pytorch_build" / "sample" / "templates"
BUILD_FILES = (
    "setup.py", "pyproject.toml", "CMakeLists.txt", "**/CMakeLists.txt", "cmake/**/*.cmake",
    "tools/**/*.py", "torch/utils/cpp_extension.py",
)  # fmt: skip
# What upstream reads, our plans set, and the sample does not read.
NOT_READ = {
    "CMAKE_BUILD_PARALLEL_LEVEL": "CMake's own; the sample's audio is built by setuptools alone",
    "CMAKE_GENERATOR": "CMake's own; the sample asks for ninja itself",
    "CMAKE_PREFIX_PATH": "CMake's own; the sample passes it on by its prefix",
    "LD_LIBRARY_PATH": "the loader's own",
    "MAX_JOBS": "setuptools compiles the sample's extensions one by one",
    "PATH": "read by shutil.which and find_program",
    "USE_MPI": "set to OFF, and the sample has no distributed package",
    "USE_NUMA": "set to OFF, and the sample has no distributed package",
    "VIRTUAL_ENV": "CMake's FindPython reads it; the sample names the interpreter",
}
# A setting with the same value in both decides the search paths of what is linked.
SETTINGS = (
    "CMAKE_SKIP_BUILD_RPATH", "CMAKE_BUILD_WITH_INSTALL_RPATH", "CMAKE_INSTALL_RPATH",
    "CMAKE_INSTALL_RPATH_USE_LINK_PATH",
)  # fmt: skip
PROGRAM = "torch_shm_manager"


def code(root: Path, *patterns: str) -> str:
    """Return the code of a project's build files, without comments."""
    found = {path for pattern in patterns for path in root.glob(pattern)}
    inside = sorted(path for path in found if "third_party" not in path.relative_to(root).parts)
    assert inside, f"{root} has none of {patterns}"
    text = "\n".join(path.read_text(encoding="utf-8", errors="replace") for path in inside)
    return re.sub(r"(^|\s)(#|//).*", "", text)


def reads(text: str, name: str) -> bool:
    return re.search(rf"\b{name}\b", text) is not None


def settings(text: str) -> dict[str, set[str]]:
    own = text.replace("${_rpath_portable_origin}", "$ORIGIN")
    found = re.findall(rf"set\(({'|'.join(SETTINGS)})\s+\"?([^\s\")]+)", own)
    return {name: {value for key, value in found if key == name} for name in SETTINGS}


@pytest.mark.parametrize("project", ["torch", "audio", "vision"])
@pytest.mark.parametrize("gpu", [True, False])
def test_the_sample_reads_each_variable_that_upstream_reads_and_our_plans_set(
    torch_sources: Path, upstream_sources: dict[str, Path], project: str, *, gpu: bool
) -> None:
    if project not in upstream_sources:
        pytest.skip(f"--sources has no {project}")
    made = plan_project(project, has_gpu=gpu, max_jobs=2, torch_version="2.6.0")
    # extensions are compiled by torch's own module
    theirs, ours = (
        code(root, *BUILD_FILES) + code(torch, "torch/utils/cpp_extension.py")
        for root, torch in (
            (upstream_sources[project], torch_sources),
            (SAMPLE / project, SAMPLE / "torch"),
        )
    )
    read = {name for name in made.env if reads(theirs, name)}
    assert len(read) > 5, "upstream's build files were not found"
    assert {name for name in read if not reads(ours, name)} <= NOT_READ.keys()


def test_each_reason_is_still_needed() -> None:
    torch = code(SAMPLE / "torch", *BUILD_FILES)
    sets = {
        name
        for project in ("torch", "audio")
        for name in plan_project(project, torch_version="2", max_jobs=2).env
    }
    assert sets >= NOT_READ.keys()
    assert {name for name in NOT_READ if reads(torch, name)} <= {"MAX_JOBS", "PATH"}, (
        "the sample reads it now"
    )


def test_the_samples_torch_is_linked_with_upstreams_settings(torch_sources: Path) -> None:
    theirs, ours = (
        settings(code(root, "CMakeLists.txt", "cmake/Dependencies.cmake"))
        for root in (torch_sources, SAMPLE / "torch")
    )
    assert theirs == ours
    assert all(ours.values())
    flags = "-Wl,--no-as-needed"
    assert reads(code(torch_sources, "CMakeLists.txt"), flags[1:])
    assert flags in code(SAMPLE / "torch", "CMakeLists.txt")


def test_libraries_beside_torchs_find_them_as_upstreams_do(torch_sources: Path) -> None:
    ours = code(SAMPLE / "torch", "CMakeLists.txt")
    assert 'make_relative_rpath_args("lib")' in code(torch_sources, "setup.py")
    assert re.search(r"torch_stub PROPERTIES[^)]* INSTALL_RPATH \$ORIGIN/lib\)", ours)
    theirs = code(torch_sources, "torch/lib/libshm/CMakeLists.txt").replace(
        "${_rpath_portable_origin}", "$ORIGIN"
    )
    wanted = rf'{PROGRAM} PROPERTIES\s+INSTALL_RPATH "?\$ORIGIN/\.\./lib"?\)'
    assert re.search(wanted, theirs)
    assert re.search(wanted, ours)


@pytest.mark.parametrize("project", ["audio", "vision"])
def test_extensions_get_no_search_path(
    torch_sources: Path, upstream_sources: dict[str, Path], project: str
) -> None:
    if project not in upstream_sources:
        pytest.skip(f"--sources has no {project}")
    for root, torch in ((upstream_sources[project], torch_sources), (SAMPLE / project, SAMPLE / "torch")):
        # torchvision's CMakeLists.txt makes a C++ library, which is in no wheel
        files = ("setup.py",) if project == "vision" else BUILD_FILES
        assert not re.search(r"-rpath\b|INSTALL_RPATH\b|runtime_library_dirs\s*=", code(root, *files))
        linked = code(torch, "torch/utils/cpp_extension.py")
        # the one there is for extensions that are compiled when they are imported
        assert linked.count("-Wl,-rpath") == linked.count("-Wl,-rpath,{TORCH_LIB_PATH}")


@pytest.mark.parametrize("name", ["requirements.txt", "setup.py", "pyproject.toml"])
def test_files_that_our_plans_read_are_upstreams_and_the_samples(torch_sources: Path, name: str) -> None:
    assert (torch_sources / name).is_file()
    assert (SAMPLE / "torch" / name).is_file()
