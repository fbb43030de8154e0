import sys
import threading
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest

from core import process
from core.cell import GroupCell
from core.cli.options import Common
from core.errors import BuildError, ProcessError, StoreError
from core.run import records
from core.run.records import Record
from core.run.stage import Stage, StageResult, builder_from, look, perform
from core.status import Pending, UpToDate
from tests.kit.wheels import write_wheel

GROUP = "cpu"
INPUTS = {"commit": "abc", "rocm": "7.1"}
OTHER_INPUTS = {"commit": "def", "rocm": "7.1"}
RECORD_NAME = "build_torch-nightly-cp312"
UNCHANGED = "unchanged, nothing to do"


@dataclass(kw_only=True)
class Work:
    """A stage's work, which counts how often it is done."""

    files: Sequence[Path] = ()
    problem: BaseException | None = None
    count: int = 0

    def __call__(self) -> StageResult:
        """Do it."""
        self.count += 1
        if self.problem is not None:
            raise self.problem
        return StageResult(files=tuple(self.files), details={"hits": 3})


@pytest.fixture
def wheel(tmp_path: Path) -> Path:
    """Return the wheel that the stage makes."""
    return write_wheel(tmp_path / "dist")


@pytest.fixture
def work(wheel: Path) -> Work:
    """Return work that makes the wheel."""
    return Work(files=[wheel])


@pytest.fixture(autouse=True)
def _no_job(monkeypatch: pytest.MonkeyPatch) -> None:
    """Run the stage on somebody's machine."""
    monkeypatch.delenv("GITHUB_WORKFLOW_REF", raising=False)


def make_stage(
    root: Path,
    *,
    run_id: str = "local",
    read_store: str = "",
    force: bool = False,
    dry_run: bool = False,
    output_dir: Path | None = None,
) -> Stage:
    """Return a stage of a checkout, which builds torch for one cell."""
    return Stage(
        name="build_torch",
        common=Common(root=root, run_id=run_id, read_store=read_store, force=force, dry_run=dry_run),
        artifact_group=GROUP,
        cell=GroupCell(python="3.12", torch_ref="nightly", gpu_family="cpu"),
        output_dir=output_dir,
    )


def do_stage(stage: Stage, inputs: Mapping[str, Any], work: Callable[[], StageResult]) -> Record:
    """Perform a stage that ends with a record; return it."""
    record = perform(stage, inputs, work)
    assert isinstance(record, Record)
    return record


def read_record(stage: Stage, name: str = RECORD_NAME) -> Record | None:
    """Return a record of the stage's group."""
    return records.read(stage.store, stage.outputs, GROUP, name)


def read_failure(stage: Stage) -> Record:
    """Return the record of the stage's failure, which is there."""
    record = read_record(stage, f"{RECORD_NAME}.failed")
    assert record is not None
    return record


def stored_wheels(stage: Stage) -> list[str]:
    """Return the names of the wheels in the stage's run; each has its metadata beside it."""
    prefix = stage.outputs.python_prefix(GROUP)
    names = [stored_file.key.removeprefix(f"{prefix}/") for stored_file in stage.store.list(prefix)]
    wheels = [name for name in names if name.endswith(".whl")]
    assert names == sorted([*wheels, *(f"{name}.metadata" for name in wheels)])
    return wheels


# Work


def test_puts_files_into_the_run_and_records_them(tmp_path: Path, wheel: Path, work: Work) -> None:
    stage = make_stage(tmp_path)

    record = do_stage(stage, INPUTS, work)

    assert record == read_record(stage)
    assert record.status == "ok"
    assert record.exit_code == 0
    assert record.inputs == INPUTS
    assert record.details == {"hits": 3}
    assert stored_wheels(stage) == [wheel.name]


def test_shows_the_files_with_their_digests(
    tmp_path: Path, wheel: Path, work: Work, capsys: pytest.CaptureFixture[str]
) -> None:
    record = do_stage(make_stage(tmp_path), INPUTS, work)

    rows = [line.split() for line in capsys.readouterr().err.splitlines()]
    (row,) = [row for row in rows if row and row[0] == wheel.name]
    assert row[-1] == record.files[0].sha256[:12]


def test_does_not_work_again_on_the_same_inputs(
    tmp_path: Path, work: Work, capsys: pytest.CaptureFixture[str]
) -> None:
    record = do_stage(make_stage(tmp_path), INPUTS, work)

    # Their order does not matter.
    assert do_stage(make_stage(tmp_path), dict(reversed(INPUTS.items())), work) == record

    assert work.count == 1
    assert UNCHANGED in capsys.readouterr().err


def test_works_again_on_other_inputs(tmp_path: Path, work: Work) -> None:
    stage = make_stage(tmp_path)
    do_stage(stage, INPUTS, work)

    do_stage(stage, OTHER_INPUTS, work)

    assert work.count == 2


def test_works_again_where_it_is_forced(tmp_path: Path, work: Work) -> None:
    do_stage(make_stage(tmp_path), INPUTS, work)

    do_stage(make_stage(tmp_path, force=True), INPUTS, work)

    assert work.count == 2


@pytest.mark.parametrize("content", [None, b"other bytes"], ids=["lost", "changed"])
def test_works_again_where_a_file_is_not_as_it_was(
    tmp_path: Path, wheel: Path, work: Work, content: bytes | None
) -> None:
    stage = make_stage(tmp_path)
    record = do_stage(stage, INPUTS, work)
    stored_file = tmp_path / "out" / record.files[0].key
    stored_file.unlink()
    if content is not None:
        stored_file.write_bytes(content)

    do_stage(stage, INPUTS, work)

    assert work.count == 2
    assert stored_file.read_bytes() == wheel.read_bytes()


def test_copies_the_files_into_an_output_folder_even_if_nothing_has_changed(
    tmp_path: Path, wheel: Path, work: Work
) -> None:
    folder = tmp_path / "mine"
    stage = make_stage(tmp_path, output_dir=folder)

    for _attempt in range(2):
        do_stage(stage, INPUTS, work)
        assert [path.name for path in folder.iterdir()] == [wheel.name]
        (folder / wheel.name).unlink()

    assert work.count == 1


# Jobs of GitHub

JOB = {
    "GITHUB_SERVER_URL": "https://github.com",
    "GITHUB_REPOSITORY": "down/stream",
    "GITHUB_WORKFLOW_REF": "down/stream/.github/workflows/ci.yml@refs/heads/main",
    "GITHUB_RUN_ID": "17",
    "GITHUB_RUN_ATTEMPT": "2",
    "GITHUB_SHA": "1" * 40,
}


def test_records_the_job_of_github_that_it_is(
    tmp_path: Path, work: Work, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("ACT", raising=False)
    for name, value in JOB.items():
        monkeypatch.setenv(name, value)

    record = do_stage(make_stage(tmp_path), INPUTS, work)

    assert record.details["builder"] == {
        "id": "https://github.com/down/stream/.github/workflows/ci.yml@refs/heads/main",
        "invocation": "https://github.com/down/stream/actions/runs/17/attempts/2",
        "source": "https://github.com/down/stream",
        "commit": "1" * 40,
    }


@pytest.mark.parametrize(
    "variables",
    [{}, JOB | {"ACT": "true"}, JOB | {"GITHUB_WORKFLOW_REF": ""}],
    ids=["no job", "act", "no workflow"],
)
def test_claims_to_be_no_workflow_on_another_machine(variables: dict[str, str]) -> None:
    assert builder_from(variables) == {}


# Failures

FAILURES = pytest.mark.parametrize(
    ("problem", "exit_code", "error"),
    [
        (BuildError("Two wheels in https://me:pw@host.", hint="Look."), 8, "https://***@host.\nLook."),
        (KeyboardInterrupt(), 130, "interrupted"),
        (KeyError("x"), 1, "KeyError: 'x'"),
    ],
    ids=["error", "Ctrl-C", "fault"],
)


@FAILURES
def test_records_a_failure(tmp_path: Path, problem: BaseException, exit_code: int, error: str) -> None:
    stage = make_stage(tmp_path)

    with pytest.raises(type(problem)):
        perform(stage, INPUTS, Work(problem=problem))

    failure = read_failure(stage)
    assert failure.status == "failed"
    assert failure.exit_code == exit_code
    assert error in failure.error
    assert failure.files == ()
    assert failure.inputs == INPUTS


@pytest.mark.parametrize("problem", [BuildError("Two wheels."), KeyboardInterrupt()], ids=["error", "Ctrl-C"])
def test_keeps_the_record_of_the_last_success(tmp_path: Path, work: Work, problem: BaseException) -> None:
    stage = make_stage(tmp_path)
    success = do_stage(stage, INPUTS, work)

    with pytest.raises(type(problem)):
        perform(stage, OTHER_INPUTS, Work(problem=problem))

    assert read_record(stage) == success


@pytest.mark.parametrize(
    ("inputs", "count"), [(INPUTS, 0), (OTHER_INPUTS, 1)], ids=["inputs of the success", "other inputs"]
)
def test_the_next_success_ends_the_record_of_a_failure(
    tmp_path: Path, wheel: Path, inputs: dict[str, str], count: int
) -> None:
    stage = make_stage(tmp_path)
    do_stage(stage, INPUTS, Work(files=[wheel]))
    with pytest.raises(BuildError):
        perform(stage, OTHER_INPUTS, Work(problem=BuildError("Two wheels.")))

    work = Work(files=[wheel])
    do_stage(stage, inputs, work)

    assert work.count == count
    assert read_record(stage, f"{RECORD_NAME}.failed") is None


@pytest.mark.processes
def test_records_the_first_error_and_the_log_of_a_tool(tmp_path: Path) -> None:
    stage = make_stage(tmp_path)

    def compile_wheel() -> StageResult:
        code = "print('[1/2] cc a.c'); print('a.c:3:1: error: bad'); raise SystemExit(1)"
        process.run([sys.executable, "-c", code], cwd=tmp_path)
        return StageResult(files=())

    with pytest.raises(ProcessError) as raised:
        perform(stage, INPUTS, compile_wheel)

    failure = read_failure(stage)
    assert failure.cause is not None
    assert failure.cause.headline == "a.c:3: error: bad"
    assert "error: bad" in stage.store.read(failure.log).decode()
    assert raised.value.log == stage.log


def test_a_failure_without_a_tool_has_no_error_of_one(tmp_path: Path) -> None:
    problem = BuildError("no wheel")

    with pytest.raises(BuildError):
        perform(make_stage(tmp_path), INPUTS, Work(problem=problem))

    assert problem.cause is None
    assert problem.log is None


# Wheels of other versions


@pytest.fixture
def versions(tmp_path: Path) -> tuple[Path, Path]:
    """Return two versions of a wheel."""
    first = write_wheel(tmp_path / "dist", version="2.9.0")
    return first, write_wheel(tmp_path / "dist", version="2.10.0")


def test_the_local_run_drops_what_its_cell_had_made_before(
    tmp_path: Path, versions: tuple[Path, Path]
) -> None:
    first, second = versions
    stage = make_stage(tmp_path)

    do_stage(stage, INPUTS, Work(files=[first]))
    do_stage(stage, OTHER_INPUTS, Work(files=[second]))

    assert stored_wheels(stage) == [second.name]


def test_a_run_of_ci_keeps_what_its_cell_had_made_before(tmp_path: Path, versions: tuple[Path, Path]) -> None:
    first, second = versions
    stage = make_stage(tmp_path, run_id="17")

    do_stage(stage, INPUTS, Work(files=[first]))
    do_stage(stage, OTHER_INPUTS, Work(files=[second]))

    assert stored_wheels(stage) == sorted([first.name, second.name])


def test_a_run_of_ci_takes_no_other_bytes_of_a_wheel(tmp_path: Path, work: Work) -> None:
    stage = make_stage(tmp_path, run_id="17")
    do_stage(stage, INPUTS, work)
    changed = write_wheel(tmp_path / "changed", files={"torch.py": "# changed"})

    with pytest.raises(StoreError, match=changed.name.partition("+")[0]):
        perform(stage, OTHER_INPUTS, Work(files=[changed]))

    assert read_failure(stage).exit_code == StoreError.exit_code


def at_other_ref(stage: Stage) -> Stage:
    """Return the same stage for another torch ref."""
    return replace(stage, cell=replace(stage.cell, torch_ref="release/2.13"))


def test_makes_a_wheel_of_two_refs_once(tmp_path: Path) -> None:
    stage = make_stage(tmp_path)
    work = Work(files=[write_wheel(tmp_path / "dist", name="triton", version="3.6.0")])

    first = do_stage(stage, INPUTS, work)
    second = do_stage(at_other_ref(stage), INPUTS, work)

    assert work.count == 1
    assert second.files == first.files
    assert second.cell.torch_ref == "release/2.13"


def test_the_local_run_keeps_a_wheel_that_another_ref_still_has(tmp_path: Path) -> None:
    stage = make_stage(tmp_path)
    work = Work(files=[write_wheel(tmp_path / "dist", name="triton", version="3.6.0")])
    do_stage(stage, INPUTS, work)
    do_stage(at_other_ref(stage), INPUTS, work)

    newer = write_wheel(tmp_path / "dist", name="triton", version="3.7.0")
    do_stage(at_other_ref(stage), OTHER_INPUTS, Work(files=[newer]))

    assert stored_wheels(stage) == ["triton-3.6.0-py3-none-any.whl", "triton-3.7.0-py3-none-any.whl"]


# Dry runs


def reasons_of(stage: Stage, inputs: Mapping[str, Any], work: Work) -> tuple[str, ...]:
    """Return why a dry run would do a stage's work."""
    status = perform(stage, inputs, work)
    assert isinstance(status, Pending)
    return status.reasons


def test_a_dry_run_changes_nothing(tmp_path: Path, work: Work, capsys: pytest.CaptureFixture[str]) -> None:
    stage = make_stage(tmp_path, dry_run=True, output_dir=tmp_path / "mine")

    (reason,) = reasons_of(stage, INPUTS, work)

    assert work.count == 0
    assert [path.name for path in tmp_path.iterdir()] == ["dist"]
    assert f"would run: {reason}" in capsys.readouterr().err


def test_a_dry_run_returns_the_record_of_the_same_inputs(tmp_path: Path, work: Work) -> None:
    record = do_stage(make_stage(tmp_path), INPUTS, work)

    assert perform(make_stage(tmp_path, dry_run=True), INPUTS, work) == record


def test_a_dry_run_names_every_input_that_changed(tmp_path: Path, work: Work) -> None:
    do_stage(make_stage(tmp_path), INPUTS, work)
    inputs = {**INPUTS, "flags": {"CC": "gcc"}, "targets": ("a",)}

    flags, targets = reasons_of(make_stage(tmp_path, dry_run=True), inputs, work)

    assert "flags" in flags
    assert '{"CC":"gcc"}' in flags
    assert "targets" in targets
    assert '["a"]' in targets


def test_a_dry_run_names_the_force_that_makes_it_work(tmp_path: Path, work: Work) -> None:
    do_stage(make_stage(tmp_path), INPUTS, work)

    (reason,) = reasons_of(make_stage(tmp_path, force=True, dry_run=True), INPUTS, work)

    assert "--force" in reason


def test_a_dry_run_would_replace_a_lost_file(tmp_path: Path, work: Work) -> None:
    record = do_stage(make_stage(tmp_path), INPUTS, work)
    (tmp_path / "out" / record.files[0].key).unlink()

    (reason,) = reasons_of(make_stage(tmp_path, dry_run=True), INPUTS, work)

    assert reason
    assert work.count == 1


# A look


def test_a_look_at_the_same_inputs_has_nothing_to_do(tmp_path: Path, work: Work) -> None:
    do_stage(make_stage(tmp_path), INPUTS, work)

    assert look(make_stage(tmp_path), INPUTS) == UpToDate()


def test_a_look_says_why_there_is_work(tmp_path: Path, work: Work) -> None:
    assert look(make_stage(tmp_path), INPUTS) == Pending(reasons=("it was not done yet",))

    do_stage(make_stage(tmp_path), INPUTS, work)

    assert look(make_stage(tmp_path), OTHER_INPUTS) == Pending(reasons=('commit was "abc" and is "def"',))
    assert look(make_stage(tmp_path, force=True), INPUTS) == Pending(reasons=("--force asks for it",))


def test_a_look_does_not_let_a_failure_stand_beside_a_success(tmp_path: Path, work: Work) -> None:
    do_stage(make_stage(tmp_path), INPUTS, work)
    work.problem = BuildError("it broke")
    with pytest.raises(BuildError):
        perform(make_stage(tmp_path), OTHER_INPUTS, work)

    assert look(make_stage(tmp_path), INPUTS) == Pending(reasons=("it has failed since it was done",))


def test_a_look_changes_nothing(tmp_path: Path) -> None:
    look(make_stage(tmp_path), INPUTS)

    assert list(tmp_path.iterdir()) == []


# Cells with the same inputs


def stage_of_ref(root: Path, torch_ref: str, *, force: bool = False) -> Stage:
    """Return the stage of another torch ref in the same checkout and run."""
    stage = make_stage(root, force=force)
    return replace(stage, cell=replace(stage.cell, torch_ref=torch_ref))


def test_jobs_side_by_side_make_the_same_inputs_once(tmp_path: Path, wheel: Path) -> None:
    is_working = threading.Event()
    waits = threading.Event()
    first_work = Work(files=[wheel])
    second_work = Work(files=[wheel])

    def work_while_the_second_waits() -> StageResult:
        is_working.set()
        assert waits.wait(timeout=10)
        return first_work()

    def do_second() -> Record:
        assert is_working.wait(timeout=10)
        # The first one goes on when this one has had time to begin.
        threading.Timer(0.1, waits.set).start()
        return do_stage(stage_of_ref(tmp_path, "second"), INPUTS, second_work)

    with ThreadPoolExecutor(max_workers=2) as pool:
        second = pool.submit(do_second)
        first_record = do_stage(stage_of_ref(tmp_path, "first"), INPUTS, work_while_the_second_waits)

    assert second.result().files == first_record.files
    assert first_work.count == 1
    assert second_work.count == 0


def test_jobs_side_by_side_with_other_inputs_do_not_wait(tmp_path: Path, wheel: Path, work: Work) -> None:
    def do_other_inputs_within() -> StageResult:
        do_stage(stage_of_ref(tmp_path, "second"), OTHER_INPUTS, work)
        return StageResult(files=(wheel,))

    do_stage(stage_of_ref(tmp_path, "first"), INPUTS, do_other_inputs_within)

    assert work.count == 1


def test_forced_work_leaves_no_record_of_the_replaced_files(tmp_path: Path, work: Work) -> None:
    first = stage_of_ref(tmp_path, "first")
    do_stage(first, INPUTS, work)
    do_stage(stage_of_ref(tmp_path, "second"), INPUTS, work)
    write_wheel(tmp_path / "dist", files={"torch.py": "# built again"})

    record = do_stage(stage_of_ref(tmp_path, "second", force=True), INPUTS, work)

    assert work.count == 2
    first_record = read_record(first, first.record_name)
    assert first_record is not None
    assert first_record.cell == first.cell
    assert first_record.files == record.files
    assert look(first, INPUTS) == UpToDate()


# Runs of CI on several machines


def stage_on(machine: Path, *, force: bool = False, dry_run: bool = False) -> Stage:
    """Return a stage on a machine that reads the run from where the others have uploaded it."""
    shared = machine.parent / "shared"
    return make_stage(machine, run_id="17", read_store=str(shared), force=force, dry_run=dry_run)


def upload(stage: Stage, work: Work) -> Record:
    """Make a stage's record and files in the store that all machines read."""
    common = replace(stage.common, store=stage.common.read_store, read_store="")
    return do_stage(replace(stage, common=common), INPUTS, work)


@pytest.fixture
def uploaded(tmp_path: Path, wheel: Path) -> Record:
    """Return what another machine has made."""
    return upload(stage_on(tmp_path / "first"), Work(files=[wheel]))


def test_takes_what_another_machine_has_made(
    tmp_path: Path, wheel: Path, work: Work, uploaded: Record, capsys: pytest.CaptureFixture[str]
) -> None:
    stage = stage_on(tmp_path / "second")

    record = do_stage(stage, INPUTS, work)

    assert record == uploaded == read_record(stage)
    assert work.count == 0
    assert stored_wheels(stage) == [wheel.name]
    assert f"taken from {tmp_path / 'shared'}: {RECORD_NAME}" in capsys.readouterr().err


@pytest.mark.usefixtures("uploaded")
def test_takes_what_another_machine_has_made_once(
    tmp_path: Path, work: Work, capsys: pytest.CaptureFixture[str]
) -> None:
    stage = stage_on(tmp_path / "second")
    record = do_stage(stage, INPUTS, work)
    capsys.readouterr()

    assert do_stage(stage, INPUTS, work) == record
    assert UNCHANGED in capsys.readouterr().err


@pytest.mark.usefixtures("uploaded")
@pytest.mark.parametrize(
    ("inputs", "force"), [(OTHER_INPUTS, False), (INPUTS, True)], ids=["other inputs", "forced"]
)
def test_works_where_another_machine_has_made_something_else(
    tmp_path: Path, work: Work, inputs: dict[str, str], *, force: bool
) -> None:
    do_stage(stage_on(tmp_path / "second", force=force), inputs, work)

    assert work.count == 1


def test_works_where_a_file_in_the_runs_store_was_replaced(
    tmp_path: Path, work: Work, uploaded: Record
) -> None:
    stored_file = tmp_path / "shared" / uploaded.files[0].key
    stored_file.unlink()
    stored_file.write_bytes(b"other")

    do_stage(stage_on(tmp_path / "second"), INPUTS, work)

    assert work.count == 1


def test_a_dry_run_takes_nothing_and_returns_what_it_would_take(
    tmp_path: Path, work: Work, uploaded: Record, capsys: pytest.CaptureFixture[str]
) -> None:
    record = perform(stage_on(tmp_path / "second", dry_run=True), INPUTS, work)

    assert record == uploaded
    assert "taken from" in capsys.readouterr().err
    assert not (tmp_path / "second").exists()
