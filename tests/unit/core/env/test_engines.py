from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from core.env import engines
from core.env.engines import (
    ENGINES,
    RUNNERS,
    Engine,
    ImageBuild,
    build_command,
    explain_failure,
    find_engine,
    save_command,
)
from core.errors import FatalError, MissingInputError, ProcessError, UsageError
from tests.kit.machines import Answer, Call, answer_processes, put_on_path
from tests.kit.windows import not_on_windows

pytestmark = not_on_windows("container images are built on Linux alone")

BUILD = ImageBuild(
    dockerfile=Path("/c/docker/Dockerfile"),
    context=Path("/c"),
    arguments={"ROCM_VERSION": "6.4", "EMPTY": ""},
    names=("ci:nightly-20251121", "ci:latest"),
    pushed=("r.invalid/o/ci:nightly-20251121", "r.invalid/o/ci:latest"),
)

WORKS = Answer(stdout="27.0\n")
NO_DAEMON = Answer(status=1, stderr="first line\nCannot connect to the daemon\n")
HANGS = Answer(hangs=True)


# Commands


@pytest.mark.parametrize("engine", ENGINES)
def test_builds_with_every_name_and_argument(engine: Engine) -> None:
    command = " ".join(build_command(engine, BUILD))

    assert command == (
        f"{engine} build --file /c/docker/Dockerfile"
        " --tag ci:nightly-20251121 --tag ci:latest"
        " --tag r.invalid/o/ci:nightly-20251121 --tag r.invalid/o/ci:latest"
        " --build-arg ROCM_VERSION=6.4 --build-arg EMPTY= /c"
    )


@pytest.mark.parametrize("engine", ENGINES)
def test_builds_without_a_cache(engine: Engine) -> None:
    assert build_command(engine, replace(BUILD, no_cache=True))[-2:] == ("--no-cache", "/c")


@pytest.mark.parametrize(
    ("engine", "command"),
    [
        ("docker", "docker save --output /out/image.tar ci:nightly-20251121 ci:latest"),
        (
            "podman",
            "podman save --format docker-archive --output /out/image.tar ci:nightly-20251121 ci:latest",
        ),
        (
            "buildah",
            "buildah push ci:nightly-20251121 docker-archive:/out/image.tar:ci:nightly-20251121",
        ),
    ],
)
def test_saves_an_image(engine: Engine, command: str) -> None:
    assert " ".join(save_command(engine, BUILD, Path("/out/image.tar"))) == command


def test_buildah_cannot_save_to_a_path_with_a_colon() -> None:
    with pytest.raises(UsageError, match="/a:b/image"):
        save_command("buildah", BUILD, Path("/a:b/image.tar"))


# Engines of the machine


def install_engines(
    monkeypatch: pytest.MonkeyPatch, folder: Path, answers: Mapping[str, Answer]
) -> list[Call]:
    """Put engines on the machine, each with its answer to whether it works; return the calls."""
    put_on_path(monkeypatch, folder, list(answers))
    return answer_processes(monkeypatch, lambda call: answers[call.program])


@pytest.mark.parametrize(
    ("answers", "names", "called"),
    [
        ({"docker": NO_DAEMON, "buildah": WORKS}, (), ["docker", "buildah"]),
        ({"docker": HANGS, "podman": WORKS}, (), ["docker", "podman"]),
        ({"docker": WORKS, "podman": WORKS, "buildah": WORKS}, ("podman",), ["podman"]),
        ({"docker": WORKS, "podman": WORKS, "buildah": WORKS}, RUNNERS, ["docker"]),
        ({"podman": WORKS, "buildah": WORKS}, RUNNERS, ["podman"]),
    ],
    ids=["no daemon", "hangs", "named", "first runner", "second runner"],
)
def test_takes_the_first_engine_that_works(
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    answers: Mapping[str, Answer],
    names: Sequence[Engine],
    called: list[str],
) -> None:
    monkeypatch.setattr(engines, "_ANSWER_SECONDS", 0.2)
    calls = install_engines(monkeypatch, tmp_path, answers)

    engine = find_engine(*names)

    assert engine == called[-1]
    assert [call.program for call in calls] == called


def test_tells_why_no_engine_works_and_how_to_get_one(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    install_engines(monkeypatch, tmp_path, {"docker": NO_DAEMON})

    with pytest.raises(MissingInputError) as raised:
        find_engine()

    assert "Cannot connect to the daemon" in raised.value.message
    assert "first line" not in raised.value.message
    assert "podman is not installed" in raised.value.message
    assert "buildah is not installed" in raised.value.message
    assert "apt-get install buildah" in raised.value.hint


def test_proposes_no_engine_that_only_builds_to_run_containers(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    install_engines(monkeypatch, tmp_path, {"buildah": WORKS})

    with pytest.raises(MissingInputError) as raised:
        find_engine(*RUNNERS, otherwise="Or leave --container out.")

    assert "buildah" not in str(raised.value)
    assert "apt-get install podman" in raised.value.hint
    assert raised.value.hint.endswith("Or leave --container out.")


# Failures


@pytest.mark.parametrize(
    "line", ["failed to copy files: write /usr/lib/x: no space left on device", "blob: Disk quota exceeded"]
)
def test_explains_a_full_disk(line: str) -> None:
    problem = explain_failure(
        "docker", ProcessError("It ended.", output=f"STEP 3\n{line}\nError: exit"), base="b"
    )

    assert type(problem) is FatalError
    assert line in problem.message
    assert "docker system prune" in problem.hint


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
def test_names_a_missing_base_image_and_repeats_the_engine(engine: Engine, line: str) -> None:
    build_problem = ProcessError("build ended with status 1.", output=f"STEP 1/2: FROM nothing\n{line}")

    problem = explain_failure(engine, build_problem, base="nothing:1")

    assert isinstance(problem, MissingInputError)
    assert "image nothing:1" in problem.message
    assert problem.message.endswith(line)
    assert "--base IMAGE" in problem.hint


def test_leaves_any_other_failure_as_it_is() -> None:
    problem = ProcessError("It ended.", output="install_rocm.sh: ROCM_VERSION=x is no version")

    assert explain_failure("docker", problem, base="b") is problem
