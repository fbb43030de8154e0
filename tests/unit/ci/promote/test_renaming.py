from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st
from packaging.version import Version

from ci.promote.version_change import RocmChange, final_of, new_version, plan_set
from core.errors import MissingInputError, UsageError, WheelError
from pytorch_build.lock.versions import version_suffix, wheel_version

if TYPE_CHECKING:
    from collections.abc import Sequence

CHANGE = RocmChange(old="7.10.0rc2", new="7.10.0")
LINUX = "py3-none-linux_x86_64.whl"

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
        ("torchaudio", "2.10.0a0+rocm7.10.0rc2", "2.10.0a0+rocm7.10.0"),
        ("torchaudio", "2.11.0+torch2.12.rocm7.10.0rc2", "2.11.0+torch2.12.rocm7.10.0"),
        ("triton", "3.6.0+git0123abcd.rocm7.10.0rc2", "3.6.0+git0123abcd.rocm7.10.0"),
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
    old = wheel_version(torch, version_suffix(change.old), release_type=release_type, commit=commit)
    new = wheel_version(torch, version_suffix(change.new), release_type=release_type, commit=commit)
    assert new_version("torch", old, change) == new
    assert Version(new).public == Version(old).public
    assert new_version("torch", new, change) is None


@given(BASES, st.integers(0, 99))
def test_a_candidate_becomes_its_release(base: str, candidate: int) -> None:
    change = final_of(f"{base}rc{candidate}")
    assert change == RocmChange(old=f"{base}rc{candidate}", new=base)
    assert Version(change.old) < Version(change.new)


@pytest.mark.parametrize(
    "version", ["7.10.0", "7.10.0a20260822", "7.10.0.dev0+0123abc", "7.99.0.dev0+sample", "7.10", "latest"]
)
def test_only_candidates_become_releases(version: str) -> None:
    with pytest.raises(UsageError):
        final_of(version)


def test_changes_that_are_none() -> None:
    with pytest.raises(UsageError, match="already"):
        RocmChange(old="7.10.0", new="7.10.0")
    with pytest.raises(UsageError, match="never published"):
        RocmChange(old="7.99.0.dev0+sample", new="7.99.0")


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


def test_mentions_in_either_spelling() -> None:
    change = RocmChange(old="7.99.0.dev0+sample", new="7.99.1.dev0+sample")
    for text in (b"7.99.0.dev0+sample", b"2.10.0+devrocm7.99.0.dev0.sample"):
        assert change.mention().search(text)


def test_a_whole_set() -> None:
    names = [
        "torch-2.10.0+rocm7.10.0rc2-cp312-cp312-linux_x86_64.whl",
        "torch-2.10.0+rocm7.10.0rc2-cp313-cp313t-linux_x86_64.whl",
        "triton-3.6.0+rocm7.10.0rc2-1foo-cp312-cp312-manylinux_2_28_x86_64.manylinux2014_x86_64.whl",
        f"rocm_sdk_core-7.10.0rc2-{LINUX}",
        "rocm-7.10.0rc2.tar.gz",
    ]
    found = plan_set(names, CHANGE)
    assert [one.source for one in found] == sorted(names)
    assert {one.source: one.target for one in found} == {
        names[0]: "torch-2.10.0+rocm7.10.0-cp312-cp312-linux_x86_64.whl",
        names[1]: "torch-2.10.0+rocm7.10.0-cp313-cp313t-linux_x86_64.whl",
        names[2]: "triton-3.6.0+rocm7.10.0-1foo-cp312-cp312-manylinux_2_28_x86_64.manylinux2014_x86_64.whl",
        names[3]: f"rocm_sdk_core-7.10.0-{LINUX}",
        names[4]: "rocm-7.10.0.tar.gz",
    }
    assert {(one.distribution, one.kind, one.old, one.new) for one in found} == {
        ("torch", "pytorch", "2.10.0+rocm7.10.0rc2", "2.10.0+rocm7.10.0"),
        ("triton", "pytorch", "3.6.0+rocm7.10.0rc2", "3.6.0+rocm7.10.0"),
        ("rocm-sdk-core", "rocm", "7.10.0rc2", "7.10.0"),
        ("rocm", "rocm", "7.10.0rc2", "7.10.0"),
    }


@pytest.mark.parametrize(
    ("names", "error", "said"),
    [
        ([], MissingInputError, "no packages"),
        ([f"numpy-7.10.0rc2-{LINUX}"], WheelError, "numpy-7.10.0rc2.*is not a package that carries"),
        ([f"rocm_sdk_core-7.10.0rc1-{LINUX}"], WheelError, "does not carry ROCm 7.10.0rc2"),
        ([f"rocm_sdk_core-7.10.0-{LINUX}"], WheelError, "does not carry ROCm 7.10.0rc2"),
        (["torch-2.10.0+cpu-cp312-cp312-linux_x86_64.whl"], WheelError, "does not carry"),
        (["notes.txt"], WheelError, r"notes\.txt"),
        (
            [f"rocm_sdk_core-7.10.0rc2-{LINUX}", f"rocm_sdk_core-7.10.0.rc2-{LINUX}"],
            WheelError,
            "both become",
        ),
    ],
)
def test_sets_that_are_refused(names: Sequence[str], error: type[Exception], said: str) -> None:
    with pytest.raises(error, match=said):
        plan_set(names, CHANGE)
