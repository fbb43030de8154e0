from collections.abc import Callable
from pathlib import Path

import pytest

from core.archive import packed
from core.files import sha256
from rocm_packaging.packages.build import BuildRequest, build
from tests.kit.artifact_sets import request
from tests.unit.rocm_packaging.packages.test_build import unsplit_set


@pytest.fixture
def asked(tmp_path: Path) -> BuildRequest:
    """What was built once, of which one file has changed since."""
    first = request(unsplit_set(tmp_path / "artifacts"), families=("gfx94X-dcgpu",))
    build(first)
    header = next((tmp_path / "artifacts").rglob("hip.h"))
    header.write_text("changed\n" * 9)
    return first


@pytest.fixture
def deflated(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Sizes of all that is deflated from now on."""
    sizes: list[int] = []
    real: Callable[..., bytes] = packed.deflate_run

    def counted(data: memoryview, level: int, *, last: bool) -> bytes:
        sizes.append(len(data))
        return real(data, level, last=last)

    monkeypatch.setattr(packed, "deflate_run", counted)
    return sizes


def test_only_what_changed_is_deflated_and_the_bytes_are_those_of_a_first_build(
    asked: BuildRequest, deflated: list[int], tmp_path: Path
) -> None:
    again = {one.path.name: one.sha256 for one in build(asked).files}
    few = len(deflated)
    folder = tmp_path / "fresh"
    fresh = build(request(asked.artifact_dir, families=asked.families, output_dir=folder))
    assert again == {one.path.name: one.sha256 for one in fresh.files}
    assert again == {path.name: sha256(path) for path in asked.output_dir.glob("rocm*")}
    # the changed header, and each wheel's RECORD, which lists no digest of itself
    assert few == 1 + 3
    assert len(deflated) - few > 10


@pytest.mark.parametrize("what", ["another level", "a wheel with other bytes", "no wheel"])
def test_wheels_of_other_builds_are_no_source(asked: BuildRequest, deflated: list[int], what: str) -> None:
    wheels = sorted(asked.output_dir.glob("*.whl"))
    for wheel in wheels:
        if what == "a wheel with other bytes":
            wheel.write_bytes(wheel.read_bytes() + b"x")
        elif what == "no wheel":
            wheel.unlink()
    level = 9 if what == "another level" else None
    build(request(asked.artifact_dir, families=asked.families, output_dir=asked.output_dir, level=level))
    assert len(deflated) > 10
