"""Container images as data (images.toml): their build arguments and their names."""

from __future__ import annotations

import re
from pathlib import Path
from string import Template
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from pydantic import model_validator

from core.data import Model, load_toml
from core.errors import UsageError, nearest

if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Self

IMAGES_FILE = Path(__file__).with_name("images.toml")
BASE = "BASE_IMAGE"
DATE = "NIGHTLY_DATE"

_REPOSITORY = re.compile(r"[a-z0-9.-]+(:\d+)?(/[a-z0-9]+([._-]+[a-z0-9]+)*)+")
_NAME = re.compile(r"[a-z0-9]+([._/-]+[a-z0-9]+)*")
_TAG = re.compile(r"\w[\w.-]{0,127}", re.ASCII)
_DATE = re.compile(r"\d{8}", re.ASCII)


class BuildArgument(Model):
    """One build argument of a Dockerfile."""

    default: str
    pattern: str
    about: str


class Image(Model):
    """One image."""

    dockerfile: str
    name: str
    default: bool = False
    arguments: dict[str, BuildArgument]

    def values(self, given: Mapping[str, str]) -> dict[str, str]:
        """Give every build argument its value."""
        for name in given:
            if name not in self.arguments:
                raise UsageError(
                    f"{self.dockerfile} has no build argument {name}.", hint=nearest(name, self.arguments)
                )
        found = {name: given.get(name, one.default) for name, one in self.arguments.items()}
        for name, value in found.items():
            if name not in given:
                found[name] = Template(value).substitute(found)
        for name, value in found.items():
            if not re.fullmatch(self.arguments[name].pattern, value):
                raise UsageError(
                    f"{name}={value!r} cannot be right: {self.arguments[name].about}.",
                    hint=f"The default is {self.arguments[name].default!r}.",
                )
            if "://" in value and "@" in urlsplit(value).netloc:
                raise UsageError(
                    f"{name} holds a user name or password, which would stay in the image.",
                    hint="Give an address without one; a base image of yours can hold a netrc file.",
                )
        return found


class _ImagesFile(Model):
    images: dict[str, Image]

    @model_validator(mode="after")
    def _one_default(self) -> Self:
        if sum(one.default for one in self.images.values()) != 1:
            raise ValueError("one image has default = true.")
        return self


def images() -> Mapping[str, Image]:
    """Give every image by name."""
    return load_toml(IMAGES_FILE, _ImagesFile).images


def image(name: str = "") -> Image:
    """Find an image."""
    known = images()
    if name and name not in known:
        raise UsageError(f"There is no image {name!r}.", hint=nearest(name, known))
    return known[name] if name else next(one for one in known.values() if one.default)


def tags(date: str, named: tuple[str, ...] = ()) -> tuple[str, ...]:
    """Give an image's tags."""
    if not _DATE.fullmatch(date):
        raise UsageError(f"{date!r} is no day.", hint="Write it as YYYYMMDD, such as 20251121.")
    found = named or (f"nightly-{date}", "latest")
    for tag in found:
        if not _TAG.fullmatch(tag):
            raise UsageError(f"{tag!r} is no tag of an image.", hint="Use letters, digits, '_', '.' and '-'.")
    return found


def repository(named: str) -> str:
    """Check where an image is pushed to: REGISTRY/REPO, in small letters as registries want it."""
    found = named.lower()
    if not _REPOSITORY.fullmatch(found):
        raise UsageError(
            f"{named!r} is no REGISTRY/REPO to push to.",
            hint="Write it without https:// and without a tag, as in registry.example.com/team/rocm-ci.",
        )
    return found


def local_name(named: str) -> str:
    """Check what an image is to be called on this machine, without a tag."""
    if not _NAME.fullmatch(named):
        raise UsageError(
            f"{named!r} is no name of an image.", hint="Use small letters and digits, and no tag."
        )
    return named
