import os
from dataclasses import replace
from pathlib import Path

import pytest

from core.archive import packed
from core.files import sha256
from rocm_packaging.packages.build import BuildRequest, build
from tests.kit.artifacts import build_request, write_artifact, write_unsplit_set

FAMILY = "gfx94X-dcgpu"
# the changed header, and the RECORD of each wheel, which is in no RECORD itself
CHANGED_MEMBERS = 1 + 3
FULL_BUILD_MINIMUM = 10


@pytest.fixture
def request_after_change(tmp_path: Path) -> BuildRequest:
    """Return the request of a build that was done once, before one of its files changed."""
    artifacts = write_unsplit_set(tmp_path / "artifacts")
    request = replace(build_request(artifacts), families=(FAMILY,))
    build(request)
    write_artifact(artifacts, "core-hip_dev_generic", {"include/hip/hip.h": "changed\n" * 9})
    return request


@pytest.fixture
def deflated_sizes(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Return the list of sizes that grows with each piece that is deflated from now on."""
    sizes: list[int] = []
    deflate_segment = packed.deflate_segment

    def record_size(data: memoryview, level: int, *, is_last: bool) -> bytes:
        sizes.append(len(data))
        return deflate_segment(data, level, is_last=is_last)

    monkeypatch.setattr(packed, "deflate_segment", record_size)
    return sizes


@pytest.mark.skipif(os.name == "nt", reason="Windows does not replace a wheel that is read meanwhile")
def test_deflates_only_what_changed(request_after_change: BuildRequest, deflated_sizes: list[int]) -> None:
    build(request_after_change)

    assert len(deflated_sizes) == CHANGED_MEMBERS


def test_builds_the_bytes_of_a_first_build(
    request_after_change: BuildRequest, deflated_sizes: list[int], tmp_path: Path
) -> None:
    packages = build(replace(request_after_change, output_dir=tmp_path / "fresh"))
    assert len(deflated_sizes) > FULL_BUILD_MINIMUM

    rebuilt_packages = build(request_after_change)

    assert rebuilt_packages.digests == packages.digests
    for file in rebuilt_packages.files:
        assert sha256(file.path) == file.sha256


def test_deflates_everything_at_another_level(
    request_after_change: BuildRequest, deflated_sizes: list[int]
) -> None:
    build(replace(request_after_change, level=9))

    assert len(deflated_sizes) > FULL_BUILD_MINIMUM


@pytest.mark.parametrize("is_changed", [False, True], ids=["deleted", "changed"])
def test_deflates_everything_without_the_wheels_of_the_last_build(
    request_after_change: BuildRequest,
    deflated_sizes: list[int],
    *,
    is_changed: bool,
) -> None:
    for wheel in sorted(request_after_change.output_dir.glob("*.whl")):
        if is_changed:
            wheel.write_bytes(wheel.read_bytes() + b"x")
        else:
            wheel.unlink()

    build(request_after_change)

    assert len(deflated_sizes) > FULL_BUILD_MINIMUM
