"""What is told about a run that failed: pure functions from what is known to texts and payloads."""

from __future__ import annotations

import json
from collections.abc import Mapping  # noqa: TC003 - pydantic reads it
from dataclasses import dataclass
from email.message import EmailMessage
from typing import TYPE_CHECKING, Any

from core.data import Model, parse_json
from core.errors import DataError
from core.run.job_files import link, table, text

if TYPE_CHECKING:
    from collections.abc import Sequence

    from core.run.records import Record

GOOD = ("success", "skipped")
# act does not say how a called workflow ended: then the run's records do
UNKNOWN = ""
_SHOWN = 20  # a message is read on a telephone; the run's page has them all
_LONGEST_LINE = 300


class Need(Model):
    """One entry of ``toJSON(needs)``."""

    result: str
    outputs: Mapping[str, Any] | None = None


@dataclass(frozen=True, kw_only=True)
class Failure:
    """One job or cell that failed."""

    name: str
    error: str = ""
    url: str = ""


@dataclass(frozen=True, kw_only=True)
class RunResult:
    """How a run ended."""

    title: str
    url: str = ""
    failures: tuple[Failure, ...] = ()
    cancelled: bool = False

    @property
    def ok(self) -> bool:
        """Whether everything that counts succeeded."""
        return not self.failures and not self.cancelled


def read_needs(written: str) -> Mapping[str, str]:
    """Read ``toJSON(needs)``: jobs to their results."""
    try:
        given = json.loads(written)
    except (ValueError, RecursionError) as problem:
        raise DataError(f"NEEDS is not JSON: {problem}.", hint="Write it with toJSON(needs).") from problem
    if not isinstance(given, dict) or not given:
        raise DataError("NEEDS names no job.", hint="Write it with toJSON(needs).")
    return {
        name: parse_json(json.dumps(one), Need, where=f"NEEDS, {name}").result for name, one in given.items()
    }


def of_records(records: Sequence[Record]) -> Sequence[Failure]:
    """Give the stages that failed, by the run's records."""
    return [
        Failure(name=_stage(record), error=first_line(record.error or ""))
        for record in records
        if record.status == "failed"
    ]


def _stage(record: Record) -> str:
    cell = record.cell
    named = (record.stage, cell.gpu_family, cell.torch_ref, cell.python)
    return " ".join(part for part in named if part)


def first_line(said: str) -> str:
    """Give the first line that says something, cut to what a message holds."""
    line = next((one.strip() for one in said.splitlines() if one.strip()), "")
    return line if len(line) <= _LONGEST_LINE else f"{line[: _LONGEST_LINE - 1]}…"


def result_of(title: str, needs: Mapping[str, str], *, jobs: Sequence[Failure], url: str = "") -> RunResult:
    """Put together how a run ended."""
    failed = [name for name, result in needs.items() if result == "failure"]
    failures = tuple(jobs) if may_have_failed(needs) else ()
    if failed and not failures:
        failures = tuple(Failure(name=name) for name in failed)
    cancelled = any(result not in {*GOOD, UNKNOWN, "failure"} for result in needs.values())
    return RunResult(title=title, url=url, failures=failures, cancelled=cancelled)


def may_have_failed(needs: Mapping[str, str]) -> bool:
    """Say whether something failed, or it is not known."""
    return not {"failure", UNKNOWN}.isdisjoint(needs.values())


def headline(result: RunResult) -> str:
    """Say in one line how it ended."""
    if result.ok:
        return f"{result.title}: succeeded"
    if result.failures:
        return f"{result.title}: {len(result.failures)} failed"
    return f"{result.title}: cancelled"


def plain(result: RunResult) -> str:
    """Write the message as plain text, for e-mail and logs."""
    lines = [headline(result), ""]
    for one in result.failures[:_SHOWN]:
        lines += [f"- {one.name}", *(f"  {part}" for part in (one.error, one.url) if part)]
    if len(result.failures) > _SHOWN:
        lines.append(f"and {len(result.failures) - _SHOWN} more")
    return "\n".join([*lines, "", result.url]).rstrip() + "\n"


def markdown(result: RunResult) -> str:
    """Write the same for the job's summary."""
    lines = [f"### {text(headline(result))}", ""]
    rows = [
        [link(one.name, one.url) if one.url else text(one.name), text(one.error)] for one in result.failures
    ]
    lines += [table(("failed", "first line of what it said"), rows)] if rows else []
    return "\n".join(lines)


def slack(result: RunResult) -> Mapping[str, Any]:
    """Write the payload of a Slack webhook: a line for notifications, and blocks for the channel.

    https://docs.slack.dev/messaging/sending-messages-using-incoming-webhooks
    """
    shown = [_slack_line(one) for one in result.failures[:_SHOWN]]
    if len(result.failures) > _SHOWN:
        shown.append(f"and {len(result.failures) - _SHOWN} more")
    head = _slack_text(headline(result))
    if result.url:
        head = f"<{result.url}|{head}>"
    blocks = [{"type": "section", "text": {"type": "mrkdwn", "text": head}}]
    # a section takes 3000 characters
    blocks += [{"type": "section", "text": {"type": "mrkdwn", "text": line}} for line in shown]
    return {"text": headline(result), "blocks": blocks}


def _slack_line(one: Failure) -> str:
    name = _slack_text(one.name)
    label = f"<{one.url}|{name}>" if one.url else f"*{name}*"
    return f"{label}\n{_slack_text(one.error)}" if one.error else label


def _slack_text(value: str) -> str:
    """Escape what Slack would read as a link, a mention or a command."""
    return value.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;").replace("|", "¦")


def email(result: RunResult, *, sender: str, to: Sequence[str]) -> EmailMessage:
    """Write the message as an e-mail; what others wrote cannot add a header to it."""
    message = EmailMessage()
    message["Subject"] = " ".join(headline(result).split())
    message["From"] = sender
    message["To"] = ", ".join(to)
    message.set_content(plain(result))
    return message
