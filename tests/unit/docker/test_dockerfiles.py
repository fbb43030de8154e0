"""What a plain `docker build` of the Dockerfiles takes is what build_image passes."""

import re
from fnmatch import fnmatch
from pathlib import Path

import pytest

from ci.verbs.build_image import DATE, Image, images
from core.cli.options import ROOT

ARGUMENT = re.compile(r"^ARG (?P<name>\w+)(?:=(?P<value>.*))?$", re.MULTILINE)
COPIED = re.compile(r"^COPY (\S+) ", re.MULTILINE)

EACH_IMAGE = pytest.mark.parametrize("image", images().values(), ids=lambda image: image.name)


def read_dockerfile(image: Image) -> str:
    """Return the text of an image's Dockerfile."""
    return (ROOT / image.dockerfile).read_text(encoding="utf-8")


def declared_arguments(image: Image) -> dict[str, str | None]:
    """Return the build arguments that a Dockerfile declares, with their defaults."""
    return {match["name"]: match["value"] for match in ARGUMENT.finditer(read_dockerfile(image))}


def sent_patterns() -> list[str]:
    """Return what is sent to the engine: the exceptions of .dockerignore."""
    lines = Path(ROOT, ".dockerignore").read_text(encoding="utf-8").splitlines()
    return [line.removeprefix("!") for line in lines if line.startswith("!")]


@EACH_IMAGE
def test_build_arguments_have_the_defaults_of_the_data(image: Image) -> None:
    declared = declared_arguments(image)
    declared.pop(DATE, None)
    defaults = {name: argument.default or None for name, argument in image.arguments.items()}

    # Who builds without build_image asks for a nightly explicitly.
    if "USE_THEROCK_NIGHTLY" in defaults:
        assert declared.pop("USE_THEROCK_NIGHTLY") is None
        assert defaults.pop("USE_THEROCK_NIGHTLY") == "1"

    assert declared == defaults


@EACH_IMAGE
def test_copied_files_are_there_and_are_sent_to_the_engine(image: Image) -> None:
    sources = COPIED.findall(read_dockerfile(image))

    assert sources
    for source in sources:
        assert (ROOT / source).is_file()
        assert any(fnmatch(source, f"{pattern}/*") for pattern in sent_patterns())


@EACH_IMAGE
def test_scripts_that_run_are_copied(image: Image) -> None:
    text = read_dockerfile(image)

    copied = {f"/opt/ci/{Path(source).name}" for source in COPIED.findall(text)}
    assert set(re.findall(r"/opt/ci/\w+\.sh", text)) == copied


def test_another_day_installs_rocm_again_and_nothing_before_it() -> None:
    image = next(image for image in images().values() if image.default)
    text = read_dockerfile(image)

    # What stands before an argument stays in the cache when the argument changes.
    date = text.index(f"ARG {DATE}\n")
    assert text.index("install_conda.sh\n") < date
    assert date < text.index("install_rocm.sh\n")
