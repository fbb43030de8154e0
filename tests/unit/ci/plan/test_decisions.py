"""What is decided for a run as a whole, and the reason for it."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ci.plan import decisions
from ci.plan.decisions import PlanBasis
from ci.plan.events import Changes
from core.errors import UsageError
from core.run.plan import Decision
from tests.kit.planning import REPOSITORY, changed_data, ci_data, dispatch, plan_basis, pull_request, push

PATH_RULES = ci_data().triggers.paths


@pytest.mark.parametrize(
    ("name", "pattern", "matches"),
    [
        ("main", "main", True),
        ("release/7.12", "release/**", True),
        ("release/a/b", "release/**", True),
        ("release/a/b", "release/*", False),
        ("README.md", "**/*.md", True),
        ("a/b/README.md", "**/*.md", True),
        ("a/b.mdx", "**/*.md", False),
        ("docs/a/b", "docs/**", True),
        ("docs", "docs/**", False),
        ("libamd_comgr.so.3", "**/libamd_comgr.so.*", True),
        ("xkpack/a", ".kpack/*", False),
        ("axb", "a.b", False),
        ("a.b", "a.b", True),
        ("x(1)[2]+", "x(1)[2]+", True),
        ("ab", "a?", True),
        ("a/", "a?", False),
        ("two\nlines", "**", True),
    ],
)
def test_matches_names_with_patterns(name: str, pattern: str, *, matches: bool) -> None:
    assert decisions.matches(name, [pattern]) is matches


# Characters that mean something in a pattern or a regular expression, and one of each other kind.
pattern_texts = st.text(alphabet="*?/.[]()+\\^$|{}-ab é\n", max_size=20)


@given(pattern_texts, st.lists(pattern_texts, max_size=5))
def test_no_pattern_is_an_error(name: str, patterns: list[str]) -> None:
    decisions.matches(name, patterns)

    assert decisions.matches(name, [*patterns, "**"])
    assert not decisions.matches(name, [])


# --- Changed files ---------------------------------------------------------------------------


@pytest.mark.parametrize(
    "path",
    [
        "ci/verbs/cells.py",
        "noxfile.py",
        "docs2/x",
        "rocm_packaging/packages/packages.toml",
        ".github/workflows/build_portable_linux_pytorch_wheels.yml",
        ".github/workflows/ci_linux.yml",
        ".github/actions/x/action.yml",
    ],
)
def test_builds_for_a_file_that_builds_use(path: str) -> None:
    decision = decisions.decide_by_files(Changes(files=["docs/x.md", path]), PATH_RULES)

    assert decision.value
    assert path[:30] in decision.reason


@pytest.mark.parametrize(
    "path",
    [
        "docs/x.md",
        "README.md",
        "a/deep/NOTES.md",
        "LICENSE",
        "docker/Dockerfile",
        "tests/unit/x.py",
        ".github/workflows/unit_tests.yml",
        ".github/workflows/promote.yml",
    ],
)
def test_does_not_build_for_files_that_no_build_uses(path: str) -> None:
    decision = decisions.decide_by_files(Changes(files=["docs/x.md", path]), PATH_RULES)

    assert not decision.value
    assert "2 files" in decision.reason


def test_the_reason_shows_a_path_in_full_up_to_60_characters() -> None:
    decision = decisions.decide_by_files(Changes(files=["z" * 60]), PATH_RULES)

    assert decision.reason == f"{'z' * 60} has changed"


def test_the_reason_shows_a_long_or_hostile_path_on_one_line() -> None:
    decision = decisions.decide_by_files(Changes(files=["a\n\x1b" + "y" * 300]), PATH_RULES)

    assert decision.reason == f"a??{'y' * 27}…{'y' * 30} has changed"


# --- Whether anything is built ---------------------------------------------------------------

PULL_REQUEST = plan_basis("pull_request", pull_request())
PUSH = plan_basis("push", push())
PUSH_TO_TOPIC = plan_basis("push", push("topic"))
SCHEDULE = plan_basis("schedule")

DOCS = ("docs/x.md",)


@pytest.mark.parametrize(
    ("basis", "reason"),
    [
        (SCHEDULE, "schedule"),
        (PUSH, "ci/verbs/cells.py"),
        (plan_basis("pull_request", pull_request(), files=None), "not considered"),
        (
            plan_basis("pull_request", pull_request(), files=None, changes_note="git fell over"),
            "git fell over",
        ),
        (plan_basis("pull_request", pull_request("test:rocm"), files=DOCS), "test:rocm"),
    ],
)
def test_builds_what_changed_or_is_requested(basis: PlanBasis, reason: str) -> None:
    decision = decisions.decide_builds(basis)

    assert decision.value
    assert reason in decision.reason


@pytest.mark.parametrize(
    ("basis", "reason"),
    [
        (plan_basis("pull_request", pull_request("ci:skip")), "label ci:skip"),
        (plan_basis("push", push(deleted=True)), "deleted"),
        (plan_basis("push", push(), files=()), "no file"),
        (plan_basis("pull_request", pull_request(), files=DOCS), "docs/x.md"),
    ],
)
def test_builds_nothing_where_nothing_is_to_be_built(basis: PlanBasis, reason: str) -> None:
    decision = decisions.decide_builds(basis)

    assert not decision.value
    assert reason in decision.reason


# --- Whether PyTorch is built ----------------------------------------------------------------


@pytest.mark.parametrize(
    ("basis", "reason"),
    [
        (plan_basis("pull_request", pull_request("build:pytorch")), "label build:pytorch"),
        (PUSH, "pushes to main"),
        (SCHEDULE, "schedule"),
        (plan_basis("workflow_call"), "dispatch"),
    ],
)
def test_builds_pytorch_on_long_lived_branches_schedules_dispatches_and_by_label(
    basis: PlanBasis, reason: str
) -> None:
    decision = decisions.decide_pytorch(basis)

    assert decision.value
    assert reason in decision.reason


@pytest.mark.parametrize(
    ("basis", "reason"),
    [
        (PULL_REQUEST, "build:pytorch"),
        (PUSH_TO_TOPIC, "topic"),
        (plan_basis("push", {"ref": "refs/tags/v1"}), "a tag"),
        (plan_basis("schedule", inputs_of_call={"build_pytorch": "false"}), "build_pytorch"),
    ],
)
def test_builds_no_pytorch_elsewhere(basis: PlanBasis, reason: str) -> None:
    decision = decisions.decide_pytorch(basis)

    assert not decision.value
    assert reason in decision.reason


# --- Who is trusted --------------------------------------------------------------------------


@pytest.mark.parametrize(
    "head",
    [
        REPOSITORY,
        # GitHub takes the names of repositories in any case.
        "rocm/therock",
    ],
)
def test_trusts_commits_of_the_repository(head: str) -> None:
    decision = decisions.decide_trust(plan_basis("pull_request", pull_request(head=head)))

    assert decision.value
    assert REPOSITORY in decision.reason


@pytest.mark.parametrize(("head", "mention"), [("a/b", "fork a/b"), (None, "deleted fork")])
def test_gives_a_fork_no_credentials(head: str | None, mention: str) -> None:
    decision = decisions.decide_trust(plan_basis("pull_request", pull_request(head=head)))

    assert not decision.value
    assert mention in decision.reason
    assert "no credentials" in decision.reason


# --- Which families and tests ----------------------------------------------------------------


@pytest.mark.parametrize(
    ("basis", "tier", "reason"),
    [
        (plan_basis("workflow_dispatch"), "presubmit", "names no families"),
        (plan_basis("workflow_dispatch", release_type="dev"), None, "names its families"),
        (plan_basis("workflow_dispatch", dispatch(linux_amdgpu_families="cpu")), None, "names its families"),
        (plan_basis("pull_request", pull_request("ci:run-all-archs")), "nightly", "ci:run-all-archs"),
        (SCHEDULE, "nightly", "schedule"),
        (plan_basis("push", push(), release_type="dev"), "nightly", "dev"),
        (PUSH, "postsubmit", "main"),
        (PUSH_TO_TOPIC, "presubmit", "push"),
        (PULL_REQUEST, "presubmit", "pull request"),
    ],
)
def test_an_event_has_a_tier_of_families(basis: PlanBasis, tier: str | None, reason: str) -> None:
    event_tier, event_reason = basis.tier

    assert event_tier == tier
    assert reason in event_reason


@pytest.mark.parametrize(
    ("basis", "expected"),
    [(PULL_REQUEST, False), (PUSH_TO_TOPIC, False), (PUSH, True), (SCHEDULE, True)],
)
def test_tests_without_a_gpu_after_a_merge_alone(basis: PlanBasis, *, expected: bool) -> None:
    assert basis.tests_without_gpu is expected


@pytest.mark.parametrize(
    ("basis", "test_type", "reason"),
    [
        (PULL_REQUEST, "quick", "nothing requests more"),
        (plan_basis("pull_request", pull_request(), files=()), "quick", "nothing requests more"),
        (plan_basis("pull_request", pull_request(), files=None), "quick", "nothing requests more"),
        (plan_basis("pull_request", pull_request(), files=[".gitmodules"]), "standard", ".gitmodules"),
        (SCHEDULE, "comprehensive", "schedule"),
        (plan_basis("schedule", release_type="nightly"), "comprehensive", "nightly"),
        (plan_basis("push", push(), release_type="nightly-bkc"), "comprehensive", "nightly-bkc"),
        (plan_basis("schedule", release_type="prerelease"), "full", "prerelease"),
        (plan_basis("pull_request", pull_request("test:torch")), "quick", "nothing requests more"),
        (plan_basis("workflow_call", inputs_of_call={"windows_test_labels": "torch"}), "quick", "nothing"),
        (
            plan_basis("pull_request", pull_request("test:rocm", "test_filter:quick")),
            "quick",
            "test_filter:quick",
        ),
        (plan_basis("schedule", inputs_of_call={"test_type": "standard"}), "standard", "test_type"),
    ],
)
def test_an_event_has_a_type_of_tests(basis: PlanBasis, test_type: str, reason: str) -> None:
    event_type, event_reason = decisions.choose_test_type(basis)

    assert event_type == test_type
    assert reason in event_reason


def test_labels_and_inputs_request_tests_of_a_platform() -> None:
    requested = {"linux_test_labels": "smoke test:rocm", "windows_test_labels": "test:rocm"}
    basis = plan_basis("pull_request", pull_request("test:smoke"), inputs_of_call=requested)

    labels = decisions.requested_tests(basis)

    assert labels["linux"] == ("test:smoke", "test:rocm")
    assert labels["windows"] == ("test:smoke", "test:rocm")


def test_refuses_an_unknown_test_with_the_closest_one() -> None:
    basis = plan_basis("workflow_call", inputs_of_call={"windows_test_labels": "rock"})

    with pytest.raises(UsageError, match="'rock'") as caught:
        decisions.requested_tests(basis)

    assert "'rocm'" in str(caught.value)


# --- Where outputs go ------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("repository", "store", "role"),
    [
        (REPOSITORY, "s3://therock-ci-artifacts", "therock-ci"),
        ("rocm/x", "s3://therock-ci-artifacts-external", "therock-ci-external"),
    ],
)
def test_uploads_to_the_bucket_of_the_repository(repository: str, store: str, role: str) -> None:
    basis = plan_basis("push", push(), repository=repository)

    decision, upload = decisions.decide_upload(basis, decisions.decide_trust(basis))

    assert decision.value
    assert repository in decision.reason
    assert upload.store == store
    assert upload.role is not None
    assert upload.role.endswith(f"/{role}")
    assert upload.region == "us-east-2"


def test_uploads_to_the_store_of_a_users_own_configuration() -> None:
    own_store = {"store": "out", "role": "writer", "region": "here"}
    basis = plan_basis("push", push(), data=changed_data(upload=own_store))

    decision, upload = decisions.decide_upload(basis, decisions.decide_trust(basis))

    assert decision.value
    assert upload.store == "out"
    assert upload.role == "writer"
    assert upload.region == "here"


@pytest.mark.parametrize(
    ("basis", "reason"),
    [
        (plan_basis("push", push(), repository="x/y"), "x/y has no bucket"),
        (plan_basis("pull_request", pull_request(head="a/b")), "fork"),
    ],
)
def test_uploads_nothing_of_a_fork_or_a_repository_without_a_bucket(basis: PlanBasis, reason: str) -> None:
    decision, upload = decisions.decide_upload(basis, decisions.decide_trust(basis))

    assert not decision.value
    assert reason in decision.reason
    assert upload.store is None
    assert upload.role is None


def test_a_forks_run_may_be_of_type_ci_alone() -> None:
    untrusted = Decision(value=False, reason="a fork")

    with pytest.raises(UsageError, match="'dev'"):
        decisions.decide_upload(plan_basis("push", push(), release_type="dev"), untrusted)


@pytest.mark.parametrize(
    ("release_type", "uploads", "builds", "promotes", "reason"),
    [
        ("ci", True, True, False, "type ci"),
        ("nightly", False, True, False, "no upload"),
        ("nightly", True, False, False, "no build"),
        ("nightly", True, True, True, "nightly"),
    ],
)
def test_promotes_releases_that_are_built_and_uploaded(
    release_type: str, *, uploads: bool, builds: bool, promotes: bool, reason: str
) -> None:
    upload = Decision(value=uploads, reason="no upload")
    pytorch = Decision(value=builds, reason="no build")

    decision = decisions.decide_promotion(plan_basis("schedule", release_type=release_type), upload, pytorch)

    assert decision.value is promotes
    assert reason in decision.reason


# Forks


@pytest.mark.parametrize("head", ["somebody/TheRock", None], ids=["fork", "deleted fork"])
def test_a_fork_gets_no_role_of_a_store_that_the_repository_configured(head: str | None) -> None:
    own_store = {"store": "s3://my-wheels", "role": "writer", "region": "here"}
    basis_of_fork = plan_basis("pull_request", pull_request(head=head), data=changed_data(upload=own_store))

    decision, upload = decisions.decide_upload(basis_of_fork, Decision(value=False, reason="a fork"))

    assert decision.value is False
    assert upload.store is None
    assert upload.role is None
