import re
import shlex
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from ci.verbs import build_image
from core import process
from core.cli import Verb, main, verb_parser
from core.cli.options import common_from
from core.env import engines
from core.errors import MissingInputError, ProcessError, UsageError
from rocm_packaging.origin import release_index_url

VERB = Verb("build-image", "ci.verbs.build_image", "x")
DAY = "20251121"


def test_one_image_is_the_default() -> None:
    assert build_image.image().name == build_image.image("ubuntu-rocm").name == "pytorch-therock-rocm-ci"
    assert build_image.image("no-rocm").values({})["BASE_IMAGE"] == "docker.io/library/ubuntu:24.04"
    assert len(build_image.images()) == 2
    with pytest.raises(UsageError, match="Unknown image 'no-rcm'") as caught:
        build_image.image("no-rcm")
    assert caught.value.hint == "Did you mean 'no-rocm'?"


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("UBUNTU_VERSION", "22"),
        ("UBUNTU_VERSION", "22.04\n"),
        ("ANACONDA_PYTHON_VERSION", "2.7"),
        ("ROCM_VERSION", "latest"),
        ("ROCM_VERSION", ""),
        ("USE_THEROCK_NIGHTLY", "true"),
        ("THEROCK_NIGHTLY_INDEX_URL", "rocm.nightlies.amd.com"),
        ("THEROCK_NIGHTLY_INDEX_URL", ""),
        ("THEROCK_NIGHTLY_VERSION", "7.1; id"),
        ("PYTORCH_ROCM_ARCH", "gfx942,gfx90a"),
        ("PYTORCH_ROCM_ARCH", "gfx94X-dcgpu"),
        ("BASE_IMAGE", "ubuntu 22.04"),
        ("CONDA_INSTALLER_URL", "http://x.invalid/c.sh"),
        ("CONDA_INSTALLER_SHA256", "abc"),
    ],
)
def test_values_that_cannot_be_are_refused(name: str, value: str) -> None:
    with pytest.raises(UsageError, match=f"^{name}=") as caught:
        build_image.image().values({name: value})
    assert repr(build_image.image().arguments[name].default) in caught.value.hint


def test_credentials_and_arguments_of_another_image_are_refused() -> None:
    url = "https://me:secret@x.invalid/simple/"
    with pytest.raises(UsageError, match="THEROCK_NIGHTLY_INDEX_URL holds a user name") as caught:
        build_image.image().values({"THEROCK_NIGHTLY_INDEX_URL": url})
    assert "secret" not in str(caught.value)
    with pytest.raises(UsageError, match="has no build argument ROCM_VERSION"):
        build_image.image("no-rocm").values({"ROCM_VERSION": "6.4"})


@pytest.mark.parametrize(("date", "named"), [("2025-11-21", ()), ("", ()), ("20251121", ("a b",))])
def test_days_and_tags_that_are_none_are_refused(date: str, named: tuple[str, ...]) -> None:
    with pytest.raises(UsageError, match=r"Invalid (day|image tag)"):
        build_image.tags(date, named)


@pytest.mark.parametrize(
    ("named", "found"),
    [
        ("ghcr.io/Owner/Repo", "ghcr.io/owner/repo"),
        ("localhost:5000/team/rocm-ci", "localhost:5000/team/rocm-ci"),
        ("https://ghcr.io/a/b", ""),
        ("ghcr.io/a/b:latest", ""),
        ("rocm-ci", ""),
        ("ghcr.io/", ""),
        ("ghcr.io/a b", ""),
    ],
)
def test_where_an_image_is_pushed_to_is_a_repository(named: str, found: str) -> None:
    if found:
        assert build_image.repository(named) == found
        return
    with pytest.raises(UsageError, match="is not a REGISTRY/REPO"):
        build_image.repository(named)


def planned(*words: str) -> engines.Build:
    arguments = verb_parser("ci", VERB)[1].parse_args(words)
    return build_image.plan(common_from(arguments), arguments, today=DAY)


def test_a_family_brings_its_index_its_targets_and_a_name_of_its_own() -> None:
    build = planned("--gpu-family=gfx110X-all", "--push=ghcr.io/O/r")
    assert build.arguments["THEROCK_NIGHTLY_INDEX_URL"] == release_index_url("", "gfx110X-all")
    assert build.arguments["PYTORCH_ROCM_ARCH"] == "gfx1100;gfx1101;gfx1102;gfx1103"
    assert build.names[0] == f"pytorch-therock-rocm-ci-gfx110x-all:nightly-{DAY}"
    assert build.pushed == (f"ghcr.io/o/r-gfx110x-all:nightly-{DAY}", "ghcr.io/o/r-gfx110x-all:latest")
    several = planned("--gpu-family=gfx942;gfx1100")
    assert several.names[1] == "pytorch-therock-rocm-ci-gfx942-gfx1100:latest"
    assert several.arguments["PYTORCH_ROCM_ARCH"] == "gfx942;gfx1100"
    own = planned("--gpu-family=gfx110X-all", "--pytorch-rocm-arch=gfx1100")
    assert own.arguments["PYTORCH_ROCM_ARCH"] == "gfx1100"


def test_a_name_may_be_given() -> None:
    build = planned("--gpu-family=gfx110X-all", "--name=mine", "--push=ghcr.io/O/r", "--tag=v1")
    assert build.names == ("mine:v1",)
    assert build.pushed == ("ghcr.io/o/r-gfx110x-all:v1",)
    for wrong in ("Mine", "mine:v1", "-mine", "a b"):
        with pytest.raises(UsageError, match="Invalid image name"):
            planned(f"--name={wrong}")


def test_the_image_without_rocm_takes_no_day() -> None:
    with pytest.raises(UsageError, match="no ROCm for cpu"):
        planned("--gpu-family=cpu")
    build = planned("--image=no-rocm", "--tag=v1")
    assert list(build.arguments) == ["UBUNTU_VERSION", "BASE_IMAGE"]
    assert build.names == ("no-rocm-ubuntu24.04:v1",)


class FakeEngine:
    """An engine that writes archives, or fails as it is told."""

    def __init__(self) -> None:
        self.commands: list[list[str]] = []
        self.fails: dict[str, str] = {}

    def run(self, argv: Sequence[str], **_: Any) -> None:
        self.commands.append(list(argv))
        if said := self.fails.get(argv[1]):
            raise ProcessError(f"{argv[0]} {argv[1]} ended with status 1.", output=said)
        if argv[1] == "save":
            with open(argv[3], "wb") as stream:  # noqa: PTH123 - argv is text
                stream.write(b"archive")


@pytest.fixture(name="engine")
def engine_fixture(monkeypatch: pytest.MonkeyPatch) -> FakeEngine:
    fake = FakeEngine()
    monkeypatch.setattr(process, "run", fake.run)
    monkeypatch.setattr(engines, "find_engine", lambda *names: names[0])
    return fake


@pytest.fixture(name="door")
def door_fixture() -> Callable[..., int]:
    return lambda *words: main("ci", "x", (VERB,), ["build-image", *words])


def test_build_push_and_save(
    engine: FakeEngine, door: Callable[..., int], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    outputs, summary = tmp_path / "outputs", tmp_path / "summary"
    monkeypatch.setenv("GITHUB_OUTPUT", str(outputs))
    monkeypatch.setenv("GITHUB_STEP_SUMMARY", str(summary))
    archive = tmp_path / "new" / "image.tar"
    assert door(f"--output={archive}", "--push=r.invalid/o/ci", f"--date={DAY}") == 0
    assert [command[1] for command in engine.commands] == ["build", "push", "push", "save"]
    assert archive.read_bytes() == b"archive"
    assert list(archive.parent.iterdir()) == [archive]
    assert re.search(rf"image<<.*\nr\.invalid/o/ci:nightly-{DAY}\n", outputs.read_text(encoding="utf-8"))
    assert "PYTORCH\\_ROCM\\_ARCH" in summary.read_text(encoding="utf-8")


def test_a_saved_image_is_pushed_and_nothing_is_built(engine: FakeEngine, door: Callable[..., int]) -> None:
    assert door("--archive=image.tar", "--push=r.invalid/o/ci") == 0
    assert [command[1] for command in engine.commands] == ["load", "tag", "tag", "push", "push"]


def test_a_failed_save_leaves_the_archive_that_was_there(
    engine: FakeEngine, door: Callable[..., int], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    archive = tmp_path / "image.tar"
    archive.write_bytes(b"before")
    engine.fails["save"] = "write image.tar: no space left on device"
    assert door(f"--output={archive}") == 1
    assert archive.read_bytes() == b"before"
    assert list(tmp_path.iterdir()) == [archive]
    assert "The disk is full" in capsys.readouterr().err


@pytest.mark.parametrize("named", ["docker", "podman", "buildah"])
def test_a_dry_run_prints_the_exact_commands(
    named: engines.Engine, door: Callable[..., int], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = (f"--engine={named}", "--push=r.invalid/o/ci", f"--output={tmp_path / 'i.tar'}", f"--date={DAY}")
    assert door("--dry-run", *words) == 0
    printed = [tuple(shlex.split(line)) for line in capsys.readouterr().out.splitlines()]
    build = planned(*words)
    assert printed == [
        engines.build_command(named, build),
        *((named, "push", reference) for reference in build.pushed),
        engines.save_command(named, build, tmp_path / "i.tar"),
    ]
    assert list(tmp_path.iterdir()) == []


def test_a_dry_run_needs_no_engine(
    door: Callable[..., int], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(process, "which", lambda _name: None)
    assert door("--dry-run") == 0
    assert capsys.readouterr().out.startswith("docker build --file ")
    assert door() == MissingInputError.exit_code
