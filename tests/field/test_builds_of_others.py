"""Machines of reports: limits of containers, names of folders, images with variables of their own."""

from dataclasses import replace
from pathlib import Path, PurePosixPath, PureWindowsPath

import pytest

from core.cli import parsed_call
from core.cli.options import ROOT, named_store
from core.env import require
from core.errors import UsageError
from pytorch_build.build import machine
from pytorch_build.build.machine import MachineFacts, problems
from pytorch_build.check import Expectation
from pytorch_build.check.expected import check
from pytorch_build.components import COMPONENTS
from tests.kit.builds import LocalRun, sample_build
from tests.kit.front_doors import Package, run_verb
from tests.kit.machines import report_hardware
from tests.kit.views import wheel_view

GIB = 1 << 30


# https://github.com/AMD-AGI/Hyperloom/pull/1461
# Version 1 of control groups has a folder for each kind of limit.
@pytest.mark.parametrize(
    ("limits", "cores", "memory"),
    [
        ({"memory.max": f"{2 * GIB}", "cpu.max": "200000 100000"}, 2, 2 * GIB),
        (
            {
                "memory/memory.limit_in_bytes": f"{2 * GIB}",
                "cpu/cpu.cfs_quota_us": "200000",
                "cpu/cpu.cfs_period_us": "100000",
            },
            2,
            2 * GIB,
        ),
        (
            {
                "memory/memory.limit_in_bytes": "9223372036854771712",
                "cpu/cpu.cfs_quota_us": "-1",
                "cpu/cpu.cfs_period_us": "100000",
            },
            8,
            64 * GIB,
        ),
    ],
    ids=["version 2", "version 1", "version 1 without limits"],
)
def test_takes_no_more_than_a_container_may(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, limits: dict[str, str], cores: int, memory: int
) -> None:
    for name, text in limits.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(f"{text}\n")
    report_hardware(monkeypatch, cores=8, memory=64 * GIB)
    monkeypatch.setattr(machine, "_CGROUP", tmp_path)

    assert machine.cores() == cores
    assert machine.memory_bytes() == memory


# https://github.com/astral-sh/uv/issues/2501
# triton was built, and then uv took what follows the # for a fragment.
@pytest.mark.parametrize("character", list('#,$;:"`*?[]<>|\\'))
def test_refuses_a_path_that_tools_of_a_build_cannot_take(character: str) -> None:
    facts = machine_in(PurePosixPath(f"/home/a{character}b"))

    messages = [problem.message for problem in problems("torch", facts, COMPONENTS["torch"].gpu_need)]

    assert len(messages) == 2  # the environment's path, and the tree's
    for message in messages:
        assert f"/home/a{character}b/" in message
        assert repr(character) in message


@pytest.mark.parametrize("name", ["job 2", "a=b", "a&b", "a+b", "a@b", "a%b", "a~b", "a'b", "é"])
def test_builds_in_folders_of_other_unusual_names(name: str) -> None:
    facts = machine_in(PurePosixPath(f"/home/{name}"))

    assert list(problems("torch", facts, COMPONENTS["torch"].gpu_need)) == []


def test_takes_the_drives_of_windows() -> None:
    facts = machine_in(PureWindowsPath("C:/b"), platform="windows")

    assert list(problems("torch", facts, COMPONENTS["torch"].gpu_need)) == []


def machine_in(folder: PurePosixPath | PureWindowsPath, *, platform: str = "linux") -> MachineFacts:
    """Return a machine that has all that a build needs, with its folders below another one."""
    return MachineFacts(
        platform=platform,
        python=folder / "env" / "bin" / "python",
        has_python_headers=True,
        tree=folder / "src" / "torch",
        compiler_problems=(),
        tools={},
        disk_gib=200,
        memory_gib=64,
    )


# https://github.com/ROCm/legacy-rocm-build/issues/1930
# PYTORCH_ROCM_ARCH, which ROCm's images set, took three of four targets away, and nothing said so.
def test_tells_which_targets_of_the_family_are_left_out(tmp_path: Path) -> None:
    run = LocalRun(root=tmp_path)

    build = sample_build(run).requested(
        context=run.context("gfx110X-all"),
        user_env={"PATH": "/usr/bin", "PYTORCH_ROCM_ARCH": "gfx1100:xnack+"},
    )

    assert build.request.left_out_targets == ("gfx1101", "gfx1102", "gfx1103")
    # triton has no device code of its own.
    assert build.of("triton").request.left_out_targets == ()


# https://github.com/ROCm/legacy-rocm-build/issues/1930
def test_a_check_warns_of_a_wheel_for_a_part_of_its_family() -> None:
    view = wheel_view("torch-2.10.0-cp312-cp312-linux_x86_64.whl")
    expectation = Expectation(
        distribution="torch",
        version="2.10.0",
        gpu_targets=("gfx1100",),
        left_out_targets=("gfx1101",),
    )

    (finding,) = check(replace(view, expectation=expectation))

    assert finding.severity == "warning"
    assert "gfx1101" in finding.message


# https://github.com/wntrblm/nox/issues/469
# nox goes to the folder of the noxfile; its users stand elsewhere.
def test_a_relative_store_begins_where_the_user_stands(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)

    assert named_store("mine") == str(tmp_path / "mine")
    assert named_store("s3://bucket") == "s3://bucket"
    assert named_store("auto") == "auto"


# https://github.com/wntrblm/nox/issues/469
@pytest.mark.parametrize(
    ("package", "verb", "option", "attribute"),
    [
        ("ci", "fetch-artifacts", "--artifact-store", "artifact_store"),
        ("ci", "upload", "--from", "source"),
        ("ci", "stage", "--distribution-store", "distribution_store"),
        ("ci", "promote", "--distribution-store", "distribution_store"),
        ("ci", "report", "--distribution-store", "distribution_store"),
        ("ci", "configure", "--distribution-store", "distribution_store"),
        ("pytorch_build", "test-smoke", "--distribution-store", "distribution_store"),
    ],
)
def test_every_store_that_an_option_names_begins_where_the_user_stands(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    package: Package,
    verb: str,
    option: str,
    attribute: str,
) -> None:
    monkeypatch.chdir(tmp_path)

    _module, arguments = parsed_call(package, [verb, option, "mine"])

    assert getattr(arguments, attribute) == str(tmp_path / "mine")


# https://github.com/wntrblm/nox/issues/469
def test_retention_keeps_what_a_relative_store_needs_where_the_user_stands(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)

    _module, arguments = parsed_call("ci", ["retention", "--distribution-store=a", "--distribution-store=b"])

    assert arguments.distribution_store == [str(tmp_path / "a"), str(tmp_path / "b")]


# https://github.com/wntrblm/nox/issues/469
def test_a_relative_file_begins_where_the_user_stands(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(ROOT)  # where nox goes, and pytest comes back to
    (tmp_path / "files.txt").write_text("docs/mine.md\n")
    monkeypatch.setenv("INVOKED_FROM", str(tmp_path))

    exit_code = run_verb("ci", "configure", "--event=push", "--changed=@files.txt", "--output=plan.json")

    assert exit_code == 0
    assert "docs/mine.md" in capsys.readouterr().err
    assert (tmp_path / "plan.json").is_file()


# https://github.com/wntrblm/nox/issues/950
def test_a_session_without_an_environment_names_the_option_of_nox() -> None:
    with pytest.raises(UsageError) as caught:
        require(None)

    assert "--no-venv" in caught.value.hint
