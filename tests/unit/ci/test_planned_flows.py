from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from invoke.exceptions import Exit

import tasks
from ci import flow_running, planned_flows
from ci.flow_graph import PLAN_FILE, Node, Target, nodes
from ci.plan.rocm import completed
from ci.planned_flows import planned, promotion_nodes, release_words, target, unresolved
from core.errors import MissingInputError, ProcessError, UsageError
from core.files import digest_of
from core.run.plan import Plan, RocmOrigin

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

PULL_REQUEST = (
    "--event=pull_request",
    "--label=build:pytorch",
    "--torch-ref=sample",
    "--gpu-family=gfx94X-dcgpu",
)


def stages(made: object) -> list[str]:
    return [one.stage for one in made]  # type: ignore[attr-defined]


def test_a_pull_requests_jobs_are_those_of_ci() -> None:
    plan = planned(PULL_REQUEST, Target())
    assert stages(nodes(plan, "linux", Target())) == [
        *("build_rocm", "test_rocm", "build_pytorch", "test_pytorch", "test_report", "summary"),
    ]


def test_without_the_label_there_is_no_pytorch() -> None:
    words = [word for word in PULL_REQUEST if "label" not in word]
    made = nodes(planned(words, Target()), "linux", Target())
    assert stages(made) == ["build_rocm", "test_rocm", "test_report", "summary"]


def test_a_plan_with_upstreams_tests_runs_each_part_of_them_and_puts_the_parts_together() -> None:
    plan = planned([*PULL_REQUEST, "--label=test:torch", "--label=test:smoke"], Target())
    made = nodes(plan, "linux", Target())
    parts = [one for one in made if one.stage == "test_torch"]
    assert [one.calls[0].posargs[2:4] for one in parts] == [
        ("--config=default", "--shard=1/2"),
        ("--config=default", "--shard=2/2"),
    ]
    (build,) = (one for one in made if one.stage == "build_pytorch")
    assert {one.needs for one in parts} == {(build.name,)}
    assert {one.calls[0].sessions for one in parts} == {("test_torch",)}
    (report,) = (one for one in made if one.stage == "test_report")
    assert set(report.needs) == {one.name for one in made if one.stage.startswith("test_") and one != report}
    assert report.tolerant
    page = made[-1]
    assert report.name in page.needs


def test_a_forks_jobs_build_in_one_and_test_nothing() -> None:
    made = nodes(planned([*PULL_REQUEST, "--fork"], Target()), "linux", Target())
    assert stages(made) == ["build_pytorch", "summary"]
    assert made[0].calls[0].sessions[0] == "build_rocm"


def test_a_release_ends_with_a_promotion_of_each_family() -> None:
    words = release_words("nightly", "gfx94X-dcgpu,gfx1151", "release/2.14", "3.12,3.13")
    made = nodes(unresolved(planned(words, Target())), "linux", Target(distribution_store="/dist"))
    sets = [one for one in made if one.stage == "promote"]
    assert [call.sessions for one in sets for call in one.calls] == [("stage",), ("promote",)] * 2
    for one in sets:
        assert "--pythons=3.12,3.13" in one.calls[1].posargs
        assert "--distribution-store=/dist" in one.calls[0].posargs
        assert one.tolerant
        # what it goes by is made of the parts of tests
        assert "test_report" in one.needs
        assert [need for need in one.needs if need.startswith("test_torch")]


def test_the_release_is_promoted_and_not_built() -> None:
    with pytest.raises(UsageError, match="invoke promote"):
        release_words("release", "", "", "")


def test_artifacts_of_another_run_are_fetched_to_where_they_are_packaged() -> None:
    words = [
        "--event=workflow_dispatch",
        "--input=linux_amdgpu_families=gfx1151",
        "--input=artifact_run_id=17",
    ]
    plan = planned(words, Target())
    origin = RocmOrigin(
        platform="linux",
        artifact_group="gfx1151",
        run_id="17",
        repository="ROCm/TheRock",
        store="s3://there",
        artifacts={"base_lib_generic.tar.zst": "a" * 64},
    )
    made = nodes(completed(plan, [origin]), "linux", Target())
    fetch, build, _upload = made[0].calls
    assert fetch.sessions == ("fetch_artifacts",)
    digest = digest_of(origin.artifacts)
    assert fetch.posargs == (
        *("--artifact-run-id=17", "--artifact-repository=ROCm/TheRock", "--artifact-store=s3://there"),
        *(f"--artifact-digest={digest}", "--gpu-family=gfx1151", "--release-type=ci", "--run-id=local"),
    )
    assert build.sessions == ("build_rocm",)
    shown = nodes(unresolved(plan), "linux", Target())[0].calls[0].posargs
    assert shown[:2] == ("--artifact-run-id=17", "--gpu-family=gfx1151")


def test_the_rocm_of_an_index_is_built_against_as_it_is() -> None:
    plan = planned([word for word in PULL_REQUEST if "torch-ref" not in word], Target())
    url = "https://packages.example/whl/"
    origin = RocmOrigin(platform="linux", artifact_group="gfx94X-dcgpu", index_url=url, version="10.1.0")
    made = nodes(completed(plan, [origin]), "linux", Target())
    assert stages(made) == ["build_pytorch", "test_pytorch", "test_report", "summary"]
    assert {f"--rocm-index-url={url}", "--rocm-version=10.1.0"} <= set(made[1].calls[0].posargs)
    build, checks, _upload = made[0].calls
    assert {f"--rocm-index-url={url}", "--rocm-version=10.1.0"} <= set(build.posargs)
    assert (checks.sessions, [one for one in checks.posargs if "rocm" in one]) == (("check_wheels",), [])


def test_a_variant_is_built_and_stored_apart() -> None:
    plan = planned([*(word for word in PULL_REQUEST if "build:" not in word), "--label=ci:asan"], Target())
    made = nodes(plan, "linux", Target())
    plain, asan = (one for one in made if one.stage == "build_rocm")
    assert all("--build-variant=asan" in call.posargs for call in asan.calls)
    assert not [one for call in plain.calls for one in call.posargs if "variant" in one]


@pytest.fixture
def ran(monkeypatch: pytest.MonkeyPatch) -> list[Node]:
    """Run every job by noting it; `resolve` leaves the plan as it is."""
    done: list[Node] = []

    def runner(_root: Path, *, together: bool) -> Callable[[Node], None]:
        assert together in {True, False}
        return done.append

    monkeypatch.setattr(flow_running, "runner", runner)
    return done


def test_a_flow_writes_the_plan_resolves_it_and_runs_its_jobs(ran: list[Node], tmp_path: Path) -> None:
    planned_flows.run(PULL_REQUEST, Target(), root=tmp_path)
    assert stages(ran) == [
        *("setup", "build_rocm", "test_rocm", "build_pytorch", "test_pytorch", "test_report", "summary"),
    ]
    assert Plan.read(tmp_path / PLAN_FILE).build_pytorch.value


def test_a_plan_without_jobs_is_a_failure(ran: list[Node], tmp_path: Path) -> None:
    words = ["--event=pull_request", "--changed=docs/x.md"]
    with pytest.raises(MissingInputError, match="no job"):
        planned_flows.run(words, Target(), root=tmp_path)
    assert ran == []


def test_a_failing_resolve_ends_the_flow(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def fail(_: Node) -> None:
        raise ProcessError("no such branch", returncode=1)

    monkeypatch.setattr(flow_running, "runner", lambda *_, **__: fail)
    with pytest.raises(ProcessError, match="1 of 1 jobs failed: resolve"):
        planned_flows.run(PULL_REQUEST, Target(), root=tmp_path)


def test_dry_runs_print_the_chain(capsys: pytest.CaptureFixture[str]) -> None:
    tasks.release.body(None, gpu_family="gfx94X-dcgpu", torch_ref="release/2.14", python="3.12", dry_run=True)
    tasks.nightly.body(None, dry_run=True)
    tasks.promote.body(None, run_id="17", gpu_family="gfx1151", dry_run=True)
    tasks.ci.body(None, event="pull_request", torch_ref="sample", gpu_family="gfx94X-dcgpu", dry_run=True)
    lines = capsys.readouterr().out.splitlines()
    assert all(line.startswith("nox -s ") for line in lines)
    called = [line.split()[2] for line in lines]
    assert called[:4] == ["find_rocm", "resolve", "fetch_artifacts", "build_rocm"]
    assert called[called.index("build_image") :][:6] == [
        *("build_image", "in_image", "report", "test_smoke", "stage", "promote"),
    ]


def test_an_error_of_a_flow_is_told_once(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(Exit) as caught:
        tasks.release.body(None, type="nigthly")
    assert caught.value.code == UsageError.exit_code
    assert "'nigthly' is not released by a flow" in capsys.readouterr().err


def test_what_a_person_promotes_is_passed_on() -> None:
    (made,) = promotion_nodes(
        target(run_id="17", store="s3://b", distribution_store="/d"),
        release_type="dev",
        gpu_family="gfx1151",
        torch_version="2.9.0",
        pythons="3.12",
    )
    assert made.calls[1].posargs[-2:] == ("--torch-version=2.9.0", "--pythons=3.12")
    assert {"--run-id=17", "--store=s3://b", "--release-type=dev", "--distribution-store=/d"} <= set(
        made.calls[0].posargs
    )
