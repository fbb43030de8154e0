from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ci.plan.data import Runners
from ci.promote.documents import Cell, Document, Evidence, Override, StagedFile
from ci.promote.facts import Facts, FailedBuild, Wheel
from ci.promote.policy import Gate, Gates, Required, Rules, Verdict, decide, gates
from ci.promote.runs import Test
from pytorch_build.test import upstream_tests
from pytorch_build.test.reports import stage_name
from pytorch_build.test.results import Origin
from tests.unit.ci.plan.planning import planned

if TYPE_CHECKING:
    from collections.abc import Sequence

TESTED, BYPASSED, BLOCKED = "gfx94X-dcgpu", "gfx1151", "gfx900-dgpu"
FAMILIES = (TESTED, BYPASSED, BLOCKED)
RULES = Rules(
    runners=Runners.model_validate(
        {
            "families": {
                TESTED: {"linux": {"test_runner": "gpu", "bypass_tests_for_releases": True}},
                BYPASSED: {"linux": {"bypass_tests_for_releases": True}},
            }
        }
    ),
    gates=Gates(gates=Gate(rocm=("test_rocm",), pytorch=("test_smoke",))),
)
PERSON = Override(by="A. Person", reason="Because.")
DIGEST, OTHER = "a" * 64, "b" * 64
TORCH = "2.10.0+rocm7.10.0"


def wheel(family: str = TESTED, python: str = "cp312", name: str = "torch", version: str = TORCH) -> Wheel:
    rocm = name.startswith("rocm")
    tag = "py3-none-linux_x86_64" if rocm else f"{python}-{python}-linux_x86_64"
    filename = f"{name.replace('-', '_')}-{version}-{tag}.whl"
    file = StagedFile(
        name=filename,
        key=f"v2-staging/{family}/{filename}",
        source_key=f"17-linux/python/{family}/{filename}",
        size=3,
        sha256=DIGEST,
        distribution=name,
        version=version,
        metadata_sha256=DIGEST,
        torch_ref="" if rocm else "nightly",
        python="" if rocm else python,
    )
    cell = Cell(family=family, platform="linux", python=file.python)
    return Wheel(cell=cell, file=file, found=DIGEST, sidecar=DIGEST, built=frozenset({DIGEST}))


def ran(one: Wheel, outcome: str = "passed", digest: str = DIGEST, python: str = "cp312") -> Test:
    stage = "test_rocm" if one.is_rocm else "test_smoke"
    record = Document(key=f"{stage}-{one.cell}-{python}.json", sha256=DIGEST)
    return Test(
        cell=replace(one.cell, python=one.cell.python or python),
        torch_ref=one.file.torch_ref,
        outcome=outcome,
        why="It broke.",
        files={one.file.name: digest},
        evidence=Evidence(stage=stage, run_id="17", python=python, record=record, report=None),
    )


def facts(*wheels: Wheel, tests: Sequence[Test] | None = None, **more: object) -> Facts:
    found = tuple(ran(one) for one in wheels) if tests is None else tuple(tests)
    return Facts(set_name="torch-2.10", wheels=wheels, tests=found, **more)  # type: ignore[arg-type]


def kinds(verdict: Verdict) -> set[str]:
    return {one.kind for one in verdict.reasons}


@pytest.mark.parametrize(
    ("family", "outcome", "rule", "overridden"),
    [
        (TESTED, "passed", "tests", "tests"),
        (TESTED, "failed", "", "override"),
        (TESTED, "void", "", "override"),
        (TESTED, "absent", "", "override"),  # a bypass excuses no absent test where there is a runner
        (BYPASSED, "passed", "tests", "tests"),
        (BYPASSED, "absent", "bypass", "bypass"),
        (BYPASSED, "void", "bypass", "bypass"),
        (BYPASSED, "failed", "", "override"),  # nor a failed one where there is none
        (BLOCKED, "passed", "tests", "tests"),
        (BLOCKED, "absent", "", "override"),
        (BLOCKED, "void", "", "override"),
        (BLOCKED, "failed", "", "override"),
    ],
)
def test_the_rule_of_a_cell(family: str, outcome: str, rule: str, overridden: str) -> None:
    one = wheel(family)
    found = facts(one, tests=[] if outcome == "absent" else [ran(one, outcome)])
    verdict = decide(found, RULES)
    assert [ruling.rule for ruling in verdict.rulings] == ([rule] if rule else [])
    assert verdict.promote == bool(rule)
    assert verdict.override is None
    by_person = decide(found, RULES, PERSON)
    assert [ruling.rule for ruling in by_person.rulings] == [overridden]
    assert by_person.promote
    assert by_person.override == (PERSON if overridden == "override" else None)


ONE, ROCM = wheel(), wheel(name="rocm-sdk-core", version="7.10.0")
# all tests passed, and one thing is wrong that nobody can decide away
BROKEN = {
    "nothing": facts(),
    "gone": facts(replace(ONE, found=""), ROCM),
    "replaced": facts(replace(ONE, found=OTHER), ROCM),
    "other than built": facts(replace(ONE, built=frozenset({OTHER})), ROCM),
    "no record": facts(replace(ONE, built=frozenset()), ROCM),
    "no sidecar": facts(replace(ONE, sidecar=""), ROCM),
    "other sidecar": facts(replace(ONE, sidecar=OTHER), ROCM),
    "sample": facts(wheel(version="2.10.0+devrocm7.99.0.dev0.sample"), ROCM),
    "build": facts(ONE, ROCM, failed_builds=(FailedBuild(cell=ONE.cell, stage="build_apex", error="No."),)),
    "incomplete": facts(ONE, ROCM, promised={ONE.cell: {"torch": TORCH, "torchaudio": "2.9.0+rocm7.10.0"}}),
    "other version": facts(ONE, ROCM, promised={ONE.cell: {"torch": "2.10.1"}}),
    "other Python": facts(ONE, ROCM, promised={replace(ONE.cell, python="cp313"): {"torch": TORCH}}),
    "requirement": facts(replace(ONE, requires=("rocm-sdk-core==7.10.1",)), ROCM),
    "extra": facts(replace(ONE, requires=('rocm-sdk-device; extra == "device"',)), ROCM),
    "unreadable": facts(replace(ONE, requires=("rocm ==",)), ROCM),
    "mixed": facts(
        ONE,
        ROCM,
        commits={
            ONE.cell: {"torch": "a" * 40},
            Cell(family=BYPASSED, platform="linux"): {"torch": "b" * 40},
        },
    ),
    "trouble": facts(ONE, ROCM, troubles=((ONE.cell, "The run is gone."),)),
}


@pytest.mark.parametrize("kind", BROKEN)
def test_what_nobody_can_decide_away(kind: str) -> None:
    for override in (None, PERSON):
        verdict = decide(BROKEN[kind], RULES, override)
        assert not verdict.promote
        assert not all(one.overridable for one in verdict.reasons)
        assert str(verdict.reasons[0])


def test_a_whole_set_is_none_of_these() -> None:
    one = replace(
        wheel(),
        requires=(
            "rocm-sdk-core==7.10.0",
            "rocm-sdk-libraries==7.9.0",
            "typing-extensions>=4",
            'rocm-other==1; sys_platform == "win32"',
            'rocm-sdk-core==9; python_version < "3"',
        ),
    )
    found = facts(
        one,
        wheel(name="rocm-sdk-core", version="7.10.0"),
        promised={one.cell: {"torch": TORCH}},
        commits={
            one.cell: {"torch": "a"},
            Cell(family=BYPASSED, platform="linux"): {"torch": "a", "apex": "b"},
        },
        released={TESTED: frozenset({("rocm-sdk-libraries", "7.9.0")})},
    )
    assert decide(found, RULES).reasons == ()


def test_tests_count_by_the_bytes_they_ran_on() -> None:
    one = wheel()
    for tests in ([ran(one, digest=OTHER)], [replace(ran(one), files={})]):
        assert kinds(decide(facts(one, tests=tests), RULES)) == {"untested"}
    both = [ran(one, digest=OTHER), ran(one)]
    assert decide(facts(one, tests=both), RULES).promote


def test_device_code_goes_with_that_of_a_tested_target_of_its_family() -> None:
    for kind, version in (("amd-torch-device", TORCH), ("rocm-sdk-device", "7.10.0")):
        first, other = (wheel(name=f"{kind}-{gpu}", version=version) for gpu in ("gfx1100", "gfx1101"))
        test = replace(ran(first), targets=("gfx1100", "gfx1101"))
        assert decide(facts(first, other, tests=[test]), RULES).promote
        # of other families, of another kind or version, failed, or other bytes
        for changed in (
            replace(test, targets=("gfx1100",)),
            replace(test, outcome="failed"),
            replace(test, files={"torch.whl": DIGEST}),
            replace(test, files={first.file.name.replace(version, "1.0"): DIGEST}),
            replace(test, files={**test.files, other.file.name: OTHER}),
        ):
            assert not decide(facts(first, other, tests=[ran(first), changed]), RULES).promote
        gone = replace(other, found=OTHER)
        assert not decide(facts(first, gone, tests=[test]), RULES).promote


def test_a_test_of_another_cell_ref_or_gate_is_none_of_this_one() -> None:
    one = wheel()
    test = ran(one)
    others = [
        replace(test, cell=replace(test.cell, family=BYPASSED)),
        replace(test, cell=replace(test.cell, platform="windows")),
        replace(test, cell=replace(test.cell, python="cp311")),
        replace(test, torch_ref="release/2.10"),
        replace(test, evidence=test.evidence.model_copy(update={"stage": "test_rocm"})),
    ]
    assert kinds(decide(facts(one, tests=others), RULES)) == {"untested"}
    failed = [replace(other, outcome="failed") for other in others]
    assert decide(facts(one, tests=[test, *failed]), RULES).promote


def test_a_failure_under_any_python_stops_rocms_packages() -> None:
    rocm = wheel(name="rocm-sdk-core", version="7.10.0")
    tests = [ran(rocm), ran(rocm, "failed", python="cp313")]
    (reason,) = decide(facts(rocm, tests=tests), RULES).reasons
    assert reason.message == "test_rocm failed under cp313: It broke."
    assert decide(facts(rocm, tests=tests[:1]), RULES).promote


def test_families_may_have_gates_of_their_own() -> None:
    more = Gates(
        gates=RULES.gates.gates,
        families={TESTED: Gate(rocm=("test_rocm",), pytorch=("test_smoke", "test_torch"))},
    )
    one = wheel()
    verdict = decide(facts(one), replace(RULES, gates=more))
    assert [reason.message for reason in verdict.reasons] == ["no test_torch has passed"]
    other = wheel(BYPASSED)
    assert decide(facts(other), replace(RULES, gates=more)).promote


def test_the_data_has_gates_for_both_kinds() -> None:
    assert gates().of(wheel()).pytorch == ("test_smoke",)
    assert gates().of(wheel()).rocm == ("test_rocm",)
    assert gates().stages(wheel(name="rocm-sdk-core"), "nightly") == ("test_rocm",)


@pytest.mark.parametrize(
    ("row", "concerned"),
    [
        ({}, True),
        ({"families": (TESTED,)}, True),
        ({"families": (BYPASSED,)}, False),
        ({"platforms": ("linux",)}, True),
        ({"platforms": ("windows",)}, False),
        ({"pythons": ("3.12",)}, True),
        ({"pythons": ("3.11",)}, False),
        ({"torch_refs": ("nightly",)}, True),
        ({"torch_refs": ("release/2.10",)}, False),
        ({"release_types": ("nightly",)}, True),
        ({"release_types": ("dev",)}, False),
    ],
)
def test_what_is_required_of_some_cells_is_required_of_no_other(row: dict[str, Any], concerned: bool) -> None:  # noqa: FBT001 - a parameter
    needed = Required.model_validate({"stage": "test_torch", **row})
    rules = replace(
        RULES, gates=RULES.gates.model_copy(update={"required": (needed,)}), release_type="nightly"
    )
    one, rocm = wheel(), wheel(name="rocm-sdk-core", version="7.10.0")
    verdict = decide(facts(one, rocm), rules)
    assert verdict.promote is not concerned
    said = [reason.message for reason in verdict.reasons]
    assert said == (["no test_torch has passed"] if concerned else [])
    test = ran(one)
    upstream = replace(test, evidence=test.evidence.model_copy(update={"stage": "test_torch"}))
    assert decide(facts(one, rocm, tests=[test, upstream, ran(rocm)]), rules).promote


@pytest.mark.parametrize("stage", ["test_torch", "test_torch-2-of-6", "test_torch_more", "test_torch-2-of-x"])
@pytest.mark.parametrize("outcome", ["passed", "void", "failed"])
def test_a_failure_counts_wherever_a_test_ran_that_need_not_have(stage: str, outcome: str) -> None:
    gate = Gate(rocm=("test_rocm",), pytorch=("test_smoke",), where_run=("test_torch",))
    rules = replace(RULES, gates=Gates(gates=gate))
    one = wheel()
    test = ran(one)
    upstream = replace(
        test, outcome=outcome, evidence=test.evidence.model_copy(update={"stage": stage}), files={}
    )
    verdict = decide(facts(one, tests=[test, upstream]), rules)
    counts = outcome == "failed" and stage in {"test_torch", "test_torch-2-of-6"}
    assert verdict.promote is not counts
    assert [reason.message for reason in verdict.reasons] == (
        [f"{stage} failed: It broke."] if counts else []
    )
    assert decide(facts(one, tests=[test, upstream]), rules, PERSON).promote


def test_what_is_required_is_what_plans_of_these_release_types_test() -> None:
    for row in gates().required:
        for release_type in row.release_types:
            if release_type == "release":  # is a candidate's set, tested as a prerelease
                continue
            given = {"rocm_package_version": "10.1.0rc1"}
            made = planned("schedule", {}, None, given, release_type=release_type)
            tested = {
                (cell.gpu_family, cell.platform, cell.python, stage_of(cell.config))
                for cell in made.cells
                if cell.stage == "test_torch"
            }
            for family in row.families:
                for platform in row.platforms:
                    assert {(family, platform, one, row.stage) for one in row.pythons} <= tested
    known = {"test_smoke", "test_rocm", *(stage_of(name) for name in upstream_tests.load().configurations)}
    every = (gates().gates, *gates().families.values())
    assert {one for gate in every for one in (*gate.rocm, *gate.pytorch, *gate.where_run)} <= known
    assert {row.stage for row in gates().required} <= known


def stage_of(config: str) -> str:
    return stage_name(Origin(stage="test_torch", config=config))


OUTCOMES = st.sampled_from(["passed", "failed", "void"])


@st.composite
def many(draw: st.DrawFn) -> Facts:
    """Draw a set over families, Pythons and packages, with tests of some of it."""
    wheels = tuple(
        wheel(family, python, name, version)
        for family in draw(st.lists(st.sampled_from(FAMILIES), unique=True, min_size=1))
        for python in draw(st.lists(st.sampled_from(["cp311", "cp312"]), unique=True, min_size=1))
        for name, version in (("torch", TORCH), ("torchaudio", "2.9.0+rocm7.10.0"))
    )
    tests = tuple(
        ran(draw(st.sampled_from(wheels)), draw(OUTCOMES), draw(st.sampled_from([DIGEST, OTHER])))
        for _ in range(draw(st.integers(0, 12)))
    )
    return facts(*wheels, tests=tests)


@given(many())
def test_without_an_override_each_cell_rests_on_tests_or_on_data(found: Facts) -> None:
    verdict = decide(found, RULES)
    cells = {one.cell for one in found.wheels}
    ruled = {Cell(family=one.family, platform=one.platform, python=one.python) for one in verdict.rulings}
    assert ruled | {one.cell for one in verdict.reasons} == cells
    assert not ruled & {one.cell for one in verdict.reasons}
    for ruling in verdict.rulings:
        assert ruling.rule != "override"
        assert ruling.rule == "tests" or ruling.family == BYPASSED
        for one in found.wheels:
            if ruling.rule == "tests" and (one.cell.family, one.cell.python) == (
                ruling.family,
                ruling.python,
            ):
                assert any(
                    test.outcome == "passed" and test.files.get(one.file.name) == one.found
                    for test in found.tests
                )


@given(many())
def test_a_person_can_decide_on_tests_and_everything_then_goes_out(found: Facts) -> None:
    verdict = decide(found, RULES, PERSON)
    assert verdict.promote
    plain = decide(found, RULES)
    against: dict[Cell, set[str]] = {}
    for reason in plain.reasons:
        against.setdefault(reason.cell, set()).add(reason.message)
    overridden = [one for one in verdict.rulings if one.rule == "override"]
    assert {
        Cell(family=one.family, platform=one.platform, python=one.python): set(one.overridden)
        for one in overridden
    } == against
    assert verdict.override == (PERSON if overridden else None)


@given(many(), st.data())
def test_more_that_is_wrong_never_lets_a_set_out(found: Facts, data: st.DataObject) -> None:
    before = decide(found, RULES)
    one = data.draw(st.sampled_from(found.wheels))
    failing = replace(found, tests=(*found.tests, ran(one, "failed")))
    assert not decide(failing, RULES).promote
    fewer = replace(found, tests=tuple(test for test in found.tests if test.outcome != "passed"))
    if not before.promote:
        # what excuses a failure is no absence of passing tests
        assert not decide(fewer, RULES).promote
    failed = replace(found, failed_builds=(FailedBuild(cell=one.cell, stage="build_torch", error="No."),))
    assert not decide(failed, RULES, PERSON).promote


@given(many(), st.randoms(use_true_random=False))
def test_the_order_of_facts_decides_nothing(found: Facts, random: object) -> None:
    wheels, tests = list(found.wheels), list(found.tests)
    random.shuffle(wheels)  # type: ignore[attr-defined]
    random.shuffle(tests)  # type: ignore[attr-defined]
    other = decide(replace(found, wheels=tuple(wheels), tests=tuple(tests)), RULES)
    one = decide(found, RULES)
    assert (one.promote, one.rulings, kinds(one)) == (other.promote, other.rulings, kinds(other))
