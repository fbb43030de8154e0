"""Workflows, roles and policies held against each other, as an attacker reads them.

A job with a token can assume every role whose trust policy accepts its claims, whatever its steps say.
"""

import copy
import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from functools import cache
from itertools import product
from typing import Any

import pytest

from ci.plan import data
from ci.publish.buckets import buckets
from core.errors import UsageError
from docs.roles import Role, Roles, main, names_of, permissions, roles, trust
from tests.kit.workflow_files import EXPRESSION, Workflow, is_json_template, json_members, workflows

REPOSITORY = "ROCm/TheRock"
ISSUER = "token.actions.githubusercontent.com"
RELEASE_TYPES = ("ci", "dev", "nightly", "prerelease", "rehearsal", "release")
LEVELS = {"none": 0, "read": 1, "write": 2}
# `pull_request_target` and `workflow_run` give a fork's pull request the token of the branch it is for
EVENTS = {"push", "pull_request", "merge_group", "schedule", "workflow_dispatch", "workflow_call"}
# what a job of ours may use where a token is; none executes what was handed over
LOCAL_ACTIONS = ("setup", "credentials", "take_over", "hand_over", "attest")
ACTIONS = {
    "actions/checkout",
    "actions/download-artifact",
    *(f"./.github/actions/{name}" for name in LOCAL_ACTIONS),
}
RUN_MEMBER = re.compile(r"fromJSON\(inputs\.(\w+)\)\.(\w+)")


@dataclass(frozen=True, kw_only=True)
class Job:
    """One job of a run, as GitHub starts it: through whatever called its workflow.

    Attributes:
        path: The event, and the jobs that led to it.
        file: The workflow that it stands in.
        tree: The job as it is written.
        rights: The permissions that its token has.
        refused_rights: The permissions that it asks for, and that its caller does not give.
        inputs: What its workflow's inputs are, as expressions of the outermost workflow.
    """

    path: str
    file: str
    tree: Mapping[str, Any]
    rights: Mapping[str, str]
    refused_rights: Sequence[str]
    inputs: Mapping[str, str]

    @property
    def environment(self) -> str:
        """The name of its environment, with ``{type}`` for the release type."""
        return re.sub(r"\$.*release_type }}", "{type}", str(self.tree.get("environment", "")))

    @property
    def assumed_roles(self) -> set[str]:
        """The expressions of the roles that its steps assume, as the outermost workflow has them."""
        assumed: set[str] = set()
        for step in self.tree["steps"]:
            role = step.get("with", {}).get("role")
            if role:
                assumed.add(resolve(role, self.inputs))
        return assumed

    def foreign_code(self, harmless_sessions: Sequence[str]) -> Iterator[str]:
        """Yield what its steps do that may run others' code."""
        for step in self.tree["steps"]:
            command = step.get("run", "")
            for session in sessions_of(command):
                if not is_harmless(session, command, harmless_sessions):
                    yield session
            if "uses" in step and step["uses"].partition("@")[0] not in ACTIONS:
                yield step["uses"]
        if self.tree["runs-on"] != "ubuntu-24.04" or "container" in self.tree:
            yield "a machine that is not GitHub's own"


def sessions_of(command: str) -> Sequence[str]:
    """Return the sessions that a call of nox names."""
    sessions: list[str] = []
    for argument in command.split()[2:]:
        if argument.startswith("-"):
            break
        sessions.append(argument)
    return sessions


def is_harmless(session: str, command: str, harmless_sessions: Sequence[str]) -> bool:
    """Return whether a session runs none of upstream's code; for some, one of its options decides."""
    for harmless in harmless_sessions:
        name, _, option = harmless.partition(" ")
        if name == session and option in command:
            return True
    return False


def resolve(value: str, inputs: Mapping[str, str]) -> str:
    """Return an input's value or expression as the outermost workflow has it."""
    if is_json_template(value):
        return value
    match = EXPRESSION.fullmatch(value.strip())
    # A job without a first one has an empty plan.
    expression = match[1].strip().replace(" || '{}'", "") if match else value

    member = RUN_MEMBER.fullmatch(expression)
    if member and member[1] in inputs:
        input_value = inputs[member[1]]
        if is_json_template(input_value):
            return json_members(input_value)[member[2]].removeprefix("toJSON(").removesuffix(")")
        return f"fromJSON({input_value}).{member[2]}"
    return inputs.get(expression.removeprefix("inputs."), expression)


def called_jobs(
    files: Mapping[str, Workflow], file: str, caller: Job | None = None, path: str = ""
) -> Iterator[Job]:
    """Yield the jobs of a workflow and of those that it calls, with what is left of each one's rights."""
    workflow = files[file]
    inputs = caller.inputs if caller else {}
    for name, tree in workflow.jobs.items():
        requested = tree.get("permissions", workflow.tree.get("permissions", {"id-token": "write"}))
        rights = {scope: granted(scope, level, caller) for scope, level in requested.items()}
        passed_inputs = {key: resolve(str(value), inputs) for key, value in tree.get("with", {}).items()}
        job = Job(
            path=f"{path} > {file}, {name}",
            file=file,
            tree=tree,
            rights=rights,
            refused_rights=[scope for scope in rights if rights[scope] != requested[scope]],
            inputs=passed_inputs or inputs,
        )
        if "uses" in tree:
            yield from called_jobs(files, tree["uses"].rpartition("/")[2], job, job.path)
        else:
            yield job


def granted(scope: str, level: str, caller: Job | None) -> str:
    """Return the level that a job has of a permission: never more than who calls it."""
    if caller is None:
        return level
    return min(level, caller.rights.get(scope, "none"), key=LEVELS.__getitem__)


def jobs_of_event(files: Mapping[str, Workflow], event: str) -> Iterator[Job]:
    """Yield the jobs that an event may start."""
    for file, workflow in files.items():
        if event in workflow.on:
            yield from called_jobs(files, file, path=event)


def claims(file: str, ref: str, environment: str) -> Mapping[str, str]:
    """Return what a job's token says."""
    subject = f"repo:{REPOSITORY}:ref:{ref}"
    if ref.startswith("refs/pull/"):
        subject = f"repo:{REPOSITORY}:pull_request"
    if environment:
        subject = f"repo:{REPOSITORY}:environment:{environment}"
    return {
        f"{ISSUER}:aud": "sts.amazonaws.com",
        f"{ISSUER}:sub": subject,
        f"{ISSUER}:job_workflow_ref": f"{REPOSITORY}/.github/workflows/{file}@{ref}",
    }


# A file, an environment and a release type -> the roles that a job with them may assume on `main`.
ReachableRoles = Callable[[str, str, str], set[str]]


def accepts(role: Role, release_type: str, token: Mapping[str, str]) -> bool:
    """Return whether a role's trust policy accepts a token, as IAM compares them."""
    statements = trust(role, release_type, REPOSITORY)["Statement"]
    if not statements:
        return False
    (statement,) = statements
    conditions: dict[str, list[str]] = {}
    for comparison in statement["Condition"].values():
        for key, patterns in comparison.items():
            conditions[key] = [*patterns] if isinstance(patterns, list) else [patterns]

    assert len(conditions) == 3
    return all(matches_any(token[key], patterns) for key, patterns in conditions.items())


def matches_any(text: str, patterns: Iterable[str]) -> bool:
    """Return whether a text matches one of some patterns."""
    return any(fnmatchcase(text, pattern) for pattern in patterns)


def reachable_roles(role_data: Roles, release_type: str, token: Mapping[str, str]) -> set[str]:
    """Return the roles that whoever has a token may assume."""
    return {name for name, role in role_data.roles.items() if accepts(role, release_type, token)}


def faults(files: Mapping[str, Workflow], role_data: Roles) -> set[str]:
    """Return what is wrong, from every event through every workflow that is called."""
    messages: set[str] = set(overlaps(role_data))

    # Many jobs are called by many events, and ask the same.
    @cache
    def reachable_from(file: str, environment: str, release_type: str) -> set[str]:
        return reachable_roles(role_data, release_type, claims(file, "refs/heads/main", environment))

    for event in sorted({event for workflow in files.values() for event in workflow.on}):
        if event not in EVENTS:
            messages.add(f"nobody has thought about the event {event}")
        for job in jobs_of_event(files, event):
            messages.update(faults_of_job(job, role_data, reachable_from))
    return messages


def faults_of_job(job: Job, role_data: Roles, reachable_from: ReachableRoles) -> Iterator[str]:
    """Yield what is wrong with one job."""
    if "write" in job.rights.values():
        for code in job.foreign_code(role_data.without_upstream_code):
            yield f"{job.path}: {code} beside a token"
    if job.refused_rights:
        yield f"{job.path}: asks for {job.refused_rights}, which who calls does not give"
    if job.rights.get("id-token") == "write":
        yield from role_faults(job, role_data, reachable_from)
    else:
        for role in job.assumed_roles:
            yield f"{job.path}: no token for {role}"


def role_faults(job: Job, role_data: Roles, reachable_from: ReachableRoles) -> Iterator[str]:
    """Compare the roles that a job could assume on `main` with those that its steps assume."""
    own_roles: dict[str, Role] = {}
    expressions: set[str] = set()
    for name, role in role_data.roles.items():
        if job.assumed_roles & {*role.given} and role.environment == job.environment:
            own_roles[name] = role
            expressions.update(role.given)

    if not job.assumed_roles or not job.assumed_roles <= expressions:
        yield f"{job.path}: a token for {job.assumed_roles or 'nothing'}, and no role is given so here"
    for release_type in RELEASE_TYPES:
        reachable = reachable_from(job.file, job.environment.format(type=release_type), release_type)
        assumed = {name for name, role in own_roles.items() if release_type in role.refs}
        if reachable != assumed:
            yield (
                f"{job.path}: assumes {sorted(assumed)} of {release_type} "
                f"and could assume {sorted(reachable)}"
            )


@cache
def overlap(first: str, second: str) -> bool:
    """Return whether two patterns with * have a text in common."""
    if not first or not second:
        return not (first + second).strip("*")
    if first[0] == "*":
        return overlap(first[1:], second) or overlap(first, second[1:])
    if second[0] == "*":
        return overlap(second, first)
    return first[0] == second[0] and overlap(first[1:], second[1:])


def place(pattern: str) -> str:
    """Read a pattern as if runs, staging and releases were in one bucket, as a downstream has them."""
    bucket, _, key = pattern.format(type="nightly", repository="me-wheels").partition(":")
    if bucket in {"artifacts", "distribution"}:
        bucket = "own"
    return f"{bucket}/{key}"


def places(patterns: Iterable[str]) -> list[str]:
    """Return each of some patterns in the one bucket."""
    return [place(pattern) for pattern in patterns]


def is_shared(pattern: str, role: Role, other_name: str) -> bool:
    """Return whether a role says that it writes keys of this pattern beside another role."""
    if other_name not in role.shares:
        return False
    return not role.shared or pattern in places(role.shared)


def overlaps(role_data: Roles) -> Iterator[str]:
    """Yield the roles that could write what another one owns; what a role may never write is not its own."""
    for (name, role), (owner_name, owner) in product(role_data.roles.items(), repeat=2):
        if name == owner_name:
            continue
        denied_keys = places([*role.never, *owner.never])
        written_keys = places([*role.writes, *role.deletes])
        for key, owned_key in product(written_keys, places(owner.writes)):
            if matches_any(key, denied_keys) or matches_any(owned_key, denied_keys):
                continue
            if is_shared(key, role, owner_name) or is_shared(owned_key, owner, name):
                continue
            if overlap(key, owned_key):
                yield f"{name} could write {owned_key} of {owner_name}"


def test_workflows_roles_and_policies_agree() -> None:
    assert not faults(workflows(), roles())

    jobs = [job for event in EVENTS for job in jobs_of_event(workflows(), event)]
    paths_with_token = {job.path for job in jobs if "id-token" in job.rights}
    assert len(paths_with_token) > 50


def changed(file: str, job: str, **values: Any) -> Mapping[str, Workflow]:
    """Return the workflows with one job changed; a value that is empty is left out of it."""
    workflow = workflows()[file]
    files = {**workflows(), file: replace(workflow, tree=copy.deepcopy(workflow.tree))}
    tree: Any = files[file].jobs[job]
    for key, value in values.items():
        if value:
            tree[key] = value
        else:
            tree.pop(key)
    return files


BUILD = "build_pytorch.yml"
TEST = "test_pytorch.yml"
RELEASE = "release.yml"
TOKEN = {"contents": "read", "id-token": "write"}
PUSH = {"packages": "write"}


@pytest.mark.parametrize(
    ("files", "fault"),
    [
        (changed(BUILD, "build", permissions=TOKEN), r"\$SESSIONS beside a token"),
        (changed(TEST, "test", permissions=TOKEN), "!SESSIONS! beside a token"),
        (changed(RELEASE, "promote", environment=""), "assumes .* and could assume"),
        (changed(RELEASE, "promote", environment="nightly-staging"), "could assume"),
        (changed("publish.yml", "publish", permissions={"contents": "read"}), "no token for"),
        (changed("publish.yml", "publish", permissions={**TOKEN, "packages": "write"}), "asks for"),
        (changed("drift.yml", "drift", permissions=TOKEN), "upstream beside a token"),
        (changed("therock-nightly.yml", "build-therock-docker", permissions=PUSH), "build_image"),
    ],
)
def test_finds_a_mistake_in_a_workflow(files: Mapping[str, Workflow], fault: str) -> None:
    assert re.search(fault, "\n".join(faults(files, roles())))


def test_a_job_without_rights_has_those_of_its_caller() -> None:
    files = changed(BUILD, "build", permissions=None)
    tree: Any = files[BUILD].tree
    tree.pop("permissions")

    assert [fault for fault in faults(files, roles()) if "beside a token" in fault]


def test_a_role_is_followed_through_the_json_that_a_dispatch_writes() -> None:
    paths = [
        (job.path, job.assumed_roles)
        for job in jobs_of_event(workflows(), "workflow_dispatch")
        if job.path.startswith("workflow_dispatch > test_rocm_wheels.yml") and job.file == "publish.yml"
    ]

    assert [roles_of_job for _path, roles_of_job in paths] == [{"inputs.aws_role"}]


@pytest.mark.parametrize(
    ("name", "change", "fault"),
    [
        ("run-outputs", {"writes": ("artifacts:*",), "never": ()}, "could write own/manifests/decisions/"),
        ("run-outputs", {"never": ()}, "run-outputs could write own/v2/"),
        ("staging", {"writes": ("distribution:manifests/*",)}, "could write own/manifests/promoting/"),
        ("promotion", {"writes": ("distribution:v2-staging/*.whl",)}, "could write own/v2-staging/"),
        ("retention", {"never": ()}, "retention could write own/v2/"),
        ("promotion", {"environment": ""}, "could assume"),
        ("compiler-cache", {"writes": ("artifacts:*/nightly/*",)}, "compiler-cache could write"),
        ("read", {"workflows": ("publish.yml",)}, "could assume"),
    ],
)
def test_finds_a_mistake_in_a_role(name: str, change: Mapping[str, Any], fault: str) -> None:
    mistaken_role = roles().roles[name].model_copy(update=change)
    role_data = roles().model_copy(update={"roles": {**roles().roles, name: mistaken_role}})

    assert fault in "\n".join(faults(workflows(), role_data))


ANYWHERE = [*workflows(), "mine.yml"]
RUNS = {"run-outputs", "read"}
BRANCH = {"ci": RUNS, "dev": RUNS | {"staging", "promotion"}}


@pytest.mark.parametrize(
    ("ref", "most"),
    [
        ("refs/heads/evil", BRANCH),
        ("refs/heads/main-2", BRANCH),
        ("refs/pull/7/merge", {"ci": RUNS}),
        ("refs/tags/v1", {}),
    ],
)
def test_the_files_of_a_ref_do_not_decide_what_it_may_write(ref: str, most: Mapping[str, set[str]]) -> None:
    """Who may push a branch edits its workflows as they like, and names any environment."""
    role_data = roles()
    for release_type in RELEASE_TYPES:
        environments = {""}
        for role in role_data.roles.values():
            environments.add(role.environment.format(type=release_type))

        reachable: set[str] = set()
        for file, environment in product(ANYWHERE, environments):
            reachable |= reachable_roles(role_data, release_type, claims(file, ref, environment))
        assert reachable == most.get(release_type, set()), release_type


def test_releases_are_promoted_in_their_environment_alone() -> None:
    role = roles().roles["promotion"]
    refs = ("refs/heads/main", "refs/heads/release/7.1", "refs/pull/7/merge")
    for release_type, file, ref in product(role.refs, ANYWHERE, refs):
        other_environments = {"", *role.refs}
        for other_role in roles().roles.values():
            other_environments.add(other_role.environment.format(type=release_type))
        other_environments.discard(release_type)
        for environment in other_environments:
            assert not accepts(role, release_type, claims(file, ref, environment))


def test_a_rehearsal_has_no_bucket_of_releases_and_no_role() -> None:
    assert not [name for name, role in roles().roles.items() if "rehearsal" in role.refs]
    assert "rehearsal" not in buckets().release_types
    assert not buckets().distributions["rehearsal"].bucket
    assert "rehearsal" not in "".join(workflow.text for workflow in workflows().values())


def test_only_long_lived_branches_release() -> None:
    long_lived_branches = data.load().triggers.long_lived_branches
    refs = {f"refs/heads/{branch.replace('**', '*')}" for branch in long_lived_branches}
    for role in roles().roles.values():
        for release_type in {*role.refs} - {"ci", "dev"}:
            assert {*role.refs[release_type]} <= refs


def test_compiler_caches_are_written_by_no_job_and_by_one_release_type() -> None:
    cache = roles().roles["compiler-cache"]
    assert not cache.workflows
    text = "\n".join(workflow.text for workflow in workflows().values())
    assert not re.search(r"COMPILER_CACHE_ROLE|SCCACHE_|actions/cache@", text)

    written_keys: list[str] = []
    for release_type in ("ci", "nightly"):
        for statement in permissions(cache, {**names_of(release_type), "artifacts": "b"}):
            if "s3:PutObject" in statement["Action"]:
                written_keys += statement["Resource"]
    assert not overlap(*written_keys)


def test_policies_are_printed_for_a_repository(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["nightly", "me/wheels"]) == 0
    printed = json.loads(capsys.readouterr().out)
    assert "me/wheels/.github/workflows/publish.yml@refs/heads/main" in str(printed["run-outputs"]["trust"])
    assert main(["nightly"]) == main(["nightl", "me/wheels"]) == UsageError.exit_code
