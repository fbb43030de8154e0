import pytest
from hypothesis import given
from hypothesis import strategies as st

from core.errors import SourceError
from pytorch_build.lock import versions
from pytorch_build.sources.git import is_commit

SHA = "267d3973d0774ada55eaf1092a82c0d2a9bba78d"
OTHER = "e3b5d3a8bf5e8636462fd8bce9897bccc690b2a0"
# rows as the field has them
FIELD = f"""\
ubuntu|pytorch|apex|master|{SHA}|https://github.com/ROCm/apex
centos|pytorch|apex|master|{SHA}|https://github.com/ROCm/apex

# a remark
ubuntu|pytorch|torchvision|main|{OTHER}|https://github.com/pytorch/vision
"""

words = st.text(st.characters(exclude_characters="|#", exclude_categories=["C", "Z"]), min_size=1)
commits = st.text("0123456789abcdef", min_size=40, max_size=40)


def test_reads_the_rows_of_the_field() -> None:
    rows = versions.parse_related_commits(FIELD, "related_commits")
    assert list(rows) == ["apex", "torchvision"]
    assert versions.parse_related_commits(f"centos|p|apex|b|{SHA}|sample:apex\n", "f") == {}
    assert rows["torchvision"][2:] == ("torchvision", "main", OTHER, "https://github.com/pytorch/vision")


@pytest.mark.parametrize(
    ("line", "said"),
    [
        (f"ubuntu|pytorch|apex|master|{SHA}", "5 fields instead of 6"),
        (f"ubuntu|pytorch|apex|master|{SHA}|o|x", "7 fields instead of 6"),
        ("ubuntu|pytorch|apex|master|main|o", "'main' is not a commit"),
        (f"ubuntu|pytorch|apex|master|{SHA[:12]}|o", "is not a commit"),
        (f"ubuntu|pytorch||master|{SHA}|o", "the project is empty"),
        (f"ubuntu|pytorch|apex|master|{SHA}|", "the origin is empty"),
        (f"|pytorch|apex|master|{SHA}|o", "the os is empty"),
    ],
)
def test_malformed_lines_are_refused_by_number(line: str, said: str) -> None:
    with pytest.raises(SourceError, match=rf"related_commits of x, line 6: .*{said}"):
        versions.parse_related_commits(FIELD + line, "related_commits of x")


@pytest.mark.parametrize("system", ["ubuntu", "centos"])
def test_rows_that_conflict_are_refused(system: str) -> None:
    text = FIELD + f"{system}|pytorch|apex|master|{OTHER}|https://github.com/ROCm/apex\n"
    with pytest.raises(SourceError, match="lines 1 and 6 name different commits of apex"):
        versions.parse_related_commits(text, "f")


@given(st.dictionaries(words, st.tuples(words, commits, words), min_size=1))
def test_rows_come_back_as_written(rows: dict[str, tuple[str, str, str]]) -> None:
    text = "\n".join(f"ubuntu|pytorch| {p} |{b}|{c}|{o}" for p, (b, c, o) in rows.items())
    read = versions.parse_related_commits(text, "f")
    assert {p: (row.branch, row.commit, row.origin) for p, row in read.items()} == rows


@given(st.text())
def test_any_text_is_read_or_refused_by_our_own_error(text: str) -> None:
    try:
        rows = versions.parse_related_commits(text, "f")
    except SourceError:
        return
    assert all(is_commit(row.commit) for row in rows.values())


@pytest.mark.parametrize("text", ["", "\n", "main\n", SHA[:39], f"{SHA}\n{SHA}\n", SHA.upper()])
def test_commit_pin_is_one_commit(text: str) -> None:
    assert versions.parse_commit_pin(f"{SHA}\n", "triton.txt") == SHA
    with pytest.raises(SourceError, match=r"^triton\.txt: expected one commit"):
        versions.parse_commit_pin(text, "triton.txt")


@pytest.mark.parametrize(
    ("text", "version"), [("2.6.0a0\n", "2.6.0a0"), (" 3.6.0 ", "3.6.0"), ("2.10.0.a0", "2.10.0a0")]
)
def test_versions_are_normalised(text: str, version: str) -> None:
    assert versions.parse_version(text, "version.txt") == version


@pytest.mark.parametrize("text", ["", "two", "2.6.0a0+git1234", "2.6\n2.7\n"])
def test_other_version_files_are_refused(text: str) -> None:
    with pytest.raises(SourceError, match=r"^version\.txt: "):
        versions.parse_version(text, "version.txt")
