import copy
import re
import signal
import sys
import threading
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from invoke.exceptions import Exit
from invoke.tasks import Task

import tasks
from ci import flow
from ci.flow import Changed, Outcome, planned, release_words, run_all, show
from ci.jobs import PLAN_FILE, Call, Job, Target
from core import console, errors, process
from core.cli.options import ROOT, Common
from core.errors import EnvironmentSetupError, MissingInputError, ProcessError, UsageError
from core.run.plan import Plan
from core.stores.directory import DirectoryStore
from pytorch_build.build.build import built
from pytorch_build.refs.torch_refs import OWN_TREES
from tests.kit.builds import LocalRun
from tests.kit.job_plans import PULL_REQUEST, stages_of
from tests.kit.repos import commit_files


def job(name: str, *needs: str, **facts: Any) -> Job:
    return Job(name=name, stage=name, calls=(Call(sessions=(name,)),), needs=needs, **facts)


class Work:
    def __init__(self, *failing: str) -> None:
        self.failing: tuple[str, ...] = failing
        self.ran: list[str] = []

    def __call__(self, one: Job) -> None:
        self.ran.append(one.name)
        if one.name in self.failing:
            raise ProcessError("it broke\nbadly", returncode=1)


CHAIN = (
    job("rocm"),
    job("torch", "rocm"),
    job("test", "torch"),
    job("other"),
    job("report", "test", tolerant=True),
)


def test_jobs_run_after_what_they_need_and_a_failure_stops_all_but_the_report() -> None:
    work = Work()
    assert [one.result for one in run_all(CHAIN, work)] == ["ok"] * 5
    assert work.ran == ["rocm", "torch", "test", "other", "report"]
    work = Work("torch")
    found = {one.name: (one.result, one.why) for one in run_all(CHAIN, work)}
    assert found["torch"] == ("failed", "it broke\nbadly")
    assert found["test"] == ("left out", "torch failed")
    assert found["other"] == ("left out", "another job failed")
    assert work.ran == ["rocm", "torch", "report"]
    kept = {one.name: one.result for one in run_all(CHAIN, work, keep_going=True)}
    assert kept == {"rocm": "ok", "torch": "failed", "test": "left out", "other": "ok", "report": "ok"}


@pytest.mark.parametrize(
    ("failing", "result"), [("torch", "left out"), ("test", "ok"), ("other", "ok"), ("", "ok")]
)
def test_a_summary_of_results_needs_some_results(failing: str, result: str) -> None:
    first = (job("torch"), job("test", "torch"), job("more", "torch"), job("other"))
    last = job("last", "test", "more", tolerant=True, wants_results=True)
    found = {one.name: one for one in run_all((*first, last), Work(failing), keep_going=True)}
    assert found["last"].result == result
    assert (found["last"].why == "nothing has run that it needs") == (result == "left out")


@pytest.mark.parametrize(("failing", "result"), [("build_torch", "left out"), ("test", "ok")])
def test_a_failed_build_stops_the_promotion_and_a_failed_test_does_not(failing: str, result: str) -> None:
    last = replace(job("promote", "build_torch", "test", tolerant=True), stage="promote")
    made = (job("build_torch"), job("test", "build_torch"), last)
    found = {one.name: one for one in run_all(made, Work(failing), keep_going=True)}
    assert found["promote"].result == result
    assert found["promote"].why == ("build_torch failed" if result == "left out" else "")


def test_as_many_jobs_run_at_a_time_as_allowed() -> None:
    together = threading.Barrier(3, timeout=60)

    def work(_: Job) -> None:
        together.wait()

    assert {one.result for one in run_all([*map(job, "abcdef")], work, at_once=3)} == {"ok"}


def test_a_fault_of_the_tool_is_not_a_failed_job() -> None:
    def work(_: Job) -> None:
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        run_all([job("one")], work)


def test_the_table_says_why_and_the_flow_fails(capsys: pytest.CaptureFixture[str]) -> None:
    show([Outcome(name="rocm", result="ok", seconds=3.0)])
    with pytest.raises(ProcessError, match=r"1 of 2 jobs failed: torch[^\n]*\nit broke\nbadly$"):
        show(
            [
                Outcome(name="torch", result="failed", why="it broke\nbadly"),
                Outcome(name="test", result="left out", why="torch failed"),
            ]
        )
    said = capsys.readouterr().err
    assert "it broke" not in said  # once, in the error
    assert "torch failed" in said


@pytest.fixture
def ran(monkeypatch: pytest.MonkeyPatch) -> list[Job]:
    """Run every job by noting it; `resolve` leaves the plan as it is."""
    done: list[Job] = []

    def runner(_root: Path, *, together: bool) -> Callable[[Job], None]:
        assert together in {True, False}
        return done.append

    monkeypatch.setattr(flow, "runner", runner)
    monkeypatch.setattr(flow, "_runs", bool)
    return done


def test_a_flow_writes_the_plan_resolves_it_and_runs_its_jobs(ran: list[Job], tmp_path: Path) -> None:
    flow.run_plan(PULL_REQUEST, Target(), root=tmp_path)
    assert stages_of(ran) == [
        *("setup", "build_rocm", "test_rocm", "build_pytorch", "test_pytorch", "test_report", "summary")
    ]
    assert Plan.read(tmp_path / PLAN_FILE).build_pytorch.value


def test_a_plan_without_jobs_is_a_failure(ran: list[Job], tmp_path: Path) -> None:
    with pytest.raises(MissingInputError, match="no job"):
        flow.run_plan(["--event=pull_request", "--changed=docs/x.md"], Target(), root=tmp_path)
    assert ran == []


def test_a_failing_resolve_ends_the_flow(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(flow, "runner", lambda *_, **__: Work("resolve"))
    monkeypatch.setattr(flow, "_runs", bool)
    with pytest.raises(ProcessError, match="1 of 1 jobs failed: resolve"):
        flow.run_plan(PULL_REQUEST, Target(), root=tmp_path)


def test_a_dry_run_prints_the_chain_of_jobs(capsys: pytest.CaptureFixture[str]) -> None:
    tasks.release.body(None, gpu_family="gfx94X-dcgpu", torch_ref="release/2.14", python="3.12", dry_run=True)
    tasks.nightly.body(None, dry_run=True)
    tasks.promote.body(None, run_id="17", gpu_family="gfx1151", dry_run=True)
    tasks.ci.body(None, event="pull_request", torch_ref="sample", gpu_family="gfx94X-dcgpu", dry_run=True)
    tasks.ci.body(None, torch_ref="sample", gpu_family="cpu", run_id="local-new", dry_run=True)
    lines = capsys.readouterr().out.splitlines()
    assert all(line.startswith("nox -s ") for line in lines)
    called = [line.split()[2] for line in lines]
    assert called[:4] == ["find_rocm", "resolve", "fetch_artifacts", "build_rocm"]
    assert called[called.index("build_image") :][:6] == [
        *("build_image", "in_image", "report", "test_smoke", "stage", "promote")
    ]


def test_only_some_release_types_have_a_flow(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(UsageError, match="invoke promote"):
        release_words("release", "", "", "")
    wrong = (
        (tasks.release, {"type": "nigthly"}, "not released by a flow.\nDid you mean 'nightly'?"),
        (tasks.release, {"type": "dev", "jobs": "many"}, "--jobs 'many' is no number"),
        (tasks.ci, {"torch_ref": "sample", "release_type": "nigthly"}, "Did you mean 'nightly'?"),
    )
    for one, given, said in wrong:
        with pytest.raises(Exit) as caught:
            one.body(None, **given)
        assert caught.value.code == UsageError.exit_code
        assert said in capsys.readouterr().err


def test_a_rehearsal_is_of_the_sample_on_any_machine() -> None:
    plan = planned(release_words("rehearsal", "", "", ""), Target())
    python = f"{sys.version_info.major}.{sys.version_info.minor}"
    assert {(one.gpu_family, one.torch_ref, one.python) for one in plan.cells} == {("cpu", "sample", python)}
    assert plan.promote.value
    assert "--input=pytorch_git_refs=sample" in release_words("rehearsal", "", "sample", "")
    with pytest.raises(UsageError, match="torch ref nightly builds others"):
        release_words("rehearsal", "", "sample, nightly", "")


class Nox:
    """The calls of nox, the first of which may fail."""

    def __init__(self) -> None:
        self.calls: list[list[str]] = []
        self.options: dict[str, Any] = {}
        self.problem: Exception | None = None
        self.note = ""

    def __call__(self, argv: list[str], **options: Any) -> None:
        self.calls.append(list(argv))
        self.options = options
        if self.problem is not None and len(self.calls) == 1:
            if self.note:
                Path(options["env"]["FAILURE_FILE"]).write_text(self.note)
            raise self.problem


@pytest.fixture(name="nox")
def nox_fixture(monkeypatch: pytest.MonkeyPatch) -> Nox:
    nox = Nox()
    monkeypatch.setattr(process, "run", nox)
    monkeypatch.setattr(flow, "left", lambda made: made)

    def capture(argv: list[str], **_: Any) -> process.Completed:
        nox.calls.append(argv)
        page = "1 cell (1 passed)\npage     out/local-linux/reports/index.html\n"
        return process.Completed(returncode=int(bool(nox.note)), stdout="", stderr=page)

    monkeypatch.setattr(process, "capture", capture)
    monkeypatch.setattr(flow, "_runs", "python3.12".__eq__)
    return nox


def test_builds_a_ref_in_one_call_of_nox_and_then_its_page(
    nox: Nox, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("MATRIX", "ci")  # with it the noxfile has cells in the sessions' place
    flow.run_ref(Common(torch_ref="sample", gpu_family="cpu"), python="3.12")
    first, last = nox.calls
    assert first[:6] == [sys.executable, "-m", "nox", "--no-error-on-external-run", "-s", "resolve"]
    assert first[first.index("test_torch") + 1 :][:4] == ["-P", "3.12", "--", "--torch-ref=sample"]
    assert last[5:8] == ["report", "-P", "3.12"]
    assert nox.options["cwd"] == ROOT
    assert "MATRIX" not in nox.options["env"]
    assert "build_rocm: left out, family cpu has no ROCm" in capsys.readouterr().err


def test_nox_runs_the_sessions_from_the_first_with_work_on(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    store, ends = DirectoryStore(tmp_path), [UsageError("x"), None, errors.InterruptedStageError("y")]

    def look(_package: str, _about: str, _verbs: Any, words: list[str]) -> None:
        console.say(words[0])
        if words[0] == "provenance":
            raise ends.pop(0) or AssertionError(store.put_bytes("page", b""))

    monkeypatch.setattr(flow, "dispatch", look)
    made = [replace(job("ref"), calls=(Call(sessions=("checkout", "provenance", "upload")),)), job("report")]
    for _ in ends[:2]:
        assert [one.calls[0].sessions for one in flow.left(made)] == [("provenance", "upload"), ("report",)]
        assert capsys.readouterr().out == "session checkout\ncheckout\n"
    assert store.find("page") is None
    with pytest.raises(errors.InterruptedStageError):
        flow.left(made)
    assert not flow._idle("build_torch", Call(sessions=(), python="3.99"))


def test_a_failed_task_ends_with_the_message_of_its_own_failed_step(
    nox: Nox, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    tasks.ci.body(None, torch_ref="sample", gpu_family="cpu")
    assert "-P" not in nox.calls[0]
    nox.calls.clear()
    nox.problem = ProcessError("nox ended with status 1.", returncode=1)
    with pytest.raises(Exit) as caught:
        tasks.ci.body(None, torch_ref="sample", gpu_family="cpu")
    assert caught.value.code == ProcessError.exit_code
    said = capsys.readouterr().err
    assert "passed" not in said
    assert "page     out/local-linux" in said
    assert "A session failed before its stage began. What nox said stands above.\n" in said
    nox.calls.clear()
    nox.note = "a.cpp:3: error: x\nagain: nox -s build_torch\nlog:   .cache/logs/build_torch.log"
    with pytest.raises(Exit):
        tasks.ci.body(None, torch_ref="sample", gpu_family="cpu")
    said = capsys.readouterr().err
    assert "1 of 2 jobs failed: sample." in said
    assert said.rstrip().endswith(nox.note)
    monkeypatch.setenv("GITHUB_ACTIONS", "true")  # there the stage has said it, as an annotation
    nox.calls.clear()
    with pytest.raises(Exit):
        tasks.ci.body(None, torch_ref="sample", gpu_family="cpu")
    assert "a.cpp" not in capsys.readouterr().err
    monkeypatch.delenv("GITHUB_ACTIONS")
    nox.calls[1:] = [nox.calls[-1]]
    assert [call[5] for call in nox.calls] == ["resolve", "report"]
    monkeypatch.setattr(flow, "run_jobs", lambda *_, **__: signal.raise_signal(signal.SIGINT))
    with pytest.raises(Exit) as caught:
        tasks.ci.body(None, torch_ref="sample", gpu_family="cpu")
    assert caught.value.code == errors.InterruptedStageError.exit_code
    assert "run the same command again" in capsys.readouterr().err
    with pytest.raises(Exit) as caught:
        tasks.ci.body(None, torch_ref="sampel", config_file="absent.toml")
    assert caught.value.code not in {0, None}


@pytest.mark.processes
def test_a_python_that_is_not_there_stops_a_flow_before_it_does_anything(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    # a version manager's shim stands for what it may not have
    for name in ("python3.9", "python3.13", "python3.14t", "python3.99", "python3.12-config", "python3"):
        (tmp_path / name).write_text(f"#!/bin/sh\nexit {127 if name == 'python3.99' else 0}\n")
        (tmp_path / name).chmod(0o755)
    for given in ({"gpu_family": "cpu"}, {"pytorch_dir": "."}, {"event": "push", "gpu_family": "gfx1151"}):
        with pytest.raises(Exit) as caught:
            tasks.ci.body(None, torch_ref="sample", python="3.99", **given)
        assert caught.value.code == EnvironmentSetupError.exit_code
        said = capsys.readouterr().err
        assert "no python3.99 on the PATH, where python3.9, python3.13, python3.14t can be found.\n" in said
        assert "uv python install 3.99" in said
        assert "session" not in said
    with pytest.raises(Exit) as caught:
        tasks.ci.body(None, torch_ref="sample", python="3,12")
    assert caught.value.code == UsageError.exit_code
    assert "--python '3,12' is no Python version." in capsys.readouterr().err


def test_a_flow_has_the_options_of_builds_for_trees() -> None:
    names = {f"--{name.replace('_', '-')}": project for name, project in tasks._TREES.items()}
    assert names == {option: project for project, option in OWN_TREES.items()}


def test_tells_how_to_go_on_after_an_interrupt(
    nox: Nox, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(*_: object, **_more: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(flow, "run_all", interrupted)
    with pytest.raises(Exit) as caught:
        tasks.nightly.body(None, python="3.12")
    assert (caught.value.code, nox.calls) == (130, [])
    assert "run the same command again to continue" in capsys.readouterr().err


def test_no_flow_takes_help_for_a_value() -> None:
    flows = [one for one in vars(tasks).values() if isinstance(one, Task)]
    assert len(flows) == 4
    assert [
        argument for one in flows for argument in copy.deepcopy(one).get_arguments() if argument.positional
    ] == []
    with pytest.raises(Exit):
        tasks.promote.body(None)


@pytest.mark.parametrize(
    ("argv", "said"),
    [
        (["/venv/bin/invoke", "ic"], "There is no flow 'ic'. Did you mean 'ci'?"),
        (
            ["/lib/invoke/__main__.py", "relaese", "--help"],
            "There is no flow 'relaese'. Did you mean 'release'?",
        ),
        (["invoke", "ci", "--dry-run", "--help"], ""),
        (
            ["invoke", "ci", "--audio-dir=~/audio"],
            "invoke ci has no --audio-dir. Did you mean '--pytorch-audio-dir'?",
        ),
        (["inv", "--list"], ""),
        (["invoke"], ""),
        (["pytest", "ic"], ""),
    ],
)
def test_suggests_the_nearest_word_for_a_misspelt_one(argv: list[str], said: str) -> None:
    assert tasks.unknown(argv).removeprefix("error: ") == said


def calls_of(out: str) -> dict[str, list[str]]:
    """Return the printed calls of nox: the first session, and what follows ``--``."""
    lines = [line.split() for line in out.splitlines()]
    return {line[2]: line[line.index("--") + 1 :] for line in lines}


@pytest.fixture
def python(monkeypatch: pytest.MonkeyPatch) -> str:
    """Name a Python that this machine need not have."""
    monkeypatch.setattr(flow, "_runs", "python3.12".__eq__)
    return "3.12"


@pytest.fixture
def tree(tmp_path: Path, request: pytest.FixtureRequest) -> Path:
    """Make a developer's tree, and commit it."""
    folder: Path = tmp_path / request.param
    commit_files(folder, {"setup.py": "", "version.txt": "2.11.0a0\n"})
    return folder


@pytest.mark.processes
@pytest.mark.parametrize("tree", ["My PyTorch"], indirect=True)
def test_an_edited_tree_has_a_run_of_its_own_that_borrows_what_it_lacks(
    tmp_path: Path, tree: Path, capsys: pytest.CaptureFixture[str], python: str
) -> None:
    run, changed = LocalRun(root=tmp_path), Changed(trees={"torch": tree})
    chosen = run.common(gpu_family="gfx94X-dcgpu", dry_run=True)
    flow.run_trees(chosen, changed, python=python)
    said = capsys.readouterr()
    called = calls_of(said.out)
    assert list(called) == ["build_rocm", "build_triton", "check_wheels", "test_torch", "report"]
    assert "triton: built in this run: nothing has it" in said.err
    run.rocm()
    run.built("triton")
    (tree / "new.py").write_text("")
    flow.run_trees(chosen, changed, python=python)
    said = capsys.readouterr()
    called = calls_of(said.out)
    assert list(called) == ["build_torch", "check_wheels", "test_smoke", "test_torch", "report"]
    rocm, own = "--rocm-run-id=local", f"--run-id={changed.run_id}"
    assert re.fullmatch("--run-id=local-my-pytorch-[0-9a-f]{8}", own)
    assert all(own in words for words in called.values())
    expected = {"build_torch", "test_smoke", "test_torch"}
    assert {name for name, words in called.items() if rocm in words} == expected
    assert "edited tree, 1 file differs" in said.err
    assert "borrowed from run local" in said.err
    assert not (tmp_path / "out" / f"{changed.run_id}-linux").exists()
    # for good, it is there; and family cpu needs neither
    mine, lender = (run.context(run_id=one) for one in (changed.run_id, "local"))
    flow._borrowed(mine, lender, "cp312", "triton")
    assert built(run.context(run_id=changed.run_id), "cp312", "triton")
    flow.run_trees(replace(chosen, gpu_family="cpu"), changed, python=python)
    assert next(iter(calls_of(capsys.readouterr().out))) == "build_torch"
    with pytest.raises(UsageError, match="replaces no wheel") as caught:
        flow.run_trees(replace(chosen, run_id="mine"), changed)
    assert "--run-id local-mine" in caught.value.hint
    with pytest.raises(UsageError, match="--event is of no use"):
        flow.run_trees(chosen, changed, other="--event")


@pytest.mark.processes
@pytest.mark.parametrize("tree", ["audio"], indirect=True)
def test_takes_rocm_from_where_the_torch_of_the_lending_run_had_it(
    tmp_path: Path, tree: Path, capsys: pytest.CaptureFixture[str], python: str
) -> None:
    run, changed = LocalRun(root=tmp_path), Changed(trees={"audio": tree}, lender="77")
    chosen = run.common(gpu_family="gfx94X-dcgpu", dry_run=True)
    with pytest.raises(MissingInputError, match="Run 77 has nothing of gfx94X-dcgpu to lend"):
        flow.run_trees(chosen, changed, python=python)
    torch = run.built("torch", run_id="77")
    options = {"rocm_options": ["--extra-index-url", "https://a/", "--find-links", "/b"]}
    cell = {"torch_ref": "sample", "python": "cp312", "run_id": "77"}
    run.record("build_torch", torch, inputs={"rocm": ["7.1", "split", {}]}, details=options, **cell)
    flow.run_trees(chosen, changed, python=python)
    said = capsys.readouterr()
    build = calls_of(said.out)["build_triton"]
    assert build[-4:-1] == ["--rocm-version=7.1", "--rocm-index-url=https://a/", "--rocm-find-links=/b"]
    assert "ROCm: 7.1, from where the torch of run 77 had it" in said.err


def test_a_plan_uses_the_store_of_the_flow() -> None:
    assert planned(PULL_REQUEST, Target(store="/elsewhere")).store.store == "/elsewhere"
