"""A run's test results as Markdown: failures first, each with why, and with the command to see it again.

GitHub shows at most 1 MiB of a job's summary, and nothing of a larger one, so what matters most comes first
and the rest is counted. Names and messages come from tests, and may hold anything.
"""

from __future__ import annotations

import re
import shlex
from typing import TYPE_CHECKING, Literal

from core import console
from core.data import Model
from core.junit import FAILING, OUTCOMES, clean, counts
from core.run.job_files import table, text
from core.run.outputs import LOCAL_RUN
from pytorch_build.test.results import DEFAULT_CONFIG, Origin

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from core.junit import Case
    from pytorch_build.test.results import Tested


MOST_FAILURES = 300
MOST_LISTED = 50
SLOWEST = 10
# what is faster is nobody's concern
_SLOW_SECONDS = 1.0
# room for what other steps of the job write
LIMIT = console.SUMMARY_LIMIT * 3 // 4
_NAME_LIMIT = 400
_FENCE = re.compile(r"`+")


def markdown(tested: Sequence[Tested], *, title: str, limit: int = LIMIT) -> str:
    """Write the summary."""
    blocks = [f"### {text(title)}: {verdict(tested)}", _totals(tested), *_problems(tested)]
    blocks += _failures(tested)
    blocks += _flaky(tested)
    blocks += _slowest(tested)
    return _fitted(blocks, limit)


def verdict(tested: Sequence[Tested]) -> str:
    """Say in a few words how the tests went."""
    total = counts(case for one in tested for case, _ in one.cases)
    bad = [
        f"{total[outcome]} {outcome}"
        for outcome in reversed(OUTCOMES)
        if outcome in FAILING and total[outcome]
    ]
    problems = sum(len(one.problems) for one in tested)
    if problems:
        bad.append(f"{problems} problem{'s' if problems > 1 else ''} with the reports")
    good = f"{total['passed'] + total['flaky']} passed"
    return ", ".join(
        [*bad, good] if bad else [good, *([f"{total['flaky']} of them flaky"] if total["flaky"] else [])]
    )


def code(value: str) -> str:
    """Write a text as Markdown code that no text can end."""
    plain = " ".join(clean(value).split())
    plain = plain if len(plain) <= _NAME_LIMIT else f"{plain[:_NAME_LIMIT]}…"
    fence = "`" * (max((len(run) for run in _FENCE.findall(plain)), default=0) + 1)
    space = " " if plain.startswith("`") or plain.endswith("`") or not plain else ""
    return f"{fence}{space}{plain}{space}{fence}"


def cell(value: str) -> str:
    """Write a text as Markdown code in a table, where a line's bars are looked for first."""
    return code(value).replace("|", r"\|")


def fenced(line: str, indent: str = "") -> str:
    """Write a line as a block of code, to be copied."""
    plain = " ".join(clean(line).split())
    fence = "`" * max(3, max((len(run) for run in _FENCE.findall(plain)), default=0) + 1)
    return f"{indent}{fence}bash\n{indent}{plain}\n{indent}{fence}"


def again(tested: Sequence[Tested]) -> Sequence[tuple[str, str]]:
    """Give the command that runs each failure again ("" for none), and the failure in one line."""
    return [
        (command(one.origin, case), f"{case.test} {case.outcome}: {case.line}".removesuffix(": "))
        for one in tested
        for case, _ in one.failing
    ]


def _totals(tested: Sequence[Tested]) -> str:
    shown = [outcome for outcome in OUTCOMES if any(one.counts[outcome] for one in tested)] or ["passed"]
    rows = [
        (
            text(f"{one.origin}{f' ({one.shards} shards)' if one.shards > 1 else ''}"),
            *(str(one.counts[outcome]) for outcome in shown),
            console.duration(one.seconds),
            "passed" if one.passed else "**failed**",
        )
        for one in tested
    ]
    return table(("tests", *shown, "time", "result"), rows)


def _problems(tested: Sequence[Tested]) -> list[str]:
    lines = [f"- {text(str(one.origin))}: {text(clean(said))}" for one in tested for said in one.problems]
    if not lines:
        return []
    return ["#### Results that cannot be believed", *_some(lines, MOST_LISTED, "problems")]


def _failures(tested: Sequence[Tested]) -> list[str]:
    entries = [_failure(one, case, shard) for one in tested for case, shard in one.failing]
    return ["#### Failures", *_some(entries, MOST_FAILURES, "failures")] if entries else []


def _failure(one: Tested, case: Case, shard: str) -> str:
    where = f"{one.origin}{f', shard {shard}' if shard else ''}"
    lines = [f"- {code(case.test)} {case.outcome} ({text(where)})"]
    if case.line:
        lines.append(f"  {code(case.line)}")
    if again := command(one.origin, case):
        lines.append(fenced(again, "  "))
    # a blank line would end the item, a line by itself needs a break
    return "  \n".join(lines[:2]) + "".join(f"\n{line}" for line in lines[2:])


def _flaky(tested: Sequence[Tested]) -> list[str]:
    rows = [
        (cell(case.test), text(str(one.origin)), str(case.attempts), cell(case.line), text(case.rule))
        for one in tested
        for case, _ in one.cases
        if case.outcome == "flaky"
    ]
    columns = ("test", "tests", "attempts", "failed with", "tried again by rule")
    return _listed("Flaky: failed, then passed", columns, rows, MOST_LISTED)


def slowest(tested: Sequence[Tested], most: int = SLOWEST) -> Sequence[tuple[Tested, Case]]:
    """Give the tests that took longest, the longest first."""
    every = [(one, case) for one in tested for case, _ in one.cases if case.seconds > 0]
    return sorted(every, key=lambda pair: (-pair[1].seconds, pair[1].test))[:most]


def _slowest(tested: Sequence[Tested]) -> list[str]:
    rows = [
        (cell(case.test), text(str(one.origin)), console.duration(case.seconds))
        for one, case in slowest(tested)
        if case.seconds >= _SLOW_SECONDS
    ]
    return _listed("Slowest", ("test", "tests", "time"), rows, SLOWEST)


def _listed(title: str, columns: Sequence[str], rows: Sequence[Sequence[str]], most: int) -> list[str]:
    if not rows:
        return []
    more = [f"and {len(rows) - most} more"] if len(rows) > most else []
    return [f"#### {title}", table(columns, rows[:most]), *more]


def _some(lines: Sequence[str], most: int, what: str) -> Iterable[str]:
    return [*lines[:most], *([f"and {len(lines) - most} more {what}"] if len(lines) > most else [])]


def _fitted(blocks: Sequence[str], limit: int) -> str:
    """Join blocks up to a size, and count the ones that are left out."""
    end = "\n\n… {} more parts left out: they do not fit into a job's summary, and the JSON holds them.\n"
    room, kept = limit - len(end.encode()) - 10, 0
    for block in blocks:
        room -= len(block.encode()) + 2
        if room < 0:
            break
        kept += 1
    left = len(blocks) - kept
    return "\n\n".join(blocks[:kept]) + (end.format(left) if left else "\n")


_SLOWEST = 50


class CaseEntry(Model):
    """One test that somebody wants to know of.

    Attributes:
        test: Its node id.
        outcome: Its outcome.
        seconds: How long it took.
        shard: The shard that ran it; "" without shards.
        attempts: How often it ran.
        rule: The rule by which it was tried again, and its reason; "" for none.
        line: The first line that matters.
        text: All that was said.
        command: What runs it again; "" where nobody knows.
    """

    test: str
    outcome: str
    seconds: float
    shard: str = ""
    attempts: int = 1
    rule: str = ""
    line: str = ""
    text: str = ""
    command: str = ""


class GroupEntry(Model):
    """The results of one stage on one cell.

    Attributes:
        stage: The stage; the next ones are its cell.
        passed: Whether they can be believed, and none failed.
        totals: By outcome.
        problems: Why they cannot be believed.
        failures: What stands against the wheels.
        flaky: What failed and then passed.
        slowest: What took longest.
        skipped: Node id -> why it did not run.
    """

    stage: str
    torch_ref: str = ""
    python: str = ""
    gpu_family: str = ""
    config: str = ""
    run_id: str = ""
    passed: bool
    shards: int
    seconds: float
    totals: dict[str, int]
    problems: tuple[str, ...] = ()
    failures: tuple[CaseEntry, ...] = ()
    flaky: tuple[CaseEntry, ...] = ()
    slowest: tuple[CaseEntry, ...] = ()
    skipped: dict[str, str] = {}  # noqa: RUF012 - pydantic copies it


class ReportData(Model):
    """All results of a run.

    Attributes:
        passed: Whether everything passed.
        tests: One entry a stage and cell.
    """

    schema_version: Literal[1] = 1
    run_id: str
    passed: bool
    tests: tuple[GroupEntry, ...]


def data(run_id: str, tested: Sequence[Tested]) -> ReportData:
    """Put the data together."""
    entries = tuple(_entry(one) for one in tested)
    return ReportData(
        run_id=run_id, passed=bool(entries) and all(one.passed for one in entries), tests=entries
    )


def _entry(one: Tested) -> GroupEntry:
    origin = one.origin
    flaky = [(case, shard) for case, shard in one.cases if case.outcome == "flaky"]
    return GroupEntry(
        stage=origin.stage or origin.folder,
        torch_ref=origin.torch_ref,
        python=origin.python,
        gpu_family=origin.gpu_family,
        config=origin.config,
        run_id=origin.run_id,
        passed=one.passed,
        shards=one.shards,
        seconds=round(one.seconds, 3),
        totals=one.counts,
        problems=one.problems,
        failures=tuple(_test(one, case, shard) for case, shard in one.failing),
        flaky=tuple(_test(one, case, shard) for case, shard in flaky),
        slowest=tuple(_test(one, case, "") for _, case in slowest([one], _SLOWEST)),
        skipped={case.test: case.line for case, _ in one.cases if case.outcome in {"skipped", "xfailed"}},
    )


def _test(one: Tested, case: Case, shard: str) -> CaseEntry:
    told = case.outcome != "passed"
    return CaseEntry(
        test=case.test,
        outcome=case.outcome,
        seconds=round(case.seconds, 3),
        shard=shard,
        attempts=case.attempts,
        rule=case.rule,
        line=case.line,
        text=case.text,
        command=command(one.origin, case) if told else "",
    )


# what an expression for -k may hold: https://docs.pytest.org/en/stable/how-to/usage.html
_WORD = re.compile(r"[\w:+\-.\\/]+")
_PYTHON = re.compile(r"cp(\d)(\d+t?)")
# the folder of upstream's tests, which its own runner leaves out of their names
_TESTS = "test/"
_STAGES = ("test_torch", "test_smoke", "test_rocm")


def command(origin: Origin, case: Case) -> str:
    """Write the command."""
    if origin.stage not in _STAGES:
        return ""
    python = _PYTHON.fullmatch(origin.python)
    words = ["nox", "-s", origin.stage, *(["-P", f"{python[1]}.{python[2]}"] if python else []), "--"]
    run_id = "" if origin.run_id == LOCAL_RUN else origin.run_id
    named = {"--run-id": run_id, "--torch-ref": origin.torch_ref, "--gpu-family": origin.gpu_family}
    named["--artifact-group"] = origin.group
    for option, value in named.items():
        words += [option, value] if value else []
    if origin.stage == "test_torch":
        words += ["--config", origin.config] if origin.config not in {"", DEFAULT_CONFIG} else []
        if case.file:
            words += ["--include", module(case.file)]
    if origin.stage != "test_rocm" and (chosen := expression(case)):
        words += ["-k", chosen]
    if origin.stage != "test_torch" and origin.run_id:
        words += ["--force"]
    return shlex.join(words)


def module(file: str) -> str:
    """Name a test file as upstream's runner does: ``test/dynamo/test_misc.py`` is ``dynamo/test_misc``.

    Where several architectures were tested, a file's name has the one (``test/test_nn.py@gfx942``).
    """
    return file.partition("@")[0].removeprefix(_TESTS).removesuffix(".py")


def expression(case: Case) -> str:
    """Write pytest's ``-k`` for one test: its class and name, and what parameters it can hold."""
    path, _, names = case.test.partition("::")
    if not names or path == case.test:
        return ""
    plain, bracket, parameters = names.partition("[")
    words = [part for part in plain.split("::") if _WORD.fullmatch(part) and part not in {"and", "or", "not"}]
    whole = parameters.removesuffix("]")
    if words and bracket and _WORD.fullmatch(whole):
        words[-1] += f"[{whole}]"
    return " and ".join(words)
