import re
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
    ("text", "kind", "base"),
    [
        ("10.1.0", "release", "10.1.0"),
        ("10.1.0rc2", "prerelease", "10.1.0"),
        ("10.1.0a20260822", "nightly", "10.1.0"),
        ("10.1.0a20260811+bkc.20260814", "nightly-bkc", "10.1.0"),
        ("10.1.0.dev0", "dev", "10.1.0"),
        (f"10.1.0.dev0+{COMMIT}", "dev", "10.1.0"),
        ("7.99.0.dev0+sample", "dev", "7.99.0"),
    ],
)
def test_known_forms(text: str, kind: str, base: str) -> None:
    assert parse(text) == (kind, base)


@pytest.mark.parametrize(
    "text",
    [
        *("", "latest", "v10.1.0", "10.1", "10.1.0.0", "10.01.0", "10.1.0\n", "1\uff10.1.0"),
        *("10.1.0rc", "10.1.0rcNone", "10.1.0a2026", "10.1.0a20260811+20260814"),
        *("10.1.0.dev1", "10.1.0.dev0+ABC", "10.1.0.dev0+a-b"),
    ],
)
def test_other_forms_are_refused(text: str) -> None:
    with pytest.raises(UsageError) as caught:
        parse(text)
    assert caught.value.message == f"Invalid ROCm version {text!r}."
    said, _, forms = caught.value.hint.removesuffix(".").partition(": ")
    forms = forms.replace("<git commit in lower case>", "0123abc")
    assert said == "Forms"
    assert [parse(one)[0] for one in forms.split(", ")] == [one for one, _ in versions._FORMS] + ["dev"]


@pytest.mark.parametrize(
    ("text", "digits"), [("10.1.0a20261345", "20261345"), ("10.1.0a20260811+bkc.20260899", "20260899")]
)
def test_dates_are_those_of_a_calendar(text: str, digits: str) -> None:
    said = rf"^Invalid ROCm version '{re.escape(text)}': {digits} is not a date\.\nDates are YYYYMMDD\.$"
    with pytest.raises(UsageError, match=said):
        parse(text)


@given(st.text(alphabet="0123456789.adevrcbk+ns-", max_size=30))
def test_whatever_passes_is_a_normalised_version(text: str) -> None:
    try:
        parse(text)
    except UsageError:
        return
    try:
        normalised = str(Version(text))
    except InvalidVersion:
        pytest.fail(f"{text} passed and is no version")
    # Local parts keep their leading zeros here: they are commits, not numbers.
    assert normalised.partition("+")[0] == text.partition("+")[0]


DAY = date(2026, 8, 22)
NO_COMMIT = "Invalid git commit 'HEAD'.\nIt has 7 to 40 hexadecimal digits in lower case."
TWO_DATES = "A nightly-bkc version has two dates: of the nightly that it is based on, and its own."


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
        ("10.1.0", "prerelease", {}, "A prerelease needs a number.\nSet it with --rc N."),
        ("10.1.0", "prerelease", {"candidate": -1}, "A prerelease needs a number.\nSet it with --rc N."),
        (
            "10.1.0",
            "release",
            {"candidate": 1},
            "A release version has no candidate number.\nLeave --rc out.",
        ),
        ("10.1", "release", {}, "Invalid base version '10.1'.\nIt has three numbers, such as 10.1.0."),
        ("10.1.0", "ci", {"commit": "HEAD"}, NO_COMMIT),
        ("10.1.0", "nigthly", {}, "Unknown release type 'nigthly'. Did you mean 'nightly'?"),
        ("10.1.0", "nightly-bkc", {}, f"{TWO_DATES}\nSet the whole version: 10.1.0a20260811+bkc.20260814."),
    ],
)
def test_what_makes_no_version_is_refused(base: str, release_type: str, options: Any, said: str) -> None:
    with pytest.raises(UsageError, match=f"^{re.escape(said)}$"):
        versions.compute(base, release_type, day=DAY, **options)


def test_a_whole_version_of_the_artifacts_stands() -> None:
    assert versions.of_artifacts("7.99.0.dev0+sample", "release", day=DAY) == "7.99.0.dev0+sample"
    with pytest.raises(
        UsageError, match=r"^The artifacts name no ROCm version\.\nSet it with --version V\.$"
    ):
        versions.of_artifacts("", "ci", day=DAY)
