from __future__ import annotations

import fnmatch
import json
import re
from typing import TYPE_CHECKING, Any

import pytest
import yaml  # type: ignore[import-untyped]

from ci.cleanup.plan import retention
from ci.promote import documents
from ci.publish.buckets import buckets
from ci.publish.server.events import Change
from ci.publish.server.pages import RUN_FOLDERS, folder_of
from core.cli.options import ROOT
from core.run.outputs import RunOutputs
from pytorch_build.build.compiler_cache_storage import cache_rules

if TYPE_CHECKING:
    from collections.abc import Iterator

TEMPLATE = ROOT / "ci" / "publish" / "server" / "template.yaml"


class _Loader(yaml.SafeLoader):  # type: ignore[misc]
    """YAML with CloudFormation's functions as ``{"Fn": …}``."""


def _function(loader: _Loader, suffix: str, node: yaml.Node) -> dict[str, Any]:
    if isinstance(node, yaml.ScalarNode):
        return {suffix: loader.construct_scalar(node)}
    if isinstance(node, yaml.SequenceNode):
        return {suffix: loader.construct_sequence(node, deep=True)}
    raise TypeError(suffix)


_Loader.add_multi_constructor("!", _function)


class Template:
    """The template, with its parameters' defaults put in."""

    def __init__(self, text: str) -> None:
        self.raw: dict[str, Any] = yaml.load(text, _Loader)  # noqa: S506 - a SafeLoader
        self.parameters = {name: one["Default"] for name, one in self.raw["Parameters"].items()}
        self.resources: dict[str, Any] = self._resolved(self.raw["Resources"])

    def _resolved(self, value: Any) -> Any:
        if isinstance(value, list):
            return [self._resolved(one) for one in value]
        if not isinstance(value, dict):
            return value
        if set(value) == {"Sub"}:
            names = {"AWS::Partition": "aws", **self.parameters}
            return re.sub(r"\$\{([\w:.]+)\}", lambda match: str(names.get(match[1], match[0])), value["Sub"])
        if set(value) == {"Ref"} and value["Ref"] in self.parameters:
            return self.parameters[value["Ref"]]
        return {name: self._resolved(one) for name, one in value.items()}

    def statements(self, name: str) -> list[dict[str, Any]]:
        statements: list[dict[str, Any]] = self.resources[name]["Properties"]["PolicyDocument"]["Statement"]
        return statements


@pytest.fixture(scope="module", name="template")
def template_fixture() -> Template:
    return Template(TEMPLATE.read_text(encoding="utf-8"))


RUN = RunOutputs(run_id="17123441166", platform="linux")
GROUP = RUN.python_prefix("gfx94X-dcgpu")
WHEEL = "torch-2.10.0+rocm7.1-cp312-cp312-linux_x86_64.whl"
FIRST, OVER = {"s3:if-none-match": "*"}, {"s3:if-match": "etag"}
ROLES = ("Pages", "CiUpload", "CompilerCache", "ExternalUpload", "Stage", "Promote", "Mirror", "Retention")


def holds(condition: dict[str, Any], said: dict[str, str]) -> bool:
    """Evaluate the operators that the template uses."""
    for operator, wanted in condition.items():
        for key, value in wanted.items():
            if operator == "Null":
                if (key not in said) != (value == "true"):
                    return False
            elif operator == "Bool":
                if said.get(key, "false") != value:
                    return False
            else:
                raise NotImplementedError(operator)
    return True


def may(template: Template, role: str, action: str, place: str, **said: str) -> bool:
    """Say whether a role's policy allows a request, as IAM does: a denial wins."""
    context = {key.replace("__", ":").replace("_", "-"): value for key, value in said.items()}
    return _may(template, role, action, place, context)


def _may(template: Template, role: str, action: str, place: str, context: dict[str, str]) -> bool:
    context = {"s3:ObjectCreationOperation": "true", **context}
    effects = set()
    for statement in template.statements(f"{role}Policy"):
        actions, resources = (
            [value] if isinstance(value, str) else value
            for value in (statement["Action"], statement["Resource"])
        )
        if (
            action in actions
            and any(fnmatch.fnmatchcase(f"arn:aws:s3:::{place}", one) for one in resources)
            and holds(statement.get("Condition", {}), context)
        ):
            effects.add(statement["Effect"])
    return effects == {"Allow"}


@pytest.fixture(name="artifacts")
def artifacts_fixture() -> str:
    return buckets().release_types["ci"].bucket


@pytest.fixture(name="external")
def external_fixture() -> str:
    return buckets().release_types["ci"].external_bucket


@pytest.fixture(name="releases")
def releases_fixture(template: Template) -> str:
    return str(template.parameters["DistributionBucketName"])


def test_its_names_and_days_are_those_of_the_data(template: Template) -> None:
    data = buckets()
    assert template.parameters["ArtifactsBucketName"] == data.release_types["ci"].bucket
    assert template.parameters["ExternalBucketName"] == data.release_types["ci"].external_bucket
    known = {one.bucket for one in data.distributions.values()}
    assert template.parameters["DistributionBucketName"] in known
    allowed = set(template.raw["Parameters"]["ReleaseType"]["AllowedValues"])
    assert allowed == set(data.release_types) | set(data.distributions)


def lifecycle(template: Template, bucket: str) -> list[dict[str, Any]]:
    rules: list[dict[str, Any]] = template.resources[bucket]["Properties"]["LifecycleConfiguration"]["Rules"]
    return rules


def test_lifecycles_are_the_retention_data(template: Template) -> None:
    for bucket in ("ArtifactsBucket", "ExternalBucket", "DistributionBucket"):
        aborts = [one["AbortIncompleteMultipartUpload"] for one in lifecycle(template, bucket)
                  if "AbortIncompleteMultipartUpload" in one]  # fmt: skip
        assert aborts == [{"DaysAfterInitiation": retention().abort_uploads_days}]
    days = retention().policies["ci"].expire_days
    expiring = [one for one in lifecycle(template, "ArtifactsBucket") if "ExpirationInDays" in one]
    assert {one["ExpirationInDays"] for one in expiring} == {days}
    assert [one.get("ExpirationInDays") for one in lifecycle(template, "ExternalBucket")] == [None, days]
    assert not [one for one in lifecycle(template, "DistributionBucket") if "ExpirationInDays" in one]
    # only ci has runs that expire, in the data and here
    assert [name for name, policy in retention().policies.items() if policy.expire_days] == ["ci"]
    assert template.raw["Conditions"]["ExpiresRuns"] == {"Equals": [{"Ref": "ReleaseType"}, "ci"]}
    assert all(one["Status"] == {"If": ["ExpiresRuns", "Enabled", "Disabled"]} for one in expiring)


def test_expiring_prefixes_are_every_numbered_run_and_no_index(template: Template) -> None:
    prefixes = tuple(one["Prefix"] for one in lifecycle(template, "ArtifactsBucket") if "Prefix" in one)
    for number in range(1, 2000):
        assert f"{number}-linux/".startswith(prefixes)
        assert re.fullmatch(retention().run_ids, str(number))
    assert not [
        key for key in ("python-deps/", "v2/", "v2-staging/", "manifests/") if key.startswith(prefixes)
    ]


def test_an_upload_writes_its_run_and_replaces_no_distribution(template: Template, artifacts: str) -> None:
    def put(key: str, **said: str) -> bool:
        return _may(template, "CiUpload", "s3:PutObject", f"{artifacts}/{key}", said)

    for name in (WHEEL, f"{WHEEL}.metadata", "rocm-7.1.0.tar.gz"):
        assert put(f"{GROUP}/{name}", **FIRST)
        assert not put(f"{GROUP}/{name}")
        assert not put(f"{GROUP}/{name}", **OVER)
        # parts carry no condition; their completion does
        assert put(f"{GROUP}/{name}", **{"s3:ObjectCreationOperation": "false"})
    assert put(f"{GROUP}/index.html", **OVER)
    assert put(f"{GROUP}/simple/torch/index.json", **FIRST)
    assert put(RUN.record_key("gfx94X-dcgpu", "build_torch"))
    assert put(f"{RUN.prefix}/core_lib_generic.tar.zst")
    for key in (
        f"python-deps/simple/{WHEEL}",
        f"v2/x-linux/{WHEEL}",
        f"v2-staging/x-linux/{WHEEL}",
        "index.html",
    ):
        assert not put(key, **FIRST)


def test_an_upload_takes_only_pages_and_failure_records_away(template: Template, artifacts: str) -> None:
    def delete(key: str) -> bool:
        return may(template, "CiUpload", "s3:DeleteObject", f"{artifacts}/{key}")

    assert delete(f"{GROUP}/simple/torch/index.html")
    assert delete(RUN.record_key("gfx94X-dcgpu", "build_torch.failed"))
    assert not delete(f"{GROUP}/{WHEEL}")
    assert not delete(RUN.record_key("gfx94X-dcgpu", "build_torch"))


def test_builds_share_a_compiler_cache_and_reach_nothing_else(template: Template, artifacts: str) -> None:
    rules, caches = cache_rules(), {"sccache", "ccache"}
    for entry in (f"{rules.layout.format(release_type='nightly', kind=kind)}/a/b/c" for kind in caches):
        for action in ("s3:GetObject", "s3:PutObject"):
            assert may(template, "CompilerCache", action, f"{artifacts}/{entry}")
        assert not may(template, "CompilerCache", "s3:DeleteObject", f"{artifacts}/{entry}")
        assert not may(template, "CiUpload", "s3:PutObject", f"{artifacts}/{entry}")
    for key in (f"{GROUP}/{WHEEL}", f"{GROUP}/index.html", "v2/compiler-cache/x"):
        assert not _may(template, "CompilerCache", "s3:PutObject", f"{artifacts}/{key}", FIRST)


def test_a_fork_writes_below_its_own_folder_of_the_external_bucket(
    template: Template, external: str, artifacts: str
) -> None:
    own = RunOutputs(
        run_id="17", platform="windows", external_repo=f"{template.parameters['ExternalRepository']}/"
    )
    key = f"{own.python_prefix('g')}/{WHEEL}"
    assert _may(template, "ExternalUpload", "s3:PutObject", f"{external}/{key}", FIRST)
    assert not _may(template, "ExternalUpload", "s3:PutObject", f"{external}/{key}", {})
    assert not _may(template, "ExternalUpload", "s3:PutObject", f"{external}/other-repo/17-linux/x", FIRST)
    for bucket in (artifacts, template.parameters["DistributionBucketName"]):
        assert not _may(template, "ExternalUpload", "s3:PutObject", f"{bucket}/{key}", FIRST)
        assert not _may(template, "ExternalUpload", "s3:PutObject", f"{bucket}/{GROUP}/{WHEEL}", FIRST)


def test_staging_and_promotion_write_their_own_area_alone(
    template: Template, artifacts: str, releases: str
) -> None:
    own = {"Stage": "v2-staging", "Promote": "v2"}
    for role, area in own.items():
        other = next(one for one in own.values() if one != area)
        assert may(template, role, "s3:GetObject", f"{artifacts}/{GROUP}/{WHEEL}")
        assert may(template, role, "s3:GetObject", f"{releases}/v2-staging/g/{WHEEL}")
        assert may(template, role, "s3:PutObject", f"{releases}/{area}/g/{WHEEL}")
        assert may(template, role, "s3:PutObject", f"{releases}/{documents.manifests(area, 'g')}/1.json")
        assert not may(template, role, "s3:PutObject", f"{releases}/{documents.manifests(other, 'g')}/1.json")
        assert may(template, role, "s3:DeleteObject", f"{releases}/{area}/g/simple/torch/index.html")
        assert not may(template, role, "s3:DeleteObject", f"{releases}/{area}/g/{WHEEL}")
        assert not may(template, role, "s3:PutObject", f"{releases}/{other}/g/{WHEEL}")
        assert not may(template, role, "s3:PutObject", f"{artifacts}/{GROUP}/{WHEEL}")


def test_a_promotion_announces_itself_and_decides_once(template: Template, releases: str) -> None:
    intent, decision = (f"{releases}/{one}/set/1.json" for one in (documents.INTENTS, documents.DECISIONS))
    for action in ("s3:PutObject", "s3:DeleteObject"):
        assert may(template, "Promote", action, intent)
        assert not may(template, "Stage", action, intent)
    assert _may(template, "Promote", "s3:PutObject", decision, FIRST)
    assert not _may(template, "Promote", "s3:PutObject", decision, OVER)
    assert not _may(template, "Promote", "s3:PutObject", decision, {})
    assert not may(template, "Promote", "s3:DeleteObject", decision)


def test_retention_deletes_runs_and_staging_and_never_what_is_released(
    template: Template, artifacts: str, external: str, releases: str
) -> None:
    def delete(place: str) -> bool:
        return may(template, "Retention", "s3:DeleteObject", place)

    assert delete(f"{artifacts}/{GROUP}/{WHEEL}")
    assert delete(f"{external}/me-TheRock/17-windows/logs/g/x.log")
    assert delete(f"{releases}/v2-staging/g/{WHEEL}")
    for bucket in (artifacts, external, releases):
        for area in ("v2", "python-deps", "v2/x-linux"):
            assert not delete(f"{bucket}/{area}/g/{WHEEL}")
            assert not may(template, "Retention", "s3:PutObject", f"{bucket}/{area}/g/index.html")
    assert may(template, "Retention", "s3:PutObject", f"{releases}/v2-staging/g/simple/index.html")
    assert not may(template, "Retention", "s3:PutObject", f"{releases}/v2-staging/g/{WHEEL}")
    assert not delete(f"{releases}/manifests/v2/x.json")


def test_who_mirrors_writes_dependencies_alone_and_replaces_none(
    template: Template, artifacts: str, external: str, releases: str
) -> None:
    wheel = "python-deps/numpy-2.1-py3-none-any.whl"
    for bucket in (artifacts, external):
        assert _may(template, "Mirror", "s3:PutObject", f"{bucket}/{wheel}", FIRST)
        assert not _may(template, "Mirror", "s3:PutObject", f"{bucket}/{wheel}", {})
        assert may(template, "Mirror", "s3:PutObject", f"{bucket}/python-deps/simple/numpy/index.html")
        assert not may(template, "Mirror", "s3:DeleteObject", f"{bucket}/{wheel}")
        assert not _may(template, "Mirror", "s3:PutObject", f"{bucket}/{GROUP}/{WHEEL}", FIRST)
    assert not _may(template, "Mirror", "s3:PutObject", f"{releases}/v2/g/{WHEEL}", FIRST)


def test_the_function_writes_pages_alone(
    template: Template, artifacts: str, external: str, releases: str
) -> None:
    for folder in (f"{artifacts}/{GROUP}", f"{external}/me-TheRock/{GROUP}"):
        assert may(template, "Pages", "s3:ListBucket", folder.split("/")[0])
        for page in ("index.html", "simple/torch/index.json", "simple/index-state.txt"):
            for action in ("s3:GetObject", "s3:PutObject", "s3:DeleteObject"):
                assert may(template, "Pages", action, f"{folder}/{page}")
        for name in (WHEEL, f"{WHEEL}.metadata"):
            assert may(template, "Pages", "s3:GetObject", f"{folder}/{name}")
            assert not may(template, "Pages", "s3:PutObject", f"{folder}/{name}")
            assert not may(template, "Pages", "s3:DeleteObject", f"{folder}/{name}")
    assert not may(template, "Pages", "s3:GetObject", f"{artifacts}/{RUN.prefix}/manifests/g/x.json")
    for area in ("v2", "v2-staging"):
        assert not may(template, "Pages", "s3:PutObject", f"{releases}/{area}/g/index.html")


def every_statement(template: Template) -> Iterator[dict[str, Any]]:
    for role in ROLES:
        yield from template.statements(f"{role}Policy")


def test_no_role_may_do_everything_and_every_policy_is_tested(template: Template) -> None:
    policies = {name for name, one in template.resources.items() if one["Type"] == "AWS::IAM::ManagedPolicy"}
    assert policies == {f"{role}Policy" for role in ROLES}
    for statement in every_statement(template):
        actions = statement["Action"] if isinstance(statement["Action"], list) else [statement["Action"]]
        assert not [action for action in actions if "*" in action]
        if statement["Effect"] == "Allow":
            resources = statement["Resource"]
            for one in resources if isinstance(resources, list) else [resources]:
                assert re.match(r"arn:aws:s3:::[a-z]", one), one


def test_the_rule_passes_on_what_the_function_follows_and_nothing_of_a_release(template: Template) -> None:
    pattern = template.resources["ChangesRule"]["Properties"]["EventPattern"]["detail"]
    assert template.parameters["DistributionBucketName"] not in pattern["bucket"]["name"]
    suffixes = tuple(one["suffix"] for one in pattern["object"]["key"])
    folders = re.compile(RUN_FOLDERS)
    names = (WHEEL, f"{WHEEL}.metadata", "rocm-7.1.0.tar.gz", "yanked.json")
    for name in (*names, "index.html", "simple/torch/index.json", "simple/index-state.txt"):
        key = f"{GROUP}/{name}"
        assert key.endswith(suffixes) == (folder_of(Change(bucket="b", key=key), folders) is not None)


def test_messages_that_fail_are_kept_and_the_queue_waits_longer_than_the_function(template: Template) -> None:
    function = template.resources["PagesFunction"]["Properties"]
    source = function["Events"]["Changes"]["Properties"]
    queue = template.resources["ChangesQueue"]["Properties"]
    assert queue["VisibilityTimeout"] >= 6 * function["Timeout"] + source["MaximumBatchingWindowInSeconds"]
    assert queue["RedrivePolicy"]["deadLetterTargetArn"] == {"GetAtt": "FailedQueue.Arn"}
    assert source["FunctionResponseTypes"] == ["ReportBatchItemFailures"]
    assert source["ScalingConfig"]["MaximumConcurrency"] <= function["ReservedConcurrentExecutions"]
    alarm = template.resources["FailedAlarm"]["Properties"]
    assert alarm["Dimensions"][0]["Value"] == {"GetAtt": "FailedQueue.QueueName"}
    failed = template.resources["FailedQueue"]["Properties"]
    assert failed["MessageRetentionPeriod"] > queue["MessageRetentionPeriod"]


def test_no_alias_of_yaml_is_in_it_as_cloudformation_reads_none() -> None:
    text = TEMPLATE.read_text(encoding="utf-8")
    bare = re.sub(r'"[^"]*"|#.*', "", text)
    assert not re.search(r"[:\-\[,] *[&*]\w", bare)


def documented() -> list[dict[str, Any]]:
    text = (ROOT / "docs" / "publishing.md").read_text(encoding="utf-8")
    section = text.partition("## Permissions")[2].partition("\n## ")[0]
    return [json.loads(found) for found in re.findall(r"```json\n(.*?)```", section, re.DOTALL)]


def test_the_upload_policy_of_the_documentation_is_the_templates(template: Template, artifacts: str) -> None:
    written = json.dumps(documented()[0]["Statement"]).replace("my-bucket", artifacts)
    assert json.loads(written) == template.statements("CiUploadPolicy")


def test_the_session_policy_of_the_documentation_leaves_one_run() -> None:
    allowed = [one["Resource"] for one in documented()[1]["Statement"] if "s3:PutObject" in one["Action"]]
    assert allowed == [f"arn:aws:s3:::my-bucket/{RUN.prefix}/*"]


def test_the_documented_days_are_the_data() -> None:
    text = (ROOT / "docs" / "publishing.md").read_text(encoding="utf-8")
    table = text.partition("## Retention")[2].partition("What goes or stays")[0]
    said = {"30 days": 30, "120 days": 120, "52 weeks": 364, "2 years": 730, "for ever": None}
    for line in re.findall(r"^\| (`.*) \|$", table, re.MULTILINE):
        names, days, newest = (cell.strip() for cell in line.split("|"))
        for name in re.findall(r"`(\w+)`", names):
            policy = retention().policies[name]
            assert policy.days == said[days]
            assert newest == ("" if policy.forever else f"the newest {policy.newest}")
    assert f"after {retention().policies['ci'].expire_days} days" in text
    assert f"after {retention().abort_uploads_days} days" in text
