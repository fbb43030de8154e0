"""Whether the steps of a flow have work to do, asked before nox is called."""

from pathlib import Path

import pytest

from ci import looks
from ci.looks import can_look_at_steps, look_at
from ci.pipeline import STEPS_BY_NAME, FlowOptions
from core.cli.options import ROOT, Common
from core.status import Pending
from tests.kit.runs import write_record
from tests.kit.screens import set_reader

FAMILY = "gfx94X-dcgpu"


@pytest.fixture(autouse=True)
def _in_the_checkout(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)


# Where steps can be asked


def test_steps_of_a_local_run_can_be_asked() -> None:
    assert can_look_at_steps(Common())


@pytest.mark.parametrize(
    "common",
    [
        pytest.param(Common(dry_run=True), id="a dry run"),
        pytest.param(Common(store="s3://runs"), id="a bucket"),
        pytest.param(Common(root=ROOT / "docs"), id="another checkout"),
    ],
)
def test_steps_elsewhere_are_not_asked(common: Common) -> None:
    assert not can_look_at_steps(common)


def test_steps_are_not_asked_on_github(monkeypatch: pytest.MonkeyPatch) -> None:
    set_reader(monkeypatch, "github")

    assert not can_look_at_steps(Common())


# What they say


@pytest.fixture
def options(tmp_path: Path) -> FlowOptions:
    """Return the options of a run with one build."""
    common = Common(run_id="local-looks", store=str(tmp_path))
    write_record(common.open_store(), common.outputs, step="build_torch", family=FAMILY, torch_ref="nightly")
    return FlowOptions(common=(f"--run-id={common.run_id}", f"--store={tmp_path}"))


def test_a_step_says_that_it_has_work_and_why(
    options: FlowOptions, capsys: pytest.CaptureFixture[str]
) -> None:
    status = look_at(STEPS_BY_NAME["report"], options, None)

    assert isinstance(status, Pending)
    (reason,) = status.reasons
    assert f"report: {reason}" in capsys.readouterr().err


def test_leaves_a_step_that_cannot_be_asked_to_its_session(tmp_path: Path) -> None:
    nothing = FlowOptions(common=("--run-id=local-nothing", f"--store={tmp_path}"))

    status = look_at(STEPS_BY_NAME["report"], nothing, None)

    assert isinstance(status, Pending)
    assert "local-nothing" in status.reasons[0]


@pytest.mark.parametrize("python", [None, "3.12"])
def test_a_step_without_its_environment_has_work(
    options: FlowOptions, python: str | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(looks, "ROOT", tmp_path)

    status = look_at(STEPS_BY_NAME["build_torch"], options, python)

    assert status == Pending(reasons=("its environment is not there",))
