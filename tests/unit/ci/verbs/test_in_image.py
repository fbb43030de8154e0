from pathlib import Path

import pytest

from ci.verbs import in_image
from core import errors
from core.env import engines
from tests.kit.front_doors import run_ci

WORDS = ["in-image", "--image=ci:latest", "--sessions=build_torch check_wheels", "--session-python=3.11"]


def test_sessions_run_in_the_checkout_with_their_options(tmp_path: Path) -> None:
    load, run = in_image.commands(
        "podman", "ci:latest", ["-s", "build_torch"], root=tmp_path, archive=tmp_path / "i.tar", gpu=False
    )
    assert load == ["podman", "load", "--input", str(tmp_path / "i.tar")]
    assert run[:3] == ["podman", "run", "--rm"]
    assert f"--volume={tmp_path}:/workspace" in run
    # values of variables, a token among them, are not on the command line
    assert "--env=SOURCE_LOCK" in run
    assert not [word for word in run if word.startswith("--device")]
    assert list(run[-3:]) == ["nox", "-s", "build_torch"]


def test_tests_get_the_machines_gpus(tmp_path: Path) -> None:
    (run,) = in_image.commands("docker", "i", ["-s", "test_smoke"], root=tmp_path, archive=None, gpu=True)
    assert "--device=/dev/kfd" in run


def test_a_dry_run_prints_what_would_run(capsys: pytest.CaptureFixture[str]) -> None:
    assert run_ci(*WORDS, "--dry-run", "--gpu-family=gfx1151", "--max-jobs=4") == 0
    said = capsys.readouterr().out
    assert "nox -s build_torch check_wheels -P 3.11 -- --gpu-family=gfx1151" in said
    assert "--max-jobs=4" in said


def test_an_archive_that_is_not_there_names_who_makes_it(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(engines, "find_engine", lambda *_: "docker")
    code = run_ci(*WORDS, f"--archive={tmp_path / 'image.tar'}")
    assert code == errors.MissingInputError.exit_code
    assert "nox -s build_image" in capsys.readouterr().err


def test_no_session_is_refused() -> None:
    code = run_ci("in-image", "--image=i", "--sessions=")
    assert code == errors.UsageError.exit_code
