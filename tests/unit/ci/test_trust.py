"""Workflows, roles and policies held against each other, as an attacker reads them.

A job with a token can assume every role whose trust policy accepts its claims, whatever its steps say.
"""

import copy
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from itertools import product
from typing import Any

import pytest

from ci.plan import data
from ci.publish.buckets import buckets
from core.errors import UsageError
from docs.roles import Role, Roles, main, names_of, permissions, roles, trust
from tests.kit.workflow_files import Workflow, workflows

OURS = "ROCm/TheRock"
ISSUER = "token.actions.githubusercontent.com"
KINDS = ("ci", "dev", "nightly", "prerelease", "rehearsal", "release")
LEVELS = {"none": 0, "read": 1, "write": 2}
# `pull_request_target` and `workflow_run` give a fork's pull request the token of the branch it is for
EVENTS = {"push", "pull_request", "schedule", "workflow_dispatch", "workflow_call"}
# what a job of ours may use where a token is; none executes what was handed over
ACTIONS = {
    *("actions/checkout", "actions/download-artifact", "docker/login-action"),
    *(f"./.github/actions/{name}" for name in ("setup", "credentials", "take_over", "hand_over", "attest")),
}


@dataclass(frozen=True, kw_only=True)
class Job:
    """One job of a run, as GitHub starts it: through whatever called its workflow."""

    path: str
    file: str
    tree: Mapping[str, Any]
    rights: Mapping[str, str]
    more: Sequence[str]
    given: Mapping[str, str]

    @property
    def environment(self) -> str:
        """With ``{type}`` for the release type."""
        return re.sub(r"\$.*release_type }}", "{type}", str(self.tree.get("environment", "")))

    @property
    def assumed(self) -> set[str]:
        """The expressions of the roles that its steps assume, as the outermost workflow has them."""
        found = [step.get("with", {}).get("role") for step in self.tree["steps"]]
        return {resolved(one.strip("${} "), self.given) for one in found if one}

    def foreign(self, harmless: Sequence[str]) -> Iterator[str]:
        """Name what its steps do that may run others' code."""
        for step in self.tree["steps"]:
            words = step.get("run", "").split()
            end = next((at for at, word in enumerate(words) if word.startswith("-") and at > 1), len(words))
            for word in words[2:end]:
                options = {one.partition(" ")[2] for one in harmless if one.partition(" ")[0] == word}
                if not any(option in step["run"] for option in options):
                    yield word
            if "uses" in step and step["uses"].partition("@")[0] not in ACTIONS:
                yield step["uses"]
        if self.tree["runs-on"] != "ubuntu-24.04" or "container" in self.tree:
            yield "a machine that is not GitHub's own"


def resolved(expression: str, given: Mapping[str, str]) -> str:
    return given.get(expression.removeprefix("inputs."), expression)


def walked(
    trees: Mapping[str, Workflow], file: str, caller: Job | None = None, path: str = ""
) -> Iterator[Job]:
    """Return the jobs of a workflow and of those that it calls, with what is left of each one's rights."""
    one, given = trees[file], caller.given if caller else {}
    for name, tree in one.jobs.items():
        asked = tree.get("permissions", one.tree.get("permissions", {"id-token": "write"}))
        most = {scope: caller.rights.get(scope, "none") for scope in asked} if caller else asked
        rights = {scope: min(asked[scope], most[scope], key=LEVELS.__getitem__) for scope in asked}
        more = [scope for scope in rights if rights[scope] != asked[scope]]
        where = f"{path} > {file}, {name}"
        passed = {
            key: resolved(str(value).strip("${} "), given) for key, value in tree.get("with", {}).items()
        }
        this = Job(path=where, file=file, tree=tree, rights=rights, more=more, given=passed or given)
        if "uses" in tree:
            yield from walked(trees, tree["uses"].rpartition("/")[2], this, where)
        else:
            yield this


def jobs(trees: Mapping[str, Workflow], event: str) -> Iterator[Job]:
    for file, one in trees.items():
        if event in one.on:
            yield from walked(trees, file, path=event)


def claims(file: str, ref: str, environment: str) -> Mapping[str, str]:
    pull = ref.startswith("refs/pull/")
    outside = f"repo:{OURS}:pull_request" if pull else f"repo:{OURS}:ref:{ref}"
    return {
        f"{ISSUER}:aud": "sts.amazonaws.com",
        f"{ISSUER}:sub": f"repo:{OURS}:environment:{environment}" if environment else outside,
        f"{ISSUER}:job_workflow_ref": f"{OURS}/.github/workflows/{file}@{ref}",
    }


def accepted(role: Role, kind: str, said: Mapping[str, str]) -> bool:
    """Whether a role's trust policy accepts a token, as IAM compares them."""
    for statement in trust(role, kind, OURS)["Statement"]:
        rows = [
            (key, [*wanted] if isinstance(wanted, list) else [wanted])
            for part in statement["Condition"].values()
            for key, wanted in part.items()
        ]
        assert len(rows) == 3
        return all(any(fnmatchcase(said[key], one) for one in wanted) for key, wanted in rows)
    return False


def reached(known: Roles, kind: str, said: Mapping[str, str]) -> set[str]:
    return {name for name, role in known.roles.items() if accepted(role, kind, said)}


def faults(trees: Mapping[str, Workflow], known: Roles) -> set[str]:
    """Say what is wrong, from every event through every workflow that is called."""
    found = set()
    for event in sorted({event for one in trees.values() for event in one.on}):
        if event not in EVENTS:
            found.add(f"nobody has thought about the event {event}")
        for job in jobs(trees, event):
            foreign = job.foreign(known.without_upstream_code) if "write" in job.rights.values() else ()
            found |= {f"{job.path}: {one} beside a token" for one in foreign}
            if job.more:
                found.add(f"{job.path}: asks for {job.more}, which who calls does not give")
            if job.rights.get("id-token") != "write":
                found |= {f"{job.path}: no token for {one}" for one in job.assumed}
                continue
            found |= set(unlike(known, job))
    return found | set(overlaps(known))


def unlike(known: Roles, job: Job) -> Iterator[str]:
    """Compare the roles that a job could assume on `main` with those that its steps assume."""
    roles_of = {
        name: role
        for name, role in known.roles.items()
        if job.assumed & {*role.given} and role.environment == job.environment
    }
    given = {one for role in roles_of.values() for one in role.given}
    if not job.assumed or not job.assumed <= given:
        yield f"{job.path}: a token for {job.assumed or 'nothing'}, and no role is given so here"
    for kind in KINDS:
        could = reached(known, kind, claims(job.file, "refs/heads/main", job.environment.format(type=kind)))
        does = {name for name, role in roles_of.items() if kind in role.refs}
        if could != does:
            yield f"{job.path}: assumes {sorted(does)} of {kind} and could assume {sorted(could)}"


def common(one: str, other: str) -> bool:
    """Whether two patterns with * have a text in common."""
    if not one or not other:
        return not (one + other).strip("*")
    if one[0] == "*":
        return common(one[1:], other) or common(one, other[1:])
    return common(other, one) if other[0] == "*" else one[0] == other[0] and common(one[1:], other[1:])


def place(pattern: str) -> str:
    """Read a pattern as if runs, staging and releases were in one bucket, as a downstream has them."""
    bucket, _, key = pattern.format(type="nightly", repository="me-wheels").partition(":")
    return f"{'own' if bucket in {'artifacts', 'distribution'} else bucket}/{key}"


def shares(role: Role, other_name: str, pattern: str) -> bool:
    """Whether a role says that it writes keys of this pattern beside another role."""
    return other_name in role.shares and (not role.shared or pattern in map(place, role.shared))


def overlaps(known: Roles) -> Iterator[str]:
    """Name the roles that could write what another one owns; what a role may never write is not its own."""
    for (name, one), (other_name, other) in product(known.roles.items(), repeat=2):
        if name == other_name:
            continue
        denied = [place(pattern) for pattern in (*one.never, *other.never)]
        for mine, theirs in product(map(place, (*one.writes, *one.deletes)), map(place, other.writes)):
            outside = not any(fnmatchcase(mine, no) or fnmatchcase(theirs, no) for no in denied)
            is_shared = shares(one, other_name, mine) or shares(other, name, theirs)
            if outside and not is_shared and common(mine, theirs):
                yield f"{name} could write {theirs} of {other_name}"


def test_workflows_roles_and_policies_agree() -> None:
    assert not faults(workflows(), roles())
    tokens = {job.path for event in EVENTS for job in jobs(workflows(), event) if "id-token" in job.rights}
    assert len(tokens) > 50


def changed(file: str, job: str, **values: Any) -> Mapping[str, Workflow]:
    trees = {name: replace(one, tree=copy.deepcopy(one.tree)) for name, one in workflows().items()}
    tree: Any = trees[file].jobs[job]
    for key, value in values.items():
        tree.update({key: value}) if value else tree.pop(key)
    return trees


BUILD, TEST = "build_portable_linux_pytorch_wheels.yml", "test_pytorch_wheels.yml"
RELEASE = "release_windows_pytorch_wheels.yml"
TOKEN, PUSH = {"contents": "read", "id-token": "write"}, {"packages": "write"}


@pytest.mark.parametrize(
    ("trees", "said"),
    [
        (changed(BUILD, "build", permissions=TOKEN), r"\$SESSIONS beside a token"),
        (changed(TEST, "windows", permissions=TOKEN), "!SESSIONS! beside a token"),
        (changed(RELEASE, "promote", environment=""), "assumes .* and could assume"),
        (changed(RELEASE, "promote", environment="nightly-staging"), "could assume"),
        (changed("publish.yml", "publish", permissions={"contents": "read"}), "no token for"),
        (changed("publish.yml", "publish", permissions={**TOKEN, "packages": "write"}), "asks for"),
        (changed("drift.yml", "drift", permissions=TOKEN), "drift beside a token"),
        (changed("therock-nightly.yml", "build-therock-docker", permissions=PUSH), "build_image"),
    ],
)
def test_finds_a_mistake_in_a_workflow(trees: Mapping[str, Workflow], said: str) -> None:
    assert re.search(said, "\n".join(faults(trees, roles())))


def test_a_job_without_rights_has_those_of_its_caller() -> None:
    trees = changed(BUILD, "build", permissions=None)
    trees[BUILD].tree.pop("permissions")  # type: ignore[attr-defined]
    assert [one for one in faults(trees, roles()) if "beside a token" in one]


@pytest.mark.parametrize(
    ("name", "change", "said"),
    [
        ("run-outputs", {"writes": ("artifacts:*",), "never": ()}, "could write own/manifests/decisions/"),
        ("run-outputs", {"never": ()}, "run-outputs could write own/v2/"),
        ("staging", {"writes": ("distribution:manifests/*",)}, "could write own/manifests/promoting/"),
        (
            "promotion",
            {"writes": ("distribution:v2-staging/*.whl",)},
            "could write own/v2-staging/",
        ),
        ("retention", {"never": ()}, "retention could write own/v2/"),
        ("promotion", {"environment": ""}, "could assume"),
        ("compiler-cache", {"writes": ("artifacts:*/nightly/*",)}, "compiler-cache could write"),
        ("read", {"workflows": ("publish.yml",)}, "could assume"),
    ],
)
def test_finds_a_mistake_in_a_role(name: str, change: Mapping[str, Any], said: str) -> None:
    known = roles().model_copy(
        update={"roles": {**roles().roles, name: roles().roles[name].model_copy(update=change)}}
    )
    assert said in "\n".join(faults(workflows(), known))


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
    known = roles()
    for kind in KINDS:
        named = {"", *(role.environment.format(type=kind) for role in known.roles.values())}
        said = [claims(file, ref, at) for file, at in product(ANYWHERE, named)]
        assert set().union(*(reached(known, kind, one) for one in said)) == most.get(kind, set()), kind


def test_releases_are_promoted_in_their_environment_alone() -> None:
    role = roles().roles["promotion"]
    refs = ("refs/heads/main", "refs/heads/release/7.1", "refs/pull/7/merge")
    for kind, file, ref in product(role.refs, ANYWHERE, refs):
        others = {"", *(one.environment.format(type=kind) for one in roles().roles.values())} - {kind}
        assert not any(accepted(role, kind, claims(file, ref, at)) for at in others)
        assert not any(accepted(role, kind, claims(file, ref, other)) for other in {*role.refs} - {kind})


def test_a_rehearsal_has_no_bucket_of_releases_and_no_role() -> None:
    assert not [name for name, one in roles().roles.items() if "rehearsal" in one.refs]
    assert "rehearsal" not in buckets().release_types
    assert not buckets().distributions["rehearsal"].bucket
    assert "rehearsal" not in "".join(one.text for one in workflows().values())


def test_only_long_lived_branches_release() -> None:
    branches = {f"refs/heads/{one.replace('**', '*')}" for one in data.load().triggers.long_lived_branches}
    for role in roles().roles.values():
        for kind in {*role.refs} - {"ci", "dev"}:
            assert {*role.refs[kind]} <= branches


def test_compiler_caches_are_written_by_no_job_and_by_one_release_type() -> None:
    cache = roles().roles["compiler-cache"]
    assert not cache.workflows
    text = "\n".join(one.text for one in workflows().values())
    assert not re.search(r"COMPILER_CACHE_ROLE|SCCACHE_|actions/cache@", text)
    writes = [
        place
        for kind in ("ci", "nightly")
        for one in permissions(cache, {**names_of(kind), "artifacts": "b"})
        if "s3:PutObject" in one["Action"]
        for place in one["Resource"]
    ]
    assert not common(*writes)


def test_policies_are_printed_for_a_repository(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["nightly", "me/wheels"]) == 0
    printed = json.loads(capsys.readouterr().out)
    assert "me/wheels/.github/workflows/publish.yml@refs/heads/main" in str(printed["run-outputs"]["trust"])
    assert main(["nightly"]) == main(["nightl", "me/wheels"]) == UsageError.exit_code
