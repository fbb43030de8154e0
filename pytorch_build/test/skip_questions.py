"""Which of upstream's tests are skipped here and why, and whether the rules hold."""

from __future__ import annotations

import platform
import re
from collections.abc import Mapping, Sequence
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
from pytorch_build.test.skip_rules import Rule, TestedTorch, current_date, unmet_conditions

if TYPE_CHECKING:
    from core.cli.options import Common
    from core.env import Interpreter
    from core.run import Platform

    # Why a rule does not apply, by its name.
    UnmetConditions = Mapping[str, Sequence[str]]

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


def print_answer(request: SkipRequest) -> None:
    """Print the answer to a question about skip rules."""
    _refuse_tests(request)
    user_paths = [path.expanduser().absolute() for path in request.skips]
    rules = skip_rules.load_rules(user_paths, skip_rules.RULES_FOLDER)
    tested = _tested_torch(request)
    unmet_by_rule = {rule.name: unmet_conditions(rule, tested) for rule in rules}
    console.say(
        f"{', '.join(tested.gpu_targets) or CPU}, {tested.platform}, Python {tested.python}, "
        f"torch {tested.torch} ({tested.torch_ref}), {tested.config} tests"
    )
    match request.question:
        case "list":
            _print_rules(rules, unmet_by_rule, lists_all_rules=request.lists_all_rules)
        case "explain":
            for test in request.tests:
                console.result("\n".join(explain_test(test, rules, unmet_by_rule)))
        case "check":
            _require_unexpired_rules(rules)


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
        torch_version = torch_version or _installed_torch_version(target)
        python_version = python_version or target.version

    return TestedTorch(
        gpu_targets=context.gpu_targets,
        platform=request.os,
        python=python_version or platform.python_version(),
        torch=torch_version or _torch_version_of_run(context),
        torch_ref=context.ref.name,
        config=request.config,
    )


def _installed_torch_version(target: Interpreter) -> str | None:
    """Return the version of an environment's torch; None where it has none."""
    for distribution in installed(target):
        if distribution.name == "torch":
            return distribution.version
    return None


def _torch_version_of_run(context: Context) -> str:
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


def _print_rules(
    rules: Sequence[Rule],
    unmet_by_rule: UnmetConditions,
    *,
    lists_all_rules: bool,
) -> None:
    """Print the rules that apply, or all, each with its tests and why it does not apply."""
    lines: list[str] = []
    rule_count = 0
    test_count = 0
    for rule in rules:
        tests = rule.table.tests
        reasons = unmet_by_rule[rule.name]
        if not reasons:
            rule_count += 1
            test_count += len(tests)
        if lists_all_rules or not reasons:
            lines.append(f"{rule.name}: {_describe(rule)}")
            lines += [f"    does not apply: {reason}" for reason in reasons]
            lines += [f"    {test}" for test in tests]
    if lines:
        console.result("\n".join(lines))
    console.done(f"{rule_count} of {len(rules)} rules apply, with {test_count} tests and patterns.")


def explain_test(
    test: str,
    rules: Sequence[Rule],
    unmet_by_rule: UnmetConditions,
) -> Sequence[str]:
    """Return lines on what becomes of a test: the rules that take it, and those that would elsewhere."""
    fate = "runs, no rule applies to it"
    best_rank = len(_FATES)
    lines: list[str] = []
    for rule in rules:
        if not rule.names_test(test):
            continue
        reasons = unmet_by_rule[rule.name]
        lines.append(f"  {rule.name} takes it: {_describe(rule)}")
        lines += [f"    but it does not apply: {reason}" for reason in reasons]
        rank = list(_FATES).index(rule.table.action)
        if not reasons and rank < best_rank:
            best_rank = rank
            fate = f"{_FATES[rule.table.action]}, by {rule.name}"
    return [f"{test}: {fate}", *lines]


def _describe(rule: Rule) -> str:
    """Return what a rule does, why, and until when."""
    table = rule.table
    description = f"{table.action}: {table.reason}"
    if table.issue:
        description += f" ({table.issue})"
    if table.expires:
        word = "expired" if rule.is_expired(current_date()) else "until"
        description += f" ({word} {table.expires})"
    return description


def _require_unexpired_rules(rules: Sequence[Rule]) -> None:
    """Refuse rules that have expired; those that are not valid could not be read."""
    expired_rules = [rule for rule in rules if rule.is_expired(current_date())]
    for rule in expired_rules:
        console.error(rule.expiry, file=str(rule.file))
    if expired_rules:
        raise CheckError(
            f"Skip rules that have expired: {len(expired_rules)}.",
            hint="Remove each and see whether its tests pass now, or give it a later day.",
        )
    console.done(f"{len(rules)} rules are valid, none has expired.")
