"""The template of the buckets, their roles, and what deletes from them, against the data."""

import fnmatch
import re
from typing import Any

import pytest
import yaml  # type: ignore[import-untyped]

from ci.cleanup.plan import retention
from ci.promote import documents
from ci.publish.buckets import buckets
from ci.publish.server import RUN_FOLDERS, BucketKey, folder_of
from core.cli.options import ROOT
from core.run import RunOutputs
from pytorch_build.build.cache import LAYOUT

TEMPLATE = ROOT / "ci" / "publish" / "server" / "template.yaml"


class _Loader(yaml.SafeLoader):  # type: ignore[misc]
    """YAML with CloudFormation's functions as ``{"Fn": …}``."""


def _function(loader: _Loader, suffix: str, node: yaml.Node) -> dict[str, Any]:
    """Return a function of CloudFormation with its argument."""
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
        self.parameters = {name: parameter["Default"] for name, parameter in self.raw["Parameters"].items()}
        self.resources: dict[str, Any] = self._resolved(self.raw["Resources"])

    def _resolved(self, value: Any) -> Any:
        if isinstance(value, list):
            return [self._resolved(member) for member in value]
        if not isinstance(value, dict):
            return value
        if set(value) == {"Sub"}:
            names = {"AWS::Partition": "aws", **self.parameters}
            return re.sub(r"\$\{([\w:.]+)\}", lambda match: str(names.get(match[1], match[0])), value["Sub"])
        if set(value) == {"Ref"} and value["Ref"] in self.parameters:
            return self.parameters[value["Ref"]]
        return {name: self._resolved(member) for name, member in value.items()}

    def statements(self, name: str) -> list[dict[str, Any]]:
        """Return the statements of a policy."""
        statements: list[dict[str, Any]] = self.resources[name]["Properties"]["PolicyDocument"]["Statement"]
        return statements


@pytest.fixture(scope="module", name="template")
def template_fixture() -> Template:
    """Read the template once."""
    return Template(TEMPLATE.read_text(encoding="utf-8"))


RUN = RunOutputs(run_id="17123441166", platform="linux")
GROUP = RUN.python_prefix("gfx94X-dcgpu")
WHEEL = "torch-2.10.0+rocm7.1-cp312-cp312-linux_x86_64.whl"


def condition_holds(condition: dict[str, Any], context: dict[str, str]) -> bool:
    """Evaluate the operators that the template uses."""
    assert condition.keys() <= {"Null", "Bool"}
    for key, value in condition.get("Null", {}).items():
        if (key not in context) != (value == "true"):
            return False
    return all(context.get(key, "false") == value for key, value in condition.get("Bool", {}).items())


def is_allowed(
    template: Template,
    role: str,
    action: str,
    place: str,
    context: dict[str, str],
) -> bool:
    """Return whether a role's policy allows a request, as IAM does: a denial wins."""
    context = {"s3:ObjectCreationOperation": "true", **context}
    effects: set[str] = set()
    for statement in template.statements(f"{role}Policy"):
        resources = statement["Resource"]
        is_named = any(fnmatch.fnmatchcase(f"arn:aws:s3:::{place}", resource) for resource in resources)
        applies = condition_holds(statement.get("Condition", {}), context)
        if action in statement["Action"] and is_named and applies:
            effects.add(statement["Effect"])
    return effects == {"Allow"}


# Names and days


def test_names_the_buckets_of_the_data(template: Template) -> None:
    ci_buckets = buckets().release_types["ci"]
    distribution_buckets = {distribution.bucket for distribution in buckets().distributions.values()}

    assert template.parameters["ArtifactsBucketName"] == ci_buckets.bucket
    assert template.parameters["ExternalBucketName"] == ci_buckets.external_bucket
    assert template.parameters["DistributionBucketName"] in distribution_buckets


def test_allows_the_release_types_of_the_data(template: Template) -> None:
    data = buckets()
    distributed_types = {name for name, distribution in data.distributions.items() if distribution.bucket}

    allowed_types = set(template.raw["Parameters"]["ReleaseType"]["AllowedValues"])

    assert allowed_types == set(data.release_types) | distributed_types


def lifecycle_rules(template: Template, bucket: str) -> list[dict[str, Any]]:
    """Return the rules by which a bucket deletes."""
    rules: list[dict[str, Any]] = template.resources[bucket]["Properties"]["LifecycleConfiguration"]["Rules"]
    return rules


@pytest.mark.parametrize("bucket", ["ArtifactsBucket", "ExternalBucket", "DistributionBucket"])
def test_aborts_uploads_after_the_days_of_the_data(template: Template, bucket: str) -> None:
    name = "AbortIncompleteMultipartUpload"

    aborts = [rule[name] for rule in lifecycle_rules(template, bucket) if name in rule]

    assert aborts == [{"DaysAfterInitiation": retention().abort_uploads_days}]


def test_expires_runs_after_the_days_of_the_data(template: Template) -> None:
    days = retention().policies["ci"].expire_days
    expirations = {
        bucket: [rule.get("ExpirationInDays") for rule in lifecycle_rules(template, bucket)]
        for bucket in ("ArtifactsBucket", "ExternalBucket", "DistributionBucket")
    }

    assert set(expirations["ArtifactsBucket"]) == {None, days}
    assert expirations["ExternalBucket"] == [None, days]
    assert set(expirations["DistributionBucket"]) == {None}


def test_expires_runs_of_ci_alone(template: Template) -> None:
    assert [name for name, policy in retention().policies.items() if policy.expire_days] == ["ci"]
    assert template.raw["Conditions"]["ExpiresRuns"] == {"Equals": [{"Ref": "ReleaseType"}, "ci"]}
    for rule in lifecycle_rules(template, "ArtifactsBucket"):
        if "ExpirationInDays" in rule:
            assert rule["Status"] == {"If": ["ExpiresRuns", "Enabled", "Disabled"]}


@pytest.fixture
def expiring_prefixes(template: Template) -> tuple[str, ...]:
    """Return the prefixes of what expires."""
    rules = lifecycle_rules(template, "ArtifactsBucket")
    return tuple(rule["Prefix"] for rule in rules if "Prefix" in rule)


def test_expires_every_numbered_run(expiring_prefixes: tuple[str, ...]) -> None:
    for number in range(1, 2000):
        assert f"{number}-linux/".startswith(expiring_prefixes)
        assert re.fullmatch(retention().run_ids, str(number))


@pytest.mark.parametrize("folder", ["python-deps/", "v2/", "v2-staging/", "manifests/"])
def test_expires_no_index(expiring_prefixes: tuple[str, ...], folder: str) -> None:
    assert not folder.startswith(expiring_prefixes)


def test_documents_the_days_of_the_data() -> None:
    text = (ROOT / "docs" / "operations.md").read_text(encoding="utf-8")
    table = text.partition("## Retention")[2].partition("What is deleted as a unit")[0]
    documented_days = {"30 days": 30, "120 days": 120, "52 weeks": 364, "2 years": 730, "forever": None}

    for line in re.findall(r"^\| (`.*) \|$", table, re.MULTILINE):
        names, days, newest = [cell.strip() for cell in line.split("|")]
        for name in re.findall(r"`(\w+)`", names):
            policy = retention().policies[name]
            assert policy.days == documented_days[days]
            assert newest == ("" if policy.forever else f"the newest {policy.newest}")

    assert f"after {retention().policies['ci'].expire_days} days" in text
    assert f"after {retention().abort_uploads_days} days" in text


# What roles may do


GET = "s3:GetObject"
PUT = "s3:PutObject"
DELETE = "s3:DeleteObject"
LIST = "s3:ListBucket"
LIST_UNFINISHED = "s3:ListBucketMultipartUploads"

# What a request says of itself.
ANY: dict[str, str] = {}
FIRST = {"s3:if-none-match": "*"}
OVER = {"s3:if-match": "etag"}
# The parts of an upload carry no condition; their completion does.
PART = {"s3:ObjectCreationOperation": "false"}

DISTRIBUTIONS = [f"{GROUP}/{name}" for name in (WHEEL, f"{WHEEL}.metadata", "rocm-7.1.0.tar.gz")]
PAGES = [f"{GROUP}/{name}" for name in ("index.html", "simple/torch/index.json", "simple/index-state.txt")]
# Below the folder of the repository that the template names.
FORK = RunOutputs(run_id="17", platform="windows", external_repo="FORK/")
CACHES = [f"{LAYOUT.format(release_type='ci')}/a/b/c"]
DEPENDENCY = "python-deps/numpy-2.1-py3-none-any.whl"
INTENT = f"{documents.INTENTS}/set/1.json"
DECISION = f"{documents.DECISIONS}/set/1.json"
RECORD = RUN.record_key("g", "build_torch")
RELEASED_FOLDERS = ("v2", "python-deps", "v2/x-linux")

# A(rtifacts), E(xternal), R(eleases): the parameters that name the buckets.
BUCKETS = {"A": "ArtifactsBucketName", "E": "ExternalBucketName", "R": "DistributionBucketName"}

# Role, action, what the request says, whether it is allowed, in which buckets, and of which keys.
Rule = tuple[str, str, dict[str, str], bool, str, list[str]]


def area_rules(role: str, area: str) -> list[Rule]:
    """Return what staging and promotion may do: each writes its own area alone."""
    manifests = documents.manifests(area, "g")
    return [
        (role, GET, ANY, True, "A", [f"{GROUP}/{WHEEL}"]),
        (role, GET, ANY, True, "R", [f"v2-staging/g/{WHEEL}"]),
        (role, PUT, ANY, True, "R", [f"{area}/g/{WHEEL}", f"{manifests}/1.json"]),
        (role, DELETE, ANY, True, "R", [f"{area}/g/simple/torch/index.html"]),
        (role, DELETE, ANY, False, "R", [f"{area}/g/{WHEEL}"]),
    ]


# That none may write what another one owns is seen by test_trust.py.
RULES: list[Rule] = [
    # An upload writes its run, and replaces no distribution; it deletes only pages and failure records.
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
    # A cache is one release type's.
    ("CompilerCache", GET, ANY, True, "A", CACHES),
    ("CompilerCache", PUT, ANY, True, "A", CACHES),
    ("CompilerCache", DELETE, ANY, False, "A", CACHES),
    ("CompilerCache", PUT, ANY, False, "A", [key.replace("/ci/", "/nightly/") for key in CACHES]),
    # A fork writes below its own folder of the external bucket.
    ("ExternalUpload", PUT, FIRST, True, "E", [f"{FORK.python_prefix('g')}/{WHEEL}"]),
    ("ExternalUpload", PUT, ANY, False, "E", [f"{FORK.python_prefix('g')}/{WHEEL}"]),
    ("ExternalUpload", PUT, FIRST, False, "E", ["other-repo/17-linux/x"]),
    ("ExternalUpload", PUT, FIRST, False, "AR", [f"{FORK.python_prefix('g')}/{WHEEL}", f"{GROUP}/{WHEEL}"]),
    *area_rules("Stage", "v2-staging"),
    *area_rules("Promote", "v2"),
    # A promotion announces itself, and decides once.
    ("Promote", PUT, ANY, True, "R", [INTENT]),
    # Pages of staging say what was refused.
    ("Promote", PUT, ANY, True, "R", ["manifests/refused/g/x.json", "v2-staging/g/index.html"]),
    ("Promote", DELETE, ANY, True, "R", ["manifests/refused/g/x.json"]),
    ("Promote", PUT, ANY, False, "R", [f"v2-staging/g/{WHEEL}", "manifests/v2-staging/g/x.json"]),
    ("Promote", DELETE, ANY, True, "R", [INTENT]),
    ("Promote", PUT, FIRST, True, "R", [DECISION]),
    ("Promote", PUT, OVER, False, "R", [DECISION]),
    ("Promote", DELETE, ANY, False, "R", [DECISION]),
    # Retention deletes runs and staging, and never what is released.
    ("Retention", DELETE, ANY, True, "A", [f"{GROUP}/{WHEEL}"]),
    ("Retention", DELETE, ANY, True, "E", ["me-TheRock/17-windows/logs/g/x.log"]),
    ("Retention", DELETE, ANY, True, "R", [f"v2-staging/g/{WHEEL}"]),
    ("Retention", DELETE, ANY, False, "AER", [f"{folder}/g/{WHEEL}" for folder in RELEASED_FOLDERS]),
    ("Retention", DELETE, ANY, False, "R", ["manifests/v2/x.json"]),
    ("Retention", PUT, ANY, True, "R", ["v2-staging/g/simple/index.html"]),
    ("Retention", PUT, ANY, False, "AER", [f"v2-staging/g/{WHEEL}", "v2/g/index.html"]),
    # The mirror writes dependencies alone, and replaces none.
    ("Mirror", PUT, FIRST, True, "AE", [DEPENDENCY]),
    ("Mirror", PUT, ANY, False, "AE", [DEPENDENCY]),
    ("Mirror", PUT, ANY, True, "AE", ["python-deps/simple/numpy/index.html"]),
    ("Mirror", DELETE, ANY, False, "AE", [DEPENDENCY]),
    # The function writes pages alone.
    *(("Pages", action, ANY, True, "A", PAGES) for action in (GET, PUT, DELETE)),
    *(("Pages", action, ANY, True, "E", [f"me/{page}" for page in PAGES]) for action in (GET, PUT, DELETE)),
    ("Pages", GET, ANY, True, "A", DISTRIBUTIONS),
    ("Pages", PUT, ANY, False, "A", DISTRIBUTIONS),
    ("Pages", DELETE, ANY, False, "A", DISTRIBUTIONS),
    ("Pages", GET, ANY, False, "A", [f"{RUN.prefix}/manifests/g/x.json"]),
]


@pytest.mark.parametrize(
    ("role", "action", "context", "allowed", "letters", "keys"),
    RULES,
    ids=[f"{number} {rule[0]} {rule[1]}" for number, rule in enumerate(RULES)],
)
def test_allows_a_role_its_work_and_nothing_else(
    template: Template,
    role: str,
    action: str,
    context: dict[str, str],
    *,
    allowed: bool,
    letters: str,
    keys: list[str],
) -> None:
    repository = template.parameters["ExternalRepository"]
    for letter in letters:
        bucket = template.parameters[BUCKETS[letter]]
        for key in keys:
            place = f"{bucket}/{key.replace('FORK', repository)}"
            assert is_allowed(template, role, action, place, context) is allowed, place


def test_allows_the_pages_role_to_list_a_bucket(template: Template) -> None:
    assert is_allowed(template, "Pages", LIST, template.parameters["ArtifactsBucketName"], ANY)


@pytest.mark.parametrize(
    ("role", "letters"),
    [
        ("CiUpload", "A"),
        ("ExternalUpload", "E"),
        ("Stage", "R"),
        ("Promote", "R"),
        ("Mirror", "AE"),
        ("Retention", "AR"),
        ("CompilerCache", "A"),
        ("Pages", "AE"),
        ("Read", ""),
    ],
)
def test_lists_unfinished_uploads_where_a_role_writes(
    template: Template,
    role: str,
    letters: str,
) -> None:
    buckets_with_right = ""
    for letter, parameter in BUCKETS.items():
        if is_allowed(template, role, LIST_UNFINISHED, template.parameters[parameter], ANY):
            buckets_with_right += letter

    assert buckets_with_right == letters


def test_has_no_policy_without_a_rule_here(template: Template) -> None:
    policies = {
        name for name, resource in template.resources.items() if resource["Type"] == "AWS::IAM::ManagedPolicy"
    }

    assert policies == {f"{rule[0]}Policy" for rule in RULES}


# Events, and the form of the file


@pytest.mark.parametrize(
    "name",
    [
        WHEEL,
        f"{WHEEL}.metadata",
        "rocm-7.1.0.tar.gz",
        "yanked.json",
        "index.html",
        "simple/torch/index.json",
        "simple/index-state.txt",
    ],
)
def test_passes_on_the_events_that_the_function_follows(template: Template, name: str) -> None:
    pattern = template.resources["ChangesRule"]["Properties"]["EventPattern"]["detail"]
    suffixes = tuple(condition["suffix"] for condition in pattern["object"]["key"])
    key = f"{GROUP}/{name}"

    folder = folder_of(BucketKey(bucket="b", key=key), re.compile(RUN_FOLDERS))

    assert key.endswith(suffixes) == (folder is not None)


def test_passes_on_no_event_of_a_release(template: Template) -> None:
    pattern = template.resources["ChangesRule"]["Properties"]["EventPattern"]["detail"]

    assert template.parameters["DistributionBucketName"] not in pattern["bucket"]["name"]


def test_has_no_alias_of_yaml_which_cloudformation_cannot_read() -> None:
    text = TEMPLATE.read_text(encoding="utf-8")
    without_strings = re.sub(r'"[^"]*"|#.*', "", text)

    assert not re.search(r"[:\-\[,] *[&*]\w", without_strings)


# What goes wrong behind a bucket


def test_changes_go_to_the_dead_letter_queue_after_five_attempts(template: Template) -> None:
    policy = template.resources["ChangesQueue"]["Properties"]["RedrivePolicy"]

    assert policy == {"deadLetterTargetArn": {"GetAtt": "FailedQueue.Arn"}, "maxReceiveCount": 5}
    assert template.raw["Outputs"]["FailedQueueUrl"]["Value"] == {"Ref": "FailedQueue"}


def test_an_alarm_goes_off_when_a_change_is_in_the_dead_letter_queue(template: Template) -> None:
    alarm = template.resources["FailedAlarm"]["Properties"]

    assert alarm["MetricName"] == "ApproximateNumberOfMessagesVisible"
    assert alarm["Dimensions"] == [{"Name": "QueueName", "Value": {"GetAtt": "FailedQueue.QueueName"}}]
    assert (alarm["ComparisonOperator"], alarm["Threshold"]) == ("GreaterThanThreshold", 0)


def test_an_alarm_goes_off_when_pages_are_ten_minutes_behind(template: Template) -> None:
    alarm = template.resources["LateAlarm"]["Properties"]

    assert alarm["MetricName"] == "ApproximateAgeOfOldestMessage"
    assert alarm["Dimensions"] == [{"Name": "QueueName", "Value": {"GetAtt": "ChangesQueue.QueueName"}}]
    assert (alarm["ComparisonOperator"], alarm["Threshold"]) == ("GreaterThanThreshold", 600)
