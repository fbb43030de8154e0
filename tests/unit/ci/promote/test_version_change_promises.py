"""What the documentation promises of a release for some of the candidate's gfx targets."""

import pytest

from ci.promote.documents import StagedFile
from ci.promote.facts import Facts, Wheel
from ci.promote.version_change import RocmChange, kept_facts
from core.cell import GroupCell

DIGEST = "a" * 64
CELL = GroupCell(artifact_group="gfx94X-dcgpu", platform="linux", python="3.12")


def staged_wheel(distribution: str) -> Wheel:
    """Return a wheel of the candidate that lies in the bucket as it was staged."""
    name = f"{distribution.replace('-', '_')}-1.0rc2-py3-none-linux_x86_64.whl"
    staged_file = StagedFile(
        name=name,
        key=f"v2-staging/gfx94X-dcgpu/{name}",
        source_key=f"17-linux/python/gfx94X-dcgpu/{name}",
        size=3,
        sha256=DIGEST,
        distribution=distribution,
        version="1.0rc2",
        metadata_sha256=DIGEST,
        torch_ref="nightly",
        python="cp312",
    )
    return Wheel(cell=CELL, file=staged_file, found=DIGEST, sidecar=DIGEST, built=frozenset({DIGEST}))


@pytest.mark.parametrize("prefix", ["rocm-sdk-device", "amd-torch-device", "amd-torchvision-device"])
def test_device_packages_of_other_targets_are_left_out(prefix: str) -> None:
    host, kept, other = (staged_wheel(name) for name in ("torch", f"{prefix}-gfx942", f"{prefix}-gfx1100"))
    change = RocmChange(old="7.10.0rc2", new="7.10.0", targets=("gfx942",))

    facts, left_out = kept_facts(Facts(set_name="torch-2.10", wheels=(host, kept, other), tests=()), change)

    assert facts.wheels == (host, kept)
    assert left_out == (other.file.key,)
