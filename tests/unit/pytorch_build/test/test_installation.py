import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from core import process
from core.errors import CheckError
from pytorch_build.test.gpus import Assignment
from pytorch_build.test.installation import amd_targets, require_device_code

HOST, FAT = ("device-gfx942", "device-all"), ("optree",)
VERSIONS = {"rocm-sdk-libraries": "7.1", "torch": "2.10", "torchvision": "0.25"}
DEVICES = {
    "rocm-sdk-device-gfx942": "7.1",
    "amd-torch-device-gfx942": "2.10",
    "amd-torchvision-device-gfx942": "0.25",
}


def environment(folder: Path, extras: Sequence[str], **changes: str) -> None:
    """Write the metadata of installed packages; "" takes one out."""
    for name, version in {**VERSIONS, **DEVICES, **changes}.items():
        lines = [f"Name: {name}", f"Version: {version}"]
        lines += [f"Provides-Extra: {one}" for one in extras if name in {"torch", "torchvision"}]
        if version:
            metadata = folder / f"{name.replace('-', '_')}-{version}.dist-info" / "METADATA"
            metadata.parent.mkdir()
            metadata.write_text("\n".join(["Metadata-Version: 2.1", *lines, ""]))


@pytest.mark.processes
@pytest.mark.parametrize(
    ("extras", "changes", "said"),
    [
        (HOST, {}, ""),
        (HOST, {"rocm-sdk-device-gfx942": ""}, "rocm-sdk-device-gfx942 is not installed"),
        (
            HOST,
            {"amd-torch-device-gfx942": ""},
            "torch 2.10 in .* holds no device code, and amd-torch-device",
        ),
        (HOST, {"amd-torchvision-device-gfx942": ""}, "the first kernel on gfx942 would fail"),
        (
            HOST,
            {"amd-torch-device-gfx942": "2.9"},
            r"amd-torch-device-gfx942 2\.9 .* does not fit torch 2\.10",
        ),
        (HOST, {"rocm-sdk-device-gfx942": "7.0"}, r"does not fit rocm-sdk-libraries 7\.1"),
        (FAT, {"amd-torch-device-gfx942": "", "amd-torchvision-device-gfx942": ""}, ""),
        # unsplit libraries hold their own
        (FAT, dict.fromkeys(("rocm-sdk-libraries", *DEVICES), ""), ""),
    ],
)
def test_what_would_fail_at_the_first_kernel_is_told_before(
    run: Any, tmp_path: Path, extras: Sequence[str], changes: dict[str, str], said: str
) -> None:
    process.capture([sys.executable, "-m", "venv", "--without-pip", tmp_path / "venv"])
    (site,) = (tmp_path / "venv").glob("lib/python*/site-packages")
    environment(site, extras, **changes)
    target = run.target(executable=tmp_path / "venv" / "bin" / "python")
    if not said:
        require_device_code(target, ["gfx942"])
        return
    with pytest.raises(CheckError, match=said) as caught:
        require_device_code(target, ["gfx942"])
    assert 'pip install "' in caught.value.hint
    require_device_code(target, [])


def test_other_makers_gpus_have_no_device_packages_and_are_not_asked(run: Any) -> None:
    require_device_code(run.target(), [])  # a process would fail this test
    found = [Assignment(target=one, devices=(), env={}) for one in ("gfx942", "sm_90", "", "gfx942")]
    assert amd_targets(found) == ("gfx942",)
