"""`notify`: how a run ended, in its summary, and by Slack and e-mail where these are configured."""

import argparse
import json
import smtplib
import ssl
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from email.message import EmailMessage
from functools import partial
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

from ci.github import Failure, first_line, from_environment
from ci.report.facts import read_run
from core import console
from core.cli.options import Common, common_from, environment
from core.data import Model, json_object, load_toml, validated
from core.errors import CheckError, DataError, FatalError, MissingInputError, ServiceError, UsageError
from core.http import send_request
from core.run import PLATFORMS
from core.run.job_files import link, table, text
from core.run.records import Record

POLICY_FILE = Path(__file__).parents[1] / "notify.toml"
_SECONDS = 30.0
_OK = 200
_PORTS = {"smtp": 587, "smtps": 465}
# act does not say how a called workflow ended: then the run's records do
_UNKNOWN = ""
# toJSON(needs) has the jobs' outputs, too: of a release's plan they are more than one variable holds
_NEEDS_HINT = 'Give each job its result, as in NEEDS=\'{"linux": {"result": "success"}}\'.'
_SHOWN = 20  # a message is read on a telephone; the run's page has them all


class Policy(Model):
    """What `notify.toml` says."""

    events: tuple[str, ...]


class _Need(Model):
    result: str
    outputs: Mapping[str, Any] | None = None


@dataclass(frozen=True, kw_only=True)
class RunResult:
    """How a run ended."""

    title: str
    url: str = ""
    failures: tuple[Failure, ...] = ()
    cancelled: bool = False
    idle: bool = False

    @property
    def ok(self) -> bool:
        """Whether everything that counts succeeded."""
        return not (self.failures or self.cancelled or self.idle)

    @property
    def headline(self) -> str:
        """How it ended, in one line."""
        failed = f"{len(self.failures)} failed" if self.failures else ""
        ended = failed or ("no job ran" if self.idle else "cancelled" if self.cancelled else "succeeded")
        return f"{self.title}: {ended}"


@dataclass(frozen=True, kw_only=True)
class Places:
    """Where messages go; "" and nothing for what is not configured."""

    slack: str = ""
    smtp: str = ""
    email: tuple[str, ...] = ()


def add_options(parser: argparse.ArgumentParser) -> None:
    """Declare the verb's own options."""
    what = "fail if anything failed, after reporting it"
    parser.add_argument("--require-success", action="store_true", help=what)
    parser.add_argument("--always", action="store_true", help="send, whatever the event and the result")
    parser.epilog = (
        "NEEDS holds the results of the workflow's jobs, as toJSON(needs) has them, without outputs."
    )


def run(arguments: argparse.Namespace) -> None:
    """Gather the results, report them, and send them."""
    common, env = common_from(arguments), environment()
    if not env.get("NEEDS"):
        raise UsageError("There is no result to report.", hint=_NEEDS_HINT)
    needs = read_needs(env["NEEDS"])
    jobs = _failures(common, env) if not {"failure", _UNKNOWN}.isdisjoint(needs.values()) else ()
    result = result_of(_title(env), needs, jobs=jobs, url=_url(env))
    console.table(("job", "result"), list(needs.items()))
    console.table(("failed", "first line"), [(one.name, one.error) for one in result.failures])
    console.summary(markdown(result))
    (console.done if result.ok else console.error)(result.headline)
    if arguments.always or is_sent(load_toml(POLICY_FILE, Policy), env, result):
        send(result, places(env), dry_run=common.dry_run)
    if arguments.require_success and not result.ok:
        raise CheckError(f"{result.headline}.", hint="See the jobs that failed.")


def read_needs(written: str) -> Mapping[str, str]:
    """Read the results of jobs, which are written as ``toJSON(needs)`` has them."""
    given = json_object(written, where="NEEDS", hint=_NEEDS_HINT)
    if not given:
        raise DataError("NEEDS names no job.", hint=_NEEDS_HINT)
    return {name: validated(one, _Need, where=f"NEEDS, {name}").result for name, one in given.items()}


def _failures(common: Common, env: Mapping[str, str]) -> Sequence[Failure]:
    """Return what failed: by GitHub, else by the run's records."""
    found: Sequence[Failure] = ()
    if env.get("GITHUB_TOKEN") and (run_id := env.get("GITHUB_RUN_ID")):
        try:
            found = from_environment(env).failed_jobs(env.get("GITHUB_REPOSITORY", ""), run_id)
        except FatalError as problem:
            console.warn(f"GitHub cannot say what failed: {problem.message}", title="notify")
    return found or _recorded(common)


def _recorded(common: Common) -> Sequence[Failure]:
    found: list[Failure] = []
    for platform in PLATFORMS:
        whole = replace(common, platform=platform, gpu_family="", torch_ref="")
        said: list[str] = []
        try:
            for group in read_run(whole, tests=False).groups:
                found += [failure(one) for _, one in group.records if one.status == "failed"]
                said += [f"{one.where}: {one.what}" for one in group.problems]
        except MissingInputError:
            pass  # nothing of the run was for that platform
        except FatalError as problem:
            said.append(problem.message)
        for one in said:
            console.warn(f"Could not read the run's records: {one}", title="notify")
    return found


def failure(record: Record) -> Failure:
    """Return what a message says of a stage that failed."""
    cell = record.cell
    parts = (record.stage, cell.gpu_family, cell.torch_ref, cell.python_tag)
    name = " ".join(part for part in parts if part)
    return Failure(name=name, error=first_line(record.cause.headline if record.cause else record.error))


def result_of(title: str, needs: Mapping[str, str], *, jobs: Sequence[Failure], url: str = "") -> RunResult:
    """Put together how a run ended."""
    failed = tuple(Failure(name=name) for name, result in needs.items() if result == "failure")
    failures = tuple(jobs) or failed if failed or _UNKNOWN in needs.values() else ()
    cancelled = any(result not in {"success", "skipped", "failure", _UNKNOWN} for result in needs.values())
    idle = set(needs.values()) <= {"skipped"}
    return RunResult(title=title, url=url, failures=failures, cancelled=cancelled, idle=idle)


def _title(env: Mapping[str, str]) -> str:
    title = env.get("GITHUB_WORKFLOW") or "The run"
    title += f" of {env['GITHUB_REPOSITORY']}" if env.get("GITHUB_REPOSITORY") else ""
    event = env.get("GITHUB_EVENT_NAME")
    return f"{title} ({event}, {env.get('GITHUB_REF_NAME', '')})" if event else title


def _url(env: Mapping[str, str]) -> str:
    if not (env.get("GITHUB_RUN_ID") and env.get("GITHUB_REPOSITORY")):
        return ""
    server = env.get("GITHUB_SERVER_URL") or "https://github.com"
    return f"{server}/{env['GITHUB_REPOSITORY']}/actions/runs/{env['GITHUB_RUN_ID']}"


def is_sent(policy: Policy, env: Mapping[str, str], result: RunResult) -> bool:
    """Whether a message is sent: of failures, and of runs without a job, on the events of the policy."""
    return bool(result.failures or result.idle) and env.get("GITHUB_EVENT_NAME", "") in policy.events


def places(env: Mapping[str, str]) -> Places:
    """Read where messages go."""
    return Places(
        slack=env.get("NOTIFY_SLACK_WEBHOOK", ""),
        smtp=env.get("NOTIFY_SMTP_URL", ""),
        email=tuple(one.strip() for one in env.get("NOTIFY_EMAIL", "").split(",") if one.strip()),
    )


def send(result: RunResult, to: Places, *, dry_run: bool = False) -> None:
    """Send what is configured; an undeliverable message is a warning, as it says nothing about the run."""
    payload = slack(result)
    message = email(result, sender=to.email[0], to=to.email) if to.email else None
    if dry_run:
        console.result(json.dumps(payload, indent=2, ensure_ascii=False))
        console.result(message.as_string() if message else "no e-mail: NOTIFY_EMAIL is empty")
        return
    if not (to.slack or (to.smtp and message)):
        console.say("notify: nothing is sent, as no webhook and no mail server is configured")
    try:
        if to.slack:
            _post(to.slack, payload)
        if to.smtp and message:
            _mail(to.smtp, message)
    except FatalError as problem:
        console.warn(str(problem), title="notify")


def plain(result: RunResult) -> str:
    """Return the message as plain text, for e-mail."""
    parts = [(f"- {one.name}", one.error, one.url) for one in result.failures[:_SHOWN]]
    shown = ["\n  ".join(filter(None, part)) for part in parts]
    return "\n".join([result.headline, "", *shown, *_more(result), "", result.url]).rstrip() + "\n"


def _more(result: RunResult) -> list[str]:
    left = len(result.failures) - _SHOWN
    return [f"and {left} more"] if left > 0 else []


def markdown(result: RunResult) -> str:
    """Return the message for the job's summary."""
    rows = [
        (link(one.name, one.url) if one.url else text(one.name), text(one.error)) for one in result.failures
    ]
    shown = table(("failed", "first line of the error"), rows) if rows else ""
    return f"### {text(result.headline)}\n\n{shown}"


def slack(result: RunResult) -> Mapping[str, Any]:
    """Return the payload of a Slack webhook: a line for notifications, and blocks for the channel.

    https://docs.slack.dev/messaging/sending-messages-using-incoming-webhooks
    """
    head = _slack_text(result.headline)
    shown = [f"<{result.url}|{head}>" if result.url else head]
    # a block for each, as a section takes 3000 characters
    for one in result.failures[:_SHOWN]:
        name = _slack_text(one.name)
        label = f"<{one.url}|{name}>" if one.url else f"*{name}*"
        shown.append(f"{label}\n{_slack_text(one.error)}".strip())
    blocks = [{"type": "section", "text": {"type": "mrkdwn", "text": line}} for line in shown + _more(result)]
    return {"text": head, "blocks": blocks}


def _slack_text(value: str) -> str:
    """Escape what Slack would read as a link, a mention or a command."""
    return value.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;").replace("|", "¦")


def email(result: RunResult, *, sender: str, to: Sequence[str]) -> EmailMessage:
    """Return the message as an e-mail; others' text cannot add a header to it."""
    message = EmailMessage()
    message["Subject"] = " ".join(result.headline.split())
    message["From"] = sender
    message["To"] = ", ".join(to)
    message.set_content(plain(result))
    return message


def _post(address: str, payload: Mapping[str, object]) -> None:
    console.add_mask(address)  # who has it can write to the channel
    written, kind = json.dumps(payload).encode(), {"Content-Type": "application/json"}
    try:
        response = send_request(address, body=written, headers=kind, timeout=_SECONDS)
    except ServiceError:
        # The error's own message names the address, and who has it can write to the channel.
        raise ServiceError(
            "Could not reach Slack.", hint="Try again, or correct NOTIFY_SLACK_WEBHOOK."
        ) from None
    if response.status != _OK:
        words = response.body.decode(errors="replace")[:200]
        raise ServiceError(f"Slack refused the message: status {response.status}, {words}.")
    console.done("notify: sent to Slack")


def _mail(address: str, message: EmailMessage) -> None:
    parts = urlsplit(address)
    if parts.scheme not in _PORTS or not parts.hostname:
        raise UsageError(
            "NOTIFY_SMTP_URL is not a mail server.", hint="Write it as smtps://USER:PASSWORD@HOST:PORT."
        )
    place, context = (parts.hostname, parts.port or _PORTS[parts.scheme]), ssl.create_default_context()
    secure = partial(smtplib.SMTP_SSL, context=context) if parts.scheme == "smtps" else None
    try:
        with (secure or smtplib.SMTP)(*place, timeout=_SECONDS) as server:
            if not secure:
                server.starttls(context=context)
            if parts.username:
                server.login(unquote(parts.username), unquote(parts.password or ""))
            server.send_message(message)
    except (OSError, smtplib.SMTPException) as problem:
        raise ServiceError(f"The mail server refused the message: {type(problem).__name__}.") from problem
    console.done(f"notify: sent an e-mail to {message['To']}")
