"""Payloads: GitHub's, malformed ones, and any at all."""

import re
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from datetime import date
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ci.plan import events, inputs
from ci.plan.outputs import outputs, summary
from ci.plan.plan import plan
from core.errors import DataError, FatalError, InterruptedStageError, ProcessError, ServiceError, UsageError
from tests.kit import repos
from tests.kit.machines import Answer, answer_processes
from tests.kit.planning import REPOSITORY, ci_data, merge_group, plan_basis, pull_request, push

COMMIT = "b" * 40
BASE = "a" * 40


def parse(name: str, payload: dict[str, Any], *, ref_name: str | None = None) -> events.Event:
    return events.parse(name, payload, repository=REPOSITORY, ref_name=ref_name)


# --- Well-formed payloads --------------------------------------------------------------------


def test_reads_a_pull_request() -> None:
    payload = pull_request("b", "a", base="release/1")
    payload["pull_request"]["updated_at"] = "2026-08-30T23:59:59Z"

    event = parse("pull_request", payload)

    assert event == events.Event(
        name="pull_request",
        repository=REPOSITORY,
        branch="release/1",
        commit="a" * 40,
        base="b" * 40,
        number=7,
        labels=("a", "b"),
        day=date(2026, 8, 30),
    )
    assert event.owner == "ROCm"


@pytest.mark.parametrize(
    ("head", "fork"), [("x/TheRock", "x/TheRock"), (None, "deleted"), (REPOSITORY, None)]
)
def test_a_pull_request_of_another_repository_is_a_forks(head: str | None, fork: str | None) -> None:
    assert parse("pull_request", pull_request(head=head)).fork == fork


def test_a_pull_request_may_come_without_its_labels() -> None:
    payload = pull_request()
    del payload["pull_request"]["labels"]

    assert parse("pull_request", payload).labels is None


@pytest.mark.parametrize(
    ("ref", "branch"),
    [
        ("refs/heads/main", "main"),
        ("refs/heads/refs/heads/x", "refs/heads/x"),
        ("refs/tags/v1", None),
        ("refs/pull/7/merge", None),
        ("refs/heads/", None),
        ("main", "main"),
        ("refs/heads/`id`;$(x) y", "`id`;$(x) y"),
    ],
)
def test_a_push_has_the_branch_of_its_ref(ref: str, branch: str | None) -> None:
    assert parse("push", {"ref": ref}).branch == branch


def test_reads_a_push_that_deletes_a_branch() -> None:
    event = parse("push", push(deleted=True))

    assert event == events.Event(
        name="push", repository=REPOSITORY, branch="main", commit=COMMIT, base=BASE, deleted=True
    )


def test_reads_a_merge_group_as_the_push_that_would_follow() -> None:
    event = parse("merge_group", merge_group())

    assert event == events.Event(
        name="push", repository=REPOSITORY, branch="main", commit="b" * 40, base="a" * 40
    )


def test_a_merge_group_is_planned_as_a_push_to_its_branch() -> None:
    group_plan = plan(plan_basis("merge_group", merge_group(), files=["ci/pipeline.py"]))
    push_plan = plan(plan_basis("push", push("main"), files=["ci/pipeline.py"]))

    assert group_plan.jobs == push_plan.jobs
    assert group_plan.release_type == "ci"
    assert not group_plan.promote.value


def test_reads_a_dispatch_with_its_inputs() -> None:
    event = parse("workflow_dispatch", {"ref": "refs/heads/main", "inputs": {"x": 1}})

    assert event == events.Event(
        name="workflow_dispatch", repository=REPOSITORY, branch="main", inputs={"x": 1}
    )


@pytest.mark.parametrize(("name", "payload"), [("schedule", {}), ("workflow_call", {"inputs": None})])
def test_an_event_without_a_ref_has_the_branch_of_the_environment(name: str, payload: dict[str, Any]) -> None:
    # The byte that is no UTF-8 must not reach a message.
    assert parse(name, payload, ref_name="ma\udcffin").branch == "ma?in"
    assert parse(name, payload).branch is None


def test_reads_a_schedule_as_one() -> None:
    assert parse("schedule", {}) == events.Event(name="schedule", repository=REPOSITORY)


@pytest.mark.parametrize("before", ["0" * 40, "", "--output=/etc/passwd", "HEAD", "A" * 40, "a" * 39])
def test_gives_git_only_commits(before: str) -> None:
    assert parse("push", push(before=before)).base is None


# --- Malformed payloads ----------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "payload", "key"),
    [
        ("merge_group", {}, "merge_group"),
        ("merge_group", {"merge_group": {"head_sha": "a"}}, "merge_group.base_ref"),
        ("pull_request", {}, "pull_request"),
        ("pull_request", {"pull_request": None}, "pull_request"),
        ("pull_request", {"pull_request": {"head": {}}}, "pull_request.base"),
        ("pull_request", {"pull_request": {"head": 1, "base": {}}}, "pull_request.head"),
        (
            "pull_request",
            {"pull_request": {"head": {}, "base": {}, "labels": [{"nam": "x"}]}},
            "labels[0].name",
        ),
        ("push", {}, "ref"),
        ("push", {"ref": ["main"]}, "ref"),
        ("workflow_dispatch", {"inputs": [1]}, "inputs"),
    ],
)
def test_names_the_key_of_a_malformed_payload(name: str, payload: dict[str, Any], key: str) -> None:
    with pytest.raises(DataError) as caught:
        parse(name, payload)

    assert name in str(caught.value)
    assert key in str(caught.value)


@pytest.mark.parametrize("repository", ["", "x", "a/b/c", "a b/c", "a/b;id"])
def test_refuses_a_repository_that_is_not_owner_and_name(repository: str) -> None:
    with pytest.raises(UsageError, match=re.escape(repr(repository))):
        events.parse("push", push(), repository=repository)


def test_suggests_the_event_that_is_meant() -> None:
    with pytest.raises(UsageError, match="pull_request"):
        parse("pul", {})


def test_refuses_an_event_on_which_ci_does_nothing() -> None:
    with pytest.raises(UsageError, match="'pull_request_target'"):
        parse("pull_request_target", pull_request())


@pytest.mark.parametrize("text", ["", "[]", "{", '"x"', "[" * 100_000, '{"a": 1} x'])
def test_refuses_a_file_that_holds_no_event(tmp_path: Path, text: str) -> None:
    file = tmp_path / "event.json"
    file.write_text(text)

    with pytest.raises(DataError, match=r"event\.json"):
        events.read_payload(file)


# --- Labels and changed files, from GitHub and from git --------------------------------------

LIMIT = ServiceError("GitHub limits our requests: it is left unanswered.")
GIT_REASON = "bad object bbbb"


@dataclass
class FakeGitHub:
    """GitHub with one pull request, or with nothing but a problem."""

    problem: BaseException | None = None
    queries: list[str] = field(default_factory=list)

    def labels(self, repository: str, number: int) -> Sequence[str]:
        """Return the labels of the pull request."""
        return self.answer(f"labels of {repository} {number}", ["build:pytorch"])

    def changed_files(self, repository: str, number: int) -> Sequence[str]:
        """Return the files of the pull request."""
        return self.answer(f"files of {repository} {number}", ["a.py"])

    def answer(self, query: str, answer: Sequence[str]) -> Sequence[str]:
        """Note a query, and answer it."""
        self.queries.append(query)
        if self.problem is not None:
            raise self.problem
        return answer


def github(problem: BaseException | None = None) -> Any:
    return FakeGitHub(problem=problem)


PULL_REQUEST = parse("pull_request", pull_request())
WITHOUT_LABELS = replace(PULL_REQUEST, labels=None)
PUSH = parse("push", push())


@pytest.fixture
def _failing_git(monkeypatch: pytest.MonkeyPatch) -> None:
    answer_processes(monkeypatch, lambda _: Answer(status=128, stderr=f"fatal: {GIT_REASON}"))


@pytest.mark.parametrize(
    ("event", "labels"),
    [
        (replace(PULL_REQUEST, labels=("x",)), ("x",)),
        (PUSH, ()),
    ],
)
def test_does_not_query_labels_that_the_event_names_or_cannot_have(
    event: events.Event, labels: tuple[str, ...]
) -> None:
    hub = github()

    assert events.event_labels(event, hub) == (labels, None)
    assert hub.queries == []


def test_queries_labels_that_the_payload_lacks() -> None:
    hub = github()

    assert events.event_labels(WITHOUT_LABELS, hub) == (["build:pytorch"], None)
    assert hub.queries == [f"labels of {REPOSITORY} 7"]


@pytest.mark.parametrize(
    ("hub", "reason"),
    [
        (None, "without a token"),
        (github(LIMIT), "limits our requests"),
    ],
)
def test_counts_no_label_where_github_does_not_answer(hub: Any, reason: str) -> None:
    labels, note = events.event_labels(WITHOUT_LABELS, hub)

    assert labels == ()
    assert note is not None
    assert reason in note


def test_counts_no_label_where_the_payload_has_no_number_either() -> None:
    hub = github()

    labels, note = events.event_labels(replace(WITHOUT_LABELS, number=None), hub)

    assert labels == ()
    assert note is not None
    assert "number" in note
    assert hub.queries == []


@pytest.mark.usefixtures("_failing_git")
def test_asks_github_for_files_where_git_fails(tmp_path: Path) -> None:
    hub = github()

    assert events.event_changes(PULL_REQUEST, tmp_path, hub) == events.Changes(files=["a.py"])
    assert hub.queries == [f"files of {REPOSITORY} 7"]


@pytest.mark.usefixtures("_failing_git")
def test_counts_every_file_where_neither_git_nor_github_answers(tmp_path: Path) -> None:
    changes = events.event_changes(PULL_REQUEST, tmp_path, github(LIMIT))

    assert changes.files is None
    assert changes.note is not None
    assert GIT_REASON in changes.note
    assert "limits our requests" in changes.note


@pytest.mark.usefixtures("_failing_git")
@pytest.mark.parametrize(
    ("event", "reason"),
    [
        (PUSH, GIT_REASON),
        (replace(PUSH, base=None), "no commit"),
        (PULL_REQUEST, "git"),
    ],
)
def test_counts_every_file_where_nobody_can_be_asked(
    tmp_path: Path, event: events.Event, reason: str
) -> None:
    changes = events.event_changes(event, tmp_path, None)

    assert changes.files is None
    assert changes.note is not None
    assert reason in changes.note


@pytest.mark.usefixtures("_failing_git")
def test_an_interrupt_is_not_taken_for_a_missing_answer(tmp_path: Path) -> None:
    hub = github(InterruptedStageError("stopped"))

    with pytest.raises(InterruptedStageError):
        events.event_changes(PULL_REQUEST, tmp_path, hub)
    with pytest.raises(InterruptedStageError):
        events.event_labels(WITHOUT_LABELS, hub)


def test_needs_no_query_for_schedules_and_deleted_branches(tmp_path: Path) -> None:
    schedule = events.Event(name="schedule", repository=REPOSITORY)

    assert events.event_changes(schedule, tmp_path, None).files is None
    assert events.event_changes(replace(PUSH, deleted=True), tmp_path, None).note is None


def test_asks_github_with_a_token_alone() -> None:
    assert events.github_service({}) is None


@pytest.mark.parametrize("variable", ["GITHUB_TOKEN", "GH_TOKEN"])
def test_does_not_wait_long_for_github(variable: str) -> None:
    service = events.github_service({variable: "x"})

    assert service is not None
    assert service.patience == events.PATIENCE < 60


@pytest.mark.processes
@pytest.mark.parametrize("event", [PUSH, PULL_REQUEST])
def test_git_tells_which_files_a_push_changed(tmp_path: Path, event: events.Event) -> None:
    repository = tmp_path / "checkout"
    first = repos.commit_files(repository, {"a.py": "1", "kept.md": ""})
    second = repos.commit_files(repository, {"new name é.txt": "", "docs/b.md": ""})

    # The commit of the pull request is no merge: its files are those since the base, too.
    changes = events.event_changes(replace(event, base=first, commit=second), repository, None)

    assert sorted(changes.files or ()) == ["docs/b.md", "new name é.txt"]


@pytest.mark.processes
def test_git_tells_which_files_a_merge_brings(tmp_path: Path) -> None:
    repository = tmp_path / "checkout"
    first = repos.commit_files(repository, {"a.py": "1"})
    second = repos.commit_files(repository, {"b.md": ""})
    repos.run_git(repository, "checkout", "-q", "-b", "topic", first)
    repos.run_git(repository, "mv", "a.py", "moved.py")
    repos.run_git(repository, "commit", "-q", "-m", "move")
    head = repos.run_git(repository, "rev-parse", "HEAD")
    repos.run_git(repository, "checkout", "-q", "--detach", second)
    repos.run_git(repository, "merge", "-q", "--no-ff", "-m", "merge", "topic")

    # The base that the event names may be missing: GitHub's merge is fetched with its parents alone.
    changed_files = events.changed_by_git(replace(PULL_REQUEST, base="c" * 40, commit=head), repository)

    assert sorted(changed_files) == ["a.py", "moved.py"]


@pytest.mark.processes
def test_git_fails_for_a_commit_that_it_does_not_have(tmp_path: Path) -> None:
    repository = tmp_path / "checkout"
    repos.commit_files(repository, {"a.py": "1"})

    with pytest.raises(ProcessError):
        events.changed_by_git(replace(PUSH, base="d" * 40), repository)


@pytest.mark.processes
def test_says_that_a_tree_without_a_repository_is_none(tmp_path: Path) -> None:
    # As `git archive` and GitHub's source archives leave it.
    (tmp_path / "a.py").write_text("")

    changes = events.event_changes(PUSH, tmp_path, None)

    assert changes.files is None
    assert changes.note is not None
    assert "(not a git repository" in changes.note
    assert "\n" not in changes.note


@pytest.mark.processes
def test_git_takes_no_option_for_a_commit(tmp_path: Path) -> None:
    repository = tmp_path / "checkout"
    repos.commit_files(repository, {"a.py": "1"})

    with pytest.raises(ProcessError):
        events.difference("--output=x", repository)

    assert not (repository / "x").exists()


# --- Any payload at all ----------------------------------------------------------------------

# One character of each kind that texts treat differently.
texts = st.text(alphabet="ab/:-_ $`é\n\x1b\u202e", max_size=10)

json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | texts,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(texts, inner, max_size=3),
    max_leaves=8,
)
event_names = st.sampled_from([*events.EVENTS, "deployment", ""])
mistaken_labels = ("bug", "ci:what", "gfx", "gfx94X-", "test:", "a b", "Build:PYTORCH")
label_names = st.sampled_from([*inputs.known_labels(ci_data()), *mistaken_labels])
payloads = st.fixed_dictionaries(
    {},
    optional={
        "ref": st.sampled_from(["refs/heads/main", "refs/tags/v1", "release/1", "refs/heads/$(x)"])
        | json_values,
        "before": st.sampled_from(["0" * 40, "a" * 40]) | json_values,
        "deleted": st.booleans() | json_values,
        "pull_request": json_values,
        "merge_group": json_values,
        "inputs": st.dictionaries(
            st.sampled_from(["linux_amdgpu_families", "build_pytorch", "test_type", "release_type", "x"]),
            st.sampled_from(["none", "", "true", "gfx1151", "full", "nightly"]) | json_values,
        )
        | json_values,
    },
)


def plan_or_error(name: str, payload: Any, files: Sequence[str] | None) -> dict[str, str] | type[FatalError]:
    """Return the outputs and the summary of an event's plan, or the class of our error."""
    try:
        event_plan = plan(plan_basis(name, payload, files=files))
    except FatalError as problem:
        return type(problem)
    return {**outputs(event_plan), "summary": summary(event_plan)}


@given(event_names, st.dictionaries(texts, json_values, max_size=3) | payloads)
def test_any_payload_gives_one_plan_or_our_error(name: str, payload: Any) -> None:
    first = plan_or_error(name, payload, ["a.py"])
    second = plan_or_error(name, payload, ["a.py"])

    assert first == second


@given(st.lists(label_names | texts, max_size=4), st.sampled_from([REPOSITORY, "x/y", None]))
def test_labels_in_any_order_give_one_plan_or_our_error(labels: list[str], head: str | None) -> None:
    result = plan_or_error("pull_request", pull_request(*labels, head=head), ["a.py"])
    result_of_reverse = plan_or_error("pull_request", pull_request(*reversed(labels), head=head), ["a.py"])

    assert result == result_of_reverse
    if isinstance(result, dict):
        is_own = head == REPOSITORY
        assert (result["trusted"] == "true") == is_own
        assert is_own or result["aws_role"] == ""
        assert is_own or result["store"] == ""
