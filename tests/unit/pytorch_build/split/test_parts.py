from email.parser import BytesParser, Parser
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.version import Version

from core.wheel import WheelMetadata
from pytorch_build.split import parts

RAW = Path(__file__).with_name("recorded").joinpath("METADATA").read_bytes()
WHEELS = parts.Wheels(
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
    message = BytesParser().parsebytes(parts.host_metadata(RAW, WHEELS))
    assert message.get_all("Provides-Extra") == [
        *("opt", "device-gfx1100", "device-gfx1151", "device-gfx942", "device-all")
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
    bare = BytesParser().parsebytes(
        parts.host_metadata(b"Metadata-Version: 2.1\nName: torch\nVersion: 1\n", WHEELS)
    )
    assert (bare["Name"], len(bare.get_all("Provides-Extra", ()))) == ("torch", 4)


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
    message = Parser().parsestr(parts.device_metadata(HOST, WHEELS, gpu))
    assert message["Name"] == f"amd-torch-device-{gpu}"
    assert message.get_all("Requires-Dist") == requires
    assert (message["Requires-Python"], message["License-Expression"]) == (">=3.10", "BSD-3-Clause")
    assert (message["Metadata-Version"], message["License-File"]) == ("2.4", "LICENSE")


def test_licence_files_go_along() -> None:
    names = ["torch/LICENSE", "t-1.dist-info/licenses/LICENSE", "t-1.dist-info/NOTICE", "t-1.dist-info/WHEEL"]
    assert parts.licence_members(names, "t-1.dist-info", "new") == {
        "t-1.dist-info/licenses/LICENSE": "new/licenses/LICENSE",
        "t-1.dist-info/NOTICE": "new/NOTICE",
    }


def test_the_rocm_version_is_what_the_wheel_requires() -> None:
    assert parts.required_rocm(["filelock", "rocm[libraries]==7.1.0a1"]) == "7.1.0a1"
    assert parts.required_rocm(["rocm[libraries]>=7.1"]) == ""
    assert parts.required_rocm(["filelock"]) == ""


ALL = ("gfx908", "gfx90a", "gfx942", "gfx1030", "gfx1100", "gfx1151", "gfx1200", "gfx1201")


@pytest.mark.parametrize(
    ("path", "gpu"),
    [
        ("lib/aotriton.images/amd-gfx942/flash/attn_fwd/x.aks2", "gfx942"),
        ("lib/aotriton.images/amd-gfx11xx/flash/x.aks2", "gfx11"),
        ("lib/aotriton.images/amd-gfx110x/flash/x.aks2", "gfx110x"),
        ("lib/aotriton.images/amd-gfx115x/flash/x.aks2", "gfx115x"),
        ("lib/aotriton.images/amd-gfx120x/flash/x.aks2", "gfx12-0"),
        ("lib/aotriton.images/amd-gfx950/flash/x.aks2", None),
        ("lib/aotriton.images/amd-gfx125x/flash/x.aks2", None),
        ("lib/aotriton.images/README", None),
        ("lib/rocblas/library/TensileLibrary_Type_HH_gfx90a.co", "gfx90a"),
        ("lib/rocblas/library/Kernels.so-000-gfx90a-xnack+.hsaco", "gfx90a"),
        ("lib/rocblas/library/TensileLibrary_fallback.dat", None),
        ("lib/hipblaslt/library/gfx1201/TensileManifest.txt", "gfx1201"),
        ("share/miopen/db/gfx942130.HIP.fdb.txt", "gfx942"),
        ("share/miopen/db/gfx90878.db.txt", "gfx908"),
        ("share/miopen/db/gfx1030_36.db.txt", "gfx1030"),
        ("share/miopen/db/miopen.db", None),
        ("lib/libgfx942.so", None),
        ("include/gfx942/x.h", None),
    ],
)
def test_files_by_the_gpu_that_they_serve(path: str, gpu: str | None) -> None:
    assert parts.gpu_of(path, ALL) == gpu
    assert gpu is None or parts.gpu_of(path, ("gfx801",)) is None, "a group without a target has no wheel"
