from email.message import Message
from email.parser import BytesParser, Parser
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.version import Version

from core.wheel import WheelMetadata
from pytorch_build.split.layout import (
    SplitLayout,
    device_metadata,
    host_metadata,
    license_members,
    required_rocm,
)

FAT_METADATA = Path(__file__).with_name("recorded").joinpath("METADATA").read_bytes()
VERSION = "2.10.0+rocm7.1"
LAYOUT = SplitLayout(
    distribution="torch",
    version=VERSION,
    targets=("gfx1100", "gfx1151", "gfx942"),
    groups=("gfx11", "gfx110x"),
    rocm_version="7.1",
)
HOST = WheelMetadata(
    name="torch",
    version=Version(VERSION),
    requires_dist=(),
    requires_python="",
    provides_extra=(),
    license="",
    raw=FAT_METADATA,
)


# The host wheel


def read_host_metadata(metadata: bytes = FAT_METADATA) -> Message:
    """Return the METADATA of the host wheel that comes of a fat one."""
    return BytesParser().parsebytes(host_metadata(metadata, LAYOUT))


def required_by(metadata: Message, extra: str) -> list[Requirement]:
    """Return what an extra requires."""
    requirements = [Requirement(text) for text in metadata.get_all("Requires-Dist", ())]
    return [
        requirement
        for requirement in requirements
        if requirement.marker is not None and requirement.marker.evaluate({"extra": extra})
    ]


def test_adds_an_extra_for_each_target_and_one_for_all() -> None:
    assert read_host_metadata().get_all("Provides-Extra") == [
        "opt",
        "device-gfx1100",
        "device-gfx1151",
        "device-gfx942",
        "device-all",
    ]


@pytest.mark.parametrize(
    ("extra", "gpus"),
    [
        ("device-gfx1100", {"gfx1100", "gfx110x", "gfx11"}),
        ("device-gfx1151", {"gfx1151", "gfx11"}),
        ("device-gfx942", {"gfx942"}),
        ("device-all", {"gfx1100", "gfx1151", "gfx942", "gfx11", "gfx110x"}),
    ],
)
def test_leads_an_extra_to_the_wheels_of_its_target_and_groups(extra: str, gpus: set[str]) -> None:
    requirements = required_by(read_host_metadata(), extra)

    assert {requirement.name for requirement in requirements} == {f"amd-torch-device-{gpu}" for gpu in gpus}
    assert {str(requirement.specifier) for requirement in requirements} == {f"=={VERSION}"}


def test_keeps_the_text_of_the_fat_wheels_metadata() -> None:
    metadata = read_host_metadata()

    assert metadata.get_payload() == "Body: no header\n\nExtra: none\n"
    assert "rocm-bootstrap" not in metadata.as_string()


def test_adds_extras_to_metadata_without_a_text() -> None:
    metadata = read_host_metadata(b"Metadata-Version: 2.1\nName: torch\nVersion: 1\n")

    assert metadata["Name"] == "torch"
    assert len(metadata.get_all("Provides-Extra", ())) == 4


# The wheels of device code


@pytest.mark.parametrize(
    ("gpu", "requirements"),
    [
        ("gfx942", [f"torch == {VERSION}", "rocm-sdk-device-gfx942 == 7.1"]),
        (
            "gfx1151",
            [
                f"torch == {VERSION}",
                "rocm-sdk-device-gfx1151 == 7.1",
                f"amd-torch-device-gfx11 == {VERSION}",
            ],
        ),
        ("gfx11", [f"torch == {VERSION}"]),
    ],
)
def test_requires_the_host_rocm_and_groups_of_a_device_wheel(gpu: str, requirements: list[str]) -> None:
    metadata = Parser().parsestr(device_metadata(HOST, LAYOUT, gpu))

    assert metadata["Name"] == f"amd-torch-device-{gpu}"
    assert metadata.get_all("Requires-Dist") == requirements


@pytest.mark.parametrize(
    "field", ["Metadata-Version", "Requires-Python", "License-Expression", "License-File"]
)
def test_takes_fields_of_the_host_into_a_device_wheel(field: str) -> None:
    metadata = Parser().parsestr(device_metadata(HOST, LAYOUT, "gfx942"))

    assert metadata[field] == BytesParser().parsebytes(FAT_METADATA)[field]


def test_takes_licence_files_into_a_device_wheel() -> None:
    info = "t-1.dist-info"
    members = ["torch/LICENSE", f"{info}/licenses/LICENSE", f"{info}/NOTICE", f"{info}/WHEEL"]

    assert license_members(members, info, "new") == {
        f"{info}/licenses/LICENSE": "new/licenses/LICENSE",
        f"{info}/NOTICE": "new/NOTICE",
    }


# Which ROCm


@pytest.mark.parametrize(
    ("requirements", "version"),
    [
        (["filelock", "rocm[libraries]==7.1.0a1"], "7.1.0a1"),
        (["rocm[libraries]>=7.1"], None),
        (["filelock"], None),
    ],
)
def test_finds_the_version_of_rocm_that_a_wheel_requires(
    requirements: list[str], version: str | None
) -> None:
    assert required_rocm(requirements) == version
