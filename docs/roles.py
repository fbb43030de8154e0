"""Who may write what: tables and policies of `ci/roles.toml`.

`python -m docs.roles TYPE OWNER/REPOSITORY` prints each role's trust policy and permissions as JSON.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable, Mapping, Sequence
from fnmatch import fnmatchcase
from typing import Any, TypeAlias

from pydantic import Field

from ci.publish.buckets import buckets
from core import console
from core.cli import exit_code
from core.cli.options import ROOT
from core.data import Model, data_file
from core.errors import UsageError, nearest
from docs.markdown import Table, code, codes

TEMPLATE = ROOT / "ci" / "publish" / "server" / "template.yaml"
# In the template, the policies stand between these two lines.
_POLICIES = "  # --- what each role may do: of ci/roles.toml, by `nox -s docs` " + "-" * 35 + "\n"
_END_OF_POLICIES = "  # --- the buckets"

_ISSUER = "token.actions.githubusercontent.com"
_VERSION = "2012-10-17"  # of IAM's policy language

_PULL_REQUEST = "refs/pull/"
_EVENTS: Mapping[str, str] = {
    "a fork's pull request": "",
    "a pull request of the repository's own branch": "refs/pull/7/merge",
    "another branch: push, merge queue, schedule, dispatch": "refs/heads/topic",
    "`release/**`: push, schedule, dispatch": "refs/heads/release/7.1",
    "`main`: push, schedule, dispatch": "refs/heads/main",
}

# An upload in parts aborts what killed uploads of its key left. The right to list them is a bucket's.
_PUT = ("s3:PutObject", "s3:AbortMultipartUpload")
_LIST_UNFINISHED = ("s3:ListBucketMultipartUploads",)
# Of a key that exists; parts of a large file carry no condition, their completion does.
_EXISTING = {
    "Null": {"s3:if-none-match": "true"},
    "Bool": {"s3:ObjectCreationOperation": "true"},
}

Statement: TypeAlias = Mapping[str, Any]


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


# --- Policies


def trust(
    role: Role,
    release_type: str,
    repository: str,
) -> Mapping[str, Any]:
    """Return who may assume a role: jobs of its files, in runs of its refs, in its environment or in none."""
    workflow_files: list[str] = []
    branches: list[str] = []
    pull_requests: list[str] = []
    refs = role.refs.get(release_type, ())
    for ref in refs:
        if ref.startswith(_PULL_REQUEST):
            pull_requests = [f"repo:{repository}:pull_request"]
        else:
            branches.append(f"repo:{repository}:ref:{ref}")
    for workflow in role.workflows:
        workflow_files += [f"{repository}/.github/workflows/{workflow}@{ref}" for ref in refs]
    if not workflow_files:
        return {"Version": _VERSION, "Statement": []}

    subjects = branches + pull_requests
    if role.environment:
        environment = role.environment.format(type=release_type)
        subjects = [f"repo:{repository}:environment:{environment}"]
    statement = {
        "Effect": "Allow",
        "Principal": {"Federated": f"arn:aws:iam::ACCOUNT:oidc-provider/{_ISSUER}"},
        "Action": "sts:AssumeRoleWithWebIdentity",
        "Condition": {
            "StringEquals": {f"{_ISSUER}:aud": "sts.amazonaws.com"},
            "StringLike": {
                f"{_ISSUER}:sub": subjects,
                f"{_ISSUER}:job_workflow_ref": workflow_files,
            },
        },
    }
    return {"Version": _VERSION, "Statement": [statement]}


def permissions(role: Role, names: Mapping[str, str]) -> Sequence[Statement]:
    """Return the statements of a role's policy; `names` are the buckets, and what patterns have in braces."""
    touched_patterns = [*role.reads, *role.writes, *role.deletes]
    once = _keys(role.once, names)
    statements = [
        _statement(
            "List",
            ("s3:ListBucket",),
            _buckets(touched_patterns, names),
        ),
        _statement(
            "ListUnfinished",
            _LIST_UNFINISHED,
            _buckets(role.writes, names),
        ),
        _statement(
            "Read",
            ("s3:GetObject",),
            _keys(role.reads, names),
        ),
        _statement(
            "Write",
            _PUT,
            _keys(role.writes, names),
        ),
        _statement(
            "Delete",
            ("s3:DeleteObject",),
            _keys(role.deletes, names),
        ),
        {
            **_denial(
                "ReplaceNothing",
                ("s3:PutObject",),
                once,
            ),
            "Condition": _EXISTING,
        },
        _denial(
            "Never",
            ("s3:PutObject", "s3:DeleteObject"),
            _keys(role.never, names),
        ),
    ]
    return [statement for statement in statements if statement["Resource"]]


def _statement(
    sid: str,
    actions: Sequence[str],
    resources: Sequence[str],
) -> Statement:
    return {
        "Sid": sid,
        "Effect": "Allow",
        "Action": list(actions),
        "Resource": list(resources),
    }


def _denial(
    sid: str,
    actions: Sequence[str],
    resources: Sequence[str],
) -> Statement:
    return {
        **_statement(
            sid,
            actions,
            resources,
        ),
        "Effect": "Deny",
    }


def _keys(patterns: Iterable[str], names: Mapping[str, str]) -> Sequence[str]:
    """Return the keys of patterns, each in its bucket."""
    keys: list[str] = []
    for pattern in patterns:
        pattern_of_key = pattern.format(**names)
        bucket, _, key = pattern_of_key.partition(":")
        arn = _bucket_arn(bucket, names)
        keys.append(f"{arn}/{key}")
    return list(dict.fromkeys(keys))


def _buckets(patterns: Iterable[str], names: Mapping[str, str]) -> Sequence[str]:
    """Return the buckets of patterns."""
    arns: list[str] = []
    for pattern in patterns:
        bucket, _, _ = pattern.partition(":")
        arns.append(_bucket_arn(bucket, names))
    return list(dict.fromkeys(arns))


def _bucket_arn(bucket: str, names: Mapping[str, str]) -> str:
    return f"arn:aws:s3:::{names[bucket]}"


def names_of(release_type: str) -> Mapping[str, str]:
    """Return the buckets of a release type, by what `roles.toml` calls them."""
    runs = buckets().release_types[release_type]
    distribution_bucket = runs.bucket
    distribution = buckets().distributions.get(release_type)
    if distribution is not None:
        distribution_bucket = distribution.bucket
    return {
        "artifacts": runs.bucket,
        "external": runs.external_bucket or runs.bucket,
        "distribution": distribution_bucket,
        "repository": "OWNER-NAME",
        "type": release_type,
    }


# --- The server's template

_PARAMETERS: Mapping[str, str] = {
    "artifacts": "${ArtifactsBucketName}",
    "external": "${ExternalBucketName}",
    "distribution": "${DistributionBucketName}",
    "repository": "${ExternalRepository}",
    "type": "${ReleaseType}",
}


def template() -> str:
    """Return the server's template with the policies as they should be."""
    text = TEMPLATE.read_text(encoding="utf-8")
    beginning, _, remainder = text.partition(_POLICIES)
    _, _, ending = remainder.partition(_END_OF_POLICIES)
    policies = managed_policies()
    return f"{beginning}{_POLICIES}{policies}\n{_END_OF_POLICIES}{ending}"


def managed_policies() -> str:
    """Write the managed policies of the server's template, which knows the buckets' names."""
    lines: list[str] = []
    for name, role in roles().roles.items():
        if not role.policy:
            continue
        lines += [
            f"  {role.policy}:",
            "    Type: AWS::IAM::ManagedPolicy",
            "    Properties:",
            f'      Description: "{name}: {role.about}"',
            "      PolicyDocument:",
            f'        Version: "{_VERSION}"',
            "        Statement:",
        ]
        for statement in permissions(role, _PARAMETERS):
            lines += _lines_of_statement(statement)
        lines.append("")
    return "\n".join(lines)


def _lines_of_statement(statement: Statement) -> Sequence[str]:
    """Write a statement in YAML."""
    actions = ", ".join(statement["Action"])
    lines = [
        f"          - Sid: {statement['Sid']}",
        f"            Effect: {statement['Effect']}",
        f"            Action: [{actions}]",
        "            Resource:",
    ]
    for resource in statement["Resource"]:
        arn = resource.replace("arn:aws:", "arn:${AWS::Partition}:")
        lines.append(f"              - !Sub {arn}")

    conditions = statement.get("Condition", {})
    if conditions:
        lines.append("            Condition:")
    for operator, condition in conditions.items():
        for key, value in condition.items():
            comparison = f'{{{key}: "{value}"}}'
            lines.append(f'              "{operator}": {comparison}')
    return lines


# --- Tables


def event_table() -> str:
    """Write which roles the runs of an event may assume, by release type."""
    table = Table("a run of", "may assume")
    for event, ref in _EVENTS.items():
        texts: list[str] = []
        for name, role in roles().roles.items():
            release_types = ", ".join(_release_types_of(role, ref))
            if release_types:
                texts.append(f"`{name}` of {release_types}")
        assumed_roles = "; ".join(texts)
        table.add(event, assumed_roles or "none: GitHub gives its jobs no identity")
    return str(table)


def _release_types_of(role: Role, ref: str) -> Sequence[str]:
    """Return the release types that a role has in runs of a ref."""
    release_types: list[str] = []
    for release_type, patterns in role.refs.items():
        if any(fnmatchcase(ref, pattern) for pattern in patterns):
            release_types.append(release_type)
    return release_types


def role_table() -> str:
    """Write what each role reads, writes and deletes."""
    table = Table(
        "role",
        "for",
        "reads",
        "writes",
        "deletes",
        "never",
    )
    for name, role in roles().roles.items():
        writes = codes(role.writes, " ")
        if role.once:
            once = codes(role.once, " ")
            writes = f"{writes}; only where nothing is: {once}"
        table.add(
            code(name),
            role.about,
            codes(role.reads, " "),
            writes,
            codes(role.deletes, " "),
            codes(role.never, " "),
        )
    return str(table)


def assumption_table() -> str:
    """Write who may assume each role."""
    table = Table(
        "role",
        "named by",
        "jobs of",
        "environment",
        "runs of a release type, of these refs",
    )
    for name, role in roles().roles.items():
        texts: list[str] = []
        for release_type, refs in role.refs.items():
            names_of_refs = codes(refs, " ")
            texts.append(f"{release_type}: {names_of_refs}")
        table.add(
            code(name),
            role.where,
            codes(role.workflows) or "none",
            codes(filter(None, (role.environment,))),
            "; ".join(texts),
        )
    return str(table)


def shared_table() -> str:
    """Write which roles have keys in common, and why."""
    table = Table(
        "role",
        "has keys of",
        "because",
    )
    for name, role in roles().roles.items():
        for other_name, reason in role.shares.items():
            table.add(
                code(name),
                code(other_name),
                reason,
            )
    return str(table)


# --- The command


def main(words: Sequence[str]) -> int:
    """Print the policies of a release type's roles, for a repository."""
    return exit_code(lambda: _print_policies(words))


def _print_policies(words: Sequence[str]) -> None:
    release_types = buckets().release_types
    call = " ".join(words)
    release_type, _, repository = call.partition(" ")
    if release_type not in release_types or "/" not in repository:
        suggestion = nearest(release_type, release_types)
        raise UsageError(
            f"No policies for {call!r}. {suggestion}",
            hint="python -m docs.roles TYPE OWNER/REPOSITORY",
        )

    policies: dict[str, Mapping[str, Any]] = {}
    for name, role in roles().roles.items():
        if role.policy:
            statements = permissions(role, names_of(release_type))
            policies[name] = {
                "trust": trust(
                    role,
                    release_type,
                    repository,
                ),
                "permissions": {"Version": _VERSION, "Statement": statements},
            }
    console.result(json.dumps(policies, indent=2))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
