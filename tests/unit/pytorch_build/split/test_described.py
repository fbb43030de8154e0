from __future__ import annotations

from email.parser import BytesParser, Parser

import pytest
from packaging.requirements import Requirement
from packaging.version import Version

from core.wheel import WheelMetadata
from pytorch_build.split.parts import Wheels, device_metadata, host_metadata, licence_members, required_rocm

RAW = b"""\
Metadata-Version: 2.4
Name: torch
Version: 2.10.0+rocm7.1
Summary: Tensors
License-Expression: BSD-3-Clause
License-File: LICENSE
Requires-Python: >=3.10
Requires-Dist: rocm[libraries]==7.1
Provides-Extra: opt

Body: no header

Extra: none
"""
WHEELS = Wheels(
    distribution="torch",
    version="2.10.0+rocm7.1",
    targets=("gfx1100", "gfx1151", "gfx942"),
    groups=("gfx11", "gfx110x"),
    rocm="7.1",
)
HOST = WheelMetadata(
    name="torch",
    version=Version("2.10.0+rocm7.1"),
    requires_dist=(),
    requires_python="",
    provides_extra=(),
    license="",
    raw=RAW,
)


def test_extras_of_the_host_lead_to_a_target_and_its_groups() -> None:
    message = BytesParser().parsebytes(host_metadata(RAW, WHEELS))
    assert message.get_all("Provides-Extra") == [
        *("opt", "device-gfx1100", "device-gfx1151", "device-gfx942", "device-all"),
    ]
    by_extra: dict[str, set[str]] = {}
    for text in message.get_all("Requires-Dist", ()):
        one = Requirement(text)
        for extra in message.get_all("Provides-Extra", ()):
            if one.marker and one.marker.evaluate({"extra": extra}):
                assert str(one.specifier) == "==2.10.0+rocm7.1"
                by_extra.setdefault(extra, set()).add(one.name.removeprefix("amd-torch-device-"))
    assert by_extra == {
        "device-gfx1100": {"gfx1100", "gfx110x", "gfx11"},
        "device-gfx1151": {"gfx1151", "gfx11"},
        "device-gfx942": {"gfx942"},
        "device-all": {"gfx1100", "gfx1151", "gfx942", "gfx11", "gfx110x"},
    }
    assert message.get_payload() == "Body: no header\n\nExtra: none\n"
    assert "rocm-bootstrap" not in message.as_string()


def test_a_host_without_a_description_gets_extras_too() -> None:
    raw = b"Metadata-Version: 2.1\nName: torch\nVersion: 1\n"
    message = BytesParser().parsebytes(host_metadata(raw, WHEELS))
    assert message["Name"] == "torch"
    assert len(message.get_all("Provides-Extra", ())) == 4


@pytest.mark.parametrize(
    ("gpu", "requires"),
    [
        ("gfx942", ["torch == 2.10.0+rocm7.1", "rocm-sdk-device-gfx942 == 7.1"]),
        (
            "gfx1151",
            [
                *("torch == 2.10.0+rocm7.1", "rocm-sdk-device-gfx1151 == 7.1"),
                "amd-torch-device-gfx11 == 2.10.0+rocm7.1",
            ],
        ),
        ("gfx11", ["torch == 2.10.0+rocm7.1"]),
    ],
)
def test_requirements_of_a_wheel_of_device_code_can_be_installed(gpu: str, requires: list[str]) -> None:
    message = Parser().parsestr(device_metadata(HOST, WHEELS, gpu))
    assert message["Name"] == f"amd-torch-device-{gpu}"
    assert message.get_all("Requires-Dist") == requires
    assert (message["Requires-Python"], message["License-Expression"]) == (">=3.10", "BSD-3-Clause")
    assert (message["Metadata-Version"], message["License-File"]) == ("2.4", "LICENSE")


def test_licence_files_go_along() -> None:
    names = [
        "torch/LICENSE",
        "torch-1.dist-info/licenses/LICENSE",
        "torch-1.dist-info/NOTICE",
        "torch-1.dist-info/WHEEL",
    ]
    assert licence_members(names, "torch-1.dist-info", "new") == {
        "torch-1.dist-info/licenses/LICENSE": "new/licenses/LICENSE",
        "torch-1.dist-info/NOTICE": "new/NOTICE",
    }


def test_the_rocm_version_is_what_the_wheel_requires() -> None:
    assert required_rocm(["filelock", "rocm[libraries]==7.1.0a1"]) == "7.1.0a1"
    assert required_rocm(["rocm[libraries]>=7.1"]) == ""
    assert required_rocm(["filelock"]) == ""
