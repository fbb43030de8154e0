"""A plain `docker build` of a Dockerfile builds what build_image builds."""

import re
from pathlib import Path

import pytest

from ci.verbs.build_image import DATE, Image, find_image, images
from core.cli.options import ROOT

ARGUMENT = re.compile(r"^ARG (?P<name>\w+)(?:=(?P<value>.*))?$", re.MULTILINE)
COPIED = re.compile(r"^COPY (\S+) ", re.MULTILINE)

EACH_IMAGE = pytest.mark.parametrize("image", images().values(), ids=lambda image: image.name)


def read_dockerfile(image: Image) -> str:
    """Return the text of an image's Dockerfile."""
    return (ROOT / image.dockerfile).read_text(encoding="utf-8")


def declared_arguments(image: Image) -> dict[str, str | None]:
    """Return the build arguments that a Dockerfile declares, with their defaults."""
    arguments: dict[str, str | None] = {}
    for declaration in ARGUMENT.finditer(read_dockerfile(image)):
        arguments[declaration["name"]] = declaration["value"]
    return arguments


def passed_arguments(image: Image) -> dict[str, str | None]:
    """Return the build arguments that build_image passes unless it is told otherwise."""
    arguments: dict[str, str | None] = {}
    for name, argument in image.arguments.items():
        arguments[name] = argument.default or None
    return arguments


def copied_files(image: Image) -> list[str]:
    """Return the files of the repository that a Dockerfile copies into an image."""
    paths: list[str] = COPIED.findall(read_dockerfile(image))
    return paths


def sent_files() -> set[Path]:
    """Return the files that are sent to the engine: those in the folders that .dockerignore excepts."""
    ignore_file = ROOT / ".dockerignore"
    files: set[Path] = set()
    for line in ignore_file.read_text(encoding="utf-8").splitlines():
        if line.startswith("!"):
            folder = line.removeprefix("!")
            files.update(ROOT.glob(f"{folder}/**/*"))
    return files


@EACH_IMAGE
def test_build_arguments_have_the_defaults_of_build_image(image: Image) -> None:
    declared = declared_arguments(image)
    declared.pop(DATE, None)
    passed = passed_arguments(image)

    # A plain `docker build` takes a nightly only where it is asked for one.
    if "USE_THEROCK_NIGHTLY" in passed:
        assert declared.pop("USE_THEROCK_NIGHTLY") is None
        assert passed.pop("USE_THEROCK_NIGHTLY") == "1"

    assert declared == passed


@EACH_IMAGE
def test_copied_files_exist_and_are_sent_to_the_engine(image: Image) -> None:
    paths = copied_files(image)

    assert paths
    for path in paths:
        copied_file = ROOT / path
        assert copied_file.is_file()
        assert copied_file in sent_files()


@EACH_IMAGE
def test_copies_the_scripts_that_it_runs_and_no_others(image: Image) -> None:
    dockerfile = read_dockerfile(image)

    executed_scripts = set(re.findall(r"/opt/ci/(\w+\.sh)", dockerfile))
    copied_scripts = {Path(path).name for path in copied_files(image)}
    assert executed_scripts == copied_scripts


def test_another_day_installs_rocm_again_and_nothing_before_it() -> None:
    default_image = find_image()
    dockerfile = read_dockerfile(default_image)

    # What stands before an argument stays in the cache when the argument changes.
    date = dockerfile.index(f"ARG {DATE}\n")
    assert dockerfile.index("install_conda.sh\n") < date
    assert date < dockerfile.index("install_rocm.sh\n")
