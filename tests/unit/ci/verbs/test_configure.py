"""The verb: on a laptop from options, in CI from the environment, with the same plan."""

import argparse
import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from ci.verbs import configure
from core import process
from core.cli.options import common_from
from core.errors import ProcessError
from core.run.plan import Plan
from tests.kit.front_doors import run_ci
from tests.unit.ci.plan.planning import pull_request, push

Call = "Callable[..., tuple[int, str, str]]"


@pytest.fixture
def call(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Callable[..., tuple[int, str, str]]:
    """Call `python -m ci configure` with these words, as if on a machine without CI."""

    def below(arguments: argparse.Namespace) -> Any:
        return replace(common_from(arguments), root=tmp_path)

    def no_git(*_words: Any, **_options: Any) -> Any:
        raise ProcessError("fatal: not a git repository")

    monkeypatch.setattr(configure, "common_from", below)
    monkeypatch.setattr(process, "capture", no_git)

    def run(*words: str) -> tuple[int, str, str]:
        capsys.readouterr()
        code = run_ci("configure", *words)
        said = capsys.readouterr()
        return code, said.out, said.err

    return run


@pytest.fixture
def in_ci(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Make the environment of a job."""

    def happened(name: str, payload: Any, **more: str) -> None:
        (tmp_path / "event.json").write_text(json.dumps(payload))
        env = {
            "GITHUB_EVENT_NAME": name,
            "GITHUB_EVENT_PATH": str(tmp_path / "event.json"),
            "GITHUB_REPOSITORY": "ROCm/TheRock",
            "GITHUB_REF_NAME": "main",
            "GITHUB_RUN_ID": "17",
            "GITHUB_OUTPUT": str(tmp_path / "outputs"),
            "GITHUB_STEP_SUMMARY": str(tmp_path / "summary.md"),
        }
        for variable, value in {**env, **more}.items():
            monkeypatch.setenv(variable, value)

    return happened


def set_outputs(path: Path) -> dict[str, str]:
    found, lines = {}, iter(path.read_text().splitlines())
    for line in lines:
        name, _, end = line.partition("<<")
        found[name] = "\n".join(iter(lambda: next(lines), end))
    return found


def test_a_laptop_prints_the_plan_that_ci_makes(call: Any, in_ci: Any) -> None:
    words = ("--event", "pull_request", "--label", "build:pytorch", "--label", "gfx1151")
    code, out, said = call(*words, "--changed", "docs/x.md", "--json", "--run-id", "17")
    assert code == 0, said
    laptop = Plan.model_validate_json(out)
    assert "label build:pytorch, although only docs/x.md changed" in said
    assert "gfx1151, nightly, Python 3.12" in said
    assert "built from nightly on, or by label" in said

    in_ci("pull_request", pull_request("gfx1151", "build:pytorch"))
    code, out, said = call("--json")
    assert code == 0, said
    theirs = Plan.model_validate_json(out)
    facts = ("cells", "variants", "left_out")
    assert [getattr(theirs, one) for one in facts] == [getattr(laptop, one) for one in facts]
    assert (theirs.event.number, theirs.event.labels) == (7, laptop.event.labels)


def test_a_job_gets_outputs_and_a_summary_that_name_what_could_not_be_asked(
    call: Any, in_ci: Any, tmp_path: Path
) -> None:
    in_ci("push", push("release/1"))
    code, _, said = call("--output", "plan.json")
    assert code == 0, said
    found = set_outputs(tmp_path / "outputs")
    assert json.loads(found["build_pytorch"]) is True
    assert json.loads(found["linux_build_pytorch_matrix"])[0]["gpu_family"] == "gfx94X-dcgpu"
    assert found["plan_digest"] == Plan.read(tmp_path / "plan.json").digest()
    summary = (tmp_path / "summary.md").read_text()
    assert "git cannot tell which files have changed" in summary
    assert "so everything counts as changed" in summary
    assert "gfx94X\\-dcgpu, nightly, Python 3.12" in summary
    assert "<details><summary>Left out" in summary


def test_inputs_of_a_calling_workflow_take_the_place_of_the_events(call: Any, in_ci: Any) -> None:
    event = {"inputs": {"something_of_the_caller": "x"}}
    inputs = {"linux_amdgpu_families": "gfx94X-dcgpu", "pytorch_git_refs": "sample", "build_pytorch": True}
    in_ci("workflow_dispatch", event, CI_INPUTS=json.dumps(inputs))
    code, out, said = call("--json")
    assert code == 0, said
    assert {cell.torch_ref for cell in Plan.model_validate_json(out).cells} == {"sample"}
    code, _, said = call("--label", "ci:skip")
    assert (code, "Name it with --event" in said) == (2, True)
    for broken in ("{", "[1]", "[" * 5000):
        in_ci("workflow_dispatch", {}, CI_INPUTS=broken)
        code, _, said = call()
        assert (code, "CI_INPUTS" in said) == (3, True)


def test_options_name_refs_and_families_as_everywhere(call: Any) -> None:
    words = ("--torch-ref", "release/2.10", "--gpu-family", "gfx1151")
    code, out, said = call("--event", "schedule", *words, "--json")
    assert code == 0, said
    made = Plan.model_validate_json(out)
    assert {cell.gpu_family for cell in made.cells} == {"gfx1151"}
    assert {cell.torch_ref for cell in made.cells} == {"", "release/2.10"}
    assert {cell.platform for cell in made.cells} == {"linux", "windows"}
    _, out, _ = call("--event", "workflow_dispatch", "--gpu-family", "gfx94X-dcgpu", "--json")
    assert {cell.platform for cell in Plan.model_validate_json(out).cells} == {"linux"}
    code, _, said = call("--event", "workflow_dispatch", "--gpu-family", "gfx94y")
    assert (code, "Did you mean" in said) == (2, True)


@pytest.mark.parametrize(
    ("words", "code", "message"),
    [
        ((), 2, "There is no event to plan for"),
        (("--label", "x"), 2, "There is no event to plan for"),
        (("--event", "pull-request"), 2, "Did you mean 'pull_request'"),
        (("--event", "push", "--label", "ci:skip"), 2, "--label is for a pull request"),
        (("--event", "pull_request", "--label", "build: pytorch"), 2, "Did you mean 'build:pytorch'"),
        (("--event", "pull_request", "--repository", "x"), 2, "owner/name"),
        (("--event", "schedule", "--input", "test_type"), 2, "is not NAME=VALUE"),
        (("--payload", "none.json"), 4, "cannot be read"),
        (("--event", "schedule", "--changed", "@none.txt"), 4, "cannot be read"),
    ],
)
def test_what_cannot_be_meant_is_one_clear_error(call: Any, words: Any, code: int, message: str) -> None:
    ended, _, said = call(*words)
    assert (ended, message in said) == (code, True), said
    assert "Traceback" not in said


def test_a_payload_of_github_can_be_tried(call: Any, tmp_path: Path) -> None:
    (tmp_path / "event.json").write_text(json.dumps(pull_request("ci:skip", head=None)))
    _, out, said = call("--payload", str(tmp_path / "event.json"), "--json")
    assert "label ci:skip" in said
    assert not Plan.model_validate_json(out).trusted.value
    (tmp_path / "files.txt").write_text("docs/a.md\ndocs/b.md\n")
    assert "only 2 files changed" in call("--event=push", "--changed", f"@{tmp_path / 'files.txt'}")[2]
    (tmp_path / "push.json").write_text(json.dumps(push("main")))
    code, _, said = call("--payload", str(tmp_path / "push.json"))
    assert (code, "needs the event's name" in said) == (2, True)
