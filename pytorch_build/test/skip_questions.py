"""Which of upstream's tests are skipped here and why, and which skip rules are stale."""

from __future__ import annotations

import datetime as dt
import platform
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Literal, get_args

from packaging.version import Version

from core import console, files, process, temporary
from core.env import installed, require
from core.errors import CheckError, MissingInputError, UsageError
from core.families import CPU
from pytorch_build.context import Context, context
from pytorch_build.lock.stored import stored_lock
from pytorch_build.test import plugin, skip_review, skip_rules, upstream_tests
from pytorch_build.test.skip_rules import Decision, UnderTest, decide
from pytorch_build.test.upstream_tests import TESTS, Torch

if TYPE_CHECKING:
    from core.cli.options import Common
    from core.env import Interpreter
    from core.run import Platform

# a whole file; what hangs is one of the reasons for which tests are skipped
SECONDS = 1800.0
Question = Literal["list", "explain", "check", "prune"]
QUESTIONS: tuple[Question, ...] = get_args(Question)


@dataclass(frozen=True, kw_only=True)
class SkipRequest:
    """A question about skip rules, and the torch that it is about.

    Attributes:
        question: What to answer or do.
        common: This machine and run; `python` has the torch, where it is named.
        tests: Test ids, for explain.
        skips: More files of rules, or folders of them.
        os: The operating system.
        python_version: The version of the target's Python; None for that of `common.python`.
        torch_version: The version of torch; None for that of journals, of `common.python`, or of the run.
        config: The configuration of upstream's tests.
        is_complete: List rules that do not apply, too.
        pytorch_dir: A tree of PyTorch whose test files are collected, for check and prune.
        journals: Journals of earlier runs, or folders of them, for check and prune.
        has_every_file: Whether the journals hold every test file.
        allow_version_mismatch: Prune by a tree of another version than torch.
        attempt: Run the skipped tests, for check.
    """

    question: Question
    common: Common
    tests: tuple[str, ...]
    skips: tuple[Path, ...]
    os: Platform
    python_version: str | None
    torch_version: str | None
    config: str
    is_complete: bool
    pytorch_dir: Path | None
    journals: tuple[Path, ...]
    has_every_file: bool
    allow_version_mismatch: bool
    attempt: bool


def answer(request: SkipRequest) -> None:
    """Print the answer, or prune rules."""
    for word in request.tests:
        if word.startswith("-"):
            raise UsageError(f"Unknown option {word}.", hint="See: nox -s test_torch -- --help")
    if request.tests and request.question != "explain":
        hint = "nox -s test_torch -- --skip-rules explain TEST"
        raise UsageError(f"{request.question} takes no test ids.", hint=hint)

    own_rules = [path.expanduser().absolute() for path in request.skips]
    rules = skip_rules.load(own_rules, skip_rules.FOLDER)
    seen: list[plugin.Session] = []
    for path in request.journals:
        seen += _journals(path)
    tested = _under_test(request, seen)
    _refuse_other_torch(seen, tested)

    decisions = decide(rules, tested, dt.datetime.now(tz=dt.UTC).date())
    console.say(
        f"{', '.join(tested.gpu_targets) or CPU}, {tested.platform}, Python {tested.python}, "
        f"torch {tested.torch} ({tested.torch_ref}), {tested.config} tests"
    )
    match request.question:
        case "list":
            _list(decisions, everything=request.is_complete)
        case "explain" if not request.tests:
            hint = "nox -s test_torch -- --skip-rules explain test/test_nn.py::TestNN::test_conv"
            raise UsageError("Which test?", hint=hint)
        case "explain":
            for test in request.tests:
                console.result("\n".join(skip_review.explained(test, decisions)))
        case "check":
            _check(request, decisions, seen)
        case _:
            _prune(request, decisions, seen)


def _journals(path: Path) -> Sequence[plugin.Session]:
    paths = sorted(path.rglob("*.jsonl")) if path.is_dir() else [path]
    if not paths:
        raise MissingInputError(f"{path} holds no journal (*.jsonl).")
    return [session for one in paths for session in plugin.read_journal(one)]


def _under_test(request: SkipRequest, seen: Sequence[plugin.Session]) -> UnderTest:
    selection = context(request.common)
    torch_version, python_version = request.torch_version, request.python_version

    # Journals say what they are about; an environment may have been filled again since.
    if seen:
        torch_version = torch_version or seen[0].began.torch
        python_version = python_version or seen[0].began.python
    if request.common.python is not None:
        target = require(request.common.python)
        torch_version = torch_version or _installed_torch(target)
        python_version = python_version or target.version

    return UnderTest(
        gpu_targets=selection.gpu_targets,
        platform=request.os,
        python=python_version or platform.python_version(),
        torch=torch_version or _torch_of(selection),
        torch_ref=selection.ref.name,
        config=request.config,
    )


def _installed_torch(target: Interpreter) -> str | None:
    """Return the version of an environment's torch; None where it has none."""
    for distribution in installed(target):
        if distribution.name == "torch":
            return distribution.version
    return None


def _torch_of(chosen: Context) -> str:
    lock = stored_lock(chosen)
    if lock is not None and "torch" in lock.projects and not lock.project("torch").prebuilt:
        return lock.version("torch", gpu=chosen.gpu)
    if series := re.search(r"\d+\.\d+(?:\.\d+)?$", chosen.ref.name):
        return series[0]
    raise UsageError(
        f"The version of torch is unknown: the run has no source lock of {chosen.ref.name}.",
        hint="Give it: --torch-version 2.10, or name an environment that has it: --python PATH.",
    )


def _refuse_other_torch(seen: Sequence[plugin.Session], tested: UnderTest) -> None:
    """Refuse journals of another release: what they lack is not an evidence about this one's tests."""
    for torch in (session.began.torch for session in seen if session.began.torch):
        if Version(torch).release[:2] != Version(tested.torch).release[:2]:
            raise UsageError(
                f"A journal is of torch {torch}, and this is about torch {tested.torch}.",
                hint="Give journals of one release, and no other --torch-version.",
            )


def _list(decisions: Sequence[Decision], *, everything: bool) -> None:
    applying = [one for one in decisions if one.applies]
    shown = decisions if everything else applying
    if shown:
        console.result("\n".join(skip_review.listing(shown, everything=everything)))
    count = sum(len(one.rule.entries) for one in applying)
    console.done(f"{len(applying)} of {len(decisions)} rules apply, with {count} tests and patterns.")


def _check(request: SkipRequest, decisions: Sequence[Decision], seen: Sequence[plugin.Session]) -> None:
    found = _review(request, decisions, seen)
    for stale in found.stale:
        for entry in stale.entries:
            hint = f" {stale.hints[entry]}." if entry in stale.hints else ""
            console.warn(f"{stale.rule.name}: {entry} matches no test.{hint}")
    if request.attempt:
        _try(_trial(request, decisions), decisions)
    elif found.judged or request.pytorch_dir or request.journals:
        console.say(
            f"{found.judged} tests and patterns were compared with tests, {found.unjudged} could not be: "
            "their files were not collected."
        )
    else:
        console.say("Whether rules still match a test is checked with --pytorch-dir or --journal.")
    for rule in found.expired:
        console.error(
            f"{rule.name} expired on {rule.table.expires}: {rule.table.reason}", file=str(rule.file)
        )
    if found.expired:
        raise CheckError(
            f"Skip rules that have expired: {len(found.expired)}.",
            hint="See whether their tests pass now (--try), then --skip-rules prune, or give a later day.",
        )
    console.done(f"{len(decisions)} rules are valid, none has expired.")


def _review(
    request: SkipRequest, decisions: Sequence[Decision], seen: Sequence[plugin.Session]
) -> skip_review.Review:
    if request.pytorch_dir and not request.attempt:
        trial = _trial(request, decisions)
        seen = [*seen, *sessions(trial, named_files(trial.tree, decisions), "collect")]
    return skip_review.review(decisions, skip_review.evidence(seen, complete=request.has_every_file))


def _try(trial: Trial, decisions: Sequence[Decision]) -> None:
    outcomes: dict[str, list[str]] = {}
    passed = 0
    for session in sessions(trial, named_files(trial.tree, decisions), "try"):
        for one in session.results:
            outcomes.setdefault(one.rule, []).append(f"{one.test}: {one.outcome}")
            if one.outcome in {"passed", "xpassed"}:
                passed += 1
                console.notice(f"{one.test} passes now; {one.rule} hides it.")
        for test in session.unfinished:
            console.say(f"{test} took its interpreter down, or hung.")
    if not outcomes:
        console.warn("No test that a rule hides ran.")
    for rule, lines in sorted(outcomes.items()):
        console.result("\n".join([rule, *(f"    {line}" for line in lines)]))
    console.done(f"{passed} of {sum(map(len, outcomes.values()))} tests that rules hide pass now.")


def _prune(request: SkipRequest, decisions: Sequence[Decision], seen: Sequence[plugin.Session]) -> None:
    found = _review(request, decisions, seen)
    whole = {rule.name for rule in found.expired} | {one.rule.name for one in found.stale if one.whole}
    single = {one.rule.name: one.entries for one in found.stale if one.rule.name not in whole}
    changed = 0
    for path in dict.fromkeys(one.rule.file for one in decisions):
        rules = [one.rule for one in decisions if one.rule.file == path]
        before = path.read_text(encoding="utf-8")
        after = skip_review.pruned(
            before,
            {rule.key for rule in rules if rule.name in whole},
            {rule.key: single[rule.name] for rule in rules if rule.name in single},
            where=path,
        )
        if after != before:
            changed += 1
            console.result(skip_review.diff(before, after, path.name))
            if not request.common.dry_run and after:
                files.write_text(path, after)
            elif not request.common.dry_run:
                path.unlink()
    tests = sum(map(len, single.values()))
    done = "would go" if request.common.dry_run else "went"
    console.done(f"Rules that {done}: {len(whole)}; tests of other rules: {tests}; changed files: {changed}.")


@dataclass(frozen=True, kw_only=True)
class Trial:
    """Where tests are collected or tried."""

    python: Path
    tree: Path
    rules: tuple[plugin.PlannedRule, ...]
    gpu: bool = False


def _trial(request: SkipRequest, decisions: Sequence[Decision]) -> Trial:
    if not request.pytorch_dir:
        raise UsageError("Where are the tests?", hint="Give a PyTorch source tree: --pytorch-dir DIR.")
    torch = None
    if request.common.python is not None:
        torch = _installed_torch(require(request.common.python))
    if request.common.python is None or torch is None:
        raise UsageError(
            "Tests are collected in an environment with torch.",
            hint="Fill that of the session: nox -s test_torch. Or name an interpreter: --python PATH.",
        )
    tree = request.pytorch_dir.expanduser().resolve()
    allowed = request.question != "prune" or request.allow_version_mismatch
    upstream_tests.require_match(Torch(version=torch), upstream_tests.own_tree(tree), allowed=allowed)
    return Trial(
        # not resolved: a link's target knows nothing of its environment
        python=request.common.python.absolute(),
        tree=tree,
        rules=tuple(one.rule.planned() for one in decisions if one.applies),
        gpu=request.common.gpu_family != CPU,
    )


def named_files(tree: Path, decisions: Sequence[Decision]) -> Sequence[str]:
    """List the test files that rules which apply name."""
    known = [f"{TESTS}/{one}.py" for one in upstream_tests.modules_of(tree)]
    named = skip_review.files_of(entry for one in decisions if one.applies for entry in one.rule.entries)
    found = list(filter(named.fullmatch, known))
    if not found:
        raise MissingInputError(
            f"No rule that applies names a test file of {tree}.",
            hint="See them all: --skip-rules list --all. Rules for GPUs need --gpu-family.",
        )
    return found


def sessions(trial: Trial, named: Sequence[str], mode: Literal["collect", "try"]) -> Iterator[plugin.Session]:
    """Collect files, or run the tests in them that rules hide: a process per file."""
    changes = {"PYTHONPATH": str(plugin.TARGET), "PYTORCH_TEST_WITH_ROCM": "1" if trial.gpu else None}
    with temporary.folder("questions") as folder:
        env = process.handed_on(**changes, **process.byte_code(folder / "bytecode"))
        for number, file in enumerate(named):
            journal, log = folder / f"{number}.jsonl", folder / f"{number}.log"
            facts = {"root": str(trial.tree), "journal": str(journal), "rules": trial.rules}
            plan = plugin.Plan(**facts, mode="apply" if mode == "collect" else "try")
            own = plugin.arguments(journal.with_suffix(".json"), plan)
            argv: list[str | Path] = [trial.python, "-m", "pytest", *own]
            argv += ["-p", "no:cacheprovider", "-q", "--rootdir", trial.tree]
            argv += [*(["--collect-only"] if mode == "collect" else []), Path(file).relative_to(TESTS)]
            console.say(f"{mode}: {file}")
            ended = process.supervise(argv, cwd=trial.tree / TESTS, env=env, log=log, seconds=SECONDS)
            if ended.stopped:
                console.warn(f"{file} {ended.stopped}.")
            if not journal.is_file():
                tail = process.tail(log, lines=15)
                raise CheckError(
                    f"pytest wrote nothing about {file}:\n{tail}", hint="Run pytest on it by hand."
                )
            for session in plugin.read_journal(journal):
                for one in session.uncollected:
                    console.warn(f"{one.file} was not collected ({one.outcome}): {one.message}")
                yield session
