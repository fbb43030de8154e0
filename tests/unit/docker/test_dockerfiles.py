"""What a plain `docker build` of the Dockerfiles takes is what build_image passes."""

import re
from fnmatch import fnmatch
from pathlib import Path

import pytest

from ci.verbs.build_image import DATE, Image, images
from core.cli.options import ROOT

ARG = re.compile(r"^ARG (?P<name>\w+)(?:=(?P<value>.*))?$", re.MULTILINE)
IMAGES = pytest.mark.parametrize("image", images().values(), ids=lambda one: one.name)


def declared(image: Image) -> dict[str, str | None]:
    text = (ROOT / image.dockerfile).read_text(encoding="utf-8")
    return {found["name"]: found["value"] for found in ARG.finditer(text)}


@IMAGES
def test_build_arguments_have_the_defaults_of_the_data(image: Image) -> None:
    in_file = declared(image)
    in_file.pop(DATE, None)
    data = {name: one.default or None for name, one in image.arguments.items()}
    if "USE_THEROCK_NIGHTLY" in data:
        assert in_file.pop("USE_THEROCK_NIGHTLY") is None  # opt-in
        assert data.pop("USE_THEROCK_NIGHTLY") == "1"
    assert in_file == data


@IMAGES
def test_what_is_copied_is_there_and_is_sent_to_the_engine(image: Image) -> None:
    text = (ROOT / image.dockerfile).read_text(encoding="utf-8")
    sources = re.findall(r"^COPY (\S+) ", text, re.MULTILINE)
    sent = [line[1:] for line in Path(ROOT, ".dockerignore").read_text().splitlines() if line.startswith("!")]
    assert sources
    for source in sources:
        assert (ROOT / source).is_file()
        assert any(fnmatch(source, f"{pattern}/*") for pattern in sent)
    copied = {f"/opt/ci/{Path(source).name}" for source in sources}
    assert set(re.findall(r"/opt/ci/\w+\.sh", text)) == copied


def test_a_new_day_takes_rocm_anew_and_only_rocm() -> None:
    image = next(one for one in images().values() if one.default)
    text = (ROOT / image.dockerfile).read_text(encoding="utf-8")
    assert text.index("install_conda.sh\n") < text.index(f"ARG {DATE}\n") < text.index("install_rocm.sh\n")
