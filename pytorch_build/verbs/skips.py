"""`skips`: which of upstream's tests are skipped here and why, and which rules are stale."""

from __future__ import annotations

import argparse
import datetime as dt
import platform
import re
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from packaging.version import Version

from core import console, files, process
from core.cli.options import common_from
from core.env import installed_version, require
from core.errors import CheckError, MissingInputError, UsageError
from core.families import CPU
from core.run import this_platform
from pytorch_build.context import Context, context
from pytorch_build.lock.stored import stored_lock
from pytorch_build.test import plugin, skip_review, skip_rules, upstream_tests
from pytorch_build.test.skip_rules import Decision, UnderTest, decide
from pytorch_build.test.upstream_tests import TESTS, Torch

# test ids may stand after options, which argparse does not see by itself
PASSES_REST = True
# a whole file; what hangs is one of the reasons for which tests are skipped
SECONDS = 1800.0


def add_options(parser: argparse.ArgumentParser) -> None:
    """Declare the verb's own options."""
    many: dict[str, Any] = {"type": Path, "action": "append", "default": [], "metavar": "FILE|DIR"}
    questions = ("list", "explain", "check", "prune")
    parser.add_argument("question", choices=questions, help="what to answer or do")
    parser.add_argument("tests", nargs="*", metavar="TEST", help="test ids, for explain")
    about = parser.add_argument_group("what is tested (default: this machine, the run's or the ref's torch)")
    about.add_argument("--os", choices=("linux", "windows"), default=this_platform(), help="operating system")
    about.add_argument("--python-version", metavar="VERSION", help="version of the target's Python")
    about.add_argument("--torch-version", metavar="VERSION", help="version of torch")
    about.add_argument("--config", choices=("default", "distributed", "inductor"), default="default")
    add = parser.add_argument
    add("--skips", **many, help="more skip rules, of your own; repeatable")
    add("--all", action="store_true", help="list: also rules that do not apply, and why not")
    what = "check, prune: collect the test files of this PyTorch tree that rules name (with --python)"
    add("--pytorch-dir", type=Path, metavar="DIR", help=what)
    add("--journal", **many, help="check, prune: journals (*.jsonl) of earlier runs; repeatable")
    what = "check, prune: the journals hold every test file, so that a rule without a file is judged too"
    add("--complete", action="store_true", help=what)
    what = "prune by a tree of another version than torch"
    add("--allow-version-mismatch", action="store_true", help=what)
    what = "check: run the skipped tests; which pass now?"
    add("--try", dest="attempt", action="store_true", help=what)


def run(arguments: argparse.Namespace) -> None:
    """Answer, or prune."""
    if options := [word for word in arguments.rest if word.startswith("-")]:
        raise UsageError(f"Unknown option {options[0]}.", hint="See: nox -s skips -- --help")
    tests = [*arguments.tests, *arguments.rest]
    if tests and arguments.question != "explain":
        raise UsageError(f"{arguments.question} takes no test ids.", hint="nox -s skips -- explain TEST")
    more = [path.expanduser().absolute() for path in arguments.skips]
    rules = skip_rules.load(more, skip_rules.FOLDER)
    seen = [session for path in arguments.journal for session in _journals(path)]
    tested = _under_test(arguments, seen)
    _refuse_other_torch(seen, tested)
    decisions = decide(rules, tested, dt.datetime.now(tz=dt.UTC).date())
    console.say(
        f"{', '.join(tested.gpu_targets) or CPU}, {tested.platform}, Python {tested.python}, "
        f"torch {tested.torch} ({tested.torch_ref}), {tested.config} tests"
    )
    match arguments.question:
        case "list":
            _list(decisions, everything=arguments.all)
        case "explain" if not tests:
            hint = "nox -s skips -- explain test/test_nn.py::TestNN::test_conv"
            raise UsageError("Which test?", hint=hint)
        case "explain":
            for test in tests:
                console.result("\n".join(skip_review.explained(test, decisions)))
        case "check":
            _check(arguments, decisions, seen)
        case _:
            _prune(arguments, decisions, seen)


def _journals(path: Path) -> Sequence[plugin.Session]:
    paths = sorted(path.rglob("*.jsonl")) if path.is_dir() else [path]
    if not paths:
        raise MissingInputError(f"{path} holds no journal (*.jsonl).")
    return [session for one in paths for session in plugin.read_journal(one)]


def _under_test(arguments: argparse.Namespace, seen: Sequence[plugin.Session]) -> UnderTest:
    chosen = context(common_from(arguments))
    target = require(arguments.python) if arguments.python else None
    torch, python = arguments.torch_version, arguments.python_version
    if target is not None:
        torch, python = torch or installed_version(target, "torch"), python or target.version
    for session in seen[:1]:
        torch, python = torch or session.began.torch, python or session.began.python
    return UnderTest(
        gpu_targets=chosen.gpu_targets,
        platform=arguments.os,
        python=python or platform.python_version(),
        torch=torch or _torch_of(chosen),
        torch_ref=chosen.ref.name,
        config=arguments.config,
    )


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


def _check(
    arguments: argparse.Namespace, decisions: Sequence[Decision], seen: Sequence[plugin.Session]
) -> None:
    found = _review(arguments, decisions, seen)
    for stale in found.stale:
        for entry in stale.entries:
            hint = f" {stale.hints[entry]}." if entry in stale.hints else ""
            console.warn(f"{stale.rule.name}: {entry} matches no test.{hint}")
    if arguments.attempt:
        _try(_trial(arguments, decisions), decisions)
    elif found.judged or arguments.pytorch_dir or arguments.journal:
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
            hint="See whether their tests pass now (--try), then nox -s skips -- prune, or give a later day.",
        )
    console.done(f"{len(decisions)} rules are valid, none has expired.")


def _review(
    arguments: argparse.Namespace, decisions: Sequence[Decision], seen: Sequence[plugin.Session]
) -> skip_review.Review:
    if arguments.pytorch_dir and not arguments.attempt:
        trial = _trial(arguments, decisions)
        seen = [*seen, *sessions(trial, named_files(trial.tree, decisions), "collect")]
    return skip_review.review(decisions, skip_review.evidence(seen, complete=arguments.complete))


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


def _prune(
    arguments: argparse.Namespace, decisions: Sequence[Decision], seen: Sequence[plugin.Session]
) -> None:
    found = _review(arguments, decisions, seen)
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
            if not arguments.dry_run and after:
                files.write_text(path, after)
            elif not arguments.dry_run:
                path.unlink()
    tests = sum(map(len, single.values()))
    done = "would go" if arguments.dry_run else "went"
    console.done(f"Rules that {done}: {len(whole)}; tests of other rules: {tests}; changed files: {changed}.")


@dataclass(frozen=True, kw_only=True)
class Trial:
    """Where tests are collected or tried."""

    python: Path
    tree: Path
    rules: tuple[plugin.PlannedRule, ...]
    gpu: bool = False


def _trial(arguments: argparse.Namespace, decisions: Sequence[Decision]) -> Trial:
    if not arguments.pytorch_dir:
        raise UsageError("Where are the tests?", hint="Give a PyTorch source tree: --pytorch-dir DIR.")
    if not arguments.python:
        raise UsageError(
            "Tests are collected in an environment with torch.",
            hint="Name its interpreter: --python PATH (nox -s test_torch fills .nox/test_torch).",
        )
    tree = arguments.pytorch_dir.expanduser().resolve()
    torch = installed_version(require(arguments.python), "torch")
    allowed = arguments.question != "prune" or arguments.allow_version_mismatch
    upstream_tests.require_match(Torch(version=torch), upstream_tests.own_tree(tree), allowed=allowed)
    return Trial(
        # not resolved: a link's target knows nothing of its environment
        python=arguments.python.absolute(),
        tree=tree,
        rules=tuple(one.rule.planned() for one in decisions if one.applies),
        gpu=arguments.gpu_family != CPU,
    )


def named_files(tree: Path, decisions: Sequence[Decision]) -> Sequence[str]:
    """List the test files that rules which apply name."""
    known = [f"{TESTS}/{one}.py" for one in upstream_tests.modules_of(tree)]
    named = skip_review.files_of(entry for one in decisions if one.applies for entry in one.rule.entries)
    found = list(filter(named.fullmatch, known))
    if not found:
        raise MissingInputError(
            f"No rule that applies names a test file of {tree}.",
            hint="See them all: nox -s skips -- list --all; rules for GPUs need --gpu-family.",
        )
    return found


def sessions(trial: Trial, named: Sequence[str], mode: Literal["collect", "try"]) -> Iterator[plugin.Session]:
    """Collect files, or run the tests in them that rules hide: a process per file."""
    changes = {"PYTHONPATH": str(plugin.TARGET), "PYTORCH_TEST_WITH_ROCM": "1" if trial.gpu else None}
    with tempfile.TemporaryDirectory() as folder:
        env = process.handed_on(**changes, **process.byte_code(Path(folder, "bytecode")))
        for number, file in enumerate(named):
            journal, log = Path(folder, f"{number}.jsonl"), Path(folder, f"{number}.log")
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
