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

NUMBERS = st.integers(min_value=0, max_value=40)
RELEASES = st.builds("{}.{}.{}".format, st.integers(min_value=5, max_value=40), NUMBERS, NUMBERS)
PRERELEASES = st.one_of(
    st.just(""),
    st.builds("{}{}".format, st.sampled_from(["a", "b", "rc"]), st.integers(0, 20300101)),
    st.builds(".dev{}".format, NUMBERS),
)
LETTERS = "abcdefghijklmnopqrstuvwxyz0123456789"
LOCAL_LABELS = st.text(LETTERS, min_size=1, max_size=12).map("+{}".format)
ROCM_VERSIONS = st.builds("{}{}{}".format, RELEASES, PRERELEASES, st.just("") | LOCAL_LABELS)
BASE_VERSIONS = st.builds("{}{}".format, RELEASES, st.sampled_from(["", "a0", "rc1"]))
COMMITS = st.binary(min_size=20, max_size=20).map(bytes.hex)
EVERY_RELEASE_TYPE = st.sampled_from(RELEASE_TYPES)


# Local versions


@pytest.mark.parametrize(
    ("rocm_version", "suffix"),
    [
        ("7.14.0a20260811", "+rocm7.14.0a20260811"),
        ("7.10.0", "+rocm7.10.0"),
        ("7.10.0.dev0+efed3c", "+devrocm7.10.0.dev0.efed3c"),
        ("7.99.0.dev0+sample", "+devrocm7.99.0.dev0.sample"),
        ("7.0.0-RC1", "+rocm7.0.0rc1"),
    ],
)
def test_names_rocm_as_its_own_wheels_do(rocm_version: str, suffix: str) -> None:
    assert version_suffix(rocm_version) == suffix


@pytest.mark.parametrize(
    ("label", "suffix"), [("", "+cpu"), ("sample", "+cpu.sample"), ("my.fork", "+cpu.my.fork")]
)
def test_names_the_cpu_and_a_label(label: str, suffix: str) -> None:
    assert cpu_suffix(label) == suffix


@pytest.mark.parametrize("release_type", RELEASE_TYPES)
def test_adds_the_commit_to_versions_for_developers_alone(release_type: str) -> None:
    version = wheel_version("2.10.0a0", "+rocm7.10.0", release_type=release_type, commit=COMMIT)

    if release_type in {"dev", "dev-bkc"}:
        assert version == "2.10.0a0+git0123abcd.rocm7.10.0"
    else:
        assert version == "2.10.0a0+rocm7.10.0"


def test_rejects_an_unknown_release_type() -> None:
    with pytest.raises(UsageError, match="'nightyl'") as caught:
        wheel_version("2.10.0", "+cpu", release_type="nightyl", commit=COMMIT)

    assert "nightly" in caught.value.hint


@given(
    base_version=BASE_VERSIONS,
    rocm_version=ROCM_VERSIONS,
    release_type=EVERY_RELEASE_TYPE,
    commit=COMMITS,
)
def test_writes_normal_versions_that_keep_the_base_version(
    base_version: str, rocm_version: str, release_type: str, commit: str
) -> None:
    suffix = version_suffix(rocm_version)

    version = wheel_version(base_version, suffix, release_type=release_type, commit=commit)

    assert str(Version(version)) == version
    assert Version(version).public == str(Version(base_version))
    assert ("devrocm" in version) == ("dev" in rocm_version)
    file_name = f"torch-{version}-cp312-{python_tag('3.12')}-linux_x86_64.whl"
    assert str(parse_wheel_filename(file_name)[1]) == version


@given(base_version=BASE_VERSIONS, rocm_version=ROCM_VERSIONS, commit=COMMITS)
def test_adds_the_commit_for_every_release_type_where_the_projects_build_does(
    base_version: str, rocm_version: str, commit: str
) -> None:
    suffix = version_suffix(rocm_version)

    versions = {
        wheel_version(base_version, suffix, release_type=release_type, commit=commit, adds_commit=True)
        for release_type in RELEASE_TYPES
    }

    assert versions == {wheel_version(base_version, suffix, release_type="dev", commit=commit)}


# Versions that name the torch that a wheel is for


@given(
    base_version=BASE_VERSIONS,
    minor=NUMBERS,
    rocm_version=ROCM_VERSIONS,
    release_type=EVERY_RELEASE_TYPE,
    commit=COMMITS,
)
def test_names_a_torch_of_another_minor_version_before_rocm(
    base_version: str, minor: int, rocm_version: str, release_type: str, commit: str
) -> None:
    suffix = version_suffix(rocm_version)
    version_without_torch = wheel_version(base_version, suffix, release_type=release_type, commit=commit)

    # No release of ours has this major version.
    version = wheel_version(
        base_version, suffix, release_type=release_type, commit=commit, torch_version=f"50.{minor}.0"
    )

    assert f"torch50.{minor}.{suffix[1:]}" in version
    assert version.replace(f"torch50.{minor}.", "", 1) == version_without_torch
    # A promotion replaces the end.
    assert version.endswith(suffix[1:])


@given(
    base_version=BASE_VERSIONS,
    patch=NUMBERS,
    rocm_version=ROCM_VERSIONS,
    release_type=EVERY_RELEASE_TYPE,
    commit=COMMITS,
)
def test_does_not_name_a_torch_of_the_same_minor_version(
    base_version: str, patch: int, rocm_version: str, release_type: str, commit: str
) -> None:
    suffix = version_suffix(rocm_version)
    base = Version(base_version)

    version = wheel_version(
        base_version,
        suffix,
        release_type=release_type,
        commit=commit,
        torch_version=f"{base.major}.{base.minor}.{patch}",
    )

    assert version == wheel_version(base_version, suffix, release_type=release_type, commit=commit)


# Pythons


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
def test_names_the_abi_of_a_python_as_wheels_do(version: str, tag: str) -> None:
    python, _, abi = tag.partition("-")

    assert python_tag(version) == abi

    # packaging agrees that such a wheel runs there.
    wheel_tags = parse_wheel_filename(f"torch-2.0-{tag}-linux_x86_64.whl")[3]
    python_version = (3, int(python.removeprefix("cp3")))
    assert wheel_tags <= set(cpython_tags(python_version, abis=[abi], platforms=["linux_x86_64"]))


# Text of another form


@pytest.mark.parametrize("text", ["", "3", "2.7", "3.x", "cp312", "3.13tt", "3.1\uff12"])
def test_rejects_text_that_is_not_a_python_version(text: str) -> None:
    with pytest.raises(UsageError) as caught:
        python_tag(text)

    assert repr(text) in caught.value.message
    assert "3.12" in caught.value.hint


@pytest.mark.parametrize("text", ["", "latest", "7.10.0 ; rm", "1!7.0", "7.10/x", "==7.10"])
def test_rejects_text_that_is_not_a_rocm_version(text: str) -> None:
    with pytest.raises(UsageError) as caught:
        version_suffix(text)

    assert repr(text) in caught.value.message
    assert "7.10.0a20251120" in caught.value.hint


@pytest.mark.parametrize("text", ["Sample", "a b", "a..b", "+x", "."])
def test_rejects_text_that_is_not_a_local_label(text: str) -> None:
    with pytest.raises(UsageError) as caught:
        cpu_suffix(text)

    assert repr(text) in caught.value.message
    assert "my.fork" in caught.value.hint
