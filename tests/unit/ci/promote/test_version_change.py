from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st
from packaging.version import Version

from ci.promote.version_change import RocmChange, final_of, kept_facts, new_version, plan_set, rules
from core.errors import FatalError, MissingInputError, UsageError, WheelError
from pytorch_build.lock.versions import version_suffix, wheel_version
from pytorch_build.refs.torch_refs import DISTRIBUTIONS
from tests.unit.ci.promote.conftest import keeping
from tests.unit.ci.promote.test_policy import facts, wheel

CHANGE = RocmChange(old="7.10.0rc2", new="7.10.0")
LINUX = "py3-none-linux_x86_64.whl"
CORE, CP312 = f"rocm_sdk_core-7.10.0rc2-{LINUX}", "cp312-cp312-linux_x86_64.whl"

BASES = st.builds("{}.{}.{}".format, *[st.integers(0, 99)] * 3)
COMMITS = st.text("0123456789abcdef", min_size=8, max_size=40)


@pytest.mark.parametrize(
    ("distribution", "old", "new"),
    [
        ("rocm", "7.10.0rc2", "7.10.0"),
        ("rocm_sdk_libraries_gfx94X_dcgpu", "7.10.0rc2", "7.10.0"),
        ("rocm-sdk-core", "7.10.0-rc.2", "7.10.0"),
        ("rocm-profiler", "7.10.0rc2", "7.10.0"),
        ("torch", "2.10.0+rocm7.10.0rc2", "2.10.0+rocm7.10.0"),
        ("torchaudio", "2.11.0+torch2.12.rocm7.10.0rc2", "2.11.0+torch2.12.rocm7.10.0"),
        ("torchvision", "0.25.0rc2+rocm7.10.0rc2", "0.25.0rc2+rocm7.10.0"),
        ("triton", "3.6.0+gitaf7c10rc2.rocm7.10.0rc2", "3.6.0+gitaf7c10rc2.rocm7.10.0"),
        ("apex", "1.10.0+git0a20251120.rocm7.10.0rc2", "1.10.0+git0a20251120.rocm7.10.0"),
        ("torch", "2.10.0+rocm7.10.0rc2.rocm7.10.0rc2", "2.10.0+rocm7.10.0rc2.rocm7.10.0"),
        # not of this candidate
        ("rocm", "7.10.0rc1", None),
        ("rocm", "7.10.0", None),
        ("rocm", "7.10.0rc2+local", None),
        ("torch", "2.10.0", None),
        ("torch", "2.10.0+rocm7.10.0rc20", None),
        ("torch", "2.10.0+rocm7.10.0rc2.more", None),
        ("torch", "2.10.0+devrocm7.10.0rc2", None),
        ("torch", "2.10.0+cpu", None),
        ("torch", "7.10.0rc2", None),
        ("numpy", "7.10.0rc2", None),
        ("rocm-like", "7.10.0rc2", None),
    ],
)
def test_new_versions(distribution: str, old: str, new: str | None) -> None:
    assert new_version(distribution, old, CHANGE) == new


@given(BASES, st.integers(0, 99), BASES, COMMITS, st.sampled_from(["nightly", "prerelease", "dev"]))
def test_only_rocms_part_of_a_local_version_changes(
    rocm: str, candidate: int, torch: str, commit: str, release_type: str
) -> None:
    change = final_of(f"{rocm}rc{candidate}")
    assert change == RocmChange(old=f"{rocm}rc{candidate}", new=rocm)
    assert Version(change.old) < Version(change.new)
    old = wheel_version(torch, version_suffix(change.old), release_type=release_type, commit=commit)
    new = wheel_version(torch, version_suffix(change.new), release_type=release_type, commit=commit)
    assert new_version("torch", old, change) == new
    assert Version(new).public == Version(old).public
    assert new_version("torch", new, change) is None


@pytest.mark.parametrize(
    "version", ["7.10.0", "7.10.0a20260822", "7.10.0.dev0+0123abc", "7.99.0.dev0+sample", "7.10", "latest"]
)
def test_only_candidates_become_releases(version: str) -> None:
    with pytest.raises(UsageError):
        final_of(version)


def test_a_group_of_targets_is_refused() -> None:
    with pytest.raises(UsageError, match="gfx12-0 is not a gfx target"):
        final_of("7.10.0rc2", ["gfx12-0"])


@pytest.mark.parametrize(
    ("text", "found"),
    [
        (b"version 7.10.0rc2.", True),
        (b"2.10.0+rocm7.10.0rc2", True),
        (b"v7.10.0rc2-linux", True),
        (b"7.10.0rc21", False),
        (b"17.10.0rc2", False),
        (b"2.7.10.0rc2", False),
        (b"7.10.0", False),
        (b"7x10y0rc2", False),
    ],
)
def test_mentions(text: bytes, *, found: bool) -> None:
    assert bool(CHANGE.mention().search(text)) is found
    sample = RocmChange(old="7.99.0.dev0+sample", new="7.99.1.dev0+sample").mention()
    assert sample.search(b"7.99.0.dev0+sample")
    assert sample.search(b"2.10.0+devrocm7.99.0.dev0.sample")


@pytest.mark.parametrize(
    ("names", "error", "said"),
    [
        ([], MissingInputError, "no packages"),
        ([f"numpy-7.10.0rc2-{LINUX}"], WheelError, "numpy-7.10.0rc2.*is not a package that carries"),
        ([CORE.replace("rc2", "rc1")], WheelError, "does not carry ROCm 7.10.0rc2"),
        ([CORE.replace("rc2", "")], WheelError, "does not carry ROCm 7.10.0rc2"),
        ([f"torch-2.10.0+cpu-{CP312}"], WheelError, "does not carry"),
        (["notes.txt"], WheelError, r"notes\.txt"),
        ([CORE, CORE.replace("rc2", ".rc2")], WheelError, "both become"),
    ],
)
def test_sets_that_are_refused(names: Sequence[str], error: type[Exception], said: str) -> None:
    with pytest.raises(error, match=said):
        plan_set(names, CHANGE)


def test_every_project_that_we_build_takes_part() -> None:
    assert {rules().kind_of(name) for name in DISTRIBUTIONS.values()} == {"pytorch"}
    for name in ("rocm", "rocm-sdk-core", "rocm-sdk-libraries-gfx94x-dcgpu", "rocm-sdk-device-gfx942"):
        assert rules().kind_of(name) == "rocm"
    assert rules().kind_of("numpy") is None
    for name in ("rocm", "rocm-sdk-core", "rocm-sdk-libraries", "rocm-sdk-devel", "rocm-profiler"):
        assert any(place.required and place.holds == "rocm" for place in rules().places_of(name))
    assert any(place.members.endswith(".json") for place in rules().places_of("rocm-sdk-device-gfx942"))


@pytest.mark.parametrize(
    ("targets", "said"),
    [
        (("gfx90a",), "no device code of .* would be left; it has device packages of gfx1100, gfx942"),
        (("gfx942", "gfx90a"), "has no device packages of ROCm for gfx90a"),
        (("gfx942", "gfx1100"), "has no device packages of torch for gfx1100"),
    ],
)
def test_lists_that_a_set_does_not_have(targets: tuple[str, ...], said: str) -> None:
    rocm = [
        wheel(name=f"rocm-sdk-device-{one}", version="7.10.0", python="") for one in ("gfx942", "gfx1100")
    ]
    with pytest.raises(FatalError, match=said) as refused:
        kept_facts(facts(wheel(), wheel(name="amd-torch-device-gfx942"), *rocm), keeping(*targets))
    assert "\n" not in refused.value.message
