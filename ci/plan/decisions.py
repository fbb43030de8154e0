"""The decisions about a run as a whole, each with its reason."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ci.plan.labels import BUILD_PYTORCH, SKIP
from ci.plan.paths import relevance
from ci.publish.buckets import access
from core.errors import UsageError, nearest
from core.run.locations import Origin
from core.run.plan import Decision, Upload

if TYPE_CHECKING:
    from ci.plan.question import Question
    from core.run.outputs import Platform

_TEST_TYPES = {"nightly": "comprehensive", "nightly-bkc": "comprehensive", "prerelease": "full"}


def trusted(question: Question) -> Decision:
    """Decide whether the run may write anywhere: not if its commits are somebody else's."""
    event = question.event
    if not event.fork:
        return Decision(value=True, reason=f"the commits are those of {event.repository}")
    whose = "a fork that is gone" if event.fork == "deleted" else f"the fork {event.fork}"
    return Decision(
        value=False,
        reason=f"the commits are those of {whose}: no credentials, no release bucket, no shared caches",
    )


def enabled(question: Question) -> Decision:
    """Decide whether anything is built."""
    event, labels = question.event, question.labels
    if labels.skip:
        return Decision(value=False, reason=f"label {SKIP}")
    if event.deleted:
        return Decision(value=False, reason="the branch was deleted")
    if event.name not in {"pull_request", "push"}:
        return Decision(value=True, reason=f"{event.name} builds whatever has changed")
    found = relevance(question.changes, question.data.triggers.paths)
    if not found.builds and labels.asks:
        return Decision(value=True, reason=f"label {labels.asks}, although {found.reason}")
    return Decision(value=found.builds, reason=found.reason)


def pytorch(question: Question) -> Decision:
    """Decide whether PyTorch is built: after a merge and at night always, on a pull request by label."""
    event, wanted = question.event, question.inputs.build_pytorch
    if wanted is not None:
        return Decision(value=wanted, reason=f"the input build_pytorch is {str(wanted).lower()}")
    match event.name:
        case "pull_request":
            asked = question.labels.build_pytorch
            return Decision(value=asked, reason=f"{'' if asked else 'no '}label {BUILD_PYTORCH}")
        case "push" if question.merged:
            return Decision(value=True, reason=f"pushes to {event.branch} always build PyTorch")
        case "push":
            return Decision(value=False, reason=f"{event.branch or 'a tag'} is no long-lived branch")
        case "schedule":
            return Decision(value=True, reason="the schedule always builds PyTorch")
    return Decision(value=True, reason="a dispatch builds PyTorch unless build_pytorch is false")


def test_type(question: Question) -> tuple[str, str]:
    """Choose the test type, and say why: the first of these that applies."""
    inputs, labels = question.inputs, question.labels
    tests = (
        *(f"test:{name}" for name in labels.tests),
        *inputs.linux_test_labels,
        *inputs.windows_test_labels,
    )
    standard = relevance(question.changes, question.data.triggers.paths).standard
    rules = (
        (inputs.test_type, "the input test_type"),
        (labels.test_filter, f"label test_filter:{labels.test_filter}"),
        ("full" if tests else "", f"{next(iter(tests), '')} is asked for"),
        (_TEST_TYPES.get(question.type), f"release type {question.type}"),
        ("comprehensive" if question.event.name == "schedule" else "", "the nightly schedule"),
        ("standard" if standard else "", f"{standard} has changed"),
    )
    return next(((chosen, why) for chosen, why in rules if chosen), ("quick", "nothing asks for more"))


def test_labels(question: Question) -> dict[Platform, tuple[str, ...]]:
    """Give the tests that are asked for, by platform, as labels."""
    known = question.data.triggers.tests
    given = {"linux": question.inputs.linux_test_labels, "windows": question.inputs.windows_test_labels}
    found: dict[Platform, tuple[str, ...]] = {}
    for platform in ("linux", "windows"):
        names = [*question.labels.tests, *(label.removeprefix("test:") for label in given[platform])]
        for name in names:
            if name not in known:
                raise UsageError(f"The test {name!r} is not known. {nearest(name, known)}")
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
    owner = question.buckets.repository.partition("/")[0]
    if event.owner.casefold() != owner.casefold():
        reason = f"{event.repository} has no bucket: name one under [upload] of a file that CI_CONFIG names"
        return Decision(value=False, reason=reason), Upload()
    granted = access(question.buckets, Origin(repository=event.repository), question.type)
    place = granted.location
    return Decision(value=True, reason=f"runs of {event.repository} have a bucket"), Upload(
        store=place.store, external_repo=place.external_repo, role=granted.role, region=granted.region
    )


def promote(question: Question, uploads: Decision, builds: Decision) -> Decision:
    """Decide whether the wheels go on to a release index; whether their tests allow it is known later."""
    if question.type not in question.buckets.distributions:
        return Decision(value=False, reason=f"runs of type {question.type} are not handed out")
    if not uploads.value:
        return Decision(value=False, reason=uploads.reason)
    if not builds.value:
        return Decision(value=False, reason=f"PyTorch is not built: {builds.reason}")
    return Decision(value=True, reason=f"release type {question.type}, once its tests have passed")
