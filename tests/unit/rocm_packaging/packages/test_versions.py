import re
from datetime import date

import pytest
from hypothesis import given
from hypothesis import strategies as st
from packaging.version import InvalidVersion, Version

from core.errors import UsageError
from rocm_packaging.packages import versions
from rocm_packaging.packages.versions import parse

COMMIT = "89553ce2" * 5
DAY = date(2026, 8, 22)


# Versions


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
def test_reads_each_form_of_a_version(text: str, kind: str, base: str) -> None:
    assert parse(text) == (kind, base)


@pytest.mark.parametrize(
    "text",
    [
        *(
            "",
            "latest",
            "v10.1.0",
            "10.1",
            "10.1.0.0",
            "10.01.0",
            "10.1.0\n",
            "1\uff10.1.0",
        ),
        *("10.1.0rc", "10.1.0rcNone", "10.1.0a2026", "10.1.0a20260811+20260814"),
        *("10.1.0.dev1", "10.1.0.dev0+ABC", "10.1.0.dev0+a-b"),
    ],
)
def test_refuses_text_of_no_known_form(text: str) -> None:
    with pytest.raises(UsageError) as raised:
        parse(text)

    assert repr(text) in raised.value.message


def test_offers_an_example_of_each_form() -> None:
    with pytest.raises(UsageError) as raised:
        parse("latest")

    examples = re.findall(
        r"\d+\.\d+\.\d+[^\s,]*",
        raised.value.hint.replace("<git commit in lower case>", COMMIT),
    )
    kinds = {parse(example.rstrip("."))[0] for example in examples}
    assert kinds == {"release", "prerelease", "nightly", "nightly-bkc", "dev"}


@pytest.mark.parametrize(
    ("text", "digits"),
    [("10.1.0a20261345", "20261345"), ("10.1.0a20260811+bkc.20260899", "20260899")],
)
def test_refuses_a_date_that_no_calendar_has(text: str, digits: str) -> None:
    with pytest.raises(UsageError) as raised:
        parse(text)

    assert repr(text) in raised.value.message
    assert f"{digits} " in raised.value.message


@given(st.text(alphabet="0123456789.adevrcbk+ns-", max_size=30))
def test_reads_normalised_versions_alone(text: str) -> None:
    try:
        parse(text)
    except UsageError:
        return

    try:
        normalised_version = str(Version(text))
    except InvalidVersion:
        pytest.fail(f"{text} was read and is no version")
    # Local versions keep their leading zeros here: they are commits, not numbers.
    assert normalised_version.partition("+")[0] == text.partition("+")[0]


# Release types


@pytest.mark.parametrize(
    ("release_type", "commit", "candidate", "version"),
    [
        ("release", "", None, "10.1.0"),
        ("prerelease", "", 2, "10.1.0rc2"),
        ("prerelease", "", 0, "10.1.0rc0"),
        ("nightly", "", None, "10.1.0a20260822"),
        ("ci", "0123abc" * 5, None, "10.1.0.dev0+" + "0123abc" * 5),
        ("dev", "", None, "10.1.0.dev0"),
        ("dev-bkc", "0123abc", None, "10.1.0.dev0+0123abc"),
    ],
)
def test_makes_the_version_of_a_release_type(
    release_type: str, commit: str, candidate: int | None, version: str
) -> None:
    computed_version = versions.compute_version(
        "10.1.0", release_type, day=DAY, commit=commit, candidate=candidate
    )
    artifact_version = versions.choose_version(
        "10.1.0", release_type, day=DAY, commit=commit, candidate=candidate
    )

    assert computed_version == version
    assert artifact_version == version
    assert str(Version(version)) == version


@pytest.mark.parametrize(
    ("base", "release_type", "commit", "candidate", "subject"),
    [
        pytest.param("10.1.0", "prerelease", "", None, "--rc", id="no number"),
        pytest.param("10.1.0", "prerelease", "", -1, "--rc", id="negative number"),
        pytest.param("10.1.0", "release", "", 1, "--rc", id="number of a release"),
        pytest.param("10.1", "release", "", None, "10.1.0", id="short base"),
        pytest.param("10.1.0", "ci", "HEAD", None, "'HEAD'", id="no commit"),
        pytest.param("10.1.0", "nigthly", "", None, "'nightly'", id="unknown type"),
        pytest.param("10.1.0", "nightly-bkc", "", None, "bkc.20260814", id="two dates"),
    ],
)
def test_refuses_what_makes_no_version(
    base: str, release_type: str, commit: str, candidate: int | None, subject: str
) -> None:
    with pytest.raises(UsageError) as raised:
        versions.compute_version(base, release_type, day=DAY, commit=commit, candidate=candidate)

    assert subject in str(raised.value)


def test_keeps_a_complete_version_of_the_artifacts() -> None:
    assert versions.choose_version("7.99.0.dev0+sample", "release", day=DAY) == "7.99.0.dev0+sample"


def test_asks_for_a_version_where_the_artifacts_name_none() -> None:
    with pytest.raises(UsageError, match="--version"):
        versions.choose_version("", "ci", day=DAY)
