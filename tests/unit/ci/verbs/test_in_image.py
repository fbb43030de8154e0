"""Sessions of nox in a container of an image."""

from pathlib import Path

import pytest

from ci.verbs import in_image
from core.env import engines
from core.errors import MissingInputError, UsageError
from tests.kit.front_doors import run_verb

WORDS = ("--image=ci:latest", "--sessions=build_torch check_wheels", "--session-python=3.11")


def commands_of(root: Path, *, archive: Path | None = None, gpu: bool = False) -> list[list[str]]:
    commands = in_image.make_commands(
        "podman",
        "ci:latest",
        ["-s", "build_torch"],
        root=root,
        archive=archive,
        has_gpu=gpu,
    )
    return list(map(list, commands))


def test_sessions_run_in_the_checkout(tmp_path: Path) -> None:
    (run,) = commands_of(tmp_path)

    assert run[:3] == ["podman", "run", "--rm"]
    assert f"--volume={tmp_path}:/workspace" in run
    assert run[-3:] == ["nox", "-s", "build_torch"]


def test_an_archive_is_loaded_first(tmp_path: Path) -> None:
    archive = tmp_path / "i.tar"

    load, _ = commands_of(tmp_path, archive=archive)

    assert load == ["podman", "load", "--input", str(archive)]


def test_values_of_variables_are_not_on_the_command_line(tmp_path: Path) -> None:
    (run,) = commands_of(tmp_path)

    # A token is among them.
    assert "--env=SOURCE_LOCK" in run


def test_builds_get_no_gpu(tmp_path: Path) -> None:
    (run,) = commands_of(tmp_path)

    assert [word for word in run if word.startswith("--device")] == []


def test_tests_get_the_machines_gpus(tmp_path: Path) -> None:
    (run,) = commands_of(tmp_path, gpu=True)

    assert "--device=/dev/kfd" in run


def test_a_dry_run_prints_what_would_run(capsys: pytest.CaptureFixture[str]) -> None:
    assert run_verb("ci", "in-image", *WORDS, "--dry-run", "--gpu-family=gfx1151", "--max-jobs=4") == 0

    printed = capsys.readouterr().out
    assert "nox -s build_torch check_wheels -P 3.11 -- --gpu-family=gfx1151" in printed
    assert "--max-jobs=4" in printed


def test_names_the_session_that_makes_a_missing_archive(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(engines, "find_engine", lambda *_names: "docker")

    exit_code = run_verb("ci", "in-image", *WORDS, f"--archive={tmp_path / 'image.tar'}")

    assert exit_code == MissingInputError.exit_code
    assert "build_image" in capsys.readouterr().err


def test_refuses_to_run_no_session() -> None:
    assert run_verb("ci", "in-image", "--image=i", "--sessions=") == UsageError.exit_code
