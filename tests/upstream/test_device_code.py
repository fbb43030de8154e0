"""Real device code of ROCm 7: 45 compressed bundles in a library from the public Python index.

The wheel (133 MB) goes into the folder that RUN_UPSTREAM_CACHE names, else into a temporary one.
"""

import os
import resource
import sys
import zipfile
from pathlib import Path

import pytest

from core import process
from core.errors import ProcessError
from core.wheel import read_metadata
from core.wheel.record import verify_record
from pytorch_build.check import Expectation
from pytorch_build.check.device_code import file_facts
from pytorch_build.check.run import check_wheel

WHEEL = "jax_rocm7_pjrt-0.12.0-py3-none-manylinux_2_27_x86_64.whl"
MEMBER = "jax_plugins/xla_rocm7/xla_rocm_plugin.so"
GPUS = (
    *("900", "906", "908", "90a", "942", "950"),
    *range(1010, 1013),
    *range(1030, 1037),
    *range(1100, 1104),
    *range(1150, 1154),
    *(1200, 1201, 1250),
)
TARGETS = frozenset(f"gfx{gpu}" for gpu in GPUS)


@pytest.fixture(scope="module")
def jax_wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    cache = os.environ.get("RUN_UPSTREAM_CACHE", "")  # noqa: TID251 - a test's own switch
    folder = Path(cache) if cache else tmp_path_factory.mktemp("upstream")
    if not (folder / WHEEL).is_file():
        options = ["--no-deps", "--quiet", "--only-binary", ":all:", "--dest", str(folder)]
        try:
            process.capture([sys.executable, "-m", "pip", "download", *options, "jax-rocm7-pjrt==0.12.0"])
        except ProcessError as problem:
            pytest.skip(f"jax-rocm7-pjrt 0.12.0 cannot be had: {problem.message[-300:]}")
    return folder / WHEEL


def peak_memory() -> int:
    """Return the most memory that this process had, in KiB."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss


def test_every_bundle_of_a_real_library_is_read(jax_wheel: Path, tmp_path: Path) -> None:
    with zipfile.ZipFile(jax_wheel) as archive:
        library = Path(archive.extract(MEMBER, tmp_path))
    memory_at_start = peak_memory()

    device_code = file_facts(library)

    # Inflating all of it takes gigabytes; the tables alone do not.
    assert peak_memory() - memory_at_start < 300 * 1024
    assert device_code is not None
    assert device_code.targets == TARGETS
    assert len(device_code.bundles) == device_code.registered_count == 45
    assert sum(bundle.size for bundle in device_code.bundles) == 29_400_285
    for bundle in device_code.bundles:
        assert bundle.form == "zstd"
        assert bundle.version == 3
        assert bundle.targets == TARGETS


def test_a_real_wheel_is_checked_in_one_pass(jax_wheel: Path) -> None:
    assert verify_record(jax_wheel) == ()
    assert read_metadata(jax_wheel).name == "jax-rocm7-pjrt"
    expectation = Expectation(
        distribution="jax-rocm7-pjrt",
        version="0.12.0",
        python_tag="cp312",
        gpu_targets=tuple(sorted(TARGETS)),
    )

    findings = check_wheel(jax_wheel, expectation)

    # Its RUNPATH really names /opt/rocm/lib, and it finds ROCm without requiring it.
    assert {(finding.severity, finding.check) for finding in findings} == {
        ("error", "elf"),
        ("warning", "elf"),
        ("warning", "tags"),
        ("note", "elf"),
    }
