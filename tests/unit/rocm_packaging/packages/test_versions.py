from __future__ import annotations

from datetime import date
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from packaging.version import InvalidVersion, Version

from core.errors import UsageError
from rocm_packaging.packages import versions
from rocm_packaging.packages.versions import parse

COMMIT = "89553ce2" * 5


@pytest.mark.parametrize(
    ("text", "kind", "local"),
    [
        ("10.1.0", "release", ""),
        ("10.1.0rc2", "prerelease", ""),
        ("10.1.0a20260822", "nightly", ""),
        ("10.1.0a20260811+bkc.20260814", "nightly-bkc", ""),
        ("10.1.0.dev0", "dev", ""),
        (f"10.1.0.dev0+{COMMIT}", "dev", COMMIT),
        ("7.99.0.dev0+sample", "dev", "sample"),
    ],
)
def test_known_forms(text: str, kind: str, local: str) -> None:
    version = parse(text)
    assert (version.text, version.kind, version.local) == (text, kind, local)
    assert version.base in {"10.1.0", "7.99.0"}
    assert version.is_sample == (local == "sample")


@pytest.mark.parametrize(
    "text",
    [
        "",
        "10.1",
        "10.1.0.0",
        "v10.1.0",
        "10.1.0rcNone",
        "10.1.0rc",
        "10.01.0",
        "10.1.0a2026",
        "10.1.0a20261345",
        "10.1.0a20260811+bkc.20260899",
        "10.1.0a20260811+20260814",
        "10.1.0.dev1",
        "10.1.0.dev0+ABC",
        "10.1.0.dev0+a-b",
        "10.1.0\n",
        "1\uff10.1.0",
        "latest",
    ],
)
def test_other_forms_are_refused(text: str) -> None:
    with pytest.raises(UsageError, match="Invalid ROCm version"):
        parse(text)


@given(st.text(alphabet="0123456789.adevrcbk+ns-", max_size=30))
def test_whatever_passes_is_a_normalised_version(text: str) -> None:
    try:
        version = parse(text)
    except UsageError:
        return
    try:
        normalised = str(Version(text))
    except InvalidVersion:
        pytest.fail(f"{text} passed and is no version")
    assert version.text == text
    # Local parts keep their leading zeros here: they are commits, not numbers.
    assert normalised.partition("+")[0] == text.partition("+")[0]


DAY = date(2026, 8, 22)


@pytest.mark.parametrize(
    ("release_type", "options", "version"),
    [
        ("release", {}, "10.1.0"),
        ("prerelease", {"candidate": 2}, "10.1.0rc2"),
        ("prerelease", {"candidate": 0}, "10.1.0rc0"),
        ("nightly", {}, "10.1.0a20260822"),
        ("ci", {"commit": "0123abc" * 5}, "10.1.0.dev0+" + "0123abc" * 5),
        ("dev", {}, "10.1.0.dev0"),
        ("dev-bkc", {"commit": "0123abc"}, "10.1.0.dev0+0123abc"),
    ],
)
def test_the_release_type_makes_the_version(release_type: str, options: Any, version: str) -> None:
    assert versions.compute("10.1.0", release_type, day=DAY, **options) == version
    assert versions.of_artifacts("10.1.0", release_type, day=DAY, **options) == version
    assert str(Version(version)) == version


@pytest.mark.parametrize(
    ("base", "release_type", "options", "said"),
    [
        ("10.1.0", "prerelease", {}, "needs a number"),
        ("10.1.0", "prerelease", {"candidate": -1}, "needs a number"),
        ("10.1.0", "release", {"candidate": 1}, "no candidate"),
        ("10.1", "release", {}, "Invalid base version"),
        ("10.1.0", "ci", {"commit": "HEAD"}, "Invalid git commit"),
        ("10.1.0", "nigthly", {}, "nightly"),
        ("10.1.0", "nightly-bkc", {}, "two dates"),
    ],
)
def test_what_makes_no_version_is_refused(base: str, release_type: str, options: Any, said: str) -> None:
    with pytest.raises(UsageError, match=said):
        versions.compute(base, release_type, day=DAY, **options)


def test_a_whole_version_of_the_artifacts_stands() -> None:
    assert versions.of_artifacts("7.99.0.dev0+sample", "release", day=DAY) == "7.99.0.dev0+sample"
    with pytest.raises(UsageError, match="name no ROCm version"):
        versions.of_artifacts("", "ci", day=DAY)
