"""What a decision on a set rests on: staged wheels and the tests of them, without a bucket."""

from collections.abc import Mapping, Sequence
from dataclasses import replace

from ci.promote import policy as promotion_policy
from ci.promote.documents import (
    Decision,
    DocumentDigest,
    Evidence,
    Override,
    PromotedFile,
    Reason,
    Refusal,
    ReleaseRecord,
    Ruling,
    StagedFile,
    StagedLock,
    StagingRecord,
)
from ci.promote.facts import CompletedTest, Outcome, SetFacts, SetLock, StagedWheel
from ci.promote.policy import PromotionPolicy
from core.cell import GroupCell, python_of_tag
from tests.kit import wheels
from tests.kit.group_cells import group_cell

FAMILY = "gfx94X-dcgpu"
PYTHON = "cp312"
TORCH_VERSION = "2.10.0+rocm7.10.0"
DIGEST = "a" * 64
OTHER_DIGEST = "b" * 64


def staged_wheel(
    *, family: str = FAMILY, python: str = PYTHON, name: str = "torch", version: str = TORCH_VERSION
) -> StagedWheel:
    """Return a wheel that was staged and is there; ROCm's are for no Python."""
    torch_ref: str | None = "nightly"
    file_python: str | None = python
    tag = f"{python}-{python}-linux_x86_64"
    if name.startswith("rocm"):
        torch_ref = None
        file_python = None
        tag = "py3-none-linux_x86_64"
    filename = wheels.wheel_filename(name=name, version=version, tag=tag)
    file = StagedFile(
        name=filename,
        key=f"v2-staging/{family}/{filename}",
        source_key=f"17-linux/python/{family}/{filename}",
        size=3,
        sha256=DIGEST,
        distribution=name,
        version=version,
        metadata_sha256=DIGEST,
        torch_ref=torch_ref,
        python=file_python,
    )
    cell = group_cell(artifact_group=family, platform="linux", python_tag=file_python or "")
    return StagedWheel(
        cell=cell,
        file=file,
        current_sha256=DIGEST,
        current_sidecar_sha256=DIGEST,
        recorded_sha256s=frozenset({DIGEST}),
    )


def completed_test(
    wheel: StagedWheel,
    *,
    outcome: Outcome = "passed",
    step: str | None = None,
    digest: str = DIGEST,
    python: str = PYTHON,
) -> CompletedTest:
    """Return a test of a wheel: of the step that its gate names, unless another is given."""
    if step is None:
        step = "test_rocm" if wheel.is_rocm else "test_smoke"
    record = DocumentDigest(key=f"{step}-{wheel.cell}-{python}.json", sha256=DIGEST)
    return CompletedTest(
        cell=replace(wheel.cell, python=wheel.cell.python or python_of_tag(python)),
        torch_ref=wheel.file.torch_ref,
        outcome=outcome,
        explanation="It broke.",
        tested_files={wheel.file.name: digest},
        evidence=Evidence(stage=step, run_id="17", python=python, record=record, report=None),
    )


def set_lock(
    cell: GroupCell,
    *,
    promised: Mapping[str, str] | None = None,
    commits: Mapping[str, str] | None = None,
) -> SetLock:
    """Return a source lock that one cell was built by."""
    return SetLock(
        run_id="17", place=cell.place, cells=(cell,), promised=promised or {}, commits=commits or {}
    )


def facts_of(
    *set_wheels: StagedWheel,
    tests: Sequence[CompletedTest] | None = None,
    locks: Sequence[SetLock] = (),
    released: Mapping[str, frozenset[tuple[str, str]]] | None = None,
    reasons: Sequence[Reason] = (),
) -> SetFacts:
    """Return the facts of a set; without `tests` each of its wheels has passed one."""
    if tests is None:
        tests = [completed_test(wheel) for wheel in set_wheels]
    return SetFacts(
        set_name="torch-2.10",
        wheels=set_wheels,
        tests=tuple(tests),
        locks=tuple(locks),
        released=released or {},
        reasons=tuple(reasons),
    )


def staging_record() -> StagingRecord:
    """Return the record of a wheel that was staged."""
    document = DocumentDigest(key="17-linux/manifests/record.json", sha256=DIGEST)
    lock = StagedLock(
        torch_ref="nightly",
        document=document,
        release_type="nightly",
        rocm_version="7.10.0",
        commits={"torch": "a" * 40},
        promised={"torch": TORCH_VERSION},
    )
    return StagingRecord(
        family=FAMILY,
        run_id="17",
        platform="linux",
        store="s3://runs",
        prefix="17-linux",
        artifact_group=FAMILY,
        staged="2026-11-21T12:00:00+00:00",
        files=(staged_wheel().file,),
        records=(document,),
        reports=(document,),
        locks=(lock,),
    )


def decision() -> Decision:
    """Return the decision of somebody who promoted a wheel although a test had failed."""
    staged_file = staged_wheel().file
    file = PromotedFile(
        name=staged_file.name,
        key=f"v2/{FAMILY}/{staged_file.name}",
        size=staged_file.size,
        sha256=DIGEST,
        family=FAMILY,
        staged_key=staged_file.key,
        staged_sha256=DIGEST,
    )
    ruling = Ruling(
        family=FAMILY,
        platform="linux",
        python=PYTHON,
        rule="override",
        evidence=(completed_test(staged_wheel()).evidence,),
        overridden=("test_torch failed: It broke.",),
    )
    return Decision(
        set_name=f"torch-{TORCH_VERSION}",
        identity="0123456789abcdef",
        release_type="nightly",
        decided="2026-11-21T13:00:00+00:00",
        by="the release job",
        staging=(DocumentDigest(key="staging.json", sha256=DIGEST),),
        rulings=(ruling,),
        override=Override(by="A. Person", reason="The runner's driver is old."),
        files=(file,),
    )


def release_record() -> ReleaseRecord:
    """Return what a release index lists of the decision's set."""
    return ReleaseRecord(family=FAMILY, decision=decision().key, files=decision().files)


def refusal() -> Refusal:
    """Return why a set was not released."""
    return Refusal(
        set_name=f"torch-{TORCH_VERSION}",
        family=FAMILY,
        platform="linux",
        refused="2026-11-21T13:00:00+00:00",
        by="the release job",
        reasons=("no test_smoke has passed",),
        staged_keys=(staged_wheel().file.key,),
    )


def decide(facts: SetFacts, policy: PromotionPolicy, override: Override | None = None) -> Decision:
    """Return the decision on a set."""
    return promotion_policy.decide(
        facts,
        policy,
        override,
        by="the release job",
        decided="2026-11-21T13:00:00+00:00",
    )
