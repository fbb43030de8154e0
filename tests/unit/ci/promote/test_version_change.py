"""Which versions, names and sets become a release, and which device code of them stays."""

from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st
from packaging.version import Version

from ci.promote.version_change import RocmChange, final_of, keep_targets, new_version, plan_set, rules
from core.errors import FatalError, MissingInputError, UsageError, WheelError
from pytorch_build.components import distributions
from pytorch_build.lock.versions import version_suffix, wheel_version
from tests.kit.promotion_facts import facts_of, staged_wheel

CHANGE = RocmChange(old="7.10.0rc2", new="7.10.0")
CORE = "rocm_sdk_core-7.10.0rc2-py3-none-linux_x86_64.whl"

BASE_VERSIONS = st.builds("{}.{}.{}".format, *[st.integers(0, 99)] * 3)
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
    ],
)
def test_replaces_the_version_of_the_candidate(distribution: str, old: str, new: str) -> None:
    assert new_version(distribution, old, CHANGE) == new


@pytest.mark.parametrize(
    ("distribution", "version"),
    [
        ("rocm", "7.10.0rc1"),
        ("rocm", "7.10.0"),
        ("rocm", "7.10.0rc2+local"),
        ("torch", "2.10.0"),
        ("torch", "2.10.0+rocm7.10.0rc20"),
        ("torch", "2.10.0+rocm7.10.0rc2.more"),
        ("torch", "2.10.0+devrocm7.10.0rc2"),
        ("torch", "2.10.0+cpu"),
        ("torch", "7.10.0rc2"),
        ("numpy", "7.10.0rc2"),
        ("rocm-like", "7.10.0rc2"),
    ],
)
def test_knows_no_new_version_of_what_is_not_of_the_candidate(distribution: str, version: str) -> None:
    assert new_version(distribution, version, CHANGE) is None


@given(BASE_VERSIONS, st.integers(0, 99))
def test_a_candidate_becomes_the_later_version_without_its_number(rocm_version: str, candidate: int) -> None:
    change = final_of(f"{rocm_version}rc{candidate}")

    assert change == RocmChange(old=f"{rocm_version}rc{candidate}", new=rocm_version)
    assert Version(change.old) < Version(change.new)


@given(
    BASE_VERSIONS,
    st.integers(0, 99),
    BASE_VERSIONS,
    COMMITS,
    st.sampled_from(["nightly", "prerelease", "dev"]),
)
def test_changes_only_rocms_part_of_a_local_version(
    rocm_version: str, candidate: int, torch_version: str, commit: str, release_type: str
) -> None:
    change = final_of(f"{rocm_version}rc{candidate}")
    old = wheel_version(torch_version, version_suffix(change.old), release_type=release_type, commit=commit)
    new = wheel_version(torch_version, version_suffix(change.new), release_type=release_type, commit=commit)

    assert new_version("torch", old, change) == new
    assert new_version("torch", new, change) is None
    assert Version(new).public == Version(old).public


@pytest.mark.parametrize(
    "version", ["7.10.0", "7.10.0a20260822", "7.10.0.dev0+0123abc", "7.99.0.dev0+sample", "7.10", "latest"]
)
def test_rejects_a_version_that_is_no_candidate(version: str) -> None:
    with pytest.raises(UsageError):
        final_of(version)


def test_rejects_a_group_of_targets() -> None:
    with pytest.raises(UsageError, match="gfx12-0"):
        final_of("7.10.0rc2", ["gfx12-0"])


@pytest.mark.parametrize("text", [b"version 7.10.0rc2.", b"2.10.0+rocm7.10.0rc2", b"v7.10.0rc2-linux"])
def test_finds_a_mention_of_the_candidate(text: bytes) -> None:
    assert CHANGE.mention().search(text)


@pytest.mark.parametrize(
    "text", [b"7.10.0rc21", b"17.10.0rc2", b"2.7.10.0rc2", b"7.10.0", b"7x10y0rc2"], ids=bytes.decode
)
def test_takes_other_versions_for_no_mention(text: bytes) -> None:
    assert not CHANGE.mention().search(text)


@pytest.mark.parametrize(
    "text", [b"7.99.0.dev0+sample", b"2.10.0+devrocm7.99.0.dev0.sample"], ids=bytes.decode
)
def test_finds_a_mention_of_a_local_version(text: bytes) -> None:
    change = RocmChange(old="7.99.0.dev0+sample", new="7.99.1.dev0+sample")

    assert change.mention().search(text)


@pytest.mark.parametrize(
    ("names", "error", "phrase"),
    [
        ([], MissingInputError, "packages"),
        (["numpy-7.10.0rc2-py3-none-linux_x86_64.whl"], WheelError, "numpy-7.10.0rc2"),
        ([CORE.replace("rc2", "rc1")], WheelError, "7.10.0rc2"),
        ([CORE.replace("rc2", "")], WheelError, "7.10.0rc2"),
        (["torch-2.10.0+cpu-cp312-cp312-linux_x86_64.whl"], WheelError, "torch-2.10.0+cpu"),
        (["notes.txt"], WheelError, "notes.txt"),
        ([CORE, CORE.replace("rc2", ".rc2")], WheelError, "rocm_sdk_core-7.10.0.rc2"),
    ],
    ids=[
        "empty",
        "a package of others",
        "another candidate",
        "a release",
        "torch without ROCm",
        "no package",
        "two files of one new name",
    ],
)
def test_rejects_a_set_that_is_no_candidates(
    names: Sequence[str], error: type[FatalError], phrase: str
) -> None:
    with pytest.raises(error) as raised:
        plan_set(names, CHANGE)

    assert phrase in raised.value.message


@pytest.mark.parametrize("distribution", distributions())
def test_every_project_that_is_built_takes_part(distribution: str) -> None:
    assert rules().kind_of(distribution) == "pytorch"


@pytest.mark.parametrize(
    "distribution", ["rocm", "rocm-sdk-core", "rocm-sdk-libraries-gfx94x-dcgpu", "rocm-sdk-device-gfx942"]
)
def test_every_rocm_package_takes_part(distribution: str) -> None:
    assert rules().kind_of(distribution) == "rocm"


def test_packages_of_others_take_no_part() -> None:
    assert rules().kind_of("numpy") is None


@pytest.mark.parametrize(
    "distribution", ["rocm", "rocm-sdk-core", "rocm-sdk-libraries", "rocm-sdk-devel", "rocm-profiler"]
)
def test_requires_rocms_version_in_a_file_of_each_of_its_packages(distribution: str) -> None:
    assert any(place.required and place.holds == "rocm" for place in rules().places_of(distribution))


def test_knows_the_version_in_the_links_of_device_code() -> None:
    assert any(place.members.endswith(".json") for place in rules().places_of("rocm-sdk-device-gfx942"))


@pytest.mark.parametrize(
    ("targets", "phrases"),
    [
        (("gfx90a",), ["gfx1100, gfx942"]),
        (("gfx942", "gfx90a"), ["ROCm", "gfx90a"]),
        (("gfx942", "gfx1100"), ["torch", "gfx1100"]),
    ],
    ids=["no device code would be left", "no device package of ROCm", "no device package of torch"],
)
def test_rejects_targets_without_device_code(targets: tuple[str, ...], phrases: list[str]) -> None:
    facts = facts_of(
        staged_wheel(),
        staged_wheel(name="amd-torch-device-gfx942"),
        staged_wheel(name="rocm-sdk-device-gfx942", version="7.10.0"),
        staged_wheel(name="rocm-sdk-device-gfx1100", version="7.10.0"),
    )
    change = RocmChange(old="7.10.0rc2", new="7.10.0", targets=targets)

    with pytest.raises(FatalError) as refused:
        keep_targets(facts, change)

    for phrase in phrases:
        assert phrase in refused.value.message
    assert "\n" not in refused.value.message


@pytest.mark.parametrize("prefix", ["rocm-sdk-device", "amd-torch-device", "amd-torchvision-device"])
def test_device_packages_of_other_targets_are_left_out(prefix: str) -> None:
    host = staged_wheel(version="1.0rc2")
    kept_device = staged_wheel(name=f"{prefix}-gfx942", version="1.0rc2")
    dropped_device = staged_wheel(name=f"{prefix}-gfx1100", version="1.0rc2")
    change = RocmChange(old="7.10.0rc2", new="7.10.0", targets=("gfx942",))

    facts = keep_targets(facts_of(host, kept_device, dropped_device, tests=()), change)

    assert facts.wheels == (host, kept_device)
    assert facts.left_out == (dropped_device.file.key,)
