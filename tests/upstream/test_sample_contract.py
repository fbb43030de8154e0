"""The sample's projects read what upstream's read of what our builds set, and link as upstream's link."""

import re
from collections.abc import Iterable
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
LINK_OPTION = "-Wl,--no-as-needed"
SEARCH_PATH = re.compile(r"-rpath\b|INSTALL_RPATH\b|runtime_library_dirs\s*=")


def code(project: Path, *patterns: str) -> str:
    """Return the code of a project's build files, without comments."""
    files: set[Path] = set()
    for pattern in patterns:
        files.update(project.glob(pattern))

    text = ""
    for path in sorted(files):
        if "third_party" not in path.relative_to(project).parts:
            text += path.read_text(encoding="utf-8", errors="replace") + "\n"
    assert text, f"{project} has none of {patterns}"
    return re.sub(r"(^|\s)(#|//).*", "", text)


def build_code(project: Path, torch: Path) -> str:
    """Return a project's code that reads variables; extensions are compiled by torch's own module."""
    return code(project, *BUILD_FILES) + code(torch, "torch/utils/cpp_extension.py")


def reads(text: str, name: str) -> bool:
    """Return whether code reads a variable."""
    return re.search(rf"\b{name}\b", text) is not None


def variables_read(text: str, names: Iterable[str]) -> set[str]:
    """Return the variables of these names that code reads."""
    return {name for name in names if reads(text, name)}


def cmake_settings(torch: Path) -> dict[str, set[str]]:
    """Return the values that a torch's CMake code gives to each of `SETTINGS`."""
    text = code(torch, "CMakeLists.txt", "cmake/Dependencies.cmake")
    text = text.replace("${_rpath_portable_origin}", "$ORIGIN")

    values: dict[str, set[str]] = {}
    for name, value in re.findall(rf"set\(({'|'.join(SETTINGS)})\s+\"?([^\s\")]+)", text):
        values.setdefault(name, set()).add(value)
    return values


def sources_of(upstream_sources: dict[str, Path], project: str) -> Path:
    """Return a project's repository; a test is skipped where it is not there."""
    if project not in upstream_sources:
        pytest.skip(f"--sources has no {project}")
    return upstream_sources[project]


@pytest.mark.parametrize("project", ["torch", "audio", "vision"])
@pytest.mark.parametrize("gpu", [True, False])
def test_the_sample_reads_each_variable_that_upstream_reads_and_our_plans_set(
    torch_sources: Path, upstream_sources: dict[str, Path], project: str, *, gpu: bool
) -> None:
    plan = plan_project(project, has_gpu=gpu, max_jobs=2, torch_version="2.6.0")
    upstreams_code = build_code(sources_of(upstream_sources, project), torch_sources)
    samples_code = build_code(SAMPLE / project, SAMPLE / "torch")

    variables = variables_read(upstreams_code, plan.env)
    assert len(variables) > 5, "upstream's build files were not found"
    assert variables - variables_read(samples_code, variables) <= NOT_READ.keys()


def test_each_reason_is_still_needed() -> None:
    variables: set[str] = set()
    for project in ("torch", "audio"):
        variables |= set(plan_project(project, torch_version="2", max_jobs=2).env)
    assert variables >= NOT_READ.keys()

    samples_code = code(SAMPLE / "torch", *BUILD_FILES)
    assert variables_read(samples_code, NOT_READ) <= {"MAX_JOBS", "PATH"}


def test_the_samples_torch_is_linked_with_upstreams_settings(torch_sources: Path) -> None:
    settings = cmake_settings(SAMPLE / "torch")
    assert settings.keys() == set(SETTINGS)
    assert settings == cmake_settings(torch_sources)

    assert reads(code(torch_sources, "CMakeLists.txt"), LINK_OPTION.removeprefix("-"))
    assert LINK_OPTION in code(SAMPLE / "torch", "CMakeLists.txt")


def test_libraries_beside_torchs_find_them_as_upstreams_do(torch_sources: Path) -> None:
    samples_code = code(SAMPLE / "torch", "CMakeLists.txt")
    assert 'make_relative_rpath_args("lib")' in code(torch_sources, "setup.py")
    assert re.search(r"torch_stub PROPERTIES[^)]* INSTALL_RPATH \$ORIGIN/lib\)", samples_code)

    programs_code = code(torch_sources, "torch/lib/libshm/CMakeLists.txt")
    programs_code = programs_code.replace("${_rpath_portable_origin}", "$ORIGIN")
    rpath_of_program = rf'{PROGRAM} PROPERTIES\s+INSTALL_RPATH "?\$ORIGIN/\.\./lib"?\)'
    assert re.search(rpath_of_program, programs_code)
    assert re.search(rpath_of_program, samples_code)


@pytest.mark.parametrize("project", ["audio", "vision"])
def test_extensions_get_no_search_path(
    torch_sources: Path, upstream_sources: dict[str, Path], project: str
) -> None:
    # torchvision's CMakeLists.txt makes a C++ library, which is in no wheel.
    files = ("setup.py",) if project == "vision" else BUILD_FILES

    for sources in (sources_of(upstream_sources, project), SAMPLE / project):
        assert not SEARCH_PATH.search(code(sources, *files))
    for torch in (torch_sources, SAMPLE / "torch"):
        extension_code = code(torch, "torch/utils/cpp_extension.py")
        # This search path is for extensions that are compiled when they are imported.
        paths_of_torch = extension_code.count("-Wl,-rpath,{TORCH_LIB_PATH}")
        assert extension_code.count("-Wl,-rpath") == paths_of_torch


@pytest.mark.parametrize("name", ["requirements.txt", "setup.py", "pyproject.toml"])
def test_files_that_our_plans_read_are_upstreams_and_the_samples(torch_sources: Path, name: str) -> None:
    assert (torch_sources / name).is_file()
    assert (SAMPLE / "torch" / name).is_file()
