"""The `PlanBasis` that a plan is made from, and decisions about a run as a whole, each with its reason."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import date

from ci.plan.data import Paths, PlanData, TestType, Tier
from ci.plan.events import DELETED_FORK, Changes, Event
from ci.plan.inputs import ALL_FAMILIES, BUILD_PYTORCH, SKIP, TEST_PREFIX, Inputs, Labels
from ci.publish.buckets import Buckets, access
from core.errors import UsageError, nearest
from core.files import path_pattern
from core.run import PLATFORMS, Platform
from core.run.locations import Origin
from core.run.plan import Decision, Upload
from pytorch_build.refs.torch_refs import TorchRef

DISPATCHES = ("workflow_dispatch", "workflow_call")
_TEST_TYPES: Mapping[str, TestType] = {
    "nightly": "comprehensive",
    "nightly-bkc": "comprehensive",
    "prerelease": "full",
}
_WORKFLOWS = ".github/workflows/"
_LONGEST_PATH = 60  # in a reason


@dataclass(frozen=True, kw_only=True)
class PlanBasis:
    """What happened, what is requested, and what is known: everything that a plan is made from."""

    event: Event
    inputs: Inputs
    labels: Labels
    changes: Changes
    data: PlanData
    buckets: Buckets
    refs: Mapping[Platform, Mapping[str, TorchRef]]
    today: date
    run_id: str = ""
    default_release_type: str = "ci"  # of the run, where its inputs name none
    distribution_store: str | None = None  # that promoted wheels go to, in the place of the data's
    notes: tuple[str, ...] = ()

    @property
    def is_merge(self) -> bool:
        """Whether the event is a push to a long-lived branch."""
        if self.event.name != "push" or self.event.branch is None:
            return False
        return matches(self.event.branch, self.data.triggers.long_lived_branches)

    @property
    def is_dispatch(self) -> bool:
        """Whether the event is a dispatch, which names what is built."""
        return self.event.name in DISPATCHES

    @property
    def release_type(self) -> str:
        """The release type of the run: the one that its inputs name, else the default."""
        return self.inputs.release_type or self.default_release_type

    @property
    def tier(self) -> tuple[Tier | None, str]:
        """Which families are built without being named, and why."""
        if self.is_dispatch:
            # A release is of what somebody names, or of all, and of nothing by mistake.
            builds_only_named_families = self.release_type != "ci" or self.inputs.names_families
            tier: Tier | None = None if builds_only_named_families else "presubmit"
            return tier, f"the dispatch names {'its' if builds_only_named_families else 'no'} families"
        if self.labels.all_families:
            return "nightly", f"label {ALL_FAMILIES}"
        if self.release_type != "ci":
            return "nightly", f"release type {self.release_type}"
        if self.event.name == "schedule":
            return "nightly", "the nightly schedule"
        if self.is_merge:
            return "postsubmit", f"a push to {self.event.branch}"
        reason = "a push" if self.event.name == "push" else "every pull request"
        return "presubmit", reason

    @property
    def tests_without_gpu(self) -> bool:
        """Whether ROCm is tested where no machine has the GPU, too: always but before a merge."""
        if self.event.name == "push":
            return self.is_merge
        return self.event.name != "pull_request"


def matches(name: str, patterns: Sequence[str]) -> bool:
    """Return whether a whole name matches a pattern: ``*`` within one part, ``**`` over several."""
    return any(path_pattern(pattern).fullmatch(name) for pattern in patterns)


def decide_by_files(changes: Changes, rules: Paths) -> Decision:
    """Decide by the changed files whether anything is built."""
    if changes.files is None:
        return Decision(value=True, reason=changes.note or "changed files are not considered")
    if not changes.files:
        return Decision(value=False, reason="no file has changed")

    for path in changes.files:
        if _is_built(path, rules):
            return Decision(value=True, reason=f"{_shorten(path)} has changed")

    files = f"{len(changes.files)} files"
    if len(changes.files) == 1:
        files = _shorten(changes.files[0])
    return Decision(value=False, reason=f"only {files} changed, which no build uses")


def _is_built(path: str, rules: Paths) -> bool:
    """Return whether a build uses a file."""
    if path.startswith(_WORKFLOWS):
        return matches(path.removeprefix(_WORKFLOWS), rules.workflows)
    return not matches(path, rules.skip)


def _shorten(path: str) -> str:
    """Return a path of any origin on one line of bounded length."""
    text = "".join(letter if letter.isprintable() else "?" for letter in path)
    if len(text) <= _LONGEST_PATH:
        return text
    half = _LONGEST_PATH // 2
    return f"{text[:half]}…{text[-half:]}"


def decide_trust(basis: PlanBasis) -> Decision:
    """Decide whether the run may write anywhere: not where its commits are a fork's."""
    event = basis.event
    if event.fork is None:
        return Decision(value=True, reason=f"the commits are those of {event.repository}")

    fork = "a deleted fork" if event.fork == DELETED_FORK else f"the fork {event.fork}"
    return Decision(
        value=False,
        reason=f"the commits are those of {fork}: no credentials, no release bucket, no shared caches",
    )


def decide_builds(basis: PlanBasis) -> Decision:
    """Decide whether anything is built."""
    event = basis.event
    if basis.labels.skip:
        return Decision(value=False, reason=f"label {SKIP}")
    if event.deleted:
        return Decision(value=False, reason="the branch was deleted")
    if event.name not in {"pull_request", "push"}:
        return Decision(value=True, reason=f"{event.name} builds whatever has changed")

    decision = decide_by_files(basis.changes, basis.data.triggers.paths)
    requesting_label = basis.labels.request
    if decision.value or requesting_label is None:
        return decision
    return Decision(value=True, reason=f"label {requesting_label}, although {decision.reason}")


def decide_pytorch(basis: PlanBasis) -> Decision:
    """Decide whether PyTorch is built: after a merge and at night always, on a pull request by label."""
    requested = basis.inputs.build_pytorch
    if requested is not None:
        text = "true" if requested else "false"
        return Decision(value=requested, reason=f"the input build_pytorch is {text}")

    tested_by = _requested_test_of_pytorch(basis)
    if tested_by is not None:
        return Decision(value=True, reason=f"{tested_by} is requested, which tests PyTorch")

    event = basis.event
    value = True
    match event.name:
        case "pull_request" if basis.labels.build_pytorch:
            reason = f"label {BUILD_PYTORCH}"
        case "pull_request":
            value = False
            reason = f"no label {BUILD_PYTORCH}"
        case "push" if basis.is_merge:
            reason = f"pushes to {event.branch} always build PyTorch"
        case "push":
            value = False
            reason = f"{event.branch or 'a tag'} is not a long-lived branch"
        case "schedule":
            reason = "the schedule always builds PyTorch"
        case _:
            reason = "a dispatch builds PyTorch unless build_pytorch is false"
    return Decision(value=value, reason=reason)


def _requested_test_of_pytorch(basis: PlanBasis) -> str | None:
    """Return the first requested test that installs PyTorch's wheels, as a label."""
    tests = basis.data.triggers.tests
    for labels in requested_tests(basis).values():
        for label in labels:
            if tests[label.removeprefix(TEST_PREFIX)].stage != "test_rocm":
                return label
    return None


def choose_test_type(basis: PlanBasis) -> tuple[TestType, str]:
    """Return the test type, and why: the one that is requested, else the one that the event has."""
    requested_type = basis.inputs.test_type
    if requested_type is not None:
        return requested_type, "the input test_type"

    test_filter = basis.labels.test_filter
    if test_filter is not None:
        return test_filter, f"label test_filter:{test_filter}"

    return _test_type_of_event(basis)


def _test_type_of_event(basis: PlanBasis) -> tuple[TestType, str]:
    if basis.release_type in _TEST_TYPES:
        return _TEST_TYPES[basis.release_type], f"release type {basis.release_type}"
    if basis.event.name == "schedule":
        return "comprehensive", "the nightly schedule"

    for path in basis.changes.files or ():
        if matches(path, basis.data.triggers.paths.standard):
            return "standard", f"{_shorten(path)} has changed"
    return "quick", "nothing requests more"


def requested_tests(basis: PlanBasis) -> dict[Platform, tuple[str, ...]]:
    """Return the tests that are requested besides those of the test type, by platform, as labels."""
    labels: dict[Platform, tuple[str, ...]] = {}
    for platform in PLATFORMS:
        names = dict.fromkeys(_requested_test_names(basis, platform))
        labels[platform] = tuple(f"{TEST_PREFIX}{name}" for name in names)
    return labels


def _requested_test_names(basis: PlanBasis, platform: Platform) -> Iterator[str]:
    """Yield the names of tests that labels and inputs request."""
    yield from basis.labels.tests

    known_tests = basis.data.triggers.tests
    for label in basis.inputs.test_labels(platform):
        name = label.removeprefix(TEST_PREFIX)
        if name not in known_tests:
            raise UsageError(f"Unknown test {name!r}. {nearest(name, known_tests)}")
        yield name


def decide_upload(basis: PlanBasis, trust: Decision) -> tuple[Decision, Upload]:
    """Decide whether and where the run's outputs go."""
    event = basis.event
    if not trust.value:
        if basis.release_type != "ci":
            raise UsageError(
                f"A fork's run cannot be of release type {basis.release_type!r}.",
                hint="Only ci is open to forks.",
            )
        return Decision(value=False, reason="a fork's run has no credentials to upload with"), Upload()

    own_store = basis.data.upload
    if own_store.store:
        upload = Upload(
            store=own_store.store,
            role=own_store.role,
            region=own_store.region,
        )
        return Decision(value=True, reason="the configuration names the store"), upload

    if not _has_buckets(basis):
        reason = f"{event.repository} has no bucket: name one in pytorch-build.toml, [buckets] or [upload]"
        return Decision(value=False, reason=reason), Upload()

    if basis.release_type not in basis.buckets.release_types:
        raise UsageError(
            f"{event.repository} has no bucket for runs of type {basis.release_type}.",
            hint=f"Name one in pytorch-build.toml, [buckets.release_types.{basis.release_type}].",
        )
    origin = Origin(repository=event.repository)
    upload = access(basis.buckets, origin, basis.release_type)
    return Decision(value=True, reason=f"runs of {event.repository} have a bucket"), upload


def _has_buckets(basis: PlanBasis) -> bool:
    """Return whether the data's buckets are those of the event's repository."""
    owner = basis.buckets.repository.partition("/")[0]
    return basis.event.owner.casefold() == owner.casefold()


def decide_promotion(
    basis: PlanBasis,
    uploads: Decision,
    builds: Decision,
) -> Decision:
    """Decide whether the wheels go on to a release index; whether their tests allow it is known later."""
    if basis.release_type == "ci":
        return Decision(value=False, reason="runs of type ci are not distributed")
    if not uploads.value:
        return Decision(value=False, reason=uploads.reason)
    has_distribution = _has_buckets(basis) and basis.release_type in basis.buckets.distributions
    if basis.distribution_store is None and not has_distribution:
        reason = f"{basis.event.repository} distributes no wheels of type {basis.release_type}"
        return Decision(value=False, reason=reason)
    if not builds.value:
        return Decision(value=False, reason=f"PyTorch is not built: {builds.reason}")
    return Decision(value=True, reason=f"release type {basis.release_type}, once its tests have passed")
