"""The `Question` that a plan answers, and the decisions about a run as a whole, each with its reason."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import date

from ci.plan.data import Data, Paths, Tier
from ci.plan.events import Changes, Event
from ci.plan.inputs import ALL_FAMILIES, BUILD_PYTORCH, SKIP, Inputs, Labels
from ci.publish.buckets import Buckets, access
from core.errors import UsageError, nearest
from core.files import path_pattern
from core.run import PLATFORMS, Platform
from core.run.locations import Origin
from core.run.plan import Decision, Upload
from pytorch_build.refs.torch_refs import TorchRef

DISPATCHES = ("workflow_dispatch", "workflow_call")
_TEST_TYPES = {"nightly": "comprehensive", "nightly-bkc": "comprehensive", "prerelease": "full"}
_WORKFLOWS = ".github/workflows/"
_SHOWN = 60


@dataclass(frozen=True, kw_only=True)
class Question:
    """What happened, what is requested, and what is known: everything that a plan is made from."""

    event: Event
    inputs: Inputs
    labels: Labels
    changes: Changes
    data: Data
    buckets: Buckets
    refs: Mapping[Platform, Mapping[str, TorchRef]]
    today: date
    run_id: str = ""
    release_type: str = "ci"
    notes: tuple[str, ...] = ()

    @property
    def merged(self) -> bool:
        """Whether the event is a push to a long-lived branch."""
        branch = self.event.branch
        patterns = self.data.triggers.long_lived_branches
        return self.event.name == "push" and bool(branch) and matches(branch, patterns)

    @property
    def dispatched(self) -> bool:
        """Whether the event is a dispatch, which names what is built."""
        return self.event.name in DISPATCHES

    @property
    def type(self) -> str:
        """The release type of the run."""
        return self.inputs.release_type or self.release_type

    @property
    def tier(self) -> tuple[Tier | None, str]:
        """Which families are built without being named, and why."""
        if self.dispatched:
            return None, "the dispatch names its families"
        if self.labels.all_families:
            return "nightly", f"label {ALL_FAMILIES}"
        if self.event.name == "schedule" or self.type != "ci":
            return "nightly", "the nightly schedule" if self.type == "ci" else f"release type {self.type}"
        if self.merged:
            return "postsubmit", f"a push to {self.event.branch}"
        return "presubmit", "every pull request" if self.event.name == "pull_request" else "a push"

    @property
    def does_after_merge(self) -> bool:
        """Whether tests run where no machine has the GPU, too: always but before a merge."""
        return self.event.name != "pull_request" and (self.event.name != "push" or self.merged)


def matches(name: str, patterns: Sequence[str]) -> bool:
    """Return whether a whole name matches a pattern: ``*`` within one part, ``**`` over several."""
    return any(path_pattern(one).fullmatch(name) for one in patterns)


def relevance(changes: Changes, rules: Paths) -> tuple[Decision, str]:
    """Decide by the changed files whether anything is built, and name one that needs standard tests."""
    if changes.files is None:
        return Decision(value=True, reason=changes.note or "changed files are not considered"), ""
    if not changes.files:
        return Decision(value=False, reason="no file has changed"), ""
    standard = next((_shown(one) for one in changes.files if matches(one, rules.standard)), "")
    first = next((one for one in changes.files if _builds(one, rules)), None)
    if first is not None:
        return Decision(value=True, reason=f"{_shown(first)} has changed"), standard
    what = _shown(changes.files[0]) if len(changes.files) == 1 else f"{len(changes.files)} files"
    return Decision(value=False, reason=f"only {what} changed, which no build uses"), standard


def _builds(path: str, rules: Paths) -> bool:
    if path.startswith(_WORKFLOWS):
        return matches(path.removeprefix(_WORKFLOWS), rules.workflows)
    return not matches(path, rules.skip)


def _shown(path: str) -> str:
    """Write a path of any origin on one line of bounded length."""
    text = "".join(letter if letter.isprintable() else "?" for letter in path)
    return text if len(text) <= _SHOWN else f"{text[: _SHOWN // 2]}…{text[-_SHOWN // 2 :]}"


def trusted(question: Question) -> Decision:
    """Decide whether the run may write anywhere: not where its commits are a fork's."""
    event = question.event
    if not event.fork:
        return Decision(value=True, reason=f"the commits are those of {event.repository}")
    whose = "a deleted fork" if event.fork == "deleted" else f"the fork {event.fork}"
    reason = f"the commits are those of {whose}: no credentials, no release bucket, no shared caches"
    return Decision(value=False, reason=reason)


def enabled(question: Question) -> Decision:
    """Decide whether anything is built."""
    event, labels = question.event, question.labels
    if labels.skip:
        return Decision(value=False, reason=f"label {SKIP}")
    if event.deleted:
        return Decision(value=False, reason="the branch was deleted")
    if event.name not in {"pull_request", "push"}:
        return Decision(value=True, reason=f"{event.name} builds whatever has changed")
    found, _ = relevance(question.changes, question.data.triggers.paths)
    if not found.value and labels.request:
        return Decision(value=True, reason=f"label {labels.request}, although {found.reason}")
    return found


def pytorch(question: Question) -> Decision:
    """Decide whether PyTorch is built: after a merge and at night always, on a pull request by label."""
    event, wanted = question.event, question.inputs.build_pytorch
    if wanted is not None:
        return Decision(value=wanted, reason=f"the input build_pytorch is {str(wanted).lower()}")
    match event.name:
        case "pull_request":
            labelled = question.labels.build_pytorch
            return Decision(value=labelled, reason=f"{'' if labelled else 'no '}label {BUILD_PYTORCH}")
        case "push" if question.merged:
            return Decision(value=True, reason=f"pushes to {event.branch} always build PyTorch")
        case "push":
            return Decision(value=False, reason=f"{event.branch or 'a tag'} is not a long-lived branch")
        case "schedule":
            return Decision(value=True, reason="the schedule always builds PyTorch")
    return Decision(value=True, reason="a dispatch builds PyTorch unless build_pytorch is false")


def test_type(question: Question) -> tuple[str, str]:
    """Choose the test type, and say why: the first of these that applies."""
    inputs, labels = question.inputs, question.labels
    named = (f"test:{name}" for name in labels.tests)
    first = next(iter((*named, *inputs.linux_test_labels, *inputs.windows_test_labels)), "")
    _, standard = relevance(question.changes, question.data.triggers.paths)
    rules = (
        (inputs.test_type, "the input test_type"),
        (labels.test_filter, f"label test_filter:{labels.test_filter}"),
        (first and "full", f"{first} is requested"),
        (_TEST_TYPES.get(question.type), f"release type {question.type}"),
        ("comprehensive" if question.event.name == "schedule" else "", "the nightly schedule"),
        (standard and "standard", f"{standard} has changed"),
    )
    return next(((chosen, why) for chosen, why in rules if chosen), ("quick", "nothing requests more"))


def test_labels(question: Question) -> dict[Platform, tuple[str, ...]]:
    """Return the tests that are requested, by platform, as labels."""
    known = question.data.triggers.tests
    found: dict[Platform, tuple[str, ...]] = {}
    for platform in PLATFORMS:
        given = getattr(question.inputs, f"{platform}_test_labels")
        names = [*question.labels.tests, *(label.removeprefix("test:") for label in given)]
        for name in names:
            if name not in known:
                raise UsageError(f"Unknown test {name!r}. {nearest(name, known)}")
        found[platform] = tuple(f"test:{name}" for name in dict.fromkeys(names))
    return found


def upload(question: Question, trust: Decision) -> tuple[Decision, Upload]:
    """Decide whether and where the run's outputs go."""
    event, own = question.event, question.data.upload
    if not trust.value:
        if question.type != "ci":
            raise UsageError(
                f"A fork's run cannot be of release type {question.type!r}.", hint="Only ci is open to forks."
            )
        return Decision(value=False, reason="a fork's run has no credentials to upload with"), Upload()
    if own.store:
        stated = Upload(store=own.store, role=own.role, region=own.region)
        return Decision(value=True, reason="the configuration names the store"), stated
    if event.owner.casefold() != question.buckets.repository.partition("/")[0].casefold():
        reason = f"{event.repository} has no bucket: name one in pytorch-build.toml, [buckets] or [upload]"
        return Decision(value=False, reason=reason), Upload()
    granted = access(question.buckets, Origin(repository=event.repository), question.type)
    return Decision(value=True, reason=f"runs of {event.repository} have a bucket"), granted


def promote(question: Question, uploads: Decision, builds: Decision) -> Decision:
    """Decide whether the wheels go on to a release index; whether their tests allow it is known later."""
    if question.type not in question.buckets.distributions:
        return Decision(value=False, reason=f"runs of type {question.type} are not distributed")
    if not uploads.value:
        return Decision(value=False, reason=uploads.reason)
    if not builds.value:
        return Decision(value=False, reason=f"PyTorch is not built: {builds.reason}")
    return Decision(value=True, reason=f"release type {question.type}, once its tests have passed")
