import fnmatch
import re
from typing import Any

import pytest
import yaml  # type: ignore[import-untyped]

from ci.cleanup.plan import retention
from ci.promote import documents
from ci.publish.buckets import buckets
from ci.publish.server import RUN_FOLDERS, Place, folder_of
from core.cli.options import ROOT
from core.run import RunOutputs
from pytorch_build.build.cache import cache_rules

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


def holds(condition: dict[str, Any], said: dict[str, str]) -> bool:
    """Evaluate the operators that the template uses."""
    assert condition.keys() <= {"Null", "Bool"}
    absent = all((key not in said) == (one == "true") for key, one in condition.get("Null", {}).items())
    return absent and all(said.get(key, "false") == one for key, one in condition.get("Bool", {}).items())


def may(template: Template, role: str, action: str, place: str, context: dict[str, str]) -> bool:
    """Whether a role's policy allows a request, as IAM does: a denial wins."""
    context = {"s3:ObjectCreationOperation": "true", **context}
    effects = set()
    for statement in template.statements(f"{role}Policy"):
        if (
            action in statement["Action"]
            and any(fnmatch.fnmatchcase(f"arn:aws:s3:::{place}", one) for one in statement["Resource"])
            and holds(statement.get("Condition", {}), context)
        ):
            effects.add(statement["Effect"])
    return effects == {"Allow"}


def test_its_names_and_days_are_those_of_the_data(template: Template) -> None:
    data = buckets()
    assert template.parameters["ArtifactsBucketName"] == data.release_types["ci"].bucket
    assert template.parameters["ExternalBucketName"] == data.release_types["ci"].external_bucket
    known = {one.bucket for one in data.distributions.values()}
    assert template.parameters["DistributionBucketName"] in known
    allowed = set(template.raw["Parameters"]["ReleaseType"]["AllowedValues"])
    releases = {name for name, one in data.distributions.items() if one.bucket}
    assert allowed == set(data.release_types) | releases


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


GET, PUT, DELETE, LIST = ("s3:GetObject", "s3:PutObject", "s3:DeleteObject", "s3:ListBucket")
ANY: dict[str, str] = {}
PART = {"s3:ObjectCreationOperation": "false"}  # parts carry no condition; their completion does
DISTRIBUTIONS = [f"{GROUP}/{name}" for name in (WHEEL, f"{WHEEL}.metadata", "rocm-7.1.0.tar.gz")]
PAGES = [f"{GROUP}/{name}" for name in ("index.html", "simple/torch/index.json", "simple/index-state.txt")]
FORK = RunOutputs(run_id="17", platform="windows", external_repo="FORK/")
CACHES = [
    f"{cache_rules().layout.format(release_type='ci', kind=kind)}/a/b/c" for kind in ("sccache", "ccache")
]
DEPENDENCY = "python-deps/numpy-2.1-py3-none-any.whl"
INTENT, DECISION = (f"{one}/set/1.json" for one in (documents.INTENTS, documents.DECISIONS))
RECORD, KEPT = RUN.record_key("g", "build_torch"), ("v2", "python-deps", "v2/x-linux")
AREAS = [("Stage", "v2-staging"), ("Promote", "v2")]
Rule = tuple[str, str, "dict[str, str]", bool, str, "list[str]"]


def area_rules(role: str, area: str) -> list[Rule]:
    """Staging and promotion write their own area alone."""
    own = documents.manifests(area, "g")
    return [
        (role, GET, ANY, True, "A", [f"{GROUP}/{WHEEL}"]),
        (role, GET, ANY, True, "R", [f"v2-staging/g/{WHEEL}"]),
        (role, PUT, ANY, True, "R", [f"{area}/g/{WHEEL}", f"{own}/1.json"]),
        (role, DELETE, ANY, True, "R", [f"{area}/g/simple/torch/index.html"]),
        (role, DELETE, ANY, False, "R", [f"{area}/g/{WHEEL}"]),
    ]


# role, action, what the request says, whether it is allowed; A(rtifacts), E(xternal), R(eleases), and keys.
# That none may write what another one owns is seen by test_trust.py.
RULES: list[Rule] = [
    # an upload writes its run, and replaces no distribution; it deletes only pages and failure records
    ("CiUpload", PUT, FIRST, True, "A", [*DISTRIBUTIONS, PAGES[1]]),
    ("CiUpload", PUT, ANY, False, "A", DISTRIBUTIONS),
    ("CiUpload", PUT, OVER, False, "A", DISTRIBUTIONS),
    ("CiUpload", PUT, PART, True, "A", DISTRIBUTIONS),
    ("CiUpload", PUT, OVER, True, "A", [PAGES[0], "test-durations/linux/g/default.json"]),
    ("CiUpload", PUT, ANY, True, "A", [RECORD, f"{RUN.prefix}/core_lib_generic.tar.zst"]),
    ("CiUpload", PUT, FIRST, False, "A", ["index.html", *CACHES, "manifests/decisions/x-linux/1.json"]),
    ("CiUpload", DELETE, ANY, True, "A", [PAGES[1], RUN.record_key("g", "build_torch.failed")]),
    ("CiUpload", DELETE, ANY, False, "A", [f"{GROUP}/{WHEEL}", RECORD]),
    ("Read", GET, ANY, True, "A", DISTRIBUTIONS),
    ("Read", PUT, FIRST, False, "A", [*DISTRIBUTIONS, *PAGES]),
    # a cache is one release type's
    ("CompilerCache", GET, ANY, True, "A", CACHES),
    ("CompilerCache", PUT, ANY, True, "A", CACHES),
    ("CompilerCache", DELETE, ANY, False, "A", CACHES),
    ("CompilerCache", PUT, ANY, False, "A", [one.replace("/ci/", "/nightly/") for one in CACHES]),
    # a fork writes below its own folder of the external bucket
    ("ExternalUpload", PUT, FIRST, True, "E", [f"{FORK.python_prefix('g')}/{WHEEL}"]),
    ("ExternalUpload", PUT, ANY, False, "E", [f"{FORK.python_prefix('g')}/{WHEEL}"]),
    ("ExternalUpload", PUT, FIRST, False, "E", ["other-repo/17-linux/x"]),
    ("ExternalUpload", PUT, FIRST, False, "AR", [f"{FORK.python_prefix('g')}/{WHEEL}", f"{GROUP}/{WHEEL}"]),
    *(rule for area in AREAS for rule in area_rules(*area)),
    # a promotion announces itself, and decides once
    ("Promote", PUT, ANY, True, "R", [INTENT]),
    ("Promote", DELETE, ANY, True, "R", [INTENT]),
    ("Promote", PUT, FIRST, True, "R", [DECISION]),
    ("Promote", PUT, OVER, False, "R", [DECISION]),
    ("Promote", DELETE, ANY, False, "R", [DECISION]),
    # retention deletes runs and staging, and never what is released
    ("Retention", DELETE, ANY, True, "A", [f"{GROUP}/{WHEEL}"]),
    ("Retention", DELETE, ANY, True, "E", ["me-TheRock/17-windows/logs/g/x.log"]),
    ("Retention", DELETE, ANY, True, "R", [f"v2-staging/g/{WHEEL}"]),
    ("Retention", DELETE, ANY, False, "AER", [f"{one}/g/{WHEEL}" for one in KEPT]),
    ("Retention", DELETE, ANY, False, "R", ["manifests/v2/x.json"]),
    ("Retention", PUT, ANY, True, "R", ["v2-staging/g/simple/index.html"]),
    ("Retention", PUT, ANY, False, "AER", [f"v2-staging/g/{WHEEL}", "v2/g/index.html"]),
    # the mirror writes dependencies alone, and replaces none
    ("Mirror", PUT, FIRST, True, "AE", [DEPENDENCY]),
    ("Mirror", PUT, ANY, False, "AE", [DEPENDENCY]),
    ("Mirror", PUT, ANY, True, "AE", ["python-deps/simple/numpy/index.html"]),
    ("Mirror", DELETE, ANY, False, "AE", [DEPENDENCY]),
    # the function writes pages alone
    *(("Pages", action, ANY, True, "A", PAGES) for action in (GET, PUT, DELETE)),
    *(("Pages", action, ANY, True, "E", [f"me/{one}" for one in PAGES]) for action in (GET, PUT, DELETE)),
    ("Pages", GET, ANY, True, "A", DISTRIBUTIONS),
    ("Pages", PUT, ANY, False, "A", DISTRIBUTIONS),
    ("Pages", DELETE, ANY, False, "A", DISTRIBUTIONS),
    ("Pages", GET, ANY, False, "A", [f"{RUN.prefix}/manifests/g/x.json"]),
]


@pytest.mark.parametrize("rule", RULES)
def test_a_role_may_do_its_work_and_nothing_else(template: Template, rule: Rule) -> None:
    role, action, said, allowed, places, keys = rule
    fork = template.parameters["ExternalRepository"]
    names = {"A": "ArtifactsBucketName", "E": "ExternalBucketName", "R": "DistributionBucketName"}
    for bucket in (template.parameters[names[place]] for place in places):
        for key in keys:
            assert may(template, role, action, f"{bucket}/{key.replace('FORK', fork)}", said) is allowed, key


def test_every_policy_is_tested(template: Template) -> None:
    assert may(template, "Pages", LIST, template.parameters["ArtifactsBucketName"], {})
    policies = {name for name, one in template.resources.items() if one["Type"] == "AWS::IAM::ManagedPolicy"}
    assert policies == {rule[0] + "Policy" for rule in RULES}


def test_the_rule_passes_on_what_the_function_follows_and_nothing_of_a_release(template: Template) -> None:
    pattern = template.resources["ChangesRule"]["Properties"]["EventPattern"]["detail"]
    assert template.parameters["DistributionBucketName"] not in pattern["bucket"]["name"]
    suffixes = tuple(one["suffix"] for one in pattern["object"]["key"])
    folders = re.compile(RUN_FOLDERS)
    names = (WHEEL, f"{WHEEL}.metadata", "rocm-7.1.0.tar.gz", "yanked.json")
    for name in (*names, "index.html", "simple/torch/index.json", "simple/index-state.txt"):
        key = f"{GROUP}/{name}"
        assert key.endswith(suffixes) == (folder_of(Place(bucket="b", key=key), folders) is not None)


def test_no_alias_of_yaml_is_in_it_as_cloudformation_reads_none() -> None:
    text = TEMPLATE.read_text(encoding="utf-8")
    bare = re.sub(r'"[^"]*"|#.*', "", text)
    assert not re.search(r"[:\-\[,] *[&*]\w", bare)


def test_the_documented_days_are_the_data() -> None:
    text = (ROOT / "docs" / "operations.md").read_text(encoding="utf-8")
    table = text.partition("## Retention")[2].partition("What is deleted as a unit")[0]
    said = {"30 days": 30, "120 days": 120, "52 weeks": 364, "2 years": 730, "forever": None}
    for line in re.findall(r"^\| (`.*) \|$", table, re.MULTILINE):
        names, days, newest = (cell.strip() for cell in line.split("|"))
        for name in re.findall(r"`(\w+)`", names):
            policy = retention().policies[name]
            assert policy.days == said[days]
            assert newest == ("" if policy.forever else f"the newest {policy.newest}")
    assert f"after {retention().policies['ci'].expire_days} days" in text
    assert f"after {retention().abort_uploads_days} days" in text
