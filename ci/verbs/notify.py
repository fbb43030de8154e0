"""`notify`: how a run ended: told to people in its summary, and to others where that is configured."""

from __future__ import annotations

import json
import smtplib
import ssl
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import unquote, urlsplit

import urllib3

from ci import notices
from core import console
from core.cli.options import common_from, environment
from core.data import Model, load_toml
from core.errors import CheckError, FatalError, ServiceError, UsageError
from core.run import records
from core.run.plan import PLATFORMS

if TYPE_CHECKING:
    import argparse
    from collections.abc import Mapping, Sequence
    from email.message import EmailMessage

    from ci.notices import Failure, RunResult
    from core.cli.options import Common

POLICY_FILE = Path(__file__).parents[1] / "notify.toml"
_SECONDS = 30.0
_OK = 200
_PORTS = {"smtp": 587, "smtps": 465}


class Policy(Model):
    """What `notify.toml` says."""

    events: tuple[str, ...]


@dataclass(frozen=True, kw_only=True)
class Places:
    """Where messages go; "" and nothing for what is not configured."""

    slack: str = ""
    smtp: str = ""
    email: tuple[str, ...] = ()


def add_options(parser: argparse.ArgumentParser) -> None:
    """Declare the verb's own options."""
    parser.add_argument(
        "--require-success", action="store_true", help="fail if anything failed, after telling it"
    )
    parser.add_argument("--always", action="store_true", help="send, whatever the event and the result")
    parser.epilog = "NEEDS holds toJSON(needs), the results of the workflow's jobs."


def run(arguments: argparse.Namespace) -> None:
    """Gather, tell, and send."""
    common, env = common_from(arguments), environment()
    if not env.get("NEEDS"):
        raise UsageError("There is no result to tell.", hint="Give NEEDS: toJSON(needs) of the workflow.")
    needs = notices.read_needs(env["NEEDS"])
    jobs = _failures(common, env) if notices.may_have_failed(needs) else ()
    result = notices.result_of(_title(env), needs, jobs=jobs, url=_url(env))
    _show(result, needs)
    wanted = arguments.always or is_told(load_toml(POLICY_FILE, Policy), env, result)
    if wanted:
        send(result, places(env), dry_run=common.dry_run)
    if arguments.require_success and not result.ok:
        raise CheckError(f"{notices.headline(result)}.", hint="See the jobs that failed.")


def is_told(policy: Policy, env: Mapping[str, str], result: RunResult) -> bool:
    """Say whether others are told: of failures, on the events of the policy."""
    return bool(result.failures) and env.get("GITHUB_EVENT_NAME", "") in policy.events


def places(env: Mapping[str, str]) -> Places:
    """Read where messages go."""
    return Places(
        slack=env.get("NOTIFY_SLACK_WEBHOOK", ""),
        smtp=env.get("NOTIFY_SMTP_URL", ""),
        email=tuple(one.strip() for one in env.get("NOTIFY_EMAIL", "").split(",") if one.strip()),
    )


def send(result: RunResult, to: Places, *, dry_run: bool = False) -> None:
    """Send what is configured; a message that cannot be sent is a warning, as the run's result is not its."""
    payload = notices.slack(result)
    message = notices.email(result, sender=to.email[0], to=to.email) if to.email else None
    if dry_run:
        console.result(json.dumps(payload, indent=2, ensure_ascii=False))
        console.result(message.as_string() if message else "no e-mail: NOTIFY_EMAIL names nobody")
        return
    if not (to.slack or (to.smtp and message)):
        console.say("notify: nobody is told, as no webhook and no mail server is configured")
    try:
        if to.slack:
            _post(to.slack, payload)
        if to.smtp and message:
            _mail(to.smtp, message)
    except FatalError as problem:
        console.warn(str(problem), title="notify")


def _failures(common: Common, env: Mapping[str, str]) -> Sequence[Failure]:
    """Give what failed: as GitHub says, else as the run's records do."""
    token, run_id = env.get("GITHUB_TOKEN"), env.get("GITHUB_RUN_ID")
    if token and run_id:
        from ci.github import from_environment

        try:
            found = from_environment(env).failed_jobs(env.get("GITHUB_REPOSITORY", ""), run_id)
        except FatalError as problem:
            console.warn(f"GitHub cannot say what failed: {problem.message}", title="notify")
        else:
            if found:
                return found
    return _recorded(common)


def _recorded(common: Common) -> Sequence[Failure]:
    found: list[Failure] = []
    for platform in PLATFORMS:
        there = replace(common, platform=platform)
        try:
            store, outputs = there.open_for_reading(), there.outputs
            # a group all of whose builds failed has records and no wheels
            keys = [one.key for one in store.list(outputs.manifests_prefix(""))]
            names = [key.removeprefix(outputs.manifests_prefix("")).lstrip("/") for key in keys]
            for group in sorted({name.partition("/")[0] for name in names if "/" in name}):
                found += notices.of_records(records.read_all(store, outputs, group))
        except FatalError as problem:
            console.warn(f"The run's records cannot be read: {problem.message}", title="notify")
    return found


def _title(env: Mapping[str, str]) -> str:
    name = env.get("GITHUB_WORKFLOW") or "The run"
    where = " ".join(
        part
        for part in (
            f"of {env['GITHUB_REPOSITORY']}" if env.get("GITHUB_REPOSITORY") else "",
            f"({env['GITHUB_EVENT_NAME']}, {env.get('GITHUB_REF_NAME', '')})"
            if env.get("GITHUB_EVENT_NAME")
            else "",
        )
        if part
    )
    return f"{name} {where}".strip()


def _url(env: Mapping[str, str]) -> str:
    if not (env.get("GITHUB_RUN_ID") and env.get("GITHUB_REPOSITORY")):
        return ""
    server = env.get("GITHUB_SERVER_URL") or "https://github.com"
    return f"{server}/{env['GITHUB_REPOSITORY']}/actions/runs/{env['GITHUB_RUN_ID']}"


def _show(result: RunResult, needs: Mapping[str, str]) -> None:
    console.table(("job", "result"), list(needs.items()))
    console.table(("failed", "first line"), [(one.name, one.error) for one in result.failures])
    console.summary(notices.markdown(result))
    (console.done if result.ok else console.error)(notices.headline(result))


def _post(address: str, payload: Mapping[str, object]) -> None:
    console.add_mask(address)  # who has it can write to the channel
    try:
        answer = urllib3.request("POST", address, json=dict(payload), timeout=_SECONDS, retries=False)
    except urllib3.exceptions.HTTPError as problem:
        raise ServiceError(f"Slack cannot be reached: {type(problem).__name__}.") from problem
    if answer.status != _OK:
        said = answer.data.decode(errors="replace")[:200]
        raise ServiceError(f"Slack refuses the message: status {answer.status}, {said}.")
    console.done("notify: told Slack")


def _mail(address: str, message: EmailMessage) -> None:
    parts = urlsplit(address)
    if parts.scheme not in _PORTS or not parts.hostname:
        raise UsageError(
            "NOTIFY_SMTP_URL is no mail server.", hint="Write it as smtps://USER:PASSWORD@HOST:PORT."
        )
    port = parts.port or _PORTS[parts.scheme]
    context = ssl.create_default_context()
    try:
        if parts.scheme == "smtps":
            server: smtplib.SMTP = smtplib.SMTP_SSL(parts.hostname, port, timeout=_SECONDS, context=context)
        else:
            server = smtplib.SMTP(parts.hostname, port, timeout=_SECONDS)
        with server:
            if parts.scheme == "smtp":
                server.starttls(context=context)
            if parts.username:
                server.login(unquote(parts.username), unquote(parts.password or ""))
            server.send_message(message)
    except (OSError, smtplib.SMTPException) as problem:
        raise ServiceError(
            f"The mail server does not take the message: {type(problem).__name__}."
        ) from problem
    console.done(f"notify: sent an e-mail to {message['To']}")
