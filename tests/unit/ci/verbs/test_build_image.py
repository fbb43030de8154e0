"""Images for CI: built, pushed and saved."""

import re
import shlex
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from ci.verbs import build_image
from core import process
from core.cli import Verb, verb_parser
from core.cli.options import common_from
from core.env import engines
from core.errors import FatalError, MissingInputError, UsageError
from rocm_packaging.origin import release_index_url
from tests.kit.front_doors import run_verb, use_checkout
from tests.kit.machines import Answer, Call, answer_processes
from tests.kit.windows import not_on_windows

pytestmark = not_on_windows("container images are built on Linux alone")

VERB = Verb("build-image", "ci.verbs.build_image", "x")
DAY = "20251121"

INDEX_ARGUMENT = "THEROCK_NIGHTLY_INDEX_URL"
TARGETS_ARGUMENT = "PYTORCH_ROCM_ARCH"


def build_planned(*options: str) -> engines.ImageBuild:
    """Return the build that options describe."""
    arguments = verb_parser("ci", VERB)[1].parse_args(options)
    return build_image.plan_build(common_from(arguments), arguments, today=DAY)


# --- Images and their arguments --------------------------------------------------------------


def test_there_is_one_default_image() -> None:
    assert build_image.find_image() == build_image.find_image("ubuntu-rocm")
    assert build_image.find_image().name == "pytorch-therock-rocm-ci"


def test_the_image_without_rocm_is_ubuntus() -> None:
    assert build_image.find_image("no-rocm").values({})["BASE_IMAGE"] == "docker.io/library/ubuntu:24.04"


def test_suggests_the_image_that_is_meant() -> None:
    with pytest.raises(UsageError, match="'no-rcm'") as caught:
        build_image.find_image("no-rcm")

    assert "'no-rocm'" in caught.value.hint


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("UBUNTU_VERSION", "22"),
        ("UBUNTU_VERSION", "22.04\n"),
        ("ANACONDA_PYTHON_VERSION", "2.7"),
        ("ROCM_VERSION", "latest"),
        ("ROCM_VERSION", ""),
        ("USE_THEROCK_NIGHTLY", "true"),
        (INDEX_ARGUMENT, "rocm.nightlies.amd.com"),
        (INDEX_ARGUMENT, ""),
        ("THEROCK_NIGHTLY_VERSION", "7.1; id"),
        (TARGETS_ARGUMENT, "gfx942,gfx90a"),
        (TARGETS_ARGUMENT, "gfx94X-dcgpu"),
        ("BASE_IMAGE", "ubuntu 22.04"),
        ("CONDA_INSTALLER_URL", "http://x.invalid/c.sh"),
        ("CONDA_INSTALLER_SHA256", "abc"),
    ],
)
def test_refuses_a_value_of_another_form_with_the_default(name: str, value: str) -> None:
    with pytest.raises(UsageError, match=f"^{name}=") as caught:
        build_image.find_image().values({name: value})

    assert repr(build_image.find_image().arguments[name].default) in caught.value.hint


def test_refuses_credentials_without_showing_them() -> None:
    url = "https://me:secret@x.invalid/simple/"

    with pytest.raises(UsageError, match=INDEX_ARGUMENT) as caught:
        build_image.find_image().values({INDEX_ARGUMENT: url})

    assert "secret" not in str(caught.value)


def test_refuses_an_argument_of_another_image() -> None:
    with pytest.raises(UsageError, match="ROCM_VERSION"):
        build_image.find_image("no-rocm").values({"ROCM_VERSION": "6.4"})


# --- Names, tags and places ------------------------------------------------------------------


@pytest.mark.parametrize("day", ["2025-11-21", ""])
def test_refuses_text_that_is_not_a_day(day: str) -> None:
    with pytest.raises(UsageError, match=f"'{day}'"):
        build_image.make_tags(day)


def test_refuses_text_that_is_not_a_tag() -> None:
    with pytest.raises(UsageError, match="'a b'"):
        build_image.make_tags(DAY, ("a b",))


@pytest.mark.parametrize(
    ("text", "repository"),
    [
        ("ghcr.io/Owner/Repo", "ghcr.io/owner/repo"),
        ("localhost:5000/team/rocm-ci", "localhost:5000/team/rocm-ci"),
    ],
)
def test_pushes_to_a_repository_in_small_letters(text: str, repository: str) -> None:
    assert build_image.registry_repository(text) == repository


@pytest.mark.parametrize(
    "text", ["https://ghcr.io/a/b", "ghcr.io/a/b:latest", "rocm-ci", "ghcr.io/", "ghcr.io/a b"]
)
def test_refuses_text_that_is_not_a_repository(text: str) -> None:
    with pytest.raises(UsageError, match="REGISTRY/REPO"):
        build_image.registry_repository(text)


@pytest.mark.parametrize("name", ["Mine", "mine:v1", "-mine", "a b"])
def test_refuses_text_that_is_not_the_name_of_an_image(name: str) -> None:
    with pytest.raises(UsageError, match=f"'{name}'"):
        build_planned(f"--name={name}")


def test_a_family_brings_its_index_and_its_targets() -> None:
    build = build_planned("--gpu-family=gfx110X-all")

    assert build.arguments[INDEX_ARGUMENT] == release_index_url("", "gfx110X-all")
    assert build.arguments[TARGETS_ARGUMENT] == "gfx1100;gfx1101;gfx1102;gfx1103"


def test_a_family_is_part_of_the_images_name() -> None:
    build = build_planned("--gpu-family=gfx110X-all", "--push=ghcr.io/O/r")

    assert build.names[0] == f"pytorch-therock-rocm-ci-gfx110x-all:nightly-{DAY}"
    assert build.pushed == (f"ghcr.io/o/r-gfx110x-all:nightly-{DAY}", "ghcr.io/o/r-gfx110x-all:latest")


def test_several_targets_are_part_of_the_images_name() -> None:
    build = build_planned("--gpu-family=gfx942;gfx1100")

    assert build.names[1] == "pytorch-therock-rocm-ci-gfx942-gfx1100:latest"
    assert build.arguments[TARGETS_ARGUMENT] == "gfx942;gfx1100"


def test_targets_can_be_chosen_among_a_familys() -> None:
    build = build_planned("--gpu-family=gfx110X-all", "--pytorch-rocm-arch=gfx1100")

    assert build.arguments[TARGETS_ARGUMENT] == "gfx1100"


def test_the_name_and_the_tag_can_be_chosen() -> None:
    build = build_planned("--gpu-family=gfx110X-all", "--name=mine", "--push=ghcr.io/O/r", "--tag=v1")

    assert build.names == ("mine:v1",)
    assert build.pushed == ("ghcr.io/o/r-gfx110x-all:v1",)


def test_there_is_no_image_for_cpu() -> None:
    with pytest.raises(UsageError, match="cpu"):
        build_planned("--gpu-family=cpu")


def test_the_image_without_rocm_has_no_argument_for_the_day() -> None:
    build = build_planned("--image=no-rocm", "--tag=v1")

    assert list(build.arguments) == ["UBUNTU_VERSION", "BASE_IMAGE"]
    assert build.names == ("no-rocm-ubuntu24.04:v1",)


# --- Building, pushing and saving ------------------------------------------------------------


@dataclass
class Engine:
    """Docker, which writes the archives that it is to save; `failures` are commands that fail."""

    commands: list[str] = field(default_factory=list)
    failures: dict[str, str] = field(default_factory=dict)

    def answer(self, call: Call) -> Answer:
        """Answer for a command."""
        _, command, *arguments = call.words
        if command in self.failures:
            return Answer(status=1, stdout=self.failures[command])
        if command in {"info", "version"}:
            return Answer()
        self.commands.append(command)
        if command == "save":
            Path(arguments[1]).write_bytes(b"archive")
        return Answer()


@pytest.fixture
def engine(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Engine:
    engine = Engine()
    use_checkout(monkeypatch, build_image, tmp_path / "checkout")
    monkeypatch.setattr(process, "which", lambda program: program)
    answer_processes(monkeypatch, engine.answer)
    return engine


def test_builds_pushes_and_saves(engine: Engine, tmp_path: Path) -> None:
    archive = tmp_path / "new" / "image.tar"

    assert run_verb("ci", "build-image", f"--output={archive}", "--push=r.invalid/o/ci") == 0

    assert engine.commands == ["build", "push", "push", "save"]
    assert archive.read_bytes() == b"archive"
    assert list(archive.parent.iterdir()) == [archive]


@pytest.mark.usefixtures("engine")
def test_a_job_gets_the_image_and_its_arguments(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    outputs = tmp_path / "outputs"
    summary = tmp_path / "summary"
    monkeypatch.setenv("GITHUB_OUTPUT", str(outputs))
    monkeypatch.setenv("GITHUB_STEP_SUMMARY", str(summary))

    assert run_verb("ci", "build-image", "--push=r.invalid/o/ci", f"--date={DAY}") == 0

    image = rf"image<<.*\nr\.invalid/o/ci:nightly-{DAY}\n"
    assert re.search(image, outputs.read_text(encoding="utf-8"))
    assert "PYTORCH\\_ROCM\\_ARCH" in summary.read_text(encoding="utf-8")


def test_pushes_a_saved_image_without_a_build(engine: Engine) -> None:
    assert run_verb("ci", "build-image", "--archive=image.tar", "--push=r.invalid/o/ci") == 0

    assert engine.commands == ["load", "tag", "tag", "push", "push"]


@pytest.mark.parametrize(
    ("place", "registry"),
    [
        ("ghcr.io/owner/ci", "ghcr.io"),
        ("quay.io/team/ci", "quay.io"),
        ("localhost:5000/ci", "localhost:5000"),
        ("owner/ci", "docker.io"),
    ],
)
def test_logs_in_to_the_registry_that_it_pushes_to(
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    place: str,
    registry: str,
) -> None:
    monkeypatch.setenv("REGISTRY_USER", "me")
    monkeypatch.setenv("REGISTRY_PASSWORD", "secret")

    options = ("--engine=docker", "--archive=image.tar", f"--push={place}", "--dry-run")
    assert run_verb("ci", "build-image", *options) == 0

    output = capsys.readouterr()
    assert f"docker login --username me --password-stdin {registry}\n" in output.out
    assert "secret" not in output.out + output.err


def test_logs_in_after_the_build_and_before_it_pushes(
    engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("REGISTRY_USER", "me")
    monkeypatch.setenv("REGISTRY_PASSWORD", "secret")

    assert run_verb("ci", "build-image", "--push=r.invalid/o/ci") == 0

    assert engine.commands == ["build", "login", "push", "push"]


def test_a_failed_save_leaves_the_old_archive(
    engine: Engine, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    archive = tmp_path / "saved" / "image.tar"
    archive.parent.mkdir()
    archive.write_bytes(b"old")
    engine.failures["save"] = "write image.tar: no space left on device\n"

    assert run_verb("ci", "build-image", f"--output={archive}") == FatalError.exit_code

    assert archive.read_bytes() == b"old"
    assert list(archive.parent.iterdir()) == [archive]
    assert "no space left" in capsys.readouterr().err


def commands_of(build: engines.ImageBuild, engine: engines.Engine, archive: Path) -> Sequence[Sequence[str]]:
    pushes = [(engine, "push", reference) for reference in build.pushed]
    return [
        engines.build_command(engine, build),
        *pushes,
        engines.save_command(engine, build, archive),
    ]


@pytest.mark.parametrize("engine_name", ["docker", "podman", "buildah"])
def test_a_dry_run_prints_the_exact_commands(
    engine_name: engines.Engine, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    archive = tmp_path / "i.tar"
    options = (
        f"--engine={engine_name}",
        "--push=r.invalid/o/ci",
        f"--output={archive}",
        f"--date={DAY}",
    )

    assert run_verb("ci", "build-image", "--dry-run", *options) == 0

    printed = [tuple(shlex.split(line)) for line in capsys.readouterr().out.splitlines()]
    assert printed == commands_of(build_planned(*options), engine_name, archive)
    assert not archive.exists()


def test_only_a_dry_run_works_without_an_engine(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(process, "which", lambda _program: None)

    assert run_verb("ci", "build-image", "--dry-run") == 0

    assert capsys.readouterr().out.startswith("docker build --file ")
    assert run_verb("ci", "build-image") == MissingInputError.exit_code
