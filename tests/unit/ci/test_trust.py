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
from itertools import permutations, product
from typing import Any

import pytest

from ci.plan import data
from ci.publish.buckets import buckets
from core.errors import UsageError
from docs.roles import Role, Roles, main, names_of, permissions, roles, trust
from tests.kit.workflow_files import (
    EXPRESSION,
    Workflow,
    is_json_template,
    json_members,
    text_of_workflows,
    workflows,
)

REPOSITORY = "ROCm/TheRock"
ISSUER = "token.actions.githubusercontent.com"
RELEASE_TYPES = ("ci", "dev", "nightly", "prerelease", "rehearsal", "release")
LEVELS = {"none": 0, "read": 1, "write": 2}
# `pull_request_target` and `workflow_run` give a fork's pull request the token of the branch it is for
EVENTS = {"push", "pull_request", "merge_group", "schedule", "workflow_dispatch", "workflow_call"}
# what a job of ours may use where a token is; none executes what was handed over
HARMLESS_ACTIONS = {
    "actions/checkout",
    "actions/download-artifact",
    "./.github/actions/setup",
    "./.github/actions/credentials",
    "./.github/actions/take_over",
    "./.github/actions/hand_over",
    "./.github/actions/attest",
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

            action = step.get("uses")
            if action is not None and action.partition("@")[0] not in HARMLESS_ACTIONS:
                yield action

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
    expression = expression_of(value)

    member = RUN_MEMBER.fullmatch(expression)
    if member is not None and member[1] in inputs:
        return resolve_member(inputs[member[1]], member[2])
    return inputs.get(expression.removeprefix("inputs."), expression)


def expression_of(value: str) -> str:
    """Return the expression that a value is, or the value itself."""
    match = EXPRESSION.fullmatch(value.strip())
    if match is None:
        return value
    # A job without a first one has an empty plan.
    return match[1].strip().replace(" || '{}'", "")


def resolve_member(json_input: str, name: str) -> str:
    """Return a member of an input in JSON, which a workflow writes or takes from another job."""
    if not is_json_template(json_input):
        return f"fromJSON({json_input}).{name}"
    expression = json_members(json_input)[name]
    return expression.removeprefix("toJSON(").removesuffix(")")


def called_jobs(
    files: Mapping[str, Workflow], file: str, caller: Job | None = None, path: str = ""
) -> Iterator[Job]:
    """Yield the jobs of a workflow and of those that it calls, with what is left of each one's rights."""
    for name, tree in files[file].jobs.items():
        job = make_job(files[file], name, caller, f"{path} > {file}, {name}")
        if "uses" in tree:
            called_file = tree["uses"].rpartition("/")[2]
            yield from called_jobs(files, called_file, job, job.path)
        else:
            yield job


def make_job(workflow: Workflow, name: str, caller: Job | None, path: str) -> Job:
    """Return a job of a workflow, with the rights and inputs that its caller gives."""
    tree = workflow.jobs[name]
    # Where neither names any, the job has those of its caller; a token is the one that matters here.
    rights_of_workflow = workflow.tree.get("permissions", {"id-token": "write"})
    rights: dict[str, str] = {}
    refused_rights: list[str] = []
    for scope, level in tree.get("permissions", rights_of_workflow).items():
        rights[scope] = granted(scope, level, caller)
        if rights[scope] != level:
            refused_rights.append(scope)

    callers_inputs: Mapping[str, str] = caller.inputs if caller else {}
    passed_inputs: dict[str, str] = {}
    for key, value in tree.get("with", {}).items():
        passed_inputs[key] = resolve(str(value), callers_inputs)

    return Job(
        path=path,
        file=workflow.name,
        tree=tree,
        rights=rights,
        refused_rights=refused_rights,
        inputs=passed_inputs or callers_inputs,
    )


def granted(scope: str, level: str, caller: Job | None) -> str:
    """Return the level that a job has of a permission: never more than who calls it."""
    if caller is None:
        return level
    callers_level = caller.rights.get(scope, "none")
    return min(level, callers_level, key=LEVELS.__getitem__)


def jobs_of_event(files: Mapping[str, Workflow], event: str) -> Iterator[Job]:
    """Yield the jobs that an event may start."""
    for file, workflow in files.items():
        if event in workflow.on:
            yield from called_jobs(files, file, path=event)


def claims(file: str, ref: str, environment: str) -> Mapping[str, str]:
    """Return what a job's token says."""
    if environment:
        subject = f"environment:{environment}"
    elif ref.startswith("refs/pull/"):
        subject = "pull_request"
    else:
        subject = f"ref:{ref}"
    return {
        f"{ISSUER}:aud": "sts.amazonaws.com",
        f"{ISSUER}:sub": f"repo:{REPOSITORY}:{subject}",
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

    patterns_by_claim: dict[str, list[str]] = {}
    for comparison in statement["Condition"].values():
        for claim, patterns in comparison.items():
            patterns_by_claim[claim] = [patterns] if isinstance(patterns, str) else patterns

    assert len(patterns_by_claim) == 3
    return all(matches_any(token[claim], patterns) for claim, patterns in patterns_by_claim.items())


def matches_any(text: str, patterns: Iterable[str]) -> bool:
    """Return whether a text matches one of some patterns."""
    return any(fnmatchcase(text, pattern) for pattern in patterns)


def reachable_roles(role_data: Roles, release_type: str, token: Mapping[str, str]) -> set[str]:
    """Return the roles that whoever has a token may assume."""
    reachable: set[str] = set()
    for name, role in role_data.roles.items():
        if accepts(role, release_type, token):
            reachable.add(name)
    return reachable


def faults(files: Mapping[str, Workflow], role_data: Roles) -> set[str]:
    """Return what is wrong, from every event through every workflow that is called."""
    messages: set[str] = set(overlaps(role_data))

    # Many jobs are called by many events, and ask the same.
    @cache
    def reachable_from(file: str, environment: str, release_type: str) -> set[str]:
        token = claims(file, "refs/heads/main", environment)
        return reachable_roles(role_data, release_type, token)

    events: set[str] = set()
    for workflow in files.values():
        events.update(workflow.on)
    for event in events - EVENTS:
        messages.add(f"nobody has thought about the event {event}")
    for event in events:
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
    roles_of_job: dict[str, Role] = {}
    expressions: set[str] = set()
    for name, role in role_data.roles.items():
        if job.assumed_roles & {*role.given} and role.environment == job.environment:
            roles_of_job[name] = role
            expressions.update(role.given)

    if not job.assumed_roles or not job.assumed_roles <= expressions:
        yield f"{job.path}: a token for {job.assumed_roles or 'nothing'}, and no role is given so here"

    for release_type in RELEASE_TYPES:
        environment = job.environment.format(type=release_type)
        reachable = reachable_from(job.file, environment, release_type)
        assumed = {name for name, role in roles_of_job.items() if release_type in role.refs}
        if reachable != assumed:
            yield (
                f"{job.path}: assumes {sorted(assumed)} of {release_type} "
                f"and could assume {sorted(reachable)}"
            )


@cache
def overlap(first: str, second: str) -> bool:
    """Return whether two patterns with * have a text in common."""
    if not first or not second:
        remainder = first + second
        return not remainder.strip("*")
    if second[0] == "*" and first[0] != "*":
        return overlap(second, first)
    if first[0] == "*":
        # The * stands for no character, or for one and maybe others.
        return overlap(first[1:], second) or overlap(first, second[1:])
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


def keys_at_risk(role_data: Roles, name: str, owner_name: str) -> Iterator[str]:
    """Yield the keys of an owner that another role could write.

    What a role may never write is not its own.
    """
    role = role_data.roles[name]
    owner = role_data.roles[owner_name]
    denied_keys = places([*role.never, *owner.never])
    written_keys = places([*role.writes, *role.deletes])

    for key, owned_key in product(written_keys, places(owner.writes)):
        if matches_any(key, denied_keys) or matches_any(owned_key, denied_keys):
            continue
        if is_shared(key, role, owner_name) or is_shared(owned_key, owner, name):
            continue
        if overlap(key, owned_key):
            yield owned_key


def overlaps(role_data: Roles) -> Iterator[str]:
    """Yield the roles that could write what another one owns."""
    for name, owner_name in permutations(role_data.roles, 2):
        for key in keys_at_risk(role_data, name, owner_name):
            yield f"{name} could write {key} of {owner_name}"


# The repository as it is


def test_workflows_roles_and_policies_agree() -> None:
    assert not faults(workflows(), roles())


def test_many_jobs_have_a_token_that_roles_could_trust() -> None:
    paths: set[str] = set()
    for event in EVENTS:
        for job in jobs_of_event(workflows(), event):
            if "id-token" in job.rights:
                paths.add(job.path)

    assert len(paths) > 50


def test_a_role_is_followed_through_the_json_that_a_dispatch_writes() -> None:
    roles_of_publishers: list[set[str]] = []
    for job in jobs_of_event(workflows(), "workflow_dispatch"):
        is_dispatched_test = job.path.startswith("workflow_dispatch > test_rocm_wheels.yml")
        if is_dispatched_test and job.file == "publish.yml":
            roles_of_publishers.append(job.assumed_roles)

    assert roles_of_publishers == [{"inputs.aws_role"}]


# Mistakes that are found


def with_changed_job(file: str, job: str, key: str, value: object) -> Mapping[str, Workflow]:
    """Return the workflows with another value in one of their jobs; None leaves it out."""
    workflow = workflows()[file]
    changed_workflow = replace(workflow, tree=copy.deepcopy(workflow.tree))
    tree: Any = changed_workflow.jobs[job]
    if value is None:
        tree.pop(key)
    else:
        tree[key] = value
    return {**workflows(), file: changed_workflow}


BUILD = "build_pytorch.yml"
TEST = "test_pytorch.yml"
RELEASE = "release.yml"
READ = {"contents": "read"}
TOKEN = {"contents": "read", "id-token": "write"}
PUSH = {"packages": "write"}


@pytest.mark.parametrize(
    ("file", "job", "key", "value", "fault"),
    [
        pytest.param(
            BUILD,
            "build",
            "permissions",
            TOKEN,
            r"\$SESSIONS beside a token",
            id="a build with a token",
        ),
        pytest.param(
            TEST,
            "test",
            "permissions",
            TOKEN,
            "!SESSIONS! beside a token",
            id="a test with a token",
        ),
        pytest.param(
            RELEASE,
            "promote",
            "environment",
            None,
            "assumes .* and could assume",
            id="a promotion without its environment",
        ),
        pytest.param(
            RELEASE,
            "promote",
            "environment",
            "nightly-staging",
            "could assume",
            id="a promotion in the environment of staging",
        ),
        pytest.param(
            "publish.yml",
            "publish",
            "permissions",
            READ,
            "no token for",
            id="a role without a token",
        ),
        pytest.param(
            "publish.yml",
            "publish",
            "permissions",
            {**TOKEN, **PUSH},
            "asks for",
            id="a right that its callers lack",
        ),
        pytest.param(
            "drift.yml",
            "drift",
            "permissions",
            TOKEN,
            "upstream beside a token",
            id="tests of upstream with a token",
        ),
        pytest.param(
            "therock-nightly.yml",
            "build-therock-docker",
            "permissions",
            PUSH,
            "build_image",
            id="an image's build that may push",
        ),
    ],
)
def test_finds_a_mistake_in_a_workflow(file: str, job: str, key: str, value: object, fault: str) -> None:
    files = with_changed_job(file, job, key, value)

    assert re.search(fault, "\n".join(faults(files, roles())))


def test_a_job_without_rights_has_those_of_its_caller() -> None:
    files = with_changed_job(BUILD, "build", "permissions", None)
    tree: Any = files[BUILD].tree
    tree.pop("permissions")

    assert "beside a token" in "\n".join(faults(files, roles()))


@pytest.mark.parametrize(
    ("name", "change", "fault"),
    [
        pytest.param(
            "run-outputs",
            {"writes": ("artifacts:*",), "never": ()},
            "could write own/manifests/decisions/",
            id="runs write decisions",
        ),
        pytest.param(
            "run-outputs",
            {"never": ()},
            "run-outputs could write own/v2/",
            id="runs write releases",
        ),
        pytest.param(
            "staging",
            {"writes": ("distribution:manifests/*",)},
            "could write own/manifests/promoting/",
            id="staging writes promotions",
        ),
        pytest.param(
            "promotion",
            {"writes": ("distribution:v2-staging/*.whl",)},
            "could write own/v2-staging/",
            id="promotions write staged wheels",
        ),
        pytest.param(
            "retention",
            {"never": ()},
            "retention could write own/v2/",
            id="retention deletes releases",
        ),
        pytest.param(
            "promotion",
            {"environment": ""},
            "could assume",
            id="promotions in any environment",
        ),
        pytest.param(
            "compiler-cache",
            {"writes": ("artifacts:*/nightly/*",)},
            "compiler-cache could write",
            id="compiler caches write runs",
        ),
        pytest.param(
            "read",
            {"workflows": ("publish.yml",)},
            "could assume",
            id="a publisher has a role to read",
        ),
    ],
)
def test_finds_a_mistake_in_a_role(name: str, change: Mapping[str, Any], fault: str) -> None:
    mistaken_role = roles().roles[name].model_copy(update=change)
    role_data = roles().model_copy(update={"roles": {**roles().roles, name: mistaken_role}})

    assert fault in "\n".join(faults(workflows(), role_data))


# Who pushes a ref


ANYWHERE = [*workflows(), "mine.yml"]
ROLES_OF_RUNS = {"run-outputs", "read"}
ROLES_OF_BRANCHES = {"ci": ROLES_OF_RUNS, "dev": ROLES_OF_RUNS | {"staging", "promotion"}}


def environments_of(release_type: str) -> set[str]:
    """Return the environments that roles of a release type ask for, and "" for none."""
    environments = {""}
    for role in roles().roles.values():
        environments.add(role.environment.format(type=release_type))
    return environments


@pytest.mark.parametrize("release_type", RELEASE_TYPES)
@pytest.mark.parametrize(
    ("ref", "roles_by_type"),
    [
        pytest.param("refs/heads/evil", ROLES_OF_BRANCHES, id="a branch"),
        pytest.param("refs/heads/main-2", ROLES_OF_BRANCHES, id="a branch that is named like main"),
        pytest.param("refs/pull/7/merge", {"ci": ROLES_OF_RUNS}, id="a pull request"),
        pytest.param("refs/tags/v1", {}, id="a tag"),
    ],
)
def test_the_files_of_a_ref_do_not_decide_what_it_may_write(
    ref: str, roles_by_type: Mapping[str, set[str]], release_type: str
) -> None:
    """Who may push a branch edits its workflows as they like, and names any environment."""
    reachable: set[str] = set()
    for file, environment in product(ANYWHERE, environments_of(release_type)):
        token = claims(file, ref, environment)
        reachable |= reachable_roles(roles(), release_type, token)

    assert reachable == roles_by_type.get(release_type, set())


@pytest.mark.parametrize("ref", ["refs/heads/main", "refs/heads/release/7.1", "refs/pull/7/merge"])
def test_releases_are_promoted_in_their_environment_alone(ref: str) -> None:
    role = roles().roles["promotion"]

    for release_type in role.refs:
        other_environments = {*role.refs, *environments_of(release_type)} - {release_type}
        for file, environment in product(ANYWHERE, other_environments):
            token = claims(file, ref, environment)
            assert not accepts(role, release_type, token), f"{release_type}: {file}, {environment}"


# What release types may do


def test_a_rehearsal_has_no_bucket_of_releases_and_no_role() -> None:
    for name, role in roles().roles.items():
        assert "rehearsal" not in role.refs, name
    assert "rehearsal" not in buckets().release_types
    assert not buckets().distributions["rehearsal"].bucket
    assert "rehearsal" not in text_of_workflows()


def test_only_long_lived_branches_release() -> None:
    long_lived_refs: set[str] = set()
    for branch in data.load().triggers.long_lived_branches:
        long_lived_refs.add(f"refs/heads/{branch.replace('**', '*')}")

    for role in roles().roles.values():
        for release_type, refs in role.refs.items():
            if release_type not in {"ci", "dev"}:
                assert {*refs} <= long_lived_refs, release_type


def test_no_job_writes_a_compiler_cache() -> None:
    assert not roles().roles["compiler-cache"].workflows
    assert not re.search(r"COMPILER_CACHE_ROLE|SCCACHE_|actions/cache@", text_of_workflows())


def written_keys(role: Role, release_type: str) -> list[str]:
    """Return the patterns of the keys that a role may write of a release type."""
    names = {**names_of(release_type), "artifacts": "b"}

    keys: list[str] = []
    for statement in permissions(role, names):
        if "s3:PutObject" in statement["Action"]:
            keys += statement["Resource"]
    return keys


def test_release_types_do_not_share_a_compiler_cache() -> None:
    role = roles().roles["compiler-cache"]

    (key_of_ci,) = written_keys(role, "ci")
    (key_of_nightlies,) = written_keys(role, "nightly")

    assert not overlap(key_of_ci, key_of_nightlies)


def test_policies_are_printed_for_a_repository(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["nightly", "me/wheels"]) == 0

    policies = json.loads(capsys.readouterr().out)
    trust_policy = str(policies["run-outputs"]["trust"])
    assert "me/wheels/.github/workflows/publish.yml@refs/heads/main" in trust_policy


@pytest.mark.parametrize(
    "arguments",
    [["nightly"], ["nightl", "me/wheels"]],
    ids=["without a repository", "an unknown release type"],
)
def test_policies_need_a_release_type_and_a_repository(arguments: list[str]) -> None:
    assert main(arguments) == UsageError.exit_code
