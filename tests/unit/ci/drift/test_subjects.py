"""What each subject reads of a small TheRock (`therock.toml`), and what the verb says of it."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ci.drift.tree import Facts, Subject, Tree, tree
from ci.verbs import drift
from ci.verbs.drift import ACCEPTED, SUBJECTS, Accepted, AcceptedFile, Difference, differences, sorted_out
from core import process
from core.data import load_toml, read_toml
from core.errors import DataError
from tests.kit.front_doors import run_ci

THEROCK = read_toml(Path(__file__).with_name("therock.toml"))
# what upstream has and our data does not: never compared as equal
THEIRS_ALONE = {"untested", "left out"}


@pytest.fixture(name="therock")
def therock_fixture(tmp_path: Path) -> Path:
    for path, text in THEROCK["files"].items():
        file = tmp_path / "therock" / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text, encoding="utf-8")
    return tmp_path / "therock"


def read(root: Path, subject: Subject) -> tuple[dict[str, Any], dict[str, Any]]:
    theirs, ours = subject.facts(tree(root))
    return dict(theirs), dict(ours)


@pytest.mark.parametrize("subject", SUBJECTS, ids=lambda one: one.name)
def test_a_subject_reads_what_upstream_says_under_keys_of_our_data(therock: Path, subject: Subject) -> None:
    theirs, ours = read(therock, subject)
    expected = THEROCK["facts"][subject.name]
    found = {key: theirs[key] if isinstance(theirs[key], str) else sorted(theirs[key]) for key in expected}
    assert found == {key: one if isinstance(one, str) else sorted(one) for key, one in expected.items()}
    # a matrix has the Pythons of each ref of ours
    assert all(key.startswith("pythons of ") for key in theirs.keys() - expected.keys())
    assert {key for key in theirs.keys() - ours.keys() if "sandbox" not in key} <= THEIRS_ALONE


def problems(root: Path) -> Iterator[str]:
    for subject in SUBJECTS:
        try:
            differences(subject, tree(root))
        except DataError as problem:
            yield problem.message


def test_each_file_that_is_gone_or_says_nothing_is_named(therock: Path) -> None:
    for path in [one for one in therock.rglob("*.*") if one.is_file()]:
        name, text = path.relative_to(therock).as_posix(), path.read_text(encoding="utf-8")
        if name.endswith("README.md") or name == "BUILD_TOPOLOGY.toml" or "/skip_tests/" in name:
            continue
        path.unlink()
        for _ in range(2):
            assert any(path.name in problem for problem in problems(therock)), name
            path.write_text("" if path.suffix != ".json" else '{"rocm-version": ""}', encoding="utf-8")
        path.write_text(text, encoding="utf-8")


def test_the_verb_prints_what_differs_and_what_has_a_reason(
    therock: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    version = Subject(
        name="ROCm's version",
        upstream="version.json",
        here="ci/triggers.toml",
        facts=lambda one: (json.loads(one.text("version.json")), {"rocm-version": "10.1.0"}),
    )
    monkeypatch.setattr(drift, "SUBJECTS", (version,))
    accepted = tmp_path / "drift.toml"
    accepted.write_text("")
    monkeypatch.setattr(drift, "ACCEPTED", accepted)
    words = ["drift", "--therock", str(therock)]
    assert run_ci(*words) == 0
    (therock / "version.json").write_text('{"rocm-version": "99.0.0"}')
    assert run_ci(*words, "--json") == 9
    (row,) = json.loads(capsys.readouterr().out)
    assert (row["subject"], row["only_upstream"]) == ("ROCm's version", ["99.0.0"])
    assert run_ci(*words) == 9
    assert "version.json of TheRock, ci/triggers.toml here" in capsys.readouterr().err
    row_of = '[[accepted]]\nsubject = "{}"\nkey = "rocm*"\nupstream = ["99.*"]\nhere = ["*"]\n'
    row_of += 'reason = "it is new there"\n'
    accepted.write_text(row_of.format("ROCm's version"))
    assert run_ci(*words) == 0
    accepted.write_text(row_of.format("ROCm's version") + row_of.format("matrix"))
    assert run_ci(*words) == 9
    assert "drift.toml gives a reason for matrix, rocm*, which does not differ" in capsys.readouterr().err


@pytest.mark.processes
def test_a_git_directory_is_read_at_a_commit(therock: Path) -> None:
    git = ("git", "-C", str(therock), "-c", "user.name=a", "-c", "user.email=a@example.com")
    for words in (("init", "--quiet"), ("add", "."), ("commit", "--quiet", "--message", "one")):
        process.capture([*git, *words])
    assert [read(therock / ".git", one) for one in SUBJECTS] == [read(therock, one) for one in SUBJECTS]
    process.capture([*git, "rm", "--quiet", "version.json"])
    process.capture([*git, "commit", "--quiet", "--message", "two"])
    with pytest.raises(DataError, match=r"version\.json of TheRock no longer has the file"):
        tree(therock / ".git").text("version.json")
    assert tree(therock / ".git", "HEAD~1").text("version.json")


values = st.dictionaries(
    st.sampled_from("abc"), st.lists(st.sampled_from("xyz"), min_size=1, unique=True).map(tuple), min_size=1
)


def subject(theirs: Facts, ours: Facts) -> Subject:
    return Subject(name="s", upstream="there.py", here="here.toml", facts=lambda _: (theirs, ours))


def difference(key: str, upstream: tuple[str, ...] = (), here: tuple[str, ...] = ()) -> Difference:
    where = {"subject": "s", "upstream": "there.py", "here": "here.toml"}
    return Difference(key=key, only_upstream=upstream, only_here=here, **where)


@given(values, values)
def test_differences_are_what_either_has_alone(theirs: Facts, ours: Facts) -> None:
    found = differences(subject(theirs, ours), Tree(root=ACCEPTED.parent))
    pairs = {(one.key, value) for one in found for value in one.only_upstream}
    own = {(one.key, value) for one in found for value in one.only_here}
    all_of = [{(key, value) for key, many in facts.items() for value in many} for facts in (theirs, ours)]
    assert pairs == all_of[0] - all_of[1]
    assert own == all_of[1] - all_of[0]


@pytest.mark.parametrize(
    ("theirs", "ours", "named"), [({}, {"a": ("x",)}, "there.py"), ({"a": ("x",)}, {"a": ()}, "here.toml")]
)
def test_a_place_that_is_silent_is_an_error(theirs: Facts, ours: Facts, named: str, tmp_path: Path) -> None:
    with pytest.raises(DataError, match=named):
        differences(subject(theirs, ours), Tree(root=tmp_path))


def test_a_reason_is_for_the_values_that_it_names() -> None:
    row = Accepted(subject="s", key="on *", upstream=("a*",), here=("b",), reason="it is meant")
    meant = difference("on linux", ("ab", "ac"), ("b",))
    more = difference("on windows", ("ab", "c"))
    other = difference("in", ("a",))
    idle = Accepted(subject="t", key="*", reason="left over here")
    assert sorted_out([meant, more, other], [row, idle]) == ([more, other], {meant: "it is meant"}, [idle])


def test_reasons_are_about_subjects_that_there_are() -> None:
    rows = load_toml(ACCEPTED, AcceptedFile).accepted
    assert rows
    assert {row.subject for row in rows} <= {one.name for one in SUBJECTS}
