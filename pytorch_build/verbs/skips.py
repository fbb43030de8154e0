"""`skips`: which of upstream's tests are skipped here and why, and which rules are stale."""

from __future__ import annotations

import datetime as dt
import json
import platform
import re
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from packaging.version import Version

from core import console, files, process
from core.cli.options import common_from
from core.env import installed_version, require
from core.errors import CheckError, MissingInputError, SourceError, UsageError
from core.families import CPU
from core.run.outputs import this_platform
from pytorch_build.context import context
from pytorch_build.lock.stored import stored_lock
from pytorch_build.test import plugin, skip_review, skip_rules, upstream_tests
from pytorch_build.test.plugin import Plan
from pytorch_build.test.skip_review import entries, in_file
from pytorch_build.test.skip_rules import UnderTest, decide, planned_rule
from pytorch_build.test.upstream_tests import Torch

if TYPE_CHECKING:
    import argparse
    from collections.abc import Iterator, Sequence

    from pytorch_build.context import Context
    from pytorch_build.test.plugin import PlannedRule, Session
    from pytorch_build.test.skip_review import Review
    from pytorch_build.test.skip_rules import Decision


# test ids may stand after options, which argparse does not see by itself
PASSES_REST = True

_PASSED = ("passed", "xpassed")
_SERIES = re.compile(r"\d+\.\d+(?:\.\d+)?$")


def add_options(parser: argparse.ArgumentParser) -> None:
    """Declare the verb's own options."""
    parser.add_argument(
        "question", choices=("list", "explain", "check", "prune"), help="what to answer or do"
    )
    parser.add_argument("tests", nargs="*", metavar="TEST", help="test ids, for explain")
    about = parser.add_argument_group("what is tested (default: this machine, the run's or the ref's torch)")
    about.add_argument("--os", choices=("linux", "windows"), default=this_platform(), help="operating system")
    about.add_argument("--python-version", metavar="VERSION", help="version of the target's Python")
    about.add_argument("--torch-version", metavar="VERSION", help="version of torch")
    about.add_argument("--config", choices=("default", "distributed", "inductor"), default="default")
    parser.add_argument(
        "--skips",
        type=Path,
        action="append",
        default=[],
        metavar="FILE|DIR",
        help="more skip rules, of your own; repeatable",
    )
    parser.add_argument("--all", action="store_true", help="list: also rules that do not apply, and why not")
    parser.add_argument("--json", action="store_true", help="list: as JSON")
    parser.add_argument(
        "--pytorch-dir",
        type=Path,
        metavar="DIR",
        help="check, prune: collect the test files of this PyTorch tree that rules name (with --python)",
    )
    parser.add_argument(
        "--journal",
        type=Path,
        action="append",
        default=[],
        metavar="FILE|DIR",
        help="check, prune: journals (*.jsonl) of earlier runs; repeatable",
    )
    parser.add_argument(
        "--complete",
        action="store_true",
        help="check, prune: the journals hold every test file, so that a rule without a file is judged too",
    )
    parser.add_argument(
        "--allow-version-mismatch", action="store_true", help="prune by a tree of another version than torch"
    )
    parser.add_argument(
        "--try", dest="attempt", action="store_true", help="check: run the skipped tests; which pass now?"
    )


def run(arguments: argparse.Namespace) -> None:
    """Answer, or prune."""
    tests = [*arguments.tests, *_more(arguments.rest)]
    more = [path.expanduser().absolute() for path in arguments.skips]
    rules = skip_rules.load(more, skip_rules.FOLDER)
    if tests and arguments.question != "explain":
        raise UsageError(f"{arguments.question} takes no test ids.", hint="nox -s skips -- explain TEST")
    seen = [session for path in arguments.journal for session in _journals(path)]
    under_test = _under_test(arguments, seen)
    _refuse_other_torch(seen, under_test)
    decisions = decide(rules, under_test, dt.datetime.now(tz=dt.UTC).date())
    console.say(_told(under_test))
    match arguments.question:
        case "list":
            _list(decisions, everything=arguments.all, as_json=arguments.json)
        case "explain":
            _explain(decisions, tests)
        case "check":
            _check(arguments, decisions, seen)
        case _:
            _prune(arguments, decisions, seen)


def _more(rest: Sequence[str]) -> Sequence[str]:
    options = [word for word in rest if word.startswith("-")]
    if options:
        raise UsageError(f"Unknown option {options[0]}.", hint="See: python -m pytorch_build skips --help")
    return rest


def _under_test(arguments: argparse.Namespace, seen: Sequence[Session]) -> UnderTest:
    chosen = context(common_from(arguments))
    target = require(arguments.python) if arguments.python else None
    torch = arguments.torch_version
    if not torch and target is not None:
        torch = installed_version(target, "torch")
    torch = torch or next((one.began.torch for one in seen), "")
    python = arguments.python_version or (target.version if target else "")
    python = python or next((one.began.python for one in seen), platform.python_version())
    return UnderTest(
        gpu_targets=chosen.gpu_targets,
        platform=arguments.os,
        python=python,
        torch=torch or _torch_of(chosen),
        torch_ref=chosen.ref.name,
        config=arguments.config,
    )


def _refuse_other_torch(seen: Sequence[Session], under_test: UnderTest) -> None:
    """Refuse journals of another release: what they lack says nothing about this one's tests."""
    release = Version(under_test.torch).release[:2]
    for session in seen:
        if session.began.torch and Version(session.began.torch).release[:2] != release:
            raise UsageError(
                f"A journal is of torch {session.began.torch}, and this is about torch {under_test.torch}.",
                hint="Give journals of one release, and no other --torch-version.",
            )


def _torch_of(chosen: Context) -> str:
    """Give the torch that the run builds, or the series in the ref's name."""
    lock = stored_lock(chosen)
    if lock is not None and "torch" in lock.projects and not lock.project("torch").prebuilt:
        return lock.version("torch", gpu=chosen.gpu)
    series = _SERIES.search(chosen.ref.name)
    if series:
        return series[0]
    raise UsageError(
        f"The version of torch is not known: the run has no source lock of {chosen.ref.name}.",
        hint="Say it: --torch-version 2.10, or name an environment that has it: --python PATH.",
    )


def _told(under_test: UnderTest) -> str:
    targets = ", ".join(under_test.gpu_targets) or CPU
    return (
        f"{targets}, {under_test.platform}, Python {under_test.python}, torch {under_test.torch} "
        f"({under_test.torch_ref}), {under_test.config} tests"
    )


def _list(decisions: Sequence[Decision], *, everything: bool, as_json: bool) -> None:
    shown = [one for one in decisions if one.applies or everything]
    if as_json:
        console.result(json.dumps(skip_review.as_json(shown), indent=2))
    elif shown:
        console.result("\n".join(skip_review.listing(shown, everything=everything)))
    applying = [one for one in decisions if one.applies]
    count = sum(len(skip_review.entries(one.rule)) for one in applying)
    console.done(f"{len(applying)} of {len(decisions)} rules apply, with {count} tests and patterns.")


def _explain(decisions: Sequence[Decision], tests: Sequence[str]) -> None:
    if not tests:
        raise UsageError("Which test?", hint="nox -s skips -- explain test/test_nn.py::TestNN::test_conv")
    for test in tests:
        console.result("\n".join(skip_review.explained(test, decisions)))


def _check(arguments: argparse.Namespace, decisions: Sequence[Decision], seen: Sequence[Session]) -> None:
    found = _review(arguments, decisions, seen)
    for stale in found.stale:
        for entry in stale.entries:
            hint = stale.hints.get(entry, "")
            console.warn(f"{stale.rule.name}: {entry} matches no test." + (f" {hint}." if hint else ""))
    if arguments.attempt:
        _try(_trial(arguments, decisions), decisions)
    elif found.judged or arguments.pytorch_dir or arguments.journal:
        console.say(
            f"{found.judged} tests and patterns were held against tests, {found.unjudged} could not be: "
            "their files were not collected."
        )
    else:
        console.say("Whether rules still match a test is seen with --pytorch-dir or --journal.")
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


def _review(arguments: argparse.Namespace, decisions: Sequence[Decision], seen: Sequence[Session]) -> Review:
    if arguments.pytorch_dir and not arguments.attempt:
        trial = _trial(arguments, decisions)
        seen = [*seen, *_sessions(trial, decisions, "collect")]
    return skip_review.review(decisions, skip_review.evidence(seen, complete=arguments.complete))


def _sessions(
    trial: Trial, decisions: Sequence[Decision], mode: Literal["collect", "try"]
) -> Iterator[Session]:
    for session in sessions(trial, named_files(trial.tree, decisions), mode):
        for one in session.uncollected:
            console.warn(f"{one.file} was not collected ({one.outcome}): {one.message}")
        yield session


def _journals(path: Path) -> Sequence[Session]:
    paths = sorted(path.rglob("*.jsonl")) if path.is_dir() else [path]
    if not paths:
        raise MissingInputError(f"{path} holds no journal (*.jsonl).")
    return [session for one in paths for session in plugin.read_journal(one)]


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
    said = upstream_tests.mismatch(Torch(version=torch), upstream_tests.own_tree(tree))
    if said and arguments.question == "prune" and not arguments.allow_version_mismatch:
        raise SourceError(
            f"{said} What they lack says nothing about that torch's tests.",
            hint="Give a tree of that version, or prune all the same: --allow-version-mismatch.",
        )
    if said:
        console.warn(said)
    return Trial(
        # not resolved: a link's target knows nothing of its environment
        python=arguments.python.absolute(),
        tree=tree,
        rules=tuple(planned_rule(one.rule) for one in decisions if one.applies),
        gpu=arguments.gpu_family != CPU,
    )


def _try(trial: Trial, decisions: Sequence[Decision]) -> None:
    outcomes: dict[str, list[str]] = {}
    for session in _sessions(trial, decisions, "try"):
        for one in session.results:
            outcomes.setdefault(one.rule, []).append(f"{one.test}: {one.outcome}")
            if one.outcome in _PASSED:
                console.notice(f"{one.test} passes now; {one.rule} hides it.")
        for test in session.unfinished:
            console.say(f"{test} took its interpreter down, or hung.")
    passed = sum(line.endswith(_PASSED) for lines in outcomes.values() for line in lines)
    count = sum(map(len, outcomes.values()))
    if not count:
        console.warn("No test that a rule hides ran.")
    for rule, lines in sorted(outcomes.items()):
        console.result("\n".join([rule, *(f"    {line}" for line in lines)]))
    console.done(f"{passed} of {count} tests that rules hide pass now.")


def _prune(arguments: argparse.Namespace, decisions: Sequence[Decision], seen: Sequence[Session]) -> None:
    found = _review(arguments, decisions, seen)
    whole = {rule.name for rule in found.expired} | {one.rule.name for one in found.stale if one.whole}
    single = {one.rule.name: one.entries for one in found.stale if one.rule.name not in whole}
    gone = 0
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
            gone += 1
            console.result(skip_review.diff(before, after, path.name))
            if not arguments.dry_run:
                _write(path, after)
    tests = sum(map(len, single.values()))
    done = "would go" if arguments.dry_run else "went"
    console.done(f"Rules that {done}: {len(whole)}; tests of other rules: {tests}; changed files: {gone}.")


def _write(path: Path, text: str) -> None:
    if text:
        files.write_text(path, text)
    else:
        path.unlink()


# a whole file; what hangs is one of the reasons for which tests are skipped
SECONDS = 1800.0
_TESTS = "test"
_LAST_LINES = 15


@dataclass(frozen=True, kw_only=True)
class Trial:
    """Where tests are collected or tried."""

    python: Path
    tree: Path
    rules: tuple[PlannedRule, ...]
    gpu: bool = False
    seconds: float = SECONDS


def named_files(tree: Path, decisions: Sequence[Decision]) -> Sequence[str]:
    """List the test files that rules which apply name."""
    folder = tree / _TESTS
    files = sorted(path.relative_to(tree).as_posix() for path in folder.rglob("*.py"))
    if not files:
        raise MissingInputError(
            f"{folder} holds no tests.", hint="Give a PyTorch source tree: --pytorch-dir DIR."
        )
    named = [entry for one in decisions if one.applies for entry in entries(one.rule)]
    found = [file for file in files if any(in_file(entry, file) for entry in named)]
    if not found:
        raise MissingInputError(
            f"No rule that applies names a test file of {tree}.",
            hint="See them all: nox -s skips -- list --all; rules for GPUs need --gpu-family.",
        )
    return found


def sessions(trial: Trial, files: Sequence[str], mode: Literal["collect", "try"]) -> Iterator[Session]:
    """Collect files, or run the tests in them that rules hide."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        applied: Literal["apply", "try"] = "apply" if mode == "collect" else "try"
        for number, file in enumerate(files):
            plan, journal = folder / f"{number}.json", folder / f"{number}.jsonl"
            plugin.write_plan(
                plan, Plan(root=str(trial.tree), journal=str(journal), mode=applied, rules=trial.rules)
            )
            yield from _file(trial, file, plan, journal, mode)


def _file(trial: Trial, file: str, plan: Path, journal: Path, mode: str) -> Sequence[Session]:
    log = journal.with_suffix(".log")
    argv: list[str | Path] = [trial.python, "-m", "pytest", *plugin.arguments(plan)]
    argv += ["-p", "no:cacheprovider", "-q"]
    argv += ["--rootdir", trial.tree, *(("--collect-only",) if mode == "collect" else ())]
    console.say(f"{mode}: {file}")
    child = process.start(
        [*argv, Path(file).relative_to(_TESTS)],
        cwd=trial.tree / _TESTS,
        env=process.inherited(
            PYTHONPATH=str(plugin.TARGET),
            PYTHONHOME=None,
            PYTHONDONTWRITEBYTECODE="1",
            PYTEST_ADDOPTS=None,
            PYTORCH_TEST_WITH_ROCM="1" if trial.gpu else None,
        ),
        output=log,
    )
    try:
        if child.wait(trial.seconds) is None:
            console.warn(f"{file} did not end within {console.duration(trial.seconds)}.")
    finally:
        child.kill()
    if not journal.is_file():
        tail = "\n".join(log.read_text(encoding="utf-8", errors="replace").splitlines()[-_LAST_LINES:])
        raise CheckError(f"pytest wrote nothing about {file}:\n{tail}", hint="Run pytest on it by hand.")
    return plugin.read_journal(journal)
