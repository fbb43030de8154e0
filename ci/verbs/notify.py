"""`notify`: how a run ended, in its summary, and by Slack and e-mail where these are configured."""

import argparse
import json
import smtplib
import ssl
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from email.message import EmailMessage
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

from ci.github import Failure, first_line, from_environment
from ci.report.facts import read_run
from core import console
from core.cli.options import RUN_OPTIONS, Common, common_from, environment
from core.data import Model, json_object, load_toml, validated
from core.errors import CheckError, DataError, FatalError, MissingInputError, ServiceError, UsageError
from core.http import send_request
from core.run import PLATFORMS
from core.run.job_files import link, table, text
from core.run.records import Record

POLICY_FILE = Path(__file__).parents[1] / "notify.toml"

_SECONDS = 30.0
_OK = 200
_PORTS: Mapping[str, int] = {
    "smtp": 587,
    "smtps": 465,
}
_LONGEST_REPLY = 200

# https://docs.slack.dev/messaging/formatting-message-text#escaping; a bar ends the address of a link.
_SLACK_ESCAPES = str.maketrans(
    {
        "&": "&amp;",
        "<": "&lt;",
        ">": "&gt;",
        "|": "¦",
    }
)

# act does not say how a called workflow ended: then the run's records do.
_UNKNOWN = ""
# toJSON(needs) has the jobs' outputs, too: of a release's plan they are more than one variable holds.
_NEEDS_HINT = 'Give each job its result, as in NEEDS=\'{"linux": {"result": "success"}}\'.'
# A message is read on a telephone; the run's page has them all.
_MOST_FAILURES = 20


class NotifyPolicy(Model):
    """What `notify.toml` says."""

    events: tuple[str, ...]


class _JobResult(Model):
    result: str
    outputs: Mapping[str, Any] | None = None


@dataclass(frozen=True, kw_only=True)
class RunResult:
    """How a run ended; it is `idle` where no job ran."""

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
        ending = "succeeded"
        if self.failures:
            ending = f"{len(self.failures)} failed"
        elif self.idle:
            ending = "no job ran"
        elif self.cancelled:
            ending = "cancelled"
        return f"{self.title}: {ending}"


@dataclass(frozen=True, kw_only=True)
class Recipients:
    """Where messages go; "" and nothing for what is not configured."""

    slack: str = ""
    smtp: str = ""
    email: tuple[str, ...] = ()


COMMON_OPTIONS = (*RUN_OPTIONS, "dry-run")


def add_options(parser: argparse.ArgumentParser) -> None:
    """Declare the verb's own options."""
    parser.add_argument(
        "--require-success", action="store_true", help="fail if anything failed, after reporting it"
    )
    parser.add_argument("--always", action="store_true", help="send, whatever the event and the result")
    parser.epilog = (
        "NEEDS holds the results of the workflow's jobs, as toJSON(needs) has them, without outputs."
    )


def run(arguments: argparse.Namespace) -> None:
    """Gather the results, report them, and send them."""
    common = common_from(arguments)
    env = environment()
    if not env.get("NEEDS"):
        raise UsageError("There is no result to report.", hint=_NEEDS_HINT)

    needs = read_needs(env["NEEDS"])
    result = make_result(
        _title(env),
        needs,
        failed_jobs=_failed_jobs(common, env, needs),
        url=_url(env),
    )
    _show(needs, result)
    policy = load_toml(POLICY_FILE, NotifyPolicy)
    if arguments.always or should_send(policy, env, result):
        send(result, recipients(env), dry_run=common.dry_run)
    if arguments.require_success and not result.ok:
        raise CheckError(f"{result.headline}.", hint="See the jobs that failed.")


def _show(needs: Mapping[str, str], result: RunResult) -> None:
    """Print how a run and its jobs ended, and write it into the job's summary."""
    jobs = list(needs.items())
    console.table(("job", "result"), jobs)
    rows = [(failure.name, failure.error) for failure in result.failures]
    console.table(("failed", "first line"), rows)
    console.summary(markdown(result))
    if result.ok:
        console.done(result.headline)
    else:
        console.error(result.headline)


# --- How a run ended


def read_needs(needs: str) -> Mapping[str, str]:
    """Return the results of jobs, which are written as ``toJSON(needs)`` has them."""
    jobs = json_object(needs, where="NEEDS", hint=_NEEDS_HINT)
    if not jobs:
        raise DataError("NEEDS names no job.", hint=_NEEDS_HINT)
    results: dict[str, str] = {}
    for name, job in jobs.items():
        job_result = validated(job, _JobResult, where=f"NEEDS, {name}")
        results[name] = job_result.result
    return results


def _failed_jobs(common: Common, env: Mapping[str, str], needs: Mapping[str, str]) -> Sequence[Failure]:
    """Return what failed: by GitHub, else by the run's records."""
    results = needs.values()
    if "failure" not in results and _UNKNOWN not in results:
        return ()

    run_id = env.get("GITHUB_RUN_ID")
    if env.get("GITHUB_TOKEN") and run_id:
        try:
            repository = env.get("GITHUB_REPOSITORY", "")
            failures = from_environment(env).failed_jobs(repository, run_id)
            if failures:
                return failures
        except FatalError as problem:
            console.warn(f"GitHub cannot say what failed: {problem.message}", title="notify")
    return _failures_in_records(common)


def _failures_in_records(common: Common) -> Sequence[Failure]:
    failures: list[Failure] = []
    for platform in PLATFORMS:
        whole_run = replace(
            common,
            platform=platform,
            gpu_family="",
            torch_ref="",
        )
        try:
            facts = read_run(whole_run, tests=False)
        except MissingInputError:
            # Nothing of the run was for that platform.
            continue
        except FatalError as problem:
            _warn_of_records(problem.message)
            continue
        failed_records = [record for record in facts.all_records if record.status == "failed"]
        failures += map(failure_of_record, failed_records)
        for group in facts.groups:
            for problem_of_group in group.problems:
                _warn_of_records(f"{problem_of_group.where}: {problem_of_group.what}")
    return failures


def _warn_of_records(message: str) -> None:
    console.warn(f"Could not read the run's records: {message}", title="notify")


def failure_of_record(record: Record) -> Failure:
    """Return what a message says of a stage that failed."""
    cell = record.cell
    parts = filter(None, (record.stage, cell.gpu_family, cell.torch_ref, cell.python_tag))
    name = " ".join(parts)
    error = record.error
    if record.cause is not None:
        error = record.cause.headline
    return Failure(name=name, error=first_line(error))


def make_result(
    title: str,
    needs: Mapping[str, str],
    *,
    failed_jobs: Sequence[Failure],
    url: str = "",
) -> RunResult:
    """Put together how a run ended.

    Where a job is expected to fail, what failed in it does not count.
    """
    results = set(needs.values())
    failures: tuple[Failure, ...] = ()
    if "failure" in results:
        failures = tuple(Failure(name=name) for name, result in needs.items() if result == "failure")
    if failed_jobs and not results.isdisjoint({"failure", _UNKNOWN}):
        failures = tuple(failed_jobs)
    other_results = results - {"success", "skipped", "failure", _UNKNOWN}
    return RunResult(
        title=title,
        url=url,
        failures=failures,
        cancelled=bool(other_results),
        idle=results <= {"skipped"},
    )


def _title(env: Mapping[str, str]) -> str:
    title = env.get("GITHUB_WORKFLOW") or "The run"
    repository = env.get("GITHUB_REPOSITORY")
    if repository:
        title = f"{title} of {repository}"
    event = env.get("GITHUB_EVENT_NAME")
    if event:
        ref = env.get("GITHUB_REF_NAME", "")
        title = f"{title} ({event}, {ref})"
    return title


def _url(env: Mapping[str, str]) -> str:
    """Return the address of a run at GitHub; "" for one elsewhere."""
    run_id = env.get("GITHUB_RUN_ID")
    repository = env.get("GITHUB_REPOSITORY")
    if not run_id or not repository:
        return ""
    server = env.get("GITHUB_SERVER_URL") or "https://github.com"
    return f"{server}/{repository}/actions/runs/{run_id}"


# --- Who is told


def should_send(policy: NotifyPolicy, env: Mapping[str, str], result: RunResult) -> bool:
    """Return whether a message is sent: of failures, and of runs without a job, on the policy's events."""
    if env.get("GITHUB_EVENT_NAME", "") not in policy.events:
        return False
    return result.idle or bool(result.failures)


def recipients(env: Mapping[str, str]) -> Recipients:
    """Return where messages go."""
    addresses = [address.strip() for address in env.get("NOTIFY_EMAIL", "").split(",")]
    return Recipients(
        slack=env.get("NOTIFY_SLACK_WEBHOOK", ""),
        smtp=env.get("NOTIFY_SMTP_URL", ""),
        email=tuple(address for address in addresses if address),
    )


def send(result: RunResult, to: Recipients, *, dry_run: bool = False) -> None:
    """Send what is configured; an undeliverable message is a warning, as it says nothing about the run."""
    payload = slack_payload(result)
    message: EmailMessage | None = None
    if to.email:
        message = email(result, sender=to.email[0], to=to.email)
    if dry_run:
        console.result(json.dumps(payload, indent=2, ensure_ascii=False))
        if message is None:
            console.result("no e-mail: NOTIFY_EMAIL is empty")
        else:
            console.result(message.as_string())
        return

    has_mail = message is not None and to.smtp != ""
    if not to.slack and not has_mail:
        console.say("notify: nothing is sent, as no webhook and no mail server is configured")
    try:
        if to.slack:
            _post(to.slack, payload)
        if message is not None and to.smtp:
            _mail(to.smtp, message)
    except FatalError as problem:
        console.warn(str(problem), title="notify")


# --- Messages


def plain_text(result: RunResult) -> str:
    """Return the message as plain text, for e-mail."""
    lines = [result.headline, ""]
    for failure in result.failures[:_MOST_FAILURES]:
        parts = filter(None, (f"- {failure.name}", failure.error, failure.url))
        lines.append("\n  ".join(parts))
    lines += _lines_on_omitted_failures(result)
    lines += ["", result.url]
    message = "\n".join(lines)
    return f"{message.rstrip()}\n"


def _lines_on_omitted_failures(result: RunResult) -> list[str]:
    """Return how many failures a message leaves out, if any."""
    count = len(result.failures) - _MOST_FAILURES
    if count <= 0:
        return []
    return [f"and {count} more"]


def markdown(result: RunResult) -> str:
    """Return the message for the job's summary."""
    rows: list[tuple[str, str]] = []
    for failure in result.failures:
        name = text(failure.name)
        if failure.url:
            name = link(failure.name, failure.url)
        rows.append((name, text(failure.error)))
    failures = ""
    if rows:
        failures = table(("failed", "first line of the error"), rows)
    return f"### {text(result.headline)}\n\n{failures}"


def slack_payload(result: RunResult) -> Mapping[str, Any]:
    """Return the payload of a Slack webhook: a line for notifications, and blocks for the channel.

    https://docs.slack.dev/messaging/sending-messages-using-incoming-webhooks
    """
    headline = _slack_text(result.headline)
    texts = [headline]
    if result.url:
        texts = [f"<{result.url}|{headline}>"]
    # Each failure has a block, as a section takes 3000 characters.
    for failure in result.failures[:_MOST_FAILURES]:
        name = _slack_text(failure.name)
        label = f"*{name}*"
        if failure.url:
            label = f"<{failure.url}|{name}>"
        error = _slack_text(failure.error)
        block = f"{label}\n{error}"
        texts.append(block.strip())
    texts += _lines_on_omitted_failures(result)
    return {
        "text": headline,
        "blocks": [{"type": "section", "text": {"type": "mrkdwn", "text": markup}} for markup in texts],
    }


def _slack_text(value: str) -> str:
    """Escape what Slack would read as a link, a mention or a command."""
    return value.translate(_SLACK_ESCAPES)


def email(result: RunResult, *, sender: str, to: Sequence[str]) -> EmailMessage:
    """Return the message as an e-mail; others' text cannot add a header to it."""
    message = EmailMessage()
    words = result.headline.split()
    message["Subject"] = " ".join(words)
    message["From"] = sender
    message["To"] = ", ".join(to)
    message.set_content(plain_text(result))
    return message


def _post(address: str, payload: Mapping[str, object]) -> None:
    # Who has the address can write to the channel.
    console.add_mask(address)
    body = json.dumps(payload).encode()
    headers = {"Content-Type": "application/json"}
    try:
        response = send_request(
            address,
            body=body,
            headers=headers,
            timeout=_SECONDS,
        )
    except ServiceError:
        # The error's own message names the address.
        raise ServiceError(
            "Could not reach Slack.", hint="Try again, or correct NOTIFY_SLACK_WEBHOOK."
        ) from None
    if response.status != _OK:
        reply = response.body.decode(errors="replace")[:_LONGEST_REPLY]
        raise ServiceError(f"Slack refused the message: status {response.status}, {reply}.")
    console.done("notify: sent to Slack")


def _mail(address: str, message: EmailMessage) -> None:
    parts = urlsplit(address)
    if parts.scheme not in _PORTS or not parts.hostname:
        raise UsageError(
            "NOTIFY_SMTP_URL is not a mail server.", hint="Write it as smtps://USER:PASSWORD@HOST:PORT."
        )
    port = parts.port or _PORTS[parts.scheme]
    try:
        with _connect(parts.scheme, parts.hostname, port) as server:
            if parts.username:
                password = unquote(parts.password or "")
                server.login(unquote(parts.username), password)
            server.send_message(message)
    except (OSError, smtplib.SMTPException) as problem:
        reason = type(problem).__name__
        raise ServiceError(f"The mail server refused the message: {reason}.") from problem
    console.done(f"notify: sent an e-mail to {message['To']}")


def _connect(scheme: str, host: str, port: int) -> smtplib.SMTP:
    """Return an encrypted connection to a mail server."""
    context = ssl.create_default_context()
    if scheme == "smtps":
        return smtplib.SMTP_SSL(host, port, context=context, timeout=_SECONDS)
    server = smtplib.SMTP(host, port, timeout=_SECONDS)
    try:
        server.starttls(context=context)
    except BaseException:
        server.close()
        raise
    return server
