"""core/environment.toml names what upstream's setup.py and CMake code read of BUILD_, TORCH_ and PYTORCH_."""

import re
from pathlib import Path

from core.environment import need_of

SETUP_CODE = ("setup.py", "tools/setup_helpers/*.py", "torch/utils/cpp_extension.py")
CMAKE_CODE = ("CMakeLists.txt", "cmake/**/*.cmake", "caffe2/CMakeLists.txt", "torch/**/CMakeLists.txt")

# `os.getenv("NAME")`, `check_env_flag("NAME")` and their like, and `$ENV{NAME}`.
READ_BY_PYTHON = re.compile(r"(?:env|environ|get|flag)\w*[\[(]\s*[\"'](\w+)[\"']")
READ_BY_CMAKE = re.compile(r"ENV\{(\w+)\}")
# Options of CMake that torch's setup.py passes on by their prefix.
OPTION = re.compile(r"\boption\(\s*(\w+)")
SHARED_PREFIXES = ("BUILD_", "PYTORCH_", "TORCH_")

NOT_PASSED_ON = {
    "BUILD_ENVIRONMENT": "upstream's own CI; it is read where NCCL is built for a libtorch of its own",
    "BUILD_PYTORCH_MOBILE_WITH_HOST_TOOLCHAIN": "no wheel is built for phones",
    "BUILD_VERSION": "the plan sets it",
    "PYTORCH_VERSION": "the plan sets it",
    "TORCH_PACKAGE_NAME": "the wheel has its own name",
}


def names_read_by(repository: Path) -> set[str]:
    """Return the variables that a repository's build reads, of prefixes that servers use, too."""
    names: set[str] = set()
    for pattern in SETUP_CODE:
        for path in repository.glob(pattern):
            names.update(READ_BY_PYTHON.findall(path.read_text(encoding="utf-8")))
    for pattern in CMAKE_CODE:
        for path in repository.glob(pattern):
            text = path.read_text(encoding="utf-8", errors="replace")
            names.update(READ_BY_CMAKE.findall(text))
            names.update(OPTION.findall(text))
    return {name for name in names if name.startswith(SHARED_PREFIXES)}


def test_passes_on_what_upstreams_builds_read(upstream_sources: dict[str, Path]) -> None:
    names: set[str] = set()
    for repository in upstream_sources.values():
        names |= names_read_by(repository)

    assert len(names) > 20
    assert {name for name in names if not need_of(name)} <= NOT_PASSED_ON.keys()
