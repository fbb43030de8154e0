from dataclasses import replace

import pytest

from pytorch_build.build.inputs import Dependency, RocmIdentity
from tests.kit.build_plans import build_inputs
from tests.kit.builds import ROCM_SOURCE, SampleBuild

TRITON = Dependency(project="triton", requirement="/run/triton.whl", version="3.6.0", digest="bb")


# What records have: another key or value would build every wheel anew


def test_records_get_these_keys_and_values() -> None:
    inputs = build_inputs(
        rocm=RocmIdentity(version="7.1.0", layout="split", content={"rocm.tar.gz": "aa"}),
        dependencies=(TRITON,),
    )

    assert inputs.to_json() == {
        "source": {"commit": "1" * 40},
        "version": "2.10.0a0+rocm7.10.0a20251120",
        "python": "3.12.4",
        "rocm": ["7.1.0", "split", {"rocm.tar.gz": "aa"}],
        "rocm_extras": [],
        "gpu_targets": ["gfx942", "gfx1100"],
        "dependencies": {"triton": {"digest": "bb"}},
        "ref_env": {},
        "build_requirements": [],
        "flash_attention": None,
        "split": False,
        "flags": {},
        "lock": "bb",
        "code": "cc",
    }


def test_knows_a_wheel_of_the_run_by_its_bytes_and_a_prebuilt_one_by_its_requirement() -> None:
    prebuilt = Dependency(project="triton", requirement="triton==3.6.0", version="3.6.0")

    assert TRITON.identity == {"digest": "bb"}
    assert prebuilt.identity == {"requirement": "triton==3.6.0"}


def test_tells_the_version_of_what_is_installed_first() -> None:
    inputs = build_inputs(dependencies=(TRITON,))

    assert inputs.version_of("triton") == "3.6.0"
    assert inputs.version_of("torch") is None


# Device code


def test_splits_device_code_where_rocms_is_split(build: SampleBuild) -> None:
    assert build.inputs.is_split


@pytest.mark.parametrize("reason", ["other component", "user's choice", "unsplit ROCm", "no ROCm"])
def test_splits_no_device_code_otherwise(build: SampleBuild, reason: str) -> None:
    builds = {
        "other component": build.of("audio"),
        "user's choice": build.requested(may_split=False),
        "unsplit ROCm": build.made_of(rocm=replace(ROCM_SOURCE, layout="unsplit")),
        "no ROCm": build.made_of(rocm=None),
    }

    assert not builds[reason].work.inputs.is_split
