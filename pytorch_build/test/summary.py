"""A run's test results for readers: Markdown with failures first, and JSON for the run's page.

Each failure has why, and the command that runs it again. What matters most comes first, as `console.summary`
cuts what GitHub would not show. Names and messages come from tests, and may hold anything.
"""

import re
import shlex
from collections.abc import Sequence
from typing import Any, Literal

from core import console
from core.data import Model
from core.junit import FAILING, OUTCOMES, Case, clean, counts
from core.run import LOCAL_RUN
from core.run.job_files import table, text
from pytorch_build.test.results import DEFAULT_CONFIG, Origin, Tested

MOST_FAILURES = 300
MOST_LISTED = 50
_SLOWEST = 50
_NAME_LIMIT = 400
# what an expression for -k may hold: https://docs.pytest.org/en/stable/how-to/usage.html
_WORD = re.compile(r"[\w:+\-.\\/]+")
_PYTHON = re.compile(r"cp(\d)(\d+t?)")
_ABOUT = ("torch_ref", "python", "gpu_family", "config", "run_id")
_SHOWN = ("test", "outcome", "attempts", "rule", "line", "text")


class CaseEntry(Model):
    """One test of interest: its result, the shard that ran it, and the command that runs it again."""

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
    """The results of one stage on one cell; `skipped` is node id -> reason."""

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
    """All results of a run: one entry per stage and cell."""

    schema_version: Literal[1] = 1
    run_id: str
    passed: bool
    tests: tuple[GroupEntry, ...]


def data(run_id: str, tested: Sequence[Tested]) -> ReportData:
    """Put the data together."""
    passed = bool(tested) and all(one.passed for one in tested)
    return ReportData(run_id=run_id, passed=passed, tests=tuple(map(_group, tested)))


def _group(one: Tested) -> GroupEntry:
    about: dict[str, Any] = {name: getattr(one.origin, name) for name in _ABOUT}
    slowest = sorted(
        (case for case, _ in one.cases if case.seconds > 0), key=lambda case: (-case.seconds, case.test)
    )
    return GroupEntry(
        stage=one.origin.stage or one.origin.folder,
        **about,
        passed=one.passed,
        shards=one.shards,
        seconds=round(one.seconds, 3),
        totals=one.counts,
        problems=one.problems,
        failures=tuple(_entry(one, case, shard) for case, shard in one.failing),
        flaky=tuple(_entry(one, case, shard) for case, shard in one.cases if case.outcome == "flaky"),
        slowest=tuple(_entry(one, case, "") for case in slowest[:_SLOWEST]),
        skipped={case.test: case.line for case, _ in one.cases if case.outcome in {"skipped", "xfailed"}},
    )


def _entry(one: Tested, case: Case, shard: str) -> CaseEntry:
    facts: dict[str, Any] = {name: getattr(case, name) for name in _SHOWN}
    again = command(one.origin, case) if case.outcome != "passed" else ""
    return CaseEntry(**facts, seconds=round(case.seconds, 3), shard=shard, command=again)


def command(origin: Origin, case: Case) -> str:
    """Write the command that runs a failed test again, on the same wheels."""
    if origin.stage not in {"test_torch", "test_smoke", "test_rocm"}:
        return ""
    file = case.file.partition("@")[0].removeprefix("test/").removesuffix(".py")
    torch, python = origin.stage == "test_torch", _PYTHON.fullmatch(origin.python)
    named = {
        "--run-id": "" if origin.run_id == LOCAL_RUN else origin.run_id,
        "--torch-ref": origin.torch_ref,
        "--gpu-family": origin.gpu_family,
        "--artifact-group": origin.group,
        "--config": origin.config.removeprefix(DEFAULT_CONFIG) if torch else "",
        "--include": file if torch else "",
        "-k": expression(case) if origin.stage != "test_rocm" else "",
    }
    words = ["nox", "-s", origin.stage, *(["-P", f"{python[1]}.{python[2]}"] if python else []), "--"]
    words += [word for option, value in named.items() if value for word in (option, value)]
    words += ["--force"] if not torch and origin.run_id else []
    return shlex.join(words)


def expression(case: Case) -> str:
    """Write pytest's ``-k`` for one test: its class and name, and the parameters that it can hold."""
    names = case.test.partition("::")[2]
    plain, bracket, parameters = names.partition("[")
    words = [part for part in plain.split("::") if _WORD.fullmatch(part) and part not in {"and", "or", "not"}]
    whole = parameters.removesuffix("]")
    if words and bracket and _WORD.fullmatch(whole):
        words[-1] += f"[{whole}]"
    return " and ".join(words)


def markdown(tested: Sequence[Tested], *, title: str) -> str:
    """Write the summary."""
    problems = [f"- {text(str(one.origin))}: {text(clean(said))}" for one in tested for said in one.problems]
    failures = [_failure(one, case, shard) for one in tested for case, shard in one.failing]
    flaky = [
        (_cell(case.test), text(str(one.origin)), str(case.attempts), _cell(case.line), text(case.rule))
        for one in tested
        for case, _ in one.cases
        if case.outcome == "flaky"
    ]
    columns = ("test", "tests", "attempts", "failed with", "tried again by rule")
    blocks = [
        f"### {text(title)}: {verdict(tested)}",
        _totals(tested),
        *_section("Results that cannot be trusted", problems, MOST_LISTED, " problems"),
        *_section("Failures", failures, MOST_FAILURES, " failures"),
        *_section("Flaky: failed, then passed", flaky, MOST_LISTED, "", columns),
    ]
    return "\n\n".join(blocks) + "\n"


def verdict(tested: Sequence[Tested]) -> str:
    """Summarize in a few words how the tests went."""
    total = counts(case for one in tested for case, _ in one.cases)
    bad = [f"{total[one]} {one}" for one in reversed(OUTCOMES) if one in FAILING and total[one]]
    if problems := sum(len(one.problems) for one in tested):
        bad.append(f"{problems} problem{'s' if problems > 1 else ''} with the reports")
    flaky = [f"{total['flaky']} of them flaky"] if total["flaky"] and not bad else []
    return ", ".join([*bad, f"{total['passed'] + total['flaky']} passed", *flaky])


def commands_again(tested: Sequence[Tested]) -> Sequence[tuple[str, str]]:
    """Return the command that runs each failure again ("" for none), and the failure in one line."""
    return [
        (command(one.origin, case), f"{case.test} {case.outcome}: {case.line}".removesuffix(": "))
        for one in tested
        for case, _ in one.failing
    ]


def code(value: str) -> str:
    """Write a text as Markdown code that no text can end."""
    plain = " ".join(clean(value).split())
    plain = plain if len(plain) <= _NAME_LIMIT else f"{plain[:_NAME_LIMIT]}…"
    fence = _fence(plain, 1)
    space = " " if plain.startswith("`") or plain.endswith("`") or not plain else ""
    return f"{fence}{space}{plain}{space}{fence}"


def _cell(value: str) -> str:
    """Write a text as Markdown code in a table, where a line's bars are looked for first."""
    return code(value).replace("|", r"\|")


def _fence(plain: str, least: int) -> str:
    return "`" * max(least, max((len(run) + 1 for run in re.findall(r"`+", plain)), default=0))


def _failure(one: Tested, case: Case, shard: str) -> str:
    where = f"{one.origin}{f', shard {shard}' if shard else ''}"
    item = f"- {code(case.test)} {case.outcome} ({text(where)})"
    if case.line:
        # a blank line would end the item, a line by itself needs a break
        item += f"  \n  {code(case.line)}"
    if line := " ".join(clean(command(one.origin, case)).split()):
        fence = _fence(line, 3)
        item += f"\n  {fence}bash\n  {line}\n  {fence}"
    return item


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


def _section(title: str, rows: Sequence[Any], most: int, what: str, columns: Sequence[str] = ()) -> list[str]:
    left = [f"and {len(rows) - most} more{what}"] if len(rows) > most else []
    shown = [table(columns, rows[:most])] if columns else rows[:most]
    return [f"#### {title}", *shown, *left] if rows else []
