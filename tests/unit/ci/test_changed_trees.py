"""`invoke change`: from changed trees to tested wheels."""

import re
from pathlib import Path

import pytest

from ci import changed_trees, interpreters
from ci.changed_trees import ChangedTrees, run_trees
from core.errors import MissingInputError, SourceError, UsageError
from pytorch_build.build.build import find_record
from tests.kit.builds import LocalRun
from tests.kit.nox_calls import printed_calls
from tests.kit.repos import commit_files

FAMILY = "gfx94X-dcgpu"
PYTHON = "3.12"


@pytest.fixture(autouse=True)
def _python_is_there(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the machine have the Python that flows are asked for."""
    monkeypatch.setattr(interpreters, "starts", f"python{PYTHON}".__eq__)


@pytest.fixture
def torch_tree(tmp_path: Path) -> Path:
    tree = tmp_path / "My PyTorch"
    commit_files(tree, {"setup.py": "", "version.txt": "2.11.0a0\n"})
    return tree


@pytest.fixture
def run(tmp_path: Path) -> LocalRun:
    return LocalRun(root=tmp_path)


def dry_run_of_change(run: LocalRun, changes: ChangedTrees, *, gpu_family: str = FAMILY) -> None:
    run_trees(run.common(gpu_family=gpu_family, dry_run=True), changes, python=PYTHON)


def test_names_a_tree_that_is_not_there_before_a_gpu_that_is_not(run: LocalRun, tmp_path: Path) -> None:
    changes = ChangedTrees(trees={"torch": tmp_path / "mine"})

    with pytest.raises(SourceError, match="mine"):
        run_trees(run.common(torch_ref="nightly", dry_run=True), changes)


@pytest.mark.processes
def test_a_changed_tree_is_built_on_what_another_run_lends(
    run: LocalRun, torch_tree: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run.rocm()
    run.built("triton")

    dry_run_of_change(run, ChangedTrees(trees={"torch": torch_tree}))

    output = capsys.readouterr()
    assert list(printed_calls(output.out)) == [
        "build_torch",
        "check_wheels",
        "test_smoke",
        "test_torch",
        "report",
    ]
    assert "borrowed from run local" in output.err


@pytest.mark.processes
def test_builds_first_what_no_run_lends(
    run: LocalRun, torch_tree: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    dry_run_of_change(run, ChangedTrees(trees={"torch": torch_tree}))

    calls = printed_calls(capsys.readouterr().out)
    assert list(calls)[:2] == ["build_rocm", "check_wheels"]


@pytest.mark.processes
def test_family_cpu_needs_neither_rocm_nor_triton(
    run: LocalRun, torch_tree: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    dry_run_of_change(run, ChangedTrees(trees={"torch": torch_tree}), gpu_family="cpu")

    assert next(iter(printed_calls(capsys.readouterr().out))) == "build_torch"


@pytest.mark.processes
def test_a_changed_tree_has_a_run_of_its_own(
    run: LocalRun, torch_tree: Path, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    changes = ChangedTrees(trees={"torch": torch_tree})

    dry_run_of_change(run, changes)

    assert re.fullmatch("local-my-pytorch-[0-9a-f]{8}", changes.run_id)
    for options in printed_calls(capsys.readouterr().out).values():
        assert f"--run-id={changes.run_id}" in options
    assert not (tmp_path / "out" / f"{changes.run_id}-linux").exists()


@pytest.mark.processes
def test_builds_and_tests_take_rocm_from_the_run_that_lends_it(
    run: LocalRun, torch_tree: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run.rocm()
    run.built("triton")

    dry_run_of_change(run, ChangedTrees(trees={"torch": torch_tree}))

    calls = printed_calls(capsys.readouterr().out)
    named = {name for name, options in calls.items() if "--rocm-run-id=local" in options}
    assert named == {"build_torch", "test_smoke", "test_torch"}


@pytest.mark.processes
def test_says_how_much_of_a_tree_is_edited(
    run: LocalRun, torch_tree: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (torch_tree / "new.py").write_text("")

    dry_run_of_change(run, ChangedTrees(trees={"torch": torch_tree}))

    assert "edited tree, 1 file differs" in capsys.readouterr().err


@pytest.mark.processes
def test_a_borrowed_wheel_is_in_the_run_that_borrows_it(
    run: LocalRun, torch_tree: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run.rocm()
    run.built("triton")
    changes = ChangedTrees(trees={"torch": torch_tree})
    monkeypatch.setattr(changed_trees, "run_steps", lambda *_arguments, **_options: None)

    run_trees(run.common(gpu_family=FAMILY), changes, python=PYTHON)

    assert find_record(run.context(run_id=changes.run_id), "cp312", "triton") is not None


@pytest.mark.processes
def test_takes_rocm_from_where_the_lent_torch_had_it(
    run: LocalRun, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    tree = tmp_path / "audio"
    commit_files(tree, {"setup.py": ""})
    torch = run.built("torch", run_id="77")
    run.record(
        "build_torch",
        torch,
        inputs={"rocm": ["7.1", "split", {}]},
        details={"rocm_options": ["--extra-index-url", "https://rocm.invalid/", "--find-links", "/packages"]},
        torch_ref="sample",
        python="cp312",
        run_id="77",
    )

    dry_run_of_change(run, ChangedTrees(trees={"audio": tree}, lending_run_id="77"))

    options = printed_calls(capsys.readouterr().out)["build_triton"]
    for option in (
        "--rocm-version=7.1",
        "--rocm-index-url=https://rocm.invalid/",
        "--rocm-find-links=/packages",
    ):
        assert option in options


@pytest.mark.processes
def test_names_a_lender_that_has_nothing(run: LocalRun, torch_tree: Path) -> None:
    with pytest.raises(MissingInputError, match="77"):
        dry_run_of_change(run, ChangedTrees(trees={"torch": torch_tree}, lending_run_id="77"))


@pytest.mark.processes
@pytest.mark.parametrize("run_id", ["mine", "local"])
def test_refuses_a_run_of_others_for_a_changed_tree(run: LocalRun, torch_tree: Path, run_id: str) -> None:
    changes = ChangedTrees(trees={"torch": torch_tree})

    with pytest.raises(UsageError) as raised:
        run_trees(run.common(gpu_family=FAMILY), changes, run_id=run_id, python=PYTHON)

    assert "local-mine" in raised.value.hint
