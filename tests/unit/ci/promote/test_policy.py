from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ci.plan.data import Runners
from ci.promote.documents import Cell, Document, Evidence, Override, StagedFile
from ci.promote.facts import Facts, Reason, Wheel
from ci.promote.policy import STAGES, Gate, Gates, Required, Rules, Verdict, by_cell, decide, gates
from ci.promote.runs import Test
from core.data import use_own
from core.errors import DataError
from pytorch_build.test import upstream_tests
from pytorch_build.test.reports import stage_name
from pytorch_build.test.results import Origin
from tests.unit.ci.plan.planning import planned

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


def of_stage(stage: str) -> Test:
    test = ran(wheel())
    return replace(test, evidence=test.evidence.model_copy(update={"stage": stage}))


def trouble(one: Wheel, said: str) -> Reason:
    return Reason(cell=one.cell, message=said)


def untested(verdict: Verdict) -> bool:
    return bool(verdict.reasons) and all(one.overridable for one in verdict.reasons)


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
    evidence = (ran(one).evidence,) if outcome == "passed" else ()
    assert [ruling.evidence for ruling in by_person.rulings] == [evidence]
    assert by_cell(verdict.reasons) == ({one.cell: [*verdict.reasons]} if verdict.reasons else {})


ONE, ROCM = wheel(), wheel(name="rocm-sdk-core", version="7.10.0")
NAME = ONE.file.name
NO_MACHINE = "no machine tests this family, and its data allows no release without"
TESTED_CELL, OTHER_CELL = (Cell(family=one, platform="linux") for one in (TESTED, BYPASSED))
MIXED = "torch was built from bbbbbbbbbbbb, for gfx1151 linux from aaaaaaaaaaaa"
# all tests passed, and one thing is wrong that nobody can decide away; NAME is the wheel's
BROKEN: dict[str, Facts] = {
    "Nothing is staged of it.": facts(),
    "NAME was staged and is gone": facts(replace(ONE, found=""), ROCM),
    "NAME was replaced after it was staged": facts(replace(ONE, found=OTHER), ROCM),
    "NAME is not what the run's records name": facts(replace(ONE, built=frozenset({OTHER})), ROCM),
    "NAME has a sidecar that is missing": facts(replace(ONE, sidecar=""), ROCM),
    "NAME has a sidecar that was replaced after it was staged": facts(replace(ONE, sidecar=OTHER), ROCM),
    "NAME is a wheel of the sample": facts(wheel(version="2.10.0+devrocm7.99.0.dev0.sample"), ROCM),
    "build_apex failed: No.": facts(ONE, ROCM, troubles=(trouble(ONE, "build_apex failed: No."),)),
    "torchaudio 2.9.0 is not staged": facts(
        ONE, ROCM, promised={ONE.cell: {"torch": TORCH, "torchaudio": "2.9.0"}}
    ),
    "torch 2.10.1 is not staged": facts(ONE, ROCM, promised={ONE.cell: {"torch": "2.10.1"}}),
    f"torch {TORCH} is not staged": facts(
        ONE, ROCM, promised={replace(ONE.cell, python="cp313"): {"torch": TORCH}}
    ),
    **{
        f"NAME requires {text}, which the index would not have": facts(replace(ONE, requires=(text,)), ROCM)
        for text in (
            *("rocm-sdk-core==7.10.1", "rocm ==", "torch==9", "rocm-sdk-device-gfx942"),
            *('rocm-sdk-device; extra == "device"', 'Rocm_SDK_core>7.10.0; platform_system == "Linux"'),
        )
    },
    MIXED: facts(ONE, ROCM, commits={TESTED_CELL: {"torch": "b" * 40}, OTHER_CELL: {"torch": "a" * 40}}),
}


CELLS = {
    "Nothing is staged of it.": Cell(family="", platform=""),
    f"torch {TORCH} is not staged": replace(ONE.cell, python="cp313"),
    MIXED: TESTED_CELL,
}


@pytest.mark.parametrize("said", BROKEN)
def test_what_nobody_can_decide_away(said: str) -> None:
    name = next((one.file.name for one in BROKEN[said].wheels), "")
    for override in (None, PERSON):
        verdict = decide(BROKEN[said], RULES, override)
        assert not verdict.promote
        firm = [(one.cell, one.message) for one in verdict.reasons if not one.overridable]
        assert firm == [(CELLS.get(said, ONE.cell), said.replace("NAME", name))]


def test_a_whole_set_is_none_of_these() -> None:
    requires = (
        *("rocm-sdk-core==7.10.0", "rocm-sdk-libraries==7.9.0", "rocm-sdk-devel>=8", "typing-extensions>=4"),
        *('rocm-other==1; sys_platform == "win32"', 'rocm-sdk-core==9; python_version < "3"'),
    )
    found = facts(
        replace(ONE, requires=requires),
        ROCM,
        promised={ONE.cell: {"torch": TORCH, "rocm-sdk-core": "7.10.0"}},
        commits={ONE.cell: {"torch": "a"}, OTHER_CELL: {"torch": "a", "apex": "b"}},
        released={TESTED: frozenset({("rocm-sdk-libraries", "7.9.0"), ("rocm-sdk-devel", "9.0rc1")})},
    )
    assert decide(found, RULES).reasons == ()


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
        of_stage("test_rocm"),
    ]
    assert untested(decide(facts(one, tests=others), RULES))
    failed = [replace(other, outcome="failed") for other in others]
    assert decide(facts(one, tests=[test, *failed]), RULES).promote
    # tests count by the bytes they ran on
    assert decide(facts(one, tests=[ran(one, digest=OTHER), test]), RULES).promote
    pure = replace(ONE, cell=TESTED_CELL, file=ONE.file.model_copy(update={"python": ""}))
    assert decide(facts(pure, tests=[test]), RULES).promote
    # ROCm's packages are stopped by a failure under any Python
    (reason,) = decide(facts(ROCM, tests=[ran(ROCM), ran(ROCM, "failed", python="cp313")]), RULES).reasons
    assert reason.message == "test_rocm failed under cp313: It broke."
    assert decide(facts(ROCM, tests=[ran(ROCM)]), RULES).promote


@pytest.mark.parametrize(
    ("family", "changed", "said"),
    [
        (TESTED, {"files": {}}, ["test_smoke names no NAME"]),
        (TESTED, {"files": {"apex.whl": OTHER}}, ["test_smoke names no NAME"]),
        (TESTED, {"files": {NAME: OTHER}}, ["test_smoke ran on other bytes of NAME than are staged"]),
        (TESTED, {"outcome": "void"}, ["test_smoke does not count: It broke."]),
        (TESTED, {"outcome": "failed"}, ["test_smoke failed: It broke."]),
        (TESTED, {"torch_ref": "release/2.10"}, ["no test_smoke has passed"]),
        (BLOCKED, {"torch_ref": "release/2.10"}, ["no test_smoke has passed", NO_MACHINE]),
    ],
)
def test_what_is_said_of_what_is_not_tested(family: str, changed: dict[str, Any], said: list[str]) -> None:
    one = wheel(family)
    verdict = decide(facts(one, tests=[replace(ran(one), **changed)]), RULES)
    assert [reason.message.replace(NAME, "NAME") for reason in verdict.reasons] == said
    assert untested(verdict)


def test_families_may_have_gates_of_their_own() -> None:
    gate = Gate(rocm=("test_rocm",), pytorch=("test_smoke", "test_torch"))
    rules = replace(RULES, gates=Gates(gates=RULES.gates.gates, families={TESTED: gate}))
    verdict = decide(facts(wheel()), rules)
    assert [reason.message for reason in verdict.reasons] == ["no test_torch has passed"]
    assert decide(facts(wheel(BYPASSED)), rules).promote
    assert (gates().of(wheel()).pytorch, gates().of(wheel()).rocm) == (("test_smoke",), ("test_rocm",))


@pytest.mark.parametrize(
    ("row", "concerned"),
    [
        ({}, True),
        *(
            ({key: (value,)}, concerned)
            for key, one, other in (
                ("families", TESTED, BYPASSED),
                ("platforms", "linux", "windows"),
                ("pythons", "3.12", "3.11"),
                ("torch_refs", "nightly", "release/2.10"),
                ("release_types", "nightly", "dev"),
            )
            for value, concerned in ((one, True), (other, False))
        ),
    ],
)
def test_a_required_stage_concerns_the_cells_it_names(row: dict[str, Any], *, concerned: bool) -> None:
    needed = Required.model_validate({"stage": "test_torch", **row})
    required = RULES.gates.model_copy(update={"required": (needed,)})
    rules = replace(RULES, gates=required, release_type="nightly")
    verdict = decide(facts(ONE, ROCM), rules)
    assert verdict.promote is not concerned
    assert [one.message for one in verdict.reasons] == (["no test_torch has passed"] if concerned else [])
    for stage, whole in (("test_torch", True), ("test_torch-1-of-2", False)):  # a part proves nothing alone
        found = facts(ONE, ROCM, tests=[ran(ONE), of_stage(stage), ran(ROCM)])
        assert decide(found, rules).promote is (whole or not concerned)


@pytest.mark.parametrize("stage", ["test_torch", "test_torch-2-of-6", "test_torch_more", "test_torch-2-of-x"])
@pytest.mark.parametrize("outcome", ["passed", "void", "failed"])
def test_a_failure_counts_wherever_a_test_ran_that_need_not_have(stage: str, outcome: str) -> None:
    gate = Gate(rocm=("test_rocm",), pytorch=("test_smoke",), where_run=("test_torch",))
    rules = replace(RULES, gates=Gates(gates=gate))
    found = facts(ONE, ROCM, tests=[ran(ONE), ran(ROCM), replace(of_stage(stage), outcome=outcome, files={})])
    verdict = decide(found, rules)
    counts = outcome == "failed" and stage in {"test_torch", "test_torch-2-of-6"}
    assert verdict.promote is not counts
    assert [reason.message for reason in verdict.reasons] == (
        [f"{stage} failed: It broke."] if counts else []
    )
    assert decide(found, rules, PERSON).promote


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
    others = (stage_of(name) for name in upstream_tests.load().configurations)
    assert set(STAGES) == {"test_smoke", "test_rocm", *others}


@pytest.mark.parametrize(
    ("own", "said"),
    [
        ('gates.where_run = ["test_toch"]', "Did you mean 'test_torch'"),
        ("families.gfx94x-dcgpu = { rocm = [], pytorch = [] }", "Did you mean 'gfx94X-dcgpu'"),
        ('required = [{ stage = "test_smokes" }]', r"promotion\.required\[0\].*Did you mean 'test_smoke'"),
    ],
)
def test_gates_of_ones_own_name_what_there_is(tmp_path: Path, own: str, said: str) -> None:
    (tmp_path / "own.toml").write_text(f"[promotion]\n{own}\n")
    use_own(tmp_path / "own.toml")
    with pytest.raises(DataError, match=said):
        gates()


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
    passed = {
        (name, sha256)
        for test in found.tests
        for name, sha256 in test.files.items()
        if test.outcome == "passed"
    }
    for ruling in verdict.rulings:
        assert ruling.rule == "tests" or (ruling.rule == "bypass" and ruling.family == BYPASSED)
        of = [
            one
            for one in found.wheels
            if (one.cell.family, one.cell.python) == (ruling.family, ruling.python)
        ]
        assert ruling.rule == "bypass" or {(one.file.name, one.found) for one in of} <= passed


@given(many())
def test_a_person_can_decide_on_tests_and_everything_then_goes_out(found: Facts) -> None:
    verdict = decide(found, RULES, PERSON)
    assert verdict.promote
    against = {(one.cell.family, one.cell.python, one.message) for one in decide(found, RULES).reasons}
    overridden = [one for one in verdict.rulings if one.rule == "override"]
    assert {(one.family, one.python, said) for one in overridden for said in one.overridden} == against
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
    failed = replace(found, troubles=(trouble(one, "build_torch failed: No."),))
    assert not decide(failed, RULES, PERSON).promote


@given(many(), st.randoms(use_true_random=False))
def test_the_order_of_facts_decides_nothing(found: Facts, random: object) -> None:
    wheels, tests = list(found.wheels), list(found.tests)
    random.shuffle(wheels)  # type: ignore[attr-defined]
    random.shuffle(tests)  # type: ignore[attr-defined]
    other = decide(replace(found, wheels=tuple(wheels), tests=tuple(tests)), RULES)
    one = decide(found, RULES)
    assert (one.promote, one.rulings, {*one.reasons}) == (other.promote, other.rulings, {*other.reasons})
