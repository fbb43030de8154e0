"""What the documentation promises of families that may be released without a test."""

import pytest

from ci.plan.data import Runners
from ci.promote.documents import Document, Evidence, StagedFile
from ci.promote.facts import Facts, Wheel
from ci.promote.policy import Gate, Gates, Rules, decide
from ci.promote.runs import Test
from core.cell import GroupCell

CELL = GroupCell(artifact_group="gfx1151", platform="linux", python="3.12")
DIGEST = "a" * 64


def staged_wheel(distribution: str) -> Wheel:
    """Return a wheel that lies in the bucket as it was staged and built."""
    name = f"{distribution}-2.10.0+rocm7.10.0-cp312-cp312-linux_x86_64.whl"
    staged_file = StagedFile(
        name=name,
        key=f"v2-staging/gfx1151/{name}",
        source_key=f"17-linux/python/gfx1151/{name}",
        size=3,
        sha256=DIGEST,
        distribution=distribution,
        version="2.10.0+rocm7.10.0",
        metadata_sha256=DIGEST,
        torch_ref="nightly",
        python="cp312",
    )
    return Wheel(cell=CELL, file=staged_file, found=DIGEST, sidecar=DIGEST, built=frozenset({DIGEST}))


def smoke_test(wheel: Wheel, *, outcome: str) -> Test:
    """Return a smoke test that installed one wheel."""
    record = Document(key=f"test_smoke-{wheel.file.distribution}.json", sha256=DIGEST)
    evidence = Evidence(stage="test_smoke", run_id="17", python="cp312", record=record, report=None)
    return Test(
        cell=CELL,
        torch_ref="nightly",
        outcome=outcome,
        why="It broke.",
        files={wheel.file.name: DIGEST},
        evidence=evidence,
    )


@pytest.fixture
def rules() -> Rules:
    """Rules of a family that no machine tests, and that may be released all the same."""
    runners = Runners.model_validate(
        {"families": {"gfx1151": {"linux": {"bypass_tests_for_releases": True}}}}
    )
    return Rules(
        runners=runners, gates=Gates(gates=Gate(rocm=("test_rocm",), pytorch=("test_smoke", "test_torch")))
    )


def test_a_bypass_excuses_missing_tests(rules: Rules) -> None:
    wheels = (staged_wheel("torch"), staged_wheel("torchaudio"))

    verdict = decide(Facts(set_name="torch-2.10", wheels=wheels, tests=()), rules)

    assert verdict.promote
    assert [ruling.rule for ruling in verdict.rulings] == ["bypass"]


def test_a_bypass_excuses_no_failed_test_beside_a_missing_one(rules: Rules) -> None:
    torch = staged_wheel("torch")
    # nothing is known of test_torch
    facts = Facts(set_name="torch-2.10", wheels=(torch,), tests=(smoke_test(torch, outcome="failed"),))

    verdict = decide(facts, rules)

    assert not verdict.promote
    assert any("It broke." in reason.message for reason in verdict.reasons)
