import pytest
from hypothesis import given
from hypothesis import strategies as st

from core.errors import SourceError
from pytorch_build.lock import versions
from pytorch_build.sources.git import is_commit

COMMIT = "267d3973d0774ada55eaf1092a82c0d2a9bba78d"
OTHER_COMMIT = "e3b5d3a8bf5e8636462fd8bce9897bccc690b2a0"
# Rows as ROCm's torch has them.
RELATED_COMMITS = f"""\
ubuntu|pytorch|apex|master|{COMMIT}|https://github.com/ROCm/apex
centos|pytorch|apex|master|{COMMIT}|https://github.com/ROCm/apex

# a remark
ubuntu|pytorch|torchvision|main|{OTHER_COMMIT}|https://github.com/pytorch/vision
"""


# related_commits


def test_reads_one_row_of_each_project() -> None:
    rows = versions.parse_related_commits(RELATED_COMMITS, "related_commits")

    assert list(rows) == ["apex", "torchvision"]
    vision = rows["torchvision"]
    assert vision.branch == "main"
    assert vision.commit == OTHER_COMMIT
    assert vision.origin == "https://github.com/pytorch/vision"


def test_reads_no_row_of_another_system() -> None:
    line = f"centos|p|apex|b|{COMMIT}|sample:apex\n"

    assert versions.parse_related_commits(line, "related_commits") == {}


@pytest.mark.parametrize(
    ("line", "problem"),
    [
        (f"ubuntu|pytorch|apex|master|{COMMIT}", "5 fields"),
        (f"ubuntu|pytorch|apex|master|{COMMIT}|o|x", "7 fields"),
        ("ubuntu|pytorch|apex|master|main|o", "'main'"),
        (f"ubuntu|pytorch|apex|master|{COMMIT[:12]}|o", COMMIT[:12]),
        (f"ubuntu|pytorch||master|{COMMIT}|o", "project"),
        (f"ubuntu|pytorch|apex|master|{COMMIT}|", "origin"),
        (f"|pytorch|apex|master|{COMMIT}|o", "the os"),
    ],
    ids=["a field too few", "a field too many", "no commit", "short commit", "project", "origin", "system"],
)
def test_rejects_a_malformed_line_by_its_number(line: str, problem: str) -> None:
    with pytest.raises(SourceError, match=problem) as caught:
        versions.parse_related_commits(RELATED_COMMITS + line, "related_commits of x")

    assert "related_commits of x, line 6:" in caught.value.message


@pytest.mark.parametrize("system", ["ubuntu", "centos"])
def test_rejects_two_commits_of_one_project(system: str) -> None:
    line = f"{system}|pytorch|apex|master|{OTHER_COMMIT}|https://github.com/ROCm/apex\n"

    with pytest.raises(SourceError, match="lines 1 and 6") as caught:
        versions.parse_related_commits(RELATED_COMMITS + line, "related_commits")

    assert "apex" in caught.value.message


# A strategy of all letters of Unicode takes a second to begin with.
FIELDS = st.text("abcxyzABC0189-._:/@+äßλ中", min_size=1, max_size=20)
COMMITS = st.binary(min_size=20, max_size=20).map(bytes.hex)


@given(st.dictionaries(FIELDS, st.tuples(FIELDS, COMMITS, FIELDS), min_size=1, max_size=6))
def test_reads_rows_back_as_they_were_written(rows: dict[str, tuple[str, str, str]]) -> None:
    lines = [
        f"ubuntu|pytorch| {project} |{branch}|{commit}|{origin}\n"
        for project, (branch, commit, origin) in rows.items()
    ]

    parsed_rows = versions.parse_related_commits("".join(lines), "related_commits")

    assert {project: (row.branch, row.commit, row.origin) for project, row in parsed_rows.items()} == rows


@given(st.text())
def test_reads_any_text_or_rejects_it(text: str) -> None:
    try:
        rows = versions.parse_related_commits(text, "related_commits")
    except SourceError:
        return
    assert all(is_commit(row.commit) for row in rows.values())


def test_reads_a_file_with_a_byte_order_mark() -> None:
    rows = versions.parse_related_commits(f"\ufeff{RELATED_COMMITS}", "related_commits")

    assert list(rows) == ["apex", "torchvision"]


def test_takes_one_commit_with_two_spellings_of_its_origin_for_one() -> None:
    line = f"centos|pytorch|apex|master|{COMMIT.upper()}|https://github.com/rocm/apex.git/\n"

    rows = versions.parse_related_commits(RELATED_COMMITS + line, "related_commits")

    assert rows["apex"].origin == "https://github.com/ROCm/apex"


# Files of one commit or one version


@pytest.mark.parametrize("text", [f"{COMMIT}\n", f"\ufeff{COMMIT}\r\n", COMMIT.upper()])
def test_reads_a_pinned_commit(text: str) -> None:
    assert versions.parse_commit_pin(text, "triton.txt") == COMMIT


@pytest.mark.parametrize("text", ["", "\n", "main\n", COMMIT[:39], f"{COMMIT}\n{COMMIT}\n"])
def test_rejects_a_pin_that_is_not_one_commit(text: str) -> None:
    with pytest.raises(SourceError, match=r"^triton\.txt: "):
        versions.parse_commit_pin(text, "triton.txt")


@pytest.mark.parametrize(
    ("text", "version"),
    [("2.6.0a0\n", "2.6.0a0"), (" 3.6.0 ", "3.6.0"), ("\ufeff2.6.0\n", "2.6.0"), ("2.10.0.a0", "2.10.0a0")],
)
def test_normalises_a_version(text: str, version: str) -> None:
    assert versions.parse_version(text, "version.txt") == version


@pytest.mark.parametrize("text", ["", "two", "2.6.0a0+git1234", "2.6\n2.7\n"])
def test_rejects_a_file_that_is_not_one_version(text: str) -> None:
    with pytest.raises(SourceError, match=r"^version\.txt: "):
        versions.parse_version(text, "version.txt")
