from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st
from packaging.tags import cpython_tags
from packaging.utils import parse_wheel_filename
from packaging.version import Version

from core.cli.options import RELEASE_TYPES
from core.errors import UsageError
from pytorch_build.lock.versions import cpu_suffix, python_tag, version_suffix, wheel_version

COMMIT = "0123abcd" * 5

numbers = st.integers(min_value=0, max_value=40)
releases = st.builds("{}.{}.{}".format, st.integers(min_value=5, max_value=40), numbers, numbers)
pre_parts = st.one_of(
    st.just(""),
    st.builds("{}{}".format, st.sampled_from(["a", "b", "rc"]), st.integers(0, 20300101)),
    st.builds(".dev{}".format, numbers),
)
labels = st.from_regex(r"[a-z0-9]{1,12}", fullmatch=True)
rocm_versions = st.builds(
    lambda release, pre, local: release + pre + (f"+{local}" if local else ""),
    releases,
    pre_parts,
    st.one_of(st.just(""), labels),
)
bases = st.builds("{}{}".format, releases, st.sampled_from(["", "a0", "rc1"]))
commits = st.from_regex(r"[0-9a-f]{40}", fullmatch=True)


@pytest.mark.parametrize(
    ("rocm", "suffix"),
    [
        ("7.14.0a20260811", "+rocm7.14.0a20260811"),
        ("7.10.0", "+rocm7.10.0"),
        ("7.10.0.dev0+efed3c", "+devrocm7.10.0.dev0.efed3c"),
        ("7.99.0.dev0+sample", "+devrocm7.99.0.dev0.sample"),
        ("7.0.0-RC1", "+rocm7.0.0rc1"),
    ],
)
def test_suffix_follows_the_fields_scheme(rocm: str, suffix: str) -> None:
    assert version_suffix(rocm) == suffix


def test_cpu_suffix() -> None:
    assert [cpu_suffix(), cpu_suffix("sample"), cpu_suffix("my.fork")] == [
        "+cpu",
        "+cpu.sample",
        "+cpu.my.fork",
    ]


@pytest.mark.parametrize("release_type", RELEASE_TYPES)
def test_only_dev_wheels_carry_a_git_tag(release_type: str) -> None:
    version = wheel_version("2.10.0a0", "+rocm7.10.0", release_type=release_type, commit=COMMIT)
    tagged = release_type in {"dev", "dev-bkc"}
    assert version == ("2.10.0a0+git0123abcd.rocm7.10.0" if tagged else "2.10.0a0+rocm7.10.0")


def test_an_unknown_release_type_is_named() -> None:
    with pytest.raises(UsageError, match="'nightyl'") as unknown:
        wheel_version("2.10.0", "+cpu", release_type="nightyl", commit=COMMIT)
    assert "nightly" in unknown.value.hint


@given(bases, rocm_versions, st.sampled_from(RELEASE_TYPES), commits)
def test_versions_are_normal_and_keep_a_base(base: str, rocm: str, release_type: str, commit: str) -> None:
    version = wheel_version(base, version_suffix(rocm), release_type=release_type, commit=commit)
    parsed = Version(version)
    assert str(parsed) == version
    assert parsed.public == str(Version(base))
    assert ("devrocm" in version) == ("dev" in rocm)
    file_name = f"torch-{version}-cp312-{python_tag('3.12')}-linux_x86_64.whl"
    assert str(parse_wheel_filename(file_name)[1]) == version


@given(bases, bases, rocm_versions, st.sampled_from(RELEASE_TYPES), commits)
def test_another_releases_torch_is_named_before_rocm(
    base: str, torch: str, rocm: str, release_type: str, commit: str
) -> None:
    suffix = version_suffix(rocm)
    version = wheel_version(base, suffix, release_type=release_type, commit=commit, torch=torch)
    minors = [f"{Version(one).major}.{Version(one).minor}" for one in (base, torch)]
    plain = wheel_version(base, suffix, release_type=release_type, commit=commit)
    if minors[0] == minors[1]:
        assert version == plain
    else:
        assert f"torch{minors[1]}.{suffix[1:]}" in version
        assert version.replace(f"torch{minors[1]}.", "", 1) == plain
    assert version.endswith(suffix[1:]), "a promotion replaces the end"


@given(bases, rocm_versions, commits)
def test_what_tags_itself_has_the_commit_in_every_release_type(base: str, rocm: str, commit: str) -> None:
    made = {
        wheel_version(base, version_suffix(rocm), release_type=release_type, commit=commit, tagged=True)
        for release_type in RELEASE_TYPES
    }
    assert made == {wheel_version(base, version_suffix(rocm), release_type="dev", commit=commit)}


@pytest.mark.parametrize(
    ("version", "tag"),
    [
        ("3.12", "cp312-cp312"),
        ("3.12.4", "cp312-cp312"),
        ("3.13t", "cp313-cp313t"),
        ("3.14.0rc1", "cp314-cp314"),
        ("3.8", "cp38-cp38"),
    ],
)
def test_python_tag(version: str, tag: str) -> None:
    tags = parse_wheel_filename(f"torch-2.0-{tag}-linux_x86_64.whl")[3]
    python, _, abi = tag.partition("-")
    assert python_tag(version) == abi
    assert tags <= set(cpython_tags((3, int(python[3:])), abis=[abi], platforms=["linux_x86_64"]))


@pytest.mark.parametrize(
    ("make", "said", "values"),
    [
        (
            python_tag,
            "a Python version.\nWrite 3.12, or 3.13t for free-threaded Python.",
            ["", "3", "2.7", "3.x", "cp312", "3.13tt", "3.1\uff12"],
        ),
        (
            version_suffix,
            "a ROCm version.\nWrite it like 7.10.0a20251120 or 7.10.0.dev0+efed3c.",
            ["", "latest", "7.10.0 ; rm", "1!7.0", "7.10/x", "==7.10"],
        ),
        (
            cpu_suffix,
            "a local version label.\nWrite it like sample or my.fork.",
            ["Sample", "a b", "a..b", "+x", "."],
        ),
    ],
)
def test_other_forms_are_refused(make: Callable[[str], object], said: str, values: list[str]) -> None:
    for value in values:
        with pytest.raises(UsageError) as caught:
            make(value)
        assert str(caught.value) == f"{value!r} is not {said}"
