"""Pages of one cell with a build and tests, for tests of what differs between runs."""

from collections.abc import Sequence

from ci.report import model
from ci.report.compare import SOUND
from ci.report.names import cell_text
from tests.kit.group_cells import group_cell

CELL_NAME = group_cell(artifact_group="gfx900", torch_ref="nightly", python_tag="cp312")


def state_of_build(state: model.State) -> model.StageState:
    """Return how the build of a cell ended."""
    if state in SOUND:
        return "ok"
    return "failed" if state == "failed" else "missing"


def make_cell_page(
    state: model.State = "passed",
    *,
    seconds: float = 3600,
    passed: int = 90,
    failing: Sequence[str] = (),
    failed: int | None = None,
    tested: bool = True,
) -> model.RunPage:
    """Return the page of one cell with a build and tests.

    `failing` are the failed tests that it names, and `failed` how many there were, if more.
    """
    failures = tuple(
        model.CaseRow(
            test=test,
            outcome="failed",
            line="",
            text="",
            cells=(f"test_smoke {cell_text(CELL_NAME)}",),
            seconds=0,
        )
        for test in failing
    )
    tests = model.StageTests(
        cell=CELL_NAME,
        stage="test_smoke",
        passed=not failing,
        totals=(
            ("passed", passed),
            ("skipped", 7),
            ("failed", len(failing) if failed is None else failed),
        ),
        seconds=1,
    )
    build = model.StageRun(stage="build_torch", state=state_of_build(state), cause="a.cpp:7: no such type")
    cell = model.CellProgress(
        name=CELL_NAME, state=state, reason=f"it is {state}", stages=(build,), line=model.TimeLine()
    )
    return model.RunPage(
        run_id="1",
        platform="linux",
        cells=(cell,),
        builds=(model.BuildRow(cell=CELL_NAME, stage="build_torch", seconds=seconds),),
        tests=model.RunTests(runs=(tests,) if tested else (), failures=failures),
    )
