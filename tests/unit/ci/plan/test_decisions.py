from operator import attrgetter
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ci.plan.decisions import enabled, matches, promote, pytorch, relevance, trusted, upload
from ci.plan.decisions import test_labels as requested_tests
from ci.plan.decisions import test_type as kind
from ci.plan.events import Changes
from core.errors import UsageError
from core.run.plan import Decision
from tests.unit.ci.plan.planning import OURS, asked, changed, known, pull_request, push

RULES = known().triggers.paths
TIER, AFTER_MERGE = attrgetter("tier"), attrgetter("does_after_merge")


@pytest.mark.parametrize(
    ("name", "pattern", "expected"),
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
def test_patterns(name: str, pattern: str, *, expected: bool) -> None:
    assert matches(name, [pattern]) is expected


@given(st.text(), st.lists(st.text(), max_size=5))
def test_any_pattern_is_a_pattern(name: str, patterns: list[str]) -> None:
    assert matches(name, patterns) in {True, False}
    assert matches(name, [*patterns, "**"])
    assert not matches(name, [])


BUILT = (
    *("ci/verbs/cells.py", "noxfile.py", "docs2/x", "rocm_packaging/packages/packages.toml"),
    ".github/workflows/build_portable_linux_pytorch_wheels.yml",
    *(".github/workflows/ci_linux.yml", ".github/actions/x/action.yml"),
)
NOT_BUILT = (
    *("docs/x.md", "README.md", "a/deep/NOTES.md", "LICENSE", "docker/Dockerfile", "tests/unit/x.py"),
    *(".github/workflows/unit_tests.yml", ".github/workflows/promote.yml"),
)


@pytest.mark.parametrize("path", [*BUILT, *NOT_BUILT])
def test_files_that_are_built(path: str) -> None:
    builds = path in BUILT
    found, _ = relevance(Changes(files=["docs/x.md", path]), RULES)
    assert found.value is builds
    shown = path if len(path) <= 60 else f"{path[:30]}…{path[-30:]}"
    assert found.reason == (f"{shown} has changed" if builds else "only 2 files changed, which no build uses")


def request(*labels: str, head: str | None = OURS) -> tuple[str, Any]:
    return "pull_request", pull_request(*labels, head=head)


REQUEST, PUSH, NIGHT, DOCS = request(), ("push", push()), ("schedule",), ("docs/x.md",)
OFF, SMOKE = {"build_pytorch": "false"}, {"windows_test_labels": "smoke"}
OWN = {"store": "out", "role": "writer", "region": "here"}
UNUSED = "only docs/x.md changed, which no build uses"
FORKS = "no credentials, no release bucket, no shared caches"


@pytest.mark.parametrize(
    ("decide", "words", "facts", "expected"),
    [
        (enabled, request("ci:skip"), {}, (False, "label ci:skip")),
        (enabled, ("push", push(deleted=True)), {}, (False, "the branch was deleted")),
        (enabled, NIGHT, {}, (True, "schedule builds whatever has changed")),
        (enabled, PUSH, {}, (True, "ci/verbs/cells.py has changed")),
        (enabled, (*PUSH, ()), {}, (False, "no file has changed")),
        (enabled, (*REQUEST, None), {}, (True, "changed files are not considered")),
        (enabled, REQUEST, {"changes": Changes(note="git fell over")}, (True, "git fell over")),
        (enabled, (*REQUEST, DOCS), {}, (False, UNUSED)),
        (enabled, (*request("test:rocm"), DOCS), {}, (True, f"label test:rocm, although {UNUSED}")),
        (pytorch, REQUEST, {}, (False, "no label build:pytorch")),
        (pytorch, request("build:pytorch"), {}, (True, "label build:pytorch")),
        (pytorch, PUSH, {}, (True, "pushes to main always build PyTorch")),
        (pytorch, ("push", push("topic")), {}, (False, "topic is not a long-lived branch")),
        (pytorch, ("push", {"ref": "refs/tags/v1"}), {}, (False, "a tag is not a long-lived branch")),
        (pytorch, NIGHT, {}, (True, "the schedule always builds PyTorch")),
        (pytorch, ("workflow_call",), {}, (True, "a dispatch builds PyTorch unless build_pytorch is false")),
        (pytorch, (*NIGHT, {}, None, OFF), {}, (False, "the input build_pytorch is false")),
        (trusted, REQUEST, {}, (True, f"the commits are those of {OURS}")),
        # GitHub takes the names of repositories in any case
        (trusted, request(head="rocm/therock"), {}, (True, f"the commits are those of {OURS}")),
        (trusted, request(head="a/b"), {}, (False, f"the commits are those of the fork a/b: {FORKS}")),
        (trusted, request(head=None), {}, (False, f"the commits are those of a deleted fork: {FORKS}")),
        (TIER, ("workflow_dispatch",), {}, (None, "the dispatch names its families")),
        (TIER, request("ci:run-all-archs"), {}, ("nightly", "label ci:run-all-archs")),
        (TIER, NIGHT, {}, ("nightly", "the nightly schedule")),
        (TIER, PUSH, {"release_type": "dev"}, ("nightly", "release type dev")),
        (TIER, PUSH, {}, ("postsubmit", "a push to main")),
        (TIER, ("push", push("topic")), {}, ("presubmit", "a push")),
        (TIER, REQUEST, {}, ("presubmit", "every pull request")),
        (AFTER_MERGE, REQUEST, {}, False),
        (AFTER_MERGE, ("push", push("topic")), {}, False),
        (AFTER_MERGE, PUSH, {}, True),
        (AFTER_MERGE, NIGHT, {}, True),
        (kind, REQUEST, {}, ("quick", "nothing requests more")),
        (kind, (*REQUEST, ()), {}, ("quick", "nothing requests more")),
        (kind, (*REQUEST, None), {}, ("quick", "nothing requests more")),
        (kind, (*REQUEST, (".gitmodules",)), {}, ("standard", ".gitmodules has changed")),
        (kind, NIGHT, {}, ("comprehensive", "the nightly schedule")),
        (kind, NIGHT, {"release_type": "nightly"}, ("comprehensive", "release type nightly")),
        (kind, PUSH, {"release_type": "nightly-bkc"}, ("comprehensive", "release type nightly-bkc")),
        (kind, NIGHT, {"release_type": "prerelease"}, ("full", "release type prerelease")),
        (kind, request("test:rocm"), {}, ("full", "test:rocm is requested")),
        (kind, ("workflow_call", {}, None, SMOKE), {}, ("full", "smoke is requested")),
        (kind, request("test:rocm", "test_filter:quick"), {}, ("quick", "label test_filter:quick")),
        (kind, (*NIGHT, {}, None, {"test_type": "standard"}), {}, ("standard", "the input test_type")),
    ],
)
def test_what_is_decided_and_why(decide: Any, words: Any, facts: Any, expected: Any) -> None:
    found = decide(asked(*words, **facts))
    assert ((found.value, found.reason) if isinstance(found, Decision) else found) == expected


@pytest.mark.parametrize(
    ("words", "facts", "store", "reason"),
    [
        (PUSH, {}, "s3://therock-ci-artifacts therock-ci us-east-2", f"runs of {OURS} have a bucket"),
        (
            PUSH,
            {"repository": "rocm/x"},
            "s3://therock-ci-artifacts-external therock-ci-external us-east-2",
            "runs of rocm/x have a bucket",
        ),
        (
            PUSH,
            {"repository": "x/y"},
            "",
            "x/y has no bucket: name one in pytorch-build.toml, [buckets] or [upload]",
        ),
        (PUSH, {"what": changed(upload=OWN)}, "out writer here", "the configuration names the store"),
        (request(head="a/b"), {}, "", "a fork's run has no credentials to upload with"),
    ],
)
def test_where_outputs_go(words: Any, facts: Any, store: str, reason: str) -> None:
    question = asked(*words, **facts)
    found, place = upload(question, trusted(question))
    assert (found.value, found.reason) == (bool(store), reason)
    assert f"{place.store} {place.role.rpartition('/')[2]} {place.region}".strip() == store
    with pytest.raises(UsageError, match=r"A fork's run .* release type 'dev'\.\nOnly ci is open to forks\."):
        upload(asked(*words, **facts, release_type="dev"), Decision(value=False, reason=""))


@pytest.mark.parametrize(
    ("release_type", "uploads", "builds", "expected"),
    [
        ("ci", True, True, (False, "runs of type ci are not distributed")),
        ("nightly", False, True, (False, "uploads")),
        ("nightly", True, False, (False, "PyTorch is not built: builds")),
        ("nightly", True, True, (True, "release type nightly, once its tests have passed")),
    ],
)
def test_what_goes_on_to_an_index(release_type: str, *, uploads: bool, builds: bool, expected: Any) -> None:
    question = asked(*NIGHT, release_type=release_type)
    given = (Decision(value=uploads, reason="uploads"), Decision(value=builds, reason="builds"))
    found = promote(question, *given)
    assert (found.value, found.reason) == expected


def test_tests_that_are_requested_by_platform() -> None:
    given = {"linux_test_labels": "smoke test:rocm", "windows_test_labels": "test:rocm"}
    found = requested_tests(asked("pull_request", pull_request("test:smoke"), None, given))
    assert found == {"linux": ("test:smoke", "test:rocm"), "windows": ("test:smoke", "test:rocm")}
    with pytest.raises(UsageError, match=r"Unknown test 'rock'\. Did you mean 'rocm'"):
        requested_tests(asked("workflow_call", {}, None, {"windows_test_labels": "rock"}))


def test_a_name_that_somebody_chose_stays_on_its_line() -> None:
    for path, shown in (("z" * 60, "z" * 60), ("a\n\x1b" + "y" * 300, f"a??{'y' * 27}…{'y' * 30}")):
        found = relevance(Changes(files=[path]), RULES)
        assert found == (Decision(value=True, reason=f"{shown} has changed"), "")
