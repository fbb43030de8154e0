"""A plan's jobs on this machine, and what a release is made of."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest

from ci import flow, interpreters
from ci.flow import configure_options_of_release, make_plan
from ci.jobs import FlowSettings, Job
from core import run
from core.cli.options import Common
from core.errors import MissingInputError, ProcessError, UsageError
from core.run.plan import Plan
from tests.kit.nox_calls import printed_calls

FAMILY = "gfx94X-dcgpu"
PYTHON = "3.12"
PULL_REQUEST = (
    "--event=pull_request",
    "--label=build:pytorch",
    "--torch-ref=sample",
    f"--gpu-family={FAMILY}",
)


# One ref


@pytest.fixture(autouse=True)
def _python_is_there(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the machine have every Python that flows are asked for."""
    monkeypatch.setattr(interpreters, "starts", bool)


def dry_run_of_ref(
    capsys: pytest.CaptureFixture[str],
    *,
    policy: str | None = None,
    rocm_layout: str | None = None,
    **facts: str,
) -> str:
    """Return the calls of nox that a flow of the sample prints."""
    common = replace(Common(torch_ref="sample", gpu_family=FAMILY, dry_run=True), **facts)  # type: ignore[arg-type] # texts alone
    flow.run_ref(common, python=PYTHON, policy=policy, rocm_layout=rocm_layout)
    return capsys.readouterr().out


def test_a_ref_is_three_calls_of_nox_and_then_the_page(capsys: pytest.CaptureFixture[str]) -> None:
    packaging_line, check_line, build_line, last_line = dry_run_of_ref(capsys).splitlines()

    assert packaging_line.startswith(f"nox -s resolve build_rocm -P {PYTHON} -- --torch-ref=sample")
    assert check_line.startswith(f"nox -s check_wheels -P {PYTHON} -- --rocm --torch-ref=sample")
    assert build_line.startswith("nox -s checkout build_triton")
    assert f"test_torch -P {PYTHON} -- --torch-ref=sample" in build_line
    assert last_line.startswith("nox -s report")
    assert last_line.endswith("--brief")


def test_says_what_a_family_has_no_use_for(capsys: pytest.CaptureFixture[str]) -> None:
    flow.run_ref(Common(torch_ref="sample", gpu_family="cpu", dry_run=True))

    assert "build_rocm: left out" in capsys.readouterr().err


def test_refuses_a_ref_of_which_nothing_is_built_on_this_platform(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(run, "sys", SimpleNamespace(platform="win32"))

    with pytest.raises(UsageError) as raised:
        flow.run_ref(Common(torch_ref="release/2.8", gpu_family=FAMILY, dry_run=True))

    assert "release/2.8 is built on windows" in raised.value.message
    assert "docs/support.md" in raised.value.hint


def test_builds_of_the_sample_on_windows_what_is_built_of_pytorch_there(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(run, "sys", SimpleNamespace(platform="win32"))

    flow.run_ref(Common(torch_ref="sample", dry_run=True))

    printed = capsys.readouterr()
    assert "build_torch" in printed.out
    assert "build_audio" in printed.out
    assert "build_vision" in printed.out
    assert "build_triton" not in printed.out
    assert "build_apex: left out" in printed.err


def test_a_layout_is_for_the_packages_of_rocm_alone(capsys: pytest.CaptureFixture[str]) -> None:
    calls = printed_calls(dry_run_of_ref(capsys, rocm_layout="unsplit"))

    assert [name for name, options in calls.items() if "--rocm-layout=unsplit" in options] == ["build_rocm"]


def test_refuses_a_layout_where_no_rocm_is_packaged() -> None:
    common = Common(torch_ref="sample", gpu_family="cpu", dry_run=True)

    with pytest.raises(UsageError, match="--rocm-layout"):
        flow.run_ref(common, rocm_layout="split")


def test_refuses_a_layout_for_a_plan_that_packages_no_rocm() -> None:
    with pytest.raises(UsageError, match="--rocm-layout"):
        flow.run_plan(
            configure_options_of_release("rehearsal"), FlowSettings(rocm_layout="split"), dry_run=True
        )


def test_a_policy_is_for_builds_and_checks(capsys: pytest.CaptureFixture[str]) -> None:
    lines = dry_run_of_ref(capsys, policy="/mine.toml").splitlines()
    (limited_line,) = [line for line in lines if "--policy=/mine.toml" in line]

    assert limited_line.startswith(
        "nox -s build_triton build_torch build_audio build_vision build_apex check_wheels "
    )


def test_builds_leave_their_wheels_at_home_and_upload_takes_them_to_the_store(
    capsys: pytest.CaptureFixture[str],
) -> None:
    calls = printed_calls(dry_run_of_ref(capsys, store="s3://runs"))

    assert [name for name, options in calls.items() if "--store=s3://runs" in options] == ["upload", "report"]


# Plans


@pytest.fixture
def jobs_run(monkeypatch: pytest.MonkeyPatch) -> list[Job]:
    """Return a list to which each job is added in the place of running; the plan stays as it is."""
    jobs: list[Job] = []

    def runner(_root: Path, *, holds_output_back: bool = False) -> Callable[[Job], None]:
        assert holds_output_back in {True, False}
        return jobs.append

    monkeypatch.setattr(flow, "NoxRunner", runner)
    return jobs


def test_a_plan_is_written_resolved_and_run(jobs_run: list[Job], tmp_path: Path) -> None:
    flow.run_plan(PULL_REQUEST, FlowSettings(), root=tmp_path)

    assert Plan.read(tmp_path / FlowSettings().plan_file).build_pytorch.value
    assert [job.kind for job in jobs_run] == [
        "setup",
        "build_rocm",
        "test_rocm",
        "build_pytorch",
        "test_pytorch",
        "test_report",
        "summary",
    ]


def test_a_plan_without_jobs_is_a_failure(jobs_run: list[Job], tmp_path: Path) -> None:
    with pytest.raises(MissingInputError):
        flow.run_plan(["--event=pull_request", "--changed=docs/x.md"], FlowSettings(), root=tmp_path)

    assert jobs_run == []


def test_a_plan_that_cannot_be_resolved_ends_the_flow(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    names: list[str] = []

    def fail(job: Job) -> None:
        names.append(job.name)
        raise ProcessError("it broke", returncode=1)

    monkeypatch.setattr(flow, "NoxRunner", lambda *_arguments, **_options: fail)

    with pytest.raises(ProcessError, match="setup"):
        flow.run_plan(PULL_REQUEST, FlowSettings(), root=tmp_path)

    assert names == ["setup"]


# Releases


def test_a_final_release_is_promoted_and_not_built() -> None:
    with pytest.raises(UsageError) as raised:
        configure_options_of_release("release")

    assert "invoke promote" in raised.value.hint


def test_a_release_type_that_is_misspelt_is_answered_with_the_nearest() -> None:
    with pytest.raises(UsageError) as raised:
        configure_options_of_release("nigthly")

    assert "'nightly'" in raised.value.hint


def test_a_rehearsal_promotes_the_sample_on_any_machine() -> None:
    plan = make_plan(configure_options_of_release("rehearsal"), FlowSettings())

    assert plan.promote.value
    assert {cell.gpu_family for cell in plan.jobs} == {"cpu"}
    assert {cell.torch_ref for cell in plan.jobs} == {"sample"}


@pytest.mark.parametrize(
    ("assignment", "option"),
    [
        ("release_type=release", "--type"),
        ("pytorch_git_refs=nightly", "--torch-ref"),
        ("linux_amdgpu_families=all", "--gpu-family"),
        ("pytorch_python_versions=3.12", "--python"),
    ],
)
def test_an_input_does_not_override_an_option(assignment: str, option: str) -> None:
    with pytest.raises(UsageError) as raised:
        configure_options_of_release("rehearsal", inputs=[assignment])

    assert option in raised.value.hint


def test_a_further_input_is_passed_on() -> None:
    options = configure_options_of_release("dev", inputs=["artifact_run_id=17"])

    assert options[-1] == "--input=artifact_run_id=17"


def test_a_release_says_first_where_its_wheels_go(capsys: pytest.CaptureFixture[str]) -> None:
    options = configure_options_of_release("rehearsal")

    flow.run_plan(options, FlowSettings(distribution_store="/dist"), dry_run=True)

    assert "staging and release index: /dist" in capsys.readouterr().err


def test_a_dry_run_prints_a_step_after_what_it_needs(capsys: pytest.CaptureFixture[str]) -> None:
    options = configure_options_of_release(
        "nightly", families="gfx94X-dcgpu", torch_refs="release/2.14", pythons="3.12"
    )

    flow.run_plan(options, FlowSettings(), dry_run=True)

    first_sessions = [line.split()[2] for line in capsys.readouterr().out.splitlines()]
    assert first_sessions.index("stage") < first_sessions.index("test_rocm")


def test_a_rehearsal_may_name_the_sample() -> None:
    assert "--input=pytorch_git_refs=sample" in configure_options_of_release("rehearsal", torch_refs="sample")


def test_a_rehearsal_refuses_every_other_ref() -> None:
    with pytest.raises(UsageError, match="nightly"):
        configure_options_of_release("rehearsal", torch_refs="sample, nightly")
