from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from core import process
from core.env.engines import (
    ENGINES,
    RUNNERS,
    Build,
    Engine,
    build_command,
    explained,
    find_engine,
    save_command,
)
from core.errors import FatalError, MissingInputError, ProcessError, UsageError

BUILD = Build(
    dockerfile=Path("/c/docker/Dockerfile"),
    context=Path("/c"),
    arguments={"ROCM_VERSION": "6.4", "EMPTY": ""},
    names=("ci:nightly-20251121", "ci:latest"),
    pushed=("r.invalid/o/ci:nightly-20251121", "r.invalid/o/ci:latest"),
)


@pytest.mark.parametrize("engine", ENGINES)
def test_the_command_that_builds(engine: Engine) -> None:
    assert build_command(engine, BUILD) == (
        *(engine, "build", "--file", "/c/docker/Dockerfile"),
        *("--tag", "ci:nightly-20251121", "--tag", "ci:latest"),
        *("--tag", "r.invalid/o/ci:nightly-20251121", "--tag", "r.invalid/o/ci:latest"),
        *("--build-arg", "ROCM_VERSION=6.4", "--build-arg", "EMPTY=", "/c"),
    )
    assert build_command(engine, replace(BUILD, no_cache=True))[-2:] == ("--no-cache", "/c")


def test_the_commands_that_save() -> None:
    file = Path("/out/image.tar")
    names = ("ci:nightly-20251121", "ci:latest")
    assert save_command("docker", BUILD, file) == ("docker", "save", "--output", "/out/image.tar", *names)
    assert save_command("podman", BUILD, file)[2:4] == ("--format", "docker-archive")
    expected = ("buildah", "push", "ci:nightly-20251121", "docker-archive:/out/image.tar:ci:nightly-20251121")
    assert save_command("buildah", BUILD, file) == expected
    with pytest.raises(UsageError, match="colon"):
        save_command("buildah", BUILD, Path("/a:b/image.tar"))


def answering(monkeypatch: pytest.MonkeyPatch, answers: Mapping[str, str | None]) -> list[str]:
    """Install engines: what each says against working, None for nothing."""
    asked: list[str] = []

    def capture(argv: Sequence[str], **_: Any) -> process.Completed:
        asked.append(argv[0])
        said = answers[argv[0]]
        return process.Completed(returncode=1 if said else 0, stdout="", stderr=f"first line\n{said or ''}\n")

    monkeypatch.setattr(process, "which", lambda name: Path(name) if name in answers else None)
    monkeypatch.setattr(process, "capture", capture)
    return asked


@pytest.mark.parametrize(
    ("there", "names", "asked"),
    [
        ({"docker": "Cannot connect to the daemon", "buildah": None}, (), ["docker", "buildah"]),
        ({"docker": None, "podman": None, "buildah": None}, ("podman",), ["podman"]),
        ({"docker": None, "podman": None, "buildah": None}, RUNNERS, ["docker"]),
        ({"podman": None, "buildah": None}, RUNNERS, ["podman"]),
    ],
)
def test_the_first_engine_that_works_is_taken(
    monkeypatch: pytest.MonkeyPatch,
    there: Mapping[str, str | None],
    names: Sequence[Engine],
    asked: list[str],
) -> None:
    found = answering(monkeypatch, there)
    assert find_engine(*names) == asked[-1]
    assert found == asked


def test_no_engine_says_why_of_each_and_how_to_get_one(monkeypatch: pytest.MonkeyPatch) -> None:
    answering(monkeypatch, {"docker": "Cannot connect to the daemon"})
    with pytest.raises(MissingInputError) as caught:
        find_engine()
    assert caught.value.message == (
        "No container engine works here: docker does not answer (Cannot connect to the daemon); "
        "podman is not installed; buildah is not installed."
    )
    assert "apt-get install buildah" in caught.value.hint


def test_what_only_builds_is_not_asked_to_run(monkeypatch: pytest.MonkeyPatch) -> None:
    answering(monkeypatch, {"buildah": None})
    with pytest.raises(MissingInputError) as caught:
        find_engine(*RUNNERS, otherwise="Or leave --container out.")
    assert "docker is not installed; podman is not installed." in caught.value.message
    assert "apt-get install podman" in caught.value.hint
    assert "buildah" not in caught.value.hint
    assert caught.value.hint.endswith("Or leave --container out.")


def test_an_engine_that_hangs_is_passed_over(monkeypatch: pytest.MonkeyPatch) -> None:
    def capture(argv: Sequence[str], *, timeout: float, **_: Any) -> process.Completed:
        if argv[0] == "docker":
            raise ProcessError(f"docker version did not end within {timeout:.0f} s.")
        return process.Completed(returncode=0, stdout="", stderr="")

    monkeypatch.setattr(process, "which", Path)
    monkeypatch.setattr(process, "capture", capture)
    assert find_engine() == "podman"


@pytest.mark.parametrize(
    "line", ["failed to copy files: write /usr/lib/x: no space left on device", "blob: Disk quota exceeded"]
)
def test_a_full_disk_is_called_one(line: str) -> None:
    found = explained("docker", ProcessError("It ended.", output=f"STEP 3\n{line}\nError: exit"), base="b")
    assert type(found) is FatalError
    assert line in found.message
    assert "docker system prune" in found.hint


@pytest.mark.parametrize(
    ("engine", "line"),
    [
        ("docker", "ERROR: pull access denied for nothing, repository does not exist"),
        ("docker", "ERROR: nothing:1: failed to resolve source metadata for docker.io/library/nothing:1"),
        ("docker", "manifest for nothing:1 not found: manifest unknown: manifest unknown"),
        ("podman", 'Error: short-name "nothing" did not resolve to an alias'),
        ("buildah", "Error: creating build container: initializing source docker://localhost/nothing:1: no"),
    ],
)
def test_a_missing_base_is_named_with_what_the_engine_said(engine: Engine, line: str) -> None:
    problem = ProcessError("build ended with status 1.", output=f"STEP 1/2: FROM nothing\n{line}")
    found = explained(engine, problem, base="nothing:1")
    assert isinstance(found, MissingInputError)
    assert found.message == f"Could not pull the base image nothing:1: {line}"
    assert "--base IMAGE" in found.hint


def test_any_other_failure_stays_what_it_was() -> None:
    problem = ProcessError("It ended.", output="install_rocm.sh: ROCM_VERSION=x is no version")
    assert explained("docker", problem, base="b") is problem
