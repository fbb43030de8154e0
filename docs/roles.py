"""Who may write what: tables and policies of `ci/roles.toml`.

`python -m docs.roles TYPE OWNER/REPOSITORY` prints each role's trust policy and permissions as JSON.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable, Mapping, Sequence
from fnmatch import fnmatchcase
from typing import Any

from pydantic import Field

from ci.publish.buckets import buckets
from core import console
from core.cli import exit_code
from core.cli.options import ROOT
from core.data import Model, data_file
from core.errors import UsageError, nearest
from docs.command_tables import table

_ISSUER = "token.actions.githubusercontent.com"
_PULL = "refs/pull/"
TEMPLATE = ROOT / "ci" / "publish" / "server" / "template.yaml"
_POLICIES = "  # --- what each role may do: of ci/roles.toml, by `nox -s docs` " + "-" * 35
_EVENTS = {
    "a fork's pull request": "",
    "a pull request of the repository's own branch": "refs/pull/7/merge",
    "another branch: push, merge queue, schedule, dispatch": "refs/heads/topic",
    "`release/**`: push, schedule, dispatch": "refs/heads/release/7.1",
    "`main`: push, schedule, dispatch": "refs/heads/main",
}
_PUT = ("s3:PutObject", "s3:AbortMultipartUpload")
# An upload in parts aborts what killed uploads of its key left. The right to list them is a bucket's.
_LIST_UNFINISHED = ("s3:ListBucketMultipartUploads",)
# of a key that exists; parts of a large file carry no condition, their completion does
_EXISTING = {"Null": {"s3:if-none-match": "true"}, "Bool": {"s3:ObjectCreationOperation": "true"}}


class Role(Model):
    """One role; `roles.toml` explains the keys."""

    about: str
    policy: str = ""
    given: tuple[str, ...] = ()
    where: str
    workflows: tuple[str, ...] = ()
    environment: str = ""
    refs: dict[str, tuple[str, ...]] = Field(default_factory=dict)
    reads: tuple[str, ...] = ()
    writes: tuple[str, ...] = ()
    deletes: tuple[str, ...] = ()
    once: tuple[str, ...] = ()
    never: tuple[str, ...] = ()
    shares: Mapping[str, str] = Field(default_factory=dict)
    shared: tuple[str, ...] = ()


class Roles(Model):
    """`roles.toml`."""

    without_upstream_code: tuple[str, ...]
    roles: dict[str, Role]


roles = data_file(ROOT / "ci" / "roles.toml", Roles)


def trust(role: Role, release_type: str, repository: str) -> Mapping[str, Any]:
    """Return who may assume a role: jobs of its files, in runs of its refs, in its environment or in none."""
    refs = role.refs.get(release_type, ())
    files = [f"{repository}/.github/workflows/{name}@{ref}" for name in role.workflows for ref in refs]
    branches = [f"repo:{repository}:ref:{ref}" for ref in refs if not ref.startswith(_PULL)]
    pulls = [f"repo:{repository}:pull_request"] if any(ref.startswith(_PULL) for ref in refs) else []
    named = [f"repo:{repository}:environment:{role.environment.format(type=release_type)}"]
    statement = {
        "Effect": "Allow",
        "Principal": {"Federated": f"arn:aws:iam::ACCOUNT:oidc-provider/{_ISSUER}"},
        "Action": "sts:AssumeRoleWithWebIdentity",
        "Condition": {
            "StringEquals": {f"{_ISSUER}:aud": "sts.amazonaws.com"},
            "StringLike": {
                f"{_ISSUER}:sub": named if role.environment else [*branches, *pulls],
                f"{_ISSUER}:job_workflow_ref": files,
            },
        },
    }
    return {"Version": "2012-10-17", "Statement": [statement] if files else []}


def permissions(role: Role, names: Mapping[str, str]) -> Sequence[Mapping[str, Any]]:
    """Return the statements of a role's policy; `names` are the buckets, and what patterns have in braces."""

    def places(patterns: Iterable[str], *, whole: bool = False) -> list[str]:
        found = [one.format(**names).partition(":") for one in patterns]
        return list(
            dict.fromkeys(
                f"arn:aws:s3:::{names[bucket]}{'' if whole else f'/{key}'}" for bucket, _, key in found
            )
        )

    touched = places((*role.reads, *role.writes, *role.deletes), whole=True)
    rows = (
        ("List", "Allow", ("s3:ListBucket",), touched),
        ("ListUnfinished", "Allow", _LIST_UNFINISHED, places(role.writes, whole=True)),
        ("Read", "Allow", ("s3:GetObject",), places(role.reads)),
        ("Write", "Allow", _PUT, places(role.writes)),
        ("Delete", "Allow", ("s3:DeleteObject",), places(role.deletes)),
        ("ReplaceNothing", "Deny", ("s3:PutObject",), places(role.once)),
        ("Never", "Deny", ("s3:PutObject", "s3:DeleteObject"), places(role.never)),
    )
    return [
        {
            "Sid": sid,
            "Effect": effect,
            "Action": list(actions),
            "Resource": resources,
            **({"Condition": _EXISTING} if sid == "ReplaceNothing" else {}),
        }
        for sid, effect, actions, resources in rows
        if resources
    ]


def names_of(release_type: str) -> Mapping[str, str]:
    """Return the buckets of a release type, by what `roles.toml` calls them."""
    runs, handed_out = buckets().release_types[release_type], buckets().distributions.get(release_type)
    return {
        "artifacts": runs.bucket,
        "external": runs.external_bucket or runs.bucket,
        "distribution": handed_out.bucket if handed_out else runs.bucket,
        "repository": "OWNER-NAME",
        "type": release_type,
    }


def managed_policies() -> str:
    """Write the managed policies of the server's template, which knows the buckets' names."""
    parameters = ("ArtifactsBucketName", "ExternalBucketName", "DistributionBucketName", "ExternalRepository")
    kinds = ("artifacts", "external", "distribution", "repository")
    names = {kind: f"${{{name}}}" for kind, name in zip(kinds, parameters, strict=True)}
    lines = []
    for name, one in roles().roles.items():
        if not one.policy:
            continue
        lines += [f"  {one.policy}:", "    Type: AWS::IAM::ManagedPolicy", "    Properties:"]
        lines += [f'      Description: "{name}: {one.about}"', "      PolicyDocument:"]
        lines += ['        Version: "2012-10-17"', "        Statement:"]
        for statement in permissions(one, {**names, "type": "${ReleaseType}"}):
            lines += [f"          - Sid: {statement['Sid']}", f"            Effect: {statement['Effect']}"]
            lines += [f"            Action: [{', '.join(statement['Action'])}]", "            Resource:"]
            found = [place.replace("arn:aws:", "arn:${AWS::Partition}:") for place in statement["Resource"]]
            lines += [f"              - !Sub {place}" for place in found]
            lines += _condition(statement.get("Condition", {}))
        lines.append("")
    return "\n".join(lines)


def _condition(conditions: Mapping[str, Mapping[str, str]]) -> list[str]:
    written = [
        f'              {json.dumps(name)}: {{{key}: "{value}"}}'
        for name, one in conditions.items()
        for key, value in one.items()
    ]
    return ["            Condition:", *written] if written else []


def template() -> str:
    """Return the server's template with the policies as they should be."""
    before, start, rest = TEMPLATE.read_text(encoding="utf-8").partition(f"{_POLICIES}\n")
    _, end, after = rest.partition("  # --- the buckets")
    return f"{before}{start}{managed_policies()}\n{end}{after}"


def event_table() -> str:
    """Write which roles the runs of an event may assume, by release type."""
    rows = []
    for event, ref in _EVENTS.items():
        found = {
            f"`{name}`": [
                kind for kind, refs in one.refs.items() if any(fnmatchcase(ref, each) for each in refs)
            ]
            for name, one in roles().roles.items()
        }
        written = "; ".join(f"{name} of {', '.join(kinds)}" for name, kinds in found.items() if kinds)
        rows.append((event, written or "none: GitHub gives its jobs no identity"))
    return "\n".join(table(("a run of", "may assume"), rows))


def role_table() -> str:
    """Write what each role reads, writes and deletes."""
    rows = [
        (
            f"`{name}`",
            one.about,
            _keys(one.reads),
            _keys(one.writes) + (f"; only where nothing is: {_keys(one.once)}" if one.once else ""),
            _keys(one.deletes),
            _keys(one.never),
        )
        for name, one in roles().roles.items()
    ]
    return "\n".join(table(("role", "for", "reads", "writes", "deletes", "never"), rows))


def assumption_table() -> str:
    """Write who may assume each role."""
    rows = [
        (
            f"`{name}`",
            one.where,
            ", ".join(f"`{file}`" for file in one.workflows) or "none",
            f"`{one.environment}`" if one.environment else "",
            "; ".join(f"{kind}: {' '.join(f'`{ref}`' for ref in refs)}" for kind, refs in one.refs.items()),
        )
        for name, one in roles().roles.items()
    ]
    columns = ("role", "named by", "jobs of", "environment", "runs of a release type, of these refs")
    return "\n".join(table(columns, rows))


def shared_table() -> str:
    """Write which roles have keys in common, and why."""
    rows = [
        (f"`{name}`", f"`{other}`", why)
        for name, one in roles().roles.items()
        for other, why in one.shares.items()
    ]
    return "\n".join(table(("role", "has keys of", "because"), rows))


def _keys(patterns: Iterable[str]) -> str:
    return " ".join(f"`{one}`" for one in patterns)


def main(words: Sequence[str]) -> int:
    """Print the policies of a release type's roles, for a repository."""
    return exit_code(lambda: _print(words))


def _print(words: Sequence[str]) -> None:
    release_type, repository = words if len(words) == 2 else ("", "")  # noqa: PLR2004 - two words
    if release_type not in buckets().release_types or "/" not in repository:
        known = nearest(release_type, buckets().release_types)
        raise UsageError(
            f"No policies for {' '.join(words)!r}. {known}", hint="python -m docs.roles TYPE OWNER/REPOSITORY"
        )
    found = {
        name: {
            "trust": trust(one, release_type, repository),
            "permissions": {"Version": "2012-10-17", "Statement": permissions(one, names_of(release_type))},
        }
        for name, one in roles().roles.items()
        if one.policy
    }
    console.result(json.dumps(found, indent=2))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
