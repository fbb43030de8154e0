"""A run's test results for readers: Markdown with failures first, and JSON for the run's page.

Each failure has why, and the command that runs it again. What matters most comes first, as `console.summary`
cuts what GitHub would not show. Names and messages come from tests, and may hold anything.
"""

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Literal

from core import console
from core.data import Model
from core.run import LOCAL_RUN
from core.run.job_files import table, text
from core.shell import command_line
from pytorch_build.test.cell_results import CellResults
from pytorch_build.test.junit.document import FAILING, OUTCOMES, Case, count_outcomes
from pytorch_build.test.junit.texts import clean
from pytorch_build.test.report import ReportOrigin, name_unless_default

MOST_FAILURES = 300
MOST_LISTED = 50
_MOST_SLOWEST = 50
_NAME_LIMIT = 400

# What an expression for -k may hold: https://docs.pytest.org/en/stable/how-to/usage.html
_WORD = re.compile(r"[\w:+\-.\\/]+")
_OPERATORS = frozenset({"and", "or", "not"})
_PYTHON = re.compile(r"cp(\d)(\d+t?)")


# --- Data ------------------------------------------------------------------------------------


class CaseData(Model):
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


class CellData(Model):
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
    failures: tuple[CaseData, ...] = ()
    flaky: tuple[CaseData, ...] = ()
    slowest: tuple[CaseData, ...] = ()
    skipped: dict[str, str] = {}  # noqa: RUF012 - pydantic copies it


class SummaryData(Model):
    """All results of a run, by stage and cell."""

    schema_version: Literal[1] = 1
    run_id: str
    passed: bool
    tests: tuple[CellData, ...]


def summary_data(
    run_id: str,
    results: Sequence[CellResults],
) -> SummaryData:
    """Return all results of a run as data."""
    return SummaryData(
        run_id=run_id,
        passed=bool(results) and all(cell_results.passed for cell_results in results),
        tests=tuple(map(_cell_data, results)),
    )


def _cell_data(cell_results: CellResults) -> CellData:
    origin = cell_results.origin
    failures: list[CaseData] = []
    flaky: list[CaseData] = []
    skipped: dict[str, str] = {}
    timed_cases: list[Case] = []
    for case in cell_results.document.cases:
        if case.failing:
            failures.append(_case_data(origin, case))
        elif case.outcome == "flaky":
            flaky.append(_case_data(origin, case))
        elif case.outcome in {"skipped", "xfailed"}:
            skipped[case.test] = case.line
        if case.seconds > 0:
            timed_cases.append(case)

    timed_cases.sort(key=lambda case: (-case.seconds, case.test))
    slowest_cases = timed_cases[:_MOST_SLOWEST]
    slowest = [_case_data(origin, replace(case, shard="")) for case in slowest_cases]
    return CellData(
        stage=origin.stage or origin.folder,
        torch_ref=origin.torch_ref,
        python=origin.python,
        gpu_family=origin.gpu_family,
        config=origin.config,
        run_id=origin.run_id,
        passed=cell_results.passed,
        shards=cell_results.shard_count,
        seconds=round(cell_results.seconds, 3),
        totals=cell_results.outcomes,
        problems=cell_results.document.problems,
        failures=tuple(failures),
        flaky=tuple(flaky),
        slowest=tuple(slowest),
        skipped=skipped,
    )


def _case_data(origin: ReportOrigin, case: Case) -> CaseData:
    command = ""
    if case.outcome != "passed":
        command = repeating_command(origin, case)
    return CaseData(
        test=case.test,
        outcome=case.outcome,
        seconds=round(case.seconds, 3),
        shard=case.shard,
        attempts=case.attempts,
        rule=case.rule,
        line=case.line,
        text=case.text,
        command=command,
    )


# --- Commands that run a failure again -------------------------------------------------------


def repeating_command(origin: ReportOrigin, case: Case) -> str:
    """Return the command that runs a failed test again, on the same wheels; "" where there is none."""
    if origin.stage not in {"test_torch", "test_smoke", "test_rocm"}:
        return ""

    command = ["nox", "-s", origin.stage]
    python = _PYTHON.fullmatch(origin.python)
    if python is not None:
        major, minor = python.groups()
        command += ["-P", f"{major}.{minor}"]
    command.append("--")
    for option, value in _repeating_options(origin, case).items():
        if value:
            command += [option, value]
    if origin.stage != "test_torch" and origin.run_id:
        # A choice among upstream's tests is a test of its own; others would be unchanged.
        command.append("--force")
    return command_line(command)


def _repeating_options(origin: ReportOrigin, case: Case) -> dict[str, str]:
    """Return the options that lead to a test; "" for what need not be said."""
    options = {
        "--run-id": "" if origin.run_id == LOCAL_RUN else origin.run_id,
        "--torch-ref": origin.torch_ref,
        "--gpu-family": origin.gpu_family,
        "--artifact-group": origin.group,
    }
    if origin.stage == "test_torch":
        options["--config"] = name_unless_default(origin.config)
        path = case.file.partition("@")[0]
        options["--include"] = path.removeprefix("test/").removesuffix(".py")
    if origin.stage != "test_rocm":
        options["-k"] = pytest_expression(case)
    return options


def pytest_expression(case: Case) -> str:
    """Return pytest's ``-k`` for one test: its class and name, and the parameters that it can hold."""
    _file, _colons, path = case.test.partition("::")
    names, bracket, parameters = path.partition("[")
    usable_names = [name for name in names.split("::") if _WORD.fullmatch(name) and name not in _OPERATORS]
    parameters = parameters.removesuffix("]")
    if usable_names and bracket and _WORD.fullmatch(parameters):
        usable_names[-1] += f"[{parameters}]"
    return " and ".join(usable_names)


# --- Markdown --------------------------------------------------------------------------------


def markdown(
    results: Sequence[CellResults],
    *,
    title: str,
) -> str:
    """Return the page: the verdict, totals, problems, failures and flaky tests."""
    problems: list[str] = []
    failures: list[str] = []
    flaky_rows: list[Sequence[str]] = []
    for cell_results in results:
        origin = text(str(cell_results.origin))
        for problem in cell_results.document.problems:
            clean_problem = text(clean(problem))
            problems.append(f"- {origin}: {clean_problem}")
        for case in cell_results.document.cases:
            if case.failing:
                failures.append(_failure_item(cell_results.origin, case))
            elif case.outcome == "flaky":
                # A table's bars are looked for first, so code may hold none.
                name = as_code(case.test).replace("|", r"\|")
                failure = as_code(case.line).replace("|", r"\|")
                attempts = str(case.attempts)
                rule = text(case.rule)
                flaky_rows.append((name, origin, attempts, failure, rule))

    heading = f"### {text(title)}: {headline(results)}"
    blocks = [heading, _totals_table(results)]
    if problems:
        blocks += ["#### Results that cannot be trusted", *problems[:MOST_LISTED]]
        blocks += _remainder(problems, MOST_LISTED, "problems")
    if failures:
        blocks += ["#### Failures", *failures[:MOST_FAILURES]]
        blocks += _remainder(failures, MOST_FAILURES, "failures")
    if flaky_rows:
        columns = ("test", "tests", "attempts", "failed with", "tried again by rule")
        blocks += ["#### Flaky: failed, then passed", table(columns, flaky_rows[:MOST_LISTED])]
        blocks += _remainder(flaky_rows, MOST_LISTED, "tests")
    return "\n\n".join(blocks) + "\n"


def _remainder(
    rows: Sequence[object],
    most: int,
    noun: str,
) -> Sequence[str]:
    """Return the line on rows beyond a limit; none where all are within it."""
    number = len(rows) - most
    if number <= 0:
        return ()
    return (f"and {number} more {noun}",)


def list_outcomes(totals: Mapping[str, int]) -> str:
    """Return how many tests ended in which way, without what did not occur: ``12 passed, 3 skipped``."""
    parts: list[str] = []
    for outcome, count in totals.items():
        if count:
            parts.append(f"{count} {outcome}")
    return ", ".join(parts)


def headline(results: Sequence[CellResults]) -> str:
    """Return in a few words how the tests went: ``2 failed, 40 passed``."""
    cases: list[Case] = []
    problem_count = 0
    for cell_results in results:
        cases += cell_results.document.cases
        problem_count += len(cell_results.document.problems)
    totals = count_outcomes(cases)

    failing_totals: dict[str, int] = {}
    # What is worst comes first.
    for outcome in reversed(OUTCOMES):
        if outcome in FAILING:
            failing_totals[outcome] = totals[outcome]
    parts: list[str] = []
    if any(failing_totals.values()):
        parts.append(list_outcomes(failing_totals))
    if problem_count:
        problems = console.counted(problem_count, "problem")
        parts.append(f"{problems} with the reports")
    has_failed = bool(parts)

    flaky = totals["flaky"]
    passed = totals["passed"] + flaky
    parts.append(f"{passed} passed")
    if flaky and not has_failed:
        parts.append(f"{flaky} of them flaky")
    return ", ".join(parts)


def _totals_table(results: Sequence[CellResults]) -> str:
    """Return a table with a row for each stage and cell, without columns of outcomes that did not occur."""
    totals: Counter[str] = Counter()
    for cell_results in results:
        totals.update(cell_results.outcomes)
    outcomes = [outcome for outcome in OUTCOMES if totals[outcome]]
    if not outcomes:
        outcomes = ["passed"]

    rows: list[Sequence[str]] = []
    for cell_results in results:
        name = str(cell_results.origin)
        if cell_results.shard_count > 1:
            name += f" ({cell_results.shard_count} shards)"
        counts = cell_results.outcomes
        row = [text(name)]
        row += [str(counts[outcome]) for outcome in outcomes]
        row.append(console.duration(cell_results.seconds))
        row.append("passed" if cell_results.passed else "**failed**")
        rows.append(row)
    return table(("tests", *outcomes, "time", "result"), rows)


def _failure_item(origin: ReportOrigin, case: Case) -> str:
    """Return a failure as an item of a list: the test, why it failed, and the command that repeats it."""
    origin_and_shard = str(origin)
    if case.shard:
        origin_and_shard += f", shard {case.shard}"
    name = as_code(case.test)
    markdown_item = f"- {name} {case.outcome} ({text(origin_and_shard)})"
    if case.line:
        # A blank line would end the item, a line by itself needs a break.
        markdown_item += f"  \n  {as_code(case.line)}"

    command = _on_one_line(repeating_command(origin, case))
    if command:
        fence = _fence(command, 3)
        lines = [f"{fence}bash", command, fence]
        markdown_item += "".join(f"\n  {line}" for line in lines)
    return markdown_item


def as_code(value: str) -> str:
    """Return a text as Markdown code that no text can end."""
    line = _on_one_line(value)
    if len(line) > _NAME_LIMIT:
        line = f"{line[:_NAME_LIMIT]}…"
    if not line or line.startswith("`") or line.endswith("`"):
        # Else a backtick of the text would be one of the fence.
        line = f" {line} "
    fence = _fence(line, 1)
    return f"{fence}{line}{fence}"


def _on_one_line(value: str) -> str:
    return " ".join(clean(value).split())


def _fence(line: str, least: int) -> str:
    """Return a fence of more backticks than the text has in a row."""
    length = least
    for backticks in re.findall(r"`+", line):
        length = max(length, len(backticks) + 1)
    return "`" * length
