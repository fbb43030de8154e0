"""Which of upstream's tests are skipped here and why, and whether the rules hold."""

from __future__ import annotations

import datetime as dt
import platform
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Literal, get_args

from core import console
from core.env import installed, require
from core.errors import CheckError, UsageError
from core.families import CPU
from pytorch_build.context import Context, find_context
from pytorch_build.lock.stored import stored_lock
from pytorch_build.test import skip_rules
from pytorch_build.test.skip_rules import RuleStatus, TestedTorch, judge_rules

if TYPE_CHECKING:
    from core.cli.options import Common
    from core.env import Interpreter
    from core.run import Platform

Question = Literal["list", "explain", "check"]
QUESTIONS: tuple[Question, ...] = get_args(Question)

# What becomes of a test by a rule's action; the first that takes a test wins.
_FATES = {
    "skip": "skipped",
    "xfail": "expected to fail",
    "retry": "retried",
}


@dataclass(frozen=True, kw_only=True)
class SkipRequest:
    """A question about skip rules, and the torch that it is about.

    Attributes:
        question: What to answer.
        common: This machine and run; `python` has the torch, where it is named.
        tests: Test ids, for explain.
        skips: More files of rules, or folders of them.
        os: The operating system.
        python_version: The version of the target's Python; None for that of `common.python`.
        torch_version: The version of torch; None for that of `common.python`, or of the run.
        config: The configuration of upstream's tests.
        lists_all_rules: Whether rules that do not apply are listed, too.
    """

    question: Question
    common: Common
    tests: tuple[str, ...]
    skips: tuple[Path, ...]
    os: Platform
    python_version: str | None
    torch_version: str | None
    config: str
    lists_all_rules: bool


def answer(request: SkipRequest) -> None:
    """Print the answer."""
    _refuse_tests(request)
    user_paths = [path.expanduser().absolute() for path in request.skips]
    rules = skip_rules.load(user_paths, skip_rules.FOLDER)
    tested = _tested_torch(request)
    rule_statuses = judge_rules(
        rules,
        tested,
        dt.datetime.now(tz=dt.UTC).date(),
    )
    console.say(
        f"{', '.join(tested.gpu_targets) or CPU}, {tested.platform}, Python {tested.python}, "
        f"torch {tested.torch} ({tested.torch_ref}), {tested.config} tests"
    )
    match request.question:
        case "list":
            _list(rule_statuses, lists_all_rules=request.lists_all_rules)
        case "explain":
            for test in request.tests:
                console.result("\n".join(explanation(test, rule_statuses)))
        case "check":
            _check(rule_statuses)


def _refuse_tests(request: SkipRequest) -> None:
    """Refuse what is no test id, or what a question has no use for."""
    for test in request.tests:
        if test.startswith("-"):
            raise UsageError(f"Unknown option {test}.", hint="See: nox -s test_torch -- --help")
        if "::" not in test:
            raise UsageError(
                f"{test!r} is not a test id.", hint="Give one such as test/test_nn.py::TestNN::test_conv."
            )
    if request.question == "explain" and not request.tests:
        hint = "nox -s test_torch -- --skip-rules explain test/test_nn.py::TestNN::test_conv"
        raise UsageError("Which test?", hint=hint)
    if request.question != "explain" and request.tests:
        hint = "nox -s test_torch -- --skip-rules explain TEST"
        raise UsageError(f"{request.question} takes no test ids.", hint=hint)


def _tested_torch(request: SkipRequest) -> TestedTorch:
    context = find_context(request.common)
    torch_version = request.torch_version
    python_version = request.python_version
    if request.common.python is not None:
        target = require(request.common.python)
        torch_version = torch_version or _installed_torch(target)
        python_version = python_version or target.version

    return TestedTorch(
        gpu_targets=context.gpu_targets,
        platform=request.os,
        python=python_version or platform.python_version(),
        torch=torch_version or _torch_of(context),
        torch_ref=context.ref.name,
        config=request.config,
    )


def _installed_torch(target: Interpreter) -> str | None:
    """Return the version of an environment's torch; None where it has none."""
    for distribution in installed(target):
        if distribution.name == "torch":
            return distribution.version
    return None


def _torch_of(context: Context) -> str:
    """Return the version of torch by the run's source lock, else by the ref's name."""
    lock = stored_lock(context)
    if lock is not None and "torch" in lock.projects and not lock.project("torch").prebuilt:
        return lock.version("torch", gpu=context.gpu)
    series = re.search(r"\d+\.\d+(?:\.\d+)?$", context.ref.name)
    if series:
        return series[0]
    raise UsageError(
        f"The version of torch is unknown: the run has no source lock of {context.ref.name}.",
        hint="Give it: --torch-version 2.10, or name an environment that has it: --python PATH.",
    )


def _list(rule_statuses: Sequence[RuleStatus], *, lists_all_rules: bool) -> None:
    """Print the rules that apply, or all, each with its tests and why it does not apply."""
    lines: list[str] = []
    rule_count = 0
    test_count = 0
    for rule_status in rule_statuses:
        tests = rule_status.rule.table.tests
        if rule_status.applies:
            rule_count += 1
            test_count += len(tests)
        if rule_status.applies or lists_all_rules:
            lines.append(f"{rule_status.rule.name}: {_describe(rule_status)}")
            lines += [f"    does not apply: {reason}" for reason in rule_status.unmet]
            lines += [f"    {test}" for test in tests]
    if lines:
        console.result("\n".join(lines))
    console.done(f"{rule_count} of {len(rule_statuses)} rules apply, with {test_count} tests and patterns.")


def explanation(test: str, rule_statuses: Sequence[RuleStatus]) -> Sequence[str]:
    """Explain what becomes of a test: the rules that take it, and those that would elsewhere."""
    matching_rule_statuses = [
        rule_status for rule_status in rule_statuses if rule_status.rule.names_test(test)
    ]
    lines = [f"{test}: {_describe_fate(matching_rule_statuses)}"]
    for rule_status in matching_rule_statuses:
        lines.append(f"  {rule_status.rule.name} takes it: {_describe(rule_status)}")
        lines += [f"    but it does not apply: {reason}" for reason in rule_status.unmet]
    return lines


def _describe_fate(matching_rule_statuses: Sequence[RuleStatus]) -> str:
    for action, fate in _FATES.items():
        for rule_status in matching_rule_statuses:
            if rule_status.applies and rule_status.rule.table.action == action:
                return f"{fate}, by {rule_status.rule.name}"
    return "runs, no rule applies to it"


def _describe(rule_status: RuleStatus) -> str:
    """Return what a rule does, why, and until when."""
    table = rule_status.rule.table
    description = f"{table.action}: {table.reason}"
    if table.issue:
        description += f" ({table.issue})"
    if table.expires:
        description += f" ({'expired' if rule_status.expired else 'until'} {table.expires})"
    return description


def _check(rule_statuses: Sequence[RuleStatus]) -> None:
    """Refuse rules that have expired; those that are not valid could not be read."""
    expired_count = 0
    for rule_status in rule_statuses:
        if not rule_status.expired:
            continue
        expired_count += 1
        rule = rule_status.rule
        message = f"{rule.name} expired on {rule.table.expires}: {rule.table.reason}"
        console.error(message, file=str(rule.file))
    if expired_count:
        raise CheckError(
            f"Skip rules that have expired: {expired_count}.",
            hint="Remove each and see whether its tests pass now, or give it a later day.",
        )
    console.done(f"{len(rule_statuses)} rules are valid, none has expired.")
