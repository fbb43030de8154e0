import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from core import process
from core.cli.options import Common
from core.errors import BuildError, ProcessError, StoreError
from core.run import records
from core.run.records import Cell, Record
from core.run.stage import Made, Stage, builder_from, perform
from tests.conftest import MakeWheel

INPUTS = {"commit": "abc", "rocm": "7.1"}
NAME = "build_torch-nightly-cp312"


class Work:
    """A stage's work that counts how often it is done."""

    def __init__(self, *files: Path, problem: BaseException | None = None) -> None:
        self.files = files
        self.problem = problem
        self.done = 0

    def __call__(self) -> Made:
        self.done += 1
        if self.problem is not None:
            raise self.problem
        return Made(files=self.files, details={"hits": 3})


@pytest.fixture(name="wheel")
def wheel_fixture(tmp_path: Path, make_wheel: MakeWheel) -> Path:
    return make_wheel(tmp_path / "dist")


@pytest.fixture(autouse=True)
def no_builder(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("GITHUB_WORKFLOW_REF", raising=False)


def stage(root: Path, *, output_dir: Path | None = None, **common: Any) -> Stage:
    return Stage(
        name="build_torch",
        common=Common(root=root, **common),
        artifact_group="cpu",
        cell=Cell(python="cp312", torch_ref="nightly", gpu_family="cpu"),
        output_dir=output_dir,
    )


def read(one: Stage, name: str = NAME) -> Record | None:
    return records.read(one.common.open_store(), one.common.outputs, "cpu", name)


def keys(one: Stage) -> Sequence[str]:
    prefix = one.common.outputs.python_prefix("cpu")
    return [stored.key.removeprefix(f"{prefix}/") for stored in one.common.open_store().list(prefix)]


def test_outputs_are_put_and_shown(tmp_path: Path, wheel: Path, capsys: pytest.CaptureFixture[str]) -> None:
    one = stage(tmp_path)
    made = perform(one, INPUTS, Work(wheel))
    assert isinstance(made, Record)
    assert made == read(one)
    assert (made.status, made.exit_code, made.inputs, made.details) == ("ok", 0, INPUTS, {"hits": 3})
    assert keys(one) == [wheel.name, f"{wheel.name}.metadata"]
    said = capsys.readouterr().err
    assert wheel.name in said
    assert made.files[0].sha256[:12] in said


JOB = {
    "GITHUB_SERVER_URL": "https://github.com",
    "GITHUB_REPOSITORY": "down/stream",
    "GITHUB_WORKFLOW_REF": "down/stream/.github/workflows/ci.yml@refs/heads/main",
    "GITHUB_RUN_ID": "17",
    "GITHUB_RUN_ATTEMPT": "2",
    "GITHUB_SHA": "1" * 40,
}


def test_a_job_of_github_is_recorded(tmp_path: Path, wheel: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("ACT", raising=False)
    for name, value in JOB.items():
        monkeypatch.setenv(name, value)
    made = perform(stage(tmp_path), INPUTS, Work(wheel))
    assert isinstance(made, Record)
    assert made.details == {
        "hits": 3,
        "builder": {
            "id": "https://github.com/down/stream/.github/workflows/ci.yml@refs/heads/main",
            "invocation": "https://github.com/down/stream/actions/runs/17/attempts/2",
            "source": "https://github.com/down/stream",
            "commit": "1" * 40,
        },
    }


@pytest.mark.parametrize("env", [{}, JOB | {"ACT": "true"}, JOB | {"GITHUB_WORKFLOW_REF": ""}])
def test_another_machine_claims_to_be_no_workflow(env: dict[str, str]) -> None:
    assert builder_from(env) == {}


def test_only_other_inputs_force_and_lost_or_changed_files_are_worked_on_again(
    tmp_path: Path, wheel: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    work, one, other = Work(wheel), stage(tmp_path), {**INPUTS, "commit": "def"}
    first = perform(one, INPUTS, work)
    assert isinstance(first, Record)
    assert perform(stage(tmp_path), dict(reversed(INPUTS.items())), work) == first
    assert work.done == 1
    assert "build_torch: unchanged, nothing to do" in capsys.readouterr().err
    stored = tmp_path / "out" / first.files[0].key
    perform(one, other, work)
    perform(stage(tmp_path, force=True), other, work)
    assert work.done == 3
    stored.unlink()
    perform(one, other, work)
    assert work.done == 4
    stored.unlink()
    stored.write_bytes(b"other bytes")
    perform(one, other, work)
    assert work.done == 5
    assert stored.read_bytes() == wheel.read_bytes()


@pytest.mark.parametrize(
    ("problem", "code", "error"),
    [
        (
            BuildError("Two wheels in https://me:pw@host.", hint="Look."),
            8,
            "Two wheels in https://***@host.\nLook.",
        ),
        (KeyboardInterrupt(), 130, "interrupted"),
        (KeyError("x"), 1, "KeyError: 'x'\nAn internal error: run the command with --debug and report it."),
    ],
)
def test_a_failure_is_recorded_beside_the_last_success_until_the_next(
    tmp_path: Path, wheel: Path, problem: BaseException, code: int, error: str
) -> None:
    one = stage(tmp_path)
    good = perform(one, INPUTS, Work(wheel))
    other = {**INPUTS, "commit": "def"}
    with pytest.raises(type(problem)):
        perform(one, other, Work(problem=problem))
    failed = read(one, f"{NAME}.failed")
    assert failed is not None
    assert (failed.status, failed.exit_code, failed.error, failed.files) == ("failed", code, error, ())
    assert failed.inputs == other
    assert read(one) == good
    # older inputs that hold again end it, as a success does
    for inputs, done in ((INPUTS, 0), (other, 1)):
        again = Work(wheel)
        perform(one, inputs, again)
        assert again.done == done
        assert read(one, f"{NAME}.failed") is None
        with pytest.raises(type(problem)):
            perform(one, {"commit": "worse"}, Work(problem=problem))


def test_the_local_run_withdraws_what_its_cell_had_made_before_and_others_keep_what_they_have(
    tmp_path: Path, make_wheel: MakeWheel
) -> None:
    local, one = stage(tmp_path), stage(tmp_path, run_id="17")
    old, new = (make_wheel(tmp_path / "dist", version=version) for version in ("2.9.0", "2.10.0"))
    for run in (local, one):
        perform(run, INPUTS, Work(old))
        perform(run, {"commit": "new"}, Work(new))
    assert keys(local) == [new.name, f"{new.name}.metadata"]
    assert keys(one) == [new.name, f"{new.name}.metadata", old.name, f"{old.name}.metadata"]
    with pytest.raises(StoreError, match="with other bytes"):
        perform(one, {"commit": "newer"}, Work(make_wheel(tmp_path / "dist2", version="2.10.0", content="x")))
    failed = read(one, f"{NAME}.failed")
    assert failed is not None
    assert failed.exit_code == StoreError.exit_code


def test_an_output_folder_gets_the_files_also_when_nothing_has_changed(tmp_path: Path, wheel: Path) -> None:
    work = Work(wheel)
    for _ in range(2):
        perform(stage(tmp_path, output_dir=tmp_path / "mine"), INPUTS, work)
        assert [path.name for path in (tmp_path / "mine").iterdir()] == [wheel.name]
        (tmp_path / "mine" / wheel.name).unlink()
    assert work.done == 1


def test_a_dry_run_changes_nothing(tmp_path: Path, wheel: Path, capsys: pytest.CaptureFixture[str]) -> None:
    work = Work(wheel)
    dry = stage(tmp_path, dry_run=True, output_dir=tmp_path / "mine")
    assert perform(dry, INPUTS, work) == ("it was not done yet",)
    assert "would run: it was not done yet" in capsys.readouterr().err
    assert [path.name for path in tmp_path.iterdir()] == ["dist"]
    first = perform(stage(tmp_path), INPUTS, work)
    assert perform(dry, INPUTS, work) == first
    changed = {**INPUTS, "flags": {"CC": "gcc"}, "targets": ("a",)}
    expected = ('flags was nothing and is {"CC":"gcc"}', 'targets was nothing and is ["a"]')
    assert perform(dry, changed, work) == expected
    assert 'would run: flags was nothing and is {"CC":"gcc"}' in capsys.readouterr().err
    forced = stage(tmp_path, force=True, dry_run=True)
    assert perform(forced, INPUTS, work) == ("--force asks for it",)
    (tmp_path / "out" / dry.outputs.python_prefix("cpu") / wheel.name).unlink()
    assert perform(dry, INPUTS, work) == ("what it made is not there as it was",)
    assert work.done == 1
    assert not (tmp_path / "mine").exists()


def in_ci(root: Path, **common: Any) -> Stage:
    """A stage on a machine of its own, which reads the run from where the others have uploaded it."""
    return stage(root, run_id="17", read_store=str(root.parent / "shared"), **common)


def uploaded(one: Stage, wheel: Path) -> Record:
    """Make a stage's record and files in the store that all machines read."""
    there = replace(one, common=replace(one.common, store=one.common.read_store, read_store=""))
    made = perform(there, INPUTS, Work(wheel))
    assert isinstance(made, Record)
    return made


def test_what_the_run_has_is_taken(tmp_path: Path, wheel: Path, capsys: pytest.CaptureFixture[str]) -> None:
    first, work = uploaded(in_ci(tmp_path / "a"), wheel), Work(wheel)
    again = in_ci(tmp_path / "b")
    capsys.readouterr()
    assert perform(again, INPUTS, work) == first == read(again)
    assert (work.done, keys(again)) == (0, [wheel.name, f"{wheel.name}.metadata"])
    assert f"build_torch: unchanged, taken from {tmp_path / 'shared'}: {NAME} was made" in (
        capsys.readouterr().err
    )
    assert perform(again, INPUTS, work) == first
    assert "unchanged, nothing to do" in capsys.readouterr().err
    perform(replace(again, common=replace(again.common, force=True)), INPUTS, work)
    perform(in_ci(tmp_path / "c"), {**INPUTS, "commit": "def"}, work)
    assert work.done == 2


def test_what_was_replaced_in_the_runs_store_is_not_taken_nor_anything_in_a_dry_run(
    tmp_path: Path, wheel: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    made = uploaded(in_ci(tmp_path / "a"), wheel)
    assert perform(in_ci(tmp_path / "b", dry_run=True), INPUTS, Work(wheel)) == made
    assert "taken from" in capsys.readouterr().err
    assert not (tmp_path / "b").exists()
    replaced = tmp_path / "shared" / made.files[0].key
    replaced.unlink()
    replaced.write_bytes(b"other")
    work = Work(wheel)
    perform(in_ci(tmp_path / "b"), INPUTS, work)
    assert work.done == 1


def test_a_wheel_of_two_refs_is_made_once_and_kept_for_both(tmp_path: Path, make_wheel: MakeWheel) -> None:
    one, work = stage(tmp_path), Work(make_wheel(tmp_path / "dist", "triton", "3.6.0"))
    other = replace(one, cell=one.cell.model_copy(update={"torch_ref": "release/2.13"}))
    first, second = perform(one, INPUTS, work), perform(other, INPUTS, work)
    assert isinstance(first, Record)
    assert isinstance(second, Record)
    assert (work.done, second.files, second.cell.torch_ref) == (1, first.files, "release/2.13")
    perform(other, {"commit": "new"}, Work(make_wheel(tmp_path / "dist", "triton", "3.7.0")))
    assert [key for key in keys(one) if key.endswith(".whl")] == [
        f"triton-{version}-py3-none-any.whl" for version in ("3.6.0", "3.7.0")
    ]


@pytest.mark.processes
def test_the_record_of_a_failure_has_the_tools_first_error_and_its_log(tmp_path: Path) -> None:
    one = stage(tmp_path)

    def compiles() -> Made:
        said = "print('[1/2] cc a.c'); print('a.c:3:1: error: bad'); raise SystemExit(1)"
        process.run([sys.executable, "-c", said], cwd=tmp_path)
        return Made(files=())

    with pytest.raises(ProcessError) as caught:
        perform(one, INPUTS, compiles)
    failed = read(one, f"{NAME}.failed")
    assert failed is not None
    assert failed.cause is not None
    assert failed.cause.headline == "a.c:3: error: bad"
    assert "error: bad" in one.store.read(failed.log).decode()
    assert caught.value.log == one.log
    with pytest.raises(BuildError) as other:
        perform(one, INPUTS, Work(problem=BuildError("no wheel")))
    assert (other.value.cause, other.value.log) == (None, None)
