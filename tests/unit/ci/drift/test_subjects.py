"""What each subject reads of a small TheRock (`therock.toml`), and what the verb says of it."""

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ci.drift.tree import Facts, Subject, Tree, tree
from ci.verbs import drift
from ci.verbs.drift import ACCEPTED, SUBJECTS, Accepted, AcceptedFile, Difference, differences, sorted_out
from core.data import load_toml, read_toml
from core.errors import CheckError, DataError
from tests.kit import repos
from tests.kit.front_doors import run_verb
from tests.kit.repos import write_files

THEROCK = read_toml(Path(__file__).with_name("therock.toml"))

# What upstream has and our data does not: never compared as equal.
ONLY_UPSTREAM = {"untested", "left out"}

# A subject reads each as a list, of which there may be none.
LISTS = ("BUILD_TOPOLOGY.toml", "README.md", "skip_tests/")


@pytest.fixture
def therock(tmp_path: Path) -> Path:
    root = tmp_path / "therock"
    write_files(root, THEROCK["files"])
    return root


def read_upstream(root: Path, subject: Subject) -> dict[str, Any]:
    upstream, _ = subject.facts(tree(root))
    return dict(upstream)


def in_order(facts: Mapping[str, Any]) -> dict[str, Any]:
    """Return facts whose values, where they are several, are sorted."""
    return {key: value if isinstance(value, str) else sorted(value) for key, value in facts.items()}


# --- What subjects read ----------------------------------------------------------------------


@pytest.mark.parametrize("subject", SUBJECTS, ids=lambda subject: subject.name)
def test_a_subject_reads_the_facts_of_upstream(therock: Path, subject: Subject) -> None:
    expected = THEROCK["facts"][subject.name]

    facts = read_upstream(therock, subject)

    assert in_order({key: facts[key] for key in expected}) == in_order(expected)
    for key in facts.keys() - expected.keys():
        # A matrix has the Pythons of each of our refs.
        assert key.startswith("pythons of ")


@pytest.mark.parametrize("subject", SUBJECTS, ids=lambda subject: subject.name)
def test_our_data_has_the_keys_of_upstream(therock: Path, subject: Subject) -> None:
    upstream, here = subject.facts(tree(therock))

    only_upstream = {key for key in upstream.keys() - here.keys() if "sandbox" not in key}

    assert only_upstream <= ONLY_UPSTREAM


def problems_of(root: Path) -> Iterator[str]:
    """Yield what subjects say that they cannot read."""
    for subject in SUBJECTS:
        try:
            differences(subject, tree(root))
        except DataError as problem:
            yield problem.message


@pytest.mark.parametrize(
    "path", [path for path in THEROCK["files"] if not any(name in path for name in LISTS)]
)
def test_names_a_file_that_is_gone_or_says_nothing(therock: Path, path: str) -> None:
    file = therock / path

    file.unlink()
    problems_without_file = list(problems_of(therock))
    file.write_text('{"rocm-version": ""}' if file.suffix == ".json" else "", encoding="utf-8")
    problems_with_empty_file = list(problems_of(therock))

    assert any(file.name in problem for problem in problems_without_file)
    assert any(file.name in problem for problem in problems_with_empty_file)


@pytest.mark.processes
def test_reads_a_git_directory(therock: Path) -> None:
    repos.commit_files(therock, {})

    for subject in SUBJECTS:
        assert subject.facts(tree(therock / ".git")) == subject.facts(tree(therock))


@pytest.mark.processes
def test_reads_a_git_directory_at_a_commit(therock: Path) -> None:
    repos.commit_files(therock, {})
    (therock / "version.json").unlink()
    repos.commit_files(therock, {})

    with pytest.raises(DataError, match=r"version\.json"):
        tree(therock / ".git").text("version.json")

    assert tree(therock / ".git", "HEAD~1").text("version.json")


# --- The verb --------------------------------------------------------------------------------


@pytest.fixture
def accepted(therock: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The file of accepted differences, where ROCm's version is the one subject."""

    def read_facts(upstream: Tree) -> tuple[Facts, Facts]:
        return json.loads(upstream.text("version.json")), {"rocm-version": "10.1.0"}

    version = Subject(
        name="ROCm's version", upstream="version.json", here="ci/triggers.toml", facts=read_facts
    )
    path = therock.with_name("drift.toml")
    path.write_text("")
    monkeypatch.setattr(drift, "SUBJECTS", (version,))
    monkeypatch.setattr(drift, "ACCEPTED", path)
    return path


def accept(subject: str) -> str:
    """Return a row that accepts what upstream says of a subject."""
    return (
        f'[[accepted]]\nsubject = "{subject}"\nkey = "rocm*"\nupstream = ["99.*"]\nhere = ["*"]\n'
        'reason = "it is new there"\n'
    )


def change_upstream(therock: Path) -> None:
    (therock / "version.json").write_text('{"rocm-version": "99.0.0"}')


@pytest.mark.usefixtures("accepted")
def test_passes_where_nothing_differs(therock: Path) -> None:
    assert run_verb("ci", "drift", "--therock", therock) == 0


@pytest.mark.usefixtures("accepted")
def test_names_the_files_of_a_difference(therock: Path, capsys: pytest.CaptureFixture[str]) -> None:
    change_upstream(therock)

    assert run_verb("ci", "drift", "--therock", therock) == CheckError.exit_code

    assert "version.json of TheRock, ci/triggers.toml here" in capsys.readouterr().err


@pytest.mark.usefixtures("accepted")
def test_prints_differences_as_json(therock: Path, capsys: pytest.CaptureFixture[str]) -> None:
    change_upstream(therock)

    assert run_verb("ci", "drift", "--therock", therock, "--json") == CheckError.exit_code

    (difference,) = json.loads(capsys.readouterr().out)
    assert difference["subject"] == "ROCm's version"
    assert difference["only_upstream"] == ["99.0.0"]


def test_passes_a_difference_with_a_reason(therock: Path, accepted: Path) -> None:
    change_upstream(therock)
    accepted.write_text(accept("ROCm's version"))

    assert run_verb("ci", "drift", "--therock", therock) == 0


def test_names_a_reason_for_what_does_not_differ(
    therock: Path, accepted: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    change_upstream(therock)
    accepted.write_text(accept("ROCm's version") + accept("matrix"))

    assert run_verb("ci", "drift", "--therock", therock) == CheckError.exit_code

    message = capsys.readouterr().err
    assert "drift.toml" in message
    assert "matrix, rocm*" in message


# --- Differences and reasons -----------------------------------------------------------------

UPSTREAM_FILE = "there.py"
OUR_FILE = "here.toml"

facts = st.dictionaries(
    st.sampled_from("abc"), st.lists(st.sampled_from("xyz"), min_size=1, unique=True).map(tuple), min_size=1
)


def make_subject(upstream: Facts, here: Facts) -> Subject:
    return Subject(name="s", upstream=UPSTREAM_FILE, here=OUR_FILE, facts=lambda _: (upstream, here))


def make_difference(key: str, upstream: tuple[str, ...] = (), here: tuple[str, ...] = ()) -> Difference:
    return Difference(
        subject="s",
        upstream=UPSTREAM_FILE,
        here=OUR_FILE,
        key=key,
        only_upstream=upstream,
        only_here=here,
    )


def pairs_of(values: Facts) -> set[tuple[str, str]]:
    return {(key, value) for key, several in values.items() for value in several}


@given(facts, facts)
def test_differences_are_what_one_side_has_alone(upstream: Facts, here: Facts) -> None:
    found = differences(make_subject(upstream, here), Tree(root=ACCEPTED.parent))

    only_upstream = {difference.key: difference.only_upstream for difference in found}
    only_here = {difference.key: difference.only_here for difference in found}
    assert pairs_of(only_upstream) == pairs_of(upstream) - pairs_of(here)
    assert pairs_of(only_here) == pairs_of(here) - pairs_of(upstream)


@pytest.mark.parametrize(
    ("upstream", "here", "file"),
    [({}, {"a": ("x",)}, UPSTREAM_FILE), ({"a": ("x",)}, {"a": ()}, OUR_FILE)],
)
def test_refuses_a_file_that_says_nothing(upstream: Facts, here: Facts, file: str, tmp_path: Path) -> None:
    with pytest.raises(DataError, match=file):
        differences(make_subject(upstream, here), Tree(root=tmp_path))


REASON = Accepted(subject="s", key="on *", upstream=("a*",), here=("b",), reason="it is meant")


def test_a_reason_is_for_the_keys_and_values_that_it_names() -> None:
    accepted = make_difference("on linux", ("ab", "ac"), ("b",))
    with_other_value = make_difference("on windows", ("ab", "c"))
    with_other_key = make_difference("in", ("a",))

    remaining, reasons, unused = sorted_out([accepted, with_other_value, with_other_key], [REASON])

    assert remaining == [with_other_value, with_other_key]
    assert reasons == {accepted: "it is meant"}
    assert unused == []


def test_a_reason_for_another_subject_is_unused() -> None:
    of_other_subject = Accepted(subject="t", key="*", reason="left over here")

    _, _, unused = sorted_out([make_difference("on linux", ("ab",))], [REASON, of_other_subject])

    assert unused == [of_other_subject]


def test_reasons_are_about_subjects_that_exist() -> None:
    rows = load_toml(ACCEPTED, AcceptedFile).accepted

    assert rows
    assert {row.subject for row in rows} <= {subject.name for subject in SUBJECTS}
