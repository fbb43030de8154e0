"""What is said to differ between two runs."""

from collections.abc import Mapping

from ci.bisection.differences import RevisionFacts, facts_of_run, list_changes
from core.run.plan import RocmOrigin
from core.run.records import Record
from core.shell import command_line
from pytorch_build.lock.source_lock import LockedProject, SourceLock
from tests.kit.windows import absolute

OLD_COMMIT = "a" * 40
NEW_COMMIT = "b" * 40

TORCH_ORIGIN = "https://github.com/o/torch.git"


def make_facts(
    commit: str,
    *,
    rules: str,
    rocm: str,
    origin: str = TORCH_ORIGIN,
) -> RevisionFacts:
    """Return what is known of a run: its commit of torch, the digest of its build rules, its ROCm."""
    torch = LockedProject(
        project="torch",
        origin=origin,
        commit=commit,
        base_version="2.10.0",
    )
    lock = SourceLock(
        torch_ref="mine",
        release_type="dev",
        rocm_version=rocm,
        projects={"torch": torch},
    )
    source = RocmOrigin(
        platform="linux",
        artifact_group="g",
        run_id=rocm[-2:],
        repository="o/rocm",
    )
    inputs = {"code": rules, "version": commit, "flags": {}, "source": {}}
    records = [
        make_record("build_torch", inputs=inputs),
        make_record("build_rocm", details={"families": ["gfx942", rocm]}),
    ]
    facts = facts_of_run(lock, [source], records)
    return facts.model_copy(update={"packages": {"torch": f"2.10+{rocm}", "numpy": "2"}})


def make_record(
    step: str, *, inputs: Mapping[str, object] | None = None, details: Mapping[str, object] | None = None
) -> Record:
    return Record(
        stage=step,
        run_id="1",
        platform="linux",
        started="2026-11-01",
        seconds=1,
        inputs=dict(inputs or {}),
        details=dict(details or {}),
    )


def changes_between(good: RevisionFacts, bad: RevisionFacts) -> dict[str, tuple[str, str]]:
    """Return what differs, with its value at both ends."""
    return {change.what: (change.good, change.bad) for change in list_changes(good, bad)}


def hints_about(what: str, good: RevisionFacts, bad: RevisionFacts) -> tuple[str, ...]:
    """Return how to learn more of a difference."""
    (hints,) = [change.more for change in list_changes(good, bad) if change.what == what]
    return hints


GOOD_FACTS = make_facts(OLD_COMMIT, rules="c" * 64, rocm="7.10")
BAD_FACTS = make_facts(NEW_COMMIT, rules="d" * 64, rocm="7.11")


def test_tells_which_commits_rules_and_packages_differ() -> None:
    changes = changes_between(GOOD_FACTS, BAD_FACTS)

    rules = changes.pop("build_torch: build rules")
    assert len(rules[0]) == 12
    assert changes == {
        "torch": ("a" * 12, "b" * 12),
        "ROCm": ("7.10", "7.11"),
        "origin of ROCm": ("o/rocm 10", "o/rocm 11"),
        "build_rocm: targets": ('["gfx942","7.10"]', '["gfx942","7.11"]'),
        "installed torch": ("2.10+7.10", "2.10+7.11"),
    }


def test_tells_nothing_where_nothing_differs() -> None:
    assert changes_between(GOOD_FACTS, GOOD_FACTS) == {}


def test_compares_only_what_both_ends_know() -> None:
    untested = GOOD_FACTS.model_copy(update={"packages": {}, "commits": {"torch": ("/t", NEW_COMMIT)}})

    assert changes_between(untested, GOOD_FACTS) == {"torch": ("b" * 12, "a" * 12)}
    assert hints_about("torch", untested, GOOD_FACTS) == (TORCH_ORIGIN,)


def test_shows_how_to_list_the_commits_of_a_public_repository() -> None:
    page = f"https://github.com/o/torch/compare/{'a' * 40}...{'b' * 40}"

    assert hints_about("torch", GOOD_FACTS, BAD_FACTS) == (
        "git log --oneline aaaaaaaaaaaa..bbbbbbbbbbbb",
        page,
    )


def test_shows_how_to_list_the_commits_of_a_repository_on_this_machine() -> None:
    tree = absolute("/my torch")
    good = make_facts(
        OLD_COMMIT,
        rules="c",
        rocm="7.10",
        origin=tree,
    )
    bad = make_facts(
        NEW_COMMIT,
        rules="c",
        rocm="7.10",
        origin=tree,
    )

    (command,) = hints_about("torch", good, bad)

    commits = f"{OLD_COMMIT[:12]}..{NEW_COMMIT[:12]}"
    assert command == command_line(["git", "-C", tree, "log", "--oneline", commits])
