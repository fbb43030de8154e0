"""The whole pipeline on the sample, in a clone of this checkout: real nox, real builds, real installers.

It has run once (`sample_run`); each test changes the clone that it ran in, where environments are kept.
"""

import hashlib
import json
import os
import re
import shutil
import signal
import subprocess  # noqa: TID251 - a build is interrupted here, which the door for processes cannot do
import sys
import threading
import time
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from core import process
from core.archive.zips import read_archive
from core.errors import CheckError, InterruptedStageError
from core.wheel.editor import Additions, edit_sdist, edit_wheel
from pytorch_build.build.search_paths import rocm_folders, search_paths
from pytorch_build.standalone.libraries import read_members
from tests.kit import sample
from tests.kit.clones import FAMILY, SERIES, TAG, Clone, printed_by
from tests.kit.front_doors import run_ci
from tests.kit.sample import SampleRun

ROCM_VERSION = "7.99.0.dev0+sample"
BUILDS = ("build_triton", "build_torch", "build_audio", "build_vision", "build_apex")
SAMPLE = ("--torch-ref", "sample")
CPU = ("--torch-ref=sample", "--gpu-family=cpu")
CPU_TORCH_RECORD = f"build_torch-sample-{TAG}"

# Rights that a job of CI has, and code of others must not.
RIGHTS = dict.fromkeys(
    ("ACTIONS_ID_TOKEN_REQUEST_TOKEN", "GITHUB_TOKEN", "GITHUB_ENV", "PYTEST_PLUGINS", "INVENTED"),
    "of-the-job",
)


def sha256(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


@pytest.fixture(scope="module")
def clone(sample_run: SampleRun) -> Iterator[Clone]:
    """Return the clone in which the pipeline ran, which only this file changes."""
    with sample.lend_workshop(sample_run) as path:
        yield Clone(path=path)


@pytest.fixture(scope="module")
def cpu_torch(clone: Clone) -> None:
    """Build torch and torchaudio for family cpu."""
    clone.run_checked("nox", "-s", "build_torch", "build_audio", "--", *CPU)


# What the pipeline left


def test_prints_a_table_of_every_wheel(sample_run: SampleRun, clone: Clone) -> None:
    printed = sample_run.printed
    table = printed[printed.rindex("run local, ") :]

    # Those of device code are among the seven.
    assert "check_wheels: 7 wheels, 0 errors, 0 warnings" in printed
    for stage in ("build_rocm", *(f"{build}-sample-{TAG}" for build in BUILDS)):
        for file in clone.record(stage)["files"]:
            row = next(line for line in table.splitlines() if line.startswith(file["name"]))
            assert file["sha256"][:12] in row
            assert file["version"] in row


def test_records_every_wheel_that_it_built(clone: Clone) -> None:
    for stage in ("build_rocm", *(f"{build}-sample-{TAG}" for build in BUILDS)):
        record = clone.record(stage)
        assert record["status"] == "ok"
        for file in record["files"]:
            path = clone.path / "out" / file["key"]
            assert sha256(path) == file["sha256"]
            assert path.stat().st_size == file["size"]
            assert "sample" in file["version"]


def test_builds_what_the_source_lock_says(clone: Clone) -> None:
    projects = clone.locked_projects()

    for name in ("triton", "torch", "audio", "vision", "apex"):
        (wheel, *_device_wheels) = clone.record(f"build_{name}-sample-{TAG}")["files"]
        assert wheel["version"] == projects[name]["versions"]["rocm"]


@pytest.mark.parametrize("stage", ["test_smoke", "test_torch"])
def test_tests_pass_on_the_wheels(clone: Clone, stage: str) -> None:
    tests = clone.record(f"{stage}-sample-{TAG}")["details"]["tests"]

    assert tests["tests"] > tests["skipped"]
    assert tests["failures"] == 0
    assert tests["errors"] == 0


def test_upstreams_tests_are_of_the_built_wheel_and_its_commit(clone: Clone) -> None:
    record = clone.record(f"test_torch-sample-{TAG}")
    torch_wheel = clone.record(f"build_torch-sample-{TAG}")["files"][0]

    assert record["inputs"]["files"][torch_wheel["name"]] == torch_wheel["sha256"]
    assert record["inputs"]["tests"]["commit"] == clone.locked_projects()["torch"]["commit"]


def test_leaves_no_byte_code_in_sources(clone: Clone) -> None:
    # Byte code is shared outside of trees.
    assert not list((clone.path / "src").rglob("__pycache__"))


def test_index_lists_every_wheel_with_its_digest(clone: Clone) -> None:
    page = (clone.wheels() / "index.html").read_text(encoding="utf-8")
    wheels = sorted(clone.wheels().glob("*.whl"))

    assert len(wheels) == 12
    assert {wheel.name.partition("-")[0] for wheel in wheels} > {"torch", "amd_torch_device_gfx942"}
    for wheel in wheels:
        assert f">{wheel.name}</a>" in page
        assert sha256(wheel) in page
        assert (wheel.parent / f"{wheel.name}.metadata").is_file()


@pytest.mark.parametrize("stage", BUILDS[1:])
def test_libraries_look_into_rocms_run_time_packages_and_nowhere_else(
    sample_run: SampleRun, clone: Clone, stage: str
) -> None:
    wheel = clone.wheels() / clone.record(f"{stage}-sample-{TAG}")["files"][0]["name"]
    libraries = read_members(wheel, read_archive(wheel).members)

    assert libraries
    for member, library in libraries.items():
        assert library.is_rpath, member
        assert library.search == search_paths(member, rocm_folders("split", FAMILY), library.search)
    assert f"{wheel.name} imports beside ROCm's run-time packages" in sample_run.printed


# Another run of the same


def read_files(folder: Path) -> dict[str, tuple[int, bytes]]:
    """Return when each file below a folder was written, and its content."""
    files = (path for path in sorted(folder.rglob("*")) if path.is_file())
    return {str(path): (path.stat().st_mtime_ns, path.read_bytes()) for path in files}


def test_finds_nothing_to_do_where_nothing_has_changed(clone: Clone) -> None:
    files = read_files(clone.path / "out" / "local-linux")

    printed = clone.run_checked("invoke", "ci", *SAMPLE)

    assert "nox >" not in printed
    for stage in ("build_rocm", *BUILDS, "test_smoke", "test_torch"):
        assert f"{stage}: unchanged" in printed
    assert read_files(clone.path / "out" / "local-linux") == files


def break_record(source: Path, target: Path) -> Path:
    """Copy a wheel with one member's bytes changed and its RECORD left as it was."""
    target.parent.mkdir(parents=True, exist_ok=True)
    with zipfile.ZipFile(source) as old, zipfile.ZipFile(target, "w") as new:
        for info in old.infolist():
            content = old.read(info)
            is_module = info.filename.endswith("__init__.py")
            new.writestr(info, content + b"# more\n" if is_module else content)
    return target


@pytest.mark.nightly
def test_finds_a_damaged_wheel_and_builds_it_again(clone: Clone, tmp_path: Path) -> None:
    (audio,) = clone.wheels().glob("torchaudio-*.whl")
    good_digest = sha256(audio)
    shutil.copy(break_record(audio, tmp_path / audio.name), f"{audio}.part")
    Path(f"{audio}.part").replace(audio)

    checked = clone.run("pytorch_build", "check-wheels", *SAMPLE)
    tested = clone.nox("-s", "test_smoke", "--", *SAMPLE, "--force")
    printed = clone.run_checked("nox", "-s", "build_torch", "build_audio", "--", *SAMPLE)

    assert checked.returncode == CheckError.exit_code, printed_by(checked)
    assert tested.returncode == 1
    assert "build_torch: unchanged" in printed
    assert sha256(audio) == good_digest


# Family cpu, cells, interpreters


@pytest.mark.usefixtures("cpu_torch")
@pytest.mark.nightly
def test_builds_for_family_cpu_with_nox_alone(clone: Clone) -> None:
    audio = clone.record(f"build_audio-sample-{TAG}", "cpu")
    (torch_wheel,) = clone.record(CPU_TORCH_RECORD, "cpu")["files"]

    assert torch_wheel["version"] == "2.10.0a0+cpu.sample"
    assert audio["files"][0]["version"] == "2.10.0a0+cpu.sample"
    assert clone.record(CPU_TORCH_RECORD, "cpu")["inputs"]["rocm"] is None
    assert audio["inputs"]["dependencies"] == {"torch": {"digest": torch_wheel["sha256"]}}


def test_cells_are_named_by_what_they_build(clone: Clone) -> None:
    listing = clone.nox("-l", "--json", MATRIX="ci")

    (cell,) = [session for session in json.loads(listing.stdout) if session["name"] == "build_torch"]
    assert cell["session"] == f"build_torch({FAMILY}, nightly, Python 3.12)"
    assert cell["python"] == "3.12"


def test_sessions_without_a_matrix_name_no_family(clone: Clone) -> None:
    listing = clone.nox("-l").stdout

    assert re.search(r"^[*-] build_torch .*->", listing, re.MULTILINE)
    assert "gpu_family" not in listing


@pytest.mark.parametrize(("family", "is_refused"), [(FAMILY, True), ("cpu", False)])
def test_an_option_cannot_contradict_a_cell(clone: Clone, family: str, *, is_refused: bool) -> None:
    plan = f'pythons = ["{SERIES}"]\ntorch_refs = ["sample"]\ntool_pythons = ["{SERIES}"]\n'
    (clone.path / "plan.toml").write_text(f'{plan}[gpu_families]\nlinux = ["cpu"]\n')
    cell = f"build_triton(cpu, sample, Python {SERIES})"

    completed = clone.nox("-s", cell, "--", f"--gpu-family={family}", "--dry-run", MATRIX="plan.toml")

    assert (completed.returncode != 0) == is_refused, printed_by(completed)
    assert (f"'{FAMILY}'" in printed_by(completed)) == is_refused


def test_fails_without_the_interpreter(clone: Clone) -> None:
    completed = clone.nox("-s", "build_torch", "-P", "3.99", "--", *CPU)

    assert completed.returncode == 1
    assert "3.99" in printed_by(completed)
    assert "skipped" not in printed_by(completed).lower()


def test_checks_the_options_of_every_session_before_the_first_one_works(clone: Clone) -> None:
    completed = clone.nox("-s", "checkout", "check_wheels", "--", "--torch-ref=sample", "--stash")

    assert completed.returncode == 1
    assert "check_wheels" in printed_by(completed)
    assert "--stash" in printed_by(completed)
    assert "checked out" not in printed_by(completed)


# Interrupted builds


def press_ctrl_c(running: subprocess.Popen[str]) -> None:
    """Interrupt as a terminal does: every process of the group."""
    os.killpg(running.pid, signal.SIGINT)


def cancel_group(running: subprocess.Popen[str]) -> None:
    """End as some servers do, so that compilers end by themselves."""
    os.killpg(running.pid, signal.SIGTERM)


def cancel_job(running: subprocess.Popen[str]) -> None:
    """End the front door alone."""
    running.terminate()


# Of every change test_stops.py holds two stops, and a quick test of the front door that each signal ends it.
@pytest.mark.nightly
@pytest.mark.usefixtures("cpu_torch")
@pytest.mark.parametrize("interrupt", [press_ctrl_c, cancel_job, cancel_group])
def test_records_an_interrupted_build_and_completes_the_next(
    clone: Clone, interrupt: Callable[[subprocess.Popen[str]], None]
) -> None:
    is_ctrl_c = interrupt is press_ctrl_c
    force = ("--force", "--clean")
    command: tuple[str | Path, ...] = ("nox", "-s", "build_torch", "--", *CPU, *force)
    if not is_ctrl_c:
        # A supervisor signals the front door itself.
        python = clone.path / ".nox" / "build_torch" / "bin" / "python"
        command = ("pytorch_build", "build", "torch", *CPU, *force, f"--python={python}")

    exit_code, printed = interrupt_while_building(clone, command, interrupt)

    # nox itself ends with a status of its own.
    assert exit_code == InterruptedStageError.exit_code or (is_ctrl_c and exit_code != 0), printed
    assert "Traceback" not in printed
    assert re.search(r"(?i)interrupted", printed), printed
    failed_record = clone.record(f"{CPU_TORCH_RECORD}.failed", "cpu")
    assert failed_record["status"] == "failed"
    assert failed_record["exit_code"] == InterruptedStageError.exit_code

    # The wheel of before is there, so one of the next builds is forced to build.
    clone.run_checked("nox", "-s", "build_torch", "--", *CPU, *(["--force"] if is_ctrl_c else []))
    assert clone.record(CPU_TORCH_RECORD, "cpu")["status"] == "ok"
    assert not clone.manifest(f"{CPU_TORCH_RECORD}.failed", "cpu").exists()


def interrupt_while_building(
    clone: Clone, command: tuple[str | Path, ...], interrupt: Callable[[subprocess.Popen[str]], None]
) -> tuple[int, str]:
    """Start a build and interrupt it once it compiles; return its status and what it printed."""
    running = subprocess.Popen(
        [sys.executable, "-m", *command],
        cwd=clone.path,
        env=clone.variables(),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )
    watchdog = threading.Timer(120, running.kill)
    watchdog.start()
    assert running.stdout is not None

    lines = []
    for line in running.stdout:
        lines.append(line)
        if line.startswith("+ ") and "-m build --wheel" in line:
            interrupt(running)

    exit_code = running.wait()
    running.stdout.close()
    watchdog.cancel()
    return exit_code, "".join(lines)


# What promotion asks of a run


@pytest.fixture
def ask_for_promotion(
    clone: Clone, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Callable[[], str]:
    """Stage the run and ask for its promotion, which is refused; return what is said against it."""
    # Wheels of the sample are never published, which would be the only reason.
    for module in ("staging", "policy"):
        monkeypatch.setattr(f"ci.promote.{module}.is_for_rehearsals", lambda _: False)
    bucket = ("--distribution-store", str(tmp_path / "bucket"), "--release-type", "nightly")
    run = ("--run-id", "local", "--store", str(clone.path / "out"), "--gpu-family", FAMILY)

    def ask() -> str:
        assert run_ci("stage", *bucket, *run) == 0
        assert run_ci("promote", *bucket, "--by", "a user") == CheckError.exit_code
        return capsys.readouterr().err

    return ask


# Quick tests hold it, too: of promotion's verb (few tests ran), of reports and of the report.
@pytest.mark.nightly
def test_a_part_of_the_tests_is_no_test(clone: Clone, ask_for_promotion: Callable[[], str]) -> None:
    clone.run_checked("nox", "-s", "test_smoke", "--", *SAMPLE, "--ignore-glob=/*/test_torch.py")

    reported = clone.nox("-s", "test_report")
    assert reported.returncode == 1, printed_by(reported)
    assert re.search(r"test_torch.py has \d+ tests, and 0 ", printed_by(reported))
    assert re.search(r"test_smoke .*: \d+ of \d+ tests", ask_for_promotion())
    assert "untested" in clone.run_checked("nox", "-s", "report")


# Quick tests hold it, too: upstream's code does not get this variable, and all tests of a file are counted.
@pytest.mark.nightly
def test_pytests_own_variable_leaves_no_test_out(clone: Clone, ask_for_promotion: Callable[[], str]) -> None:
    clone.run_checked("nox", "-s", "test_smoke", "--", *SAMPLE, "--force", PYTEST_ADDOPTS="-k triton")

    assert not re.search(r"test_smoke .*: \d+ of \d+ tests", ask_for_promotion())


def test_a_report_without_the_cases_of_a_file_fails(clone: Clone, tmp_path: Path) -> None:
    name = f"smoke-sample-{TAG}.xml"
    report = (clone.path / "out/local-linux/reports" / FAMILY / name).read_text(encoding="utf-8")
    (suite,) = re.findall(r'<testsuite name="test_torch.py".*?</testsuite>', report)
    suite_without_cases = re.sub("(<testcase.*?</testcase>)+", "", suite)
    (tmp_path / name).write_text(report.replace(suite, suite_without_cases), encoding="utf-8")

    completed = clone.run("pytorch_build", "test-report", "--input-dir", tmp_path)

    assert completed.returncode == CheckError.exit_code, printed_by(completed)


# Quick tests hold it, too: of the report (other bytes), of changed trees and of promotion (an edited tree).
@pytest.mark.nightly
def test_results_of_other_builds_are_stale(
    clone: Clone, ask_for_promotion: Callable[[], str], tmp_path: Path
) -> None:
    tree = tmp_path / "tree"
    sample.clone_repository(clone.path / ".cache/sample/repos/apex", tree)
    with (tree / "apex" / "__init__.py").open("a", encoding="utf-8") as stream:
        stream.write("MINE = 1\n")

    clone.run_checked("nox", "-s", "build_apex", "--", *SAMPLE, "--apex-dir", tree)

    report = clone.run_checked("nox", "-s", "report")
    assert "edited tree, 1 file differs" in report
    assert "out of date" in report
    assert "out of date" in printed_by(clone.nox("-s", "test_report"))
    assert "edited tree, 1 file differs" in ask_for_promotion()


# Code of others, and the rights of a job


def require_no_rights(variables_file: Path) -> None:
    """Require that what wrote its variables to a file saw a PATH, and no right of the job."""
    variables = variables_file.read_text(encoding="utf-8")
    assert "PATH" in variables
    assert "of-the-job" not in variables


@pytest.mark.parametrize(
    ("stage", "file", "options"),
    [
        ("build_apex", "setup.py", ("--apex-dir",)),
        pytest.param(
            "test_torch",
            "test/conftest.py",
            ("--include=test_nn", "--allow-version-mismatch", "--pytorch-dir"),
            marks=pytest.mark.nightly,
        ),
    ],
)
def test_code_of_sources_sees_no_right_of_the_job(
    clone: Clone, tmp_path: Path, stage: str, file: str, options: tuple[str, ...]
) -> None:
    tree = tmp_path / "tree"
    variables_file = tmp_path / "variables"
    project = stage.partition("_")[2]
    sample.clone_repository(clone.path / ".cache/sample/repos" / project, tree)
    with (tree / file).open("a", encoding="utf-8") as stream:
        stream.write(f"\nimport os\nopen({str(variables_file)!r}, 'a').write(str(dict(os.environ)))\n")

    clone.run_checked("nox", "-s", stage, "--", *SAMPLE, "--force", *options, tree, **RIGHTS)

    require_no_rights(variables_file)


@pytest.mark.nightly
def test_rocms_own_programs_see_no_right_of_the_job(clone: Clone, tmp_path: Path) -> None:
    written_by_programs = tmp_path / "programs"
    written_by_sdist = tmp_path / "sdist"
    setup = f"import os\nopen({str(written_by_sdist)!r}, 'a').write(str(dict(os.environ)))\n".encode()

    def plant_in_program(_member: str, content: bytes) -> bytes:
        return content.replace(b"#!/bin/sh\n", f"#!/bin/sh\nenv >> {written_by_programs}\n".encode(), 1)

    def plant_in_setup(member: str, content: bytes) -> bytes:
        return content + setup if member == "setup.py" else content

    for wheel in clone.wheels().glob("rocm_*.whl"):
        edit_wheel(
            wheel, tmp_path / "rocm", version=ROCM_VERSION, edit=plant_in_program, additions=Additions()
        )
    (sdist,) = clone.wheels().glob("rocm-*.tar.gz")
    edit_sdist(sdist, tmp_path / "rocm", version=ROCM_VERSION, edit=plant_in_setup)

    options = ("--find-links", tmp_path / "rocm", "--run-id", "attacked")
    clone.run_checked("nox", "-s", "test_rocm", "--", *SAMPLE, *options, **RIGHTS)

    require_no_rights(written_by_programs)
    require_no_rights(written_by_sdist)


# Trees of one's own


@pytest.mark.nightly
def test_names_the_wheel_of_an_own_tree_that_a_policy_refuses(clone: Clone, tmp_path: Path) -> None:
    tree = tmp_path / "torch"
    policy = tmp_path / "mine.toml"
    policy.write_text("[[forbidden]]\npattern = '^torch/nn/'\nmessage = 'not wanted'\n")
    build = ("-s", "build_torch", "--", *CPU, "--run-id=local-mine", f"--pytorch-dir={tree}")
    clone.run_checked("nox", "-s", "checkout", "--", *SAMPLE, "--components=torch", f"--checkout-dir={tree}")

    refused_build = printed_by(clone.nox(*build, f"--policy={policy}"))

    assert "torch/nn/__init__.py: This is not wanted" in refused_build
    folder = re.search(r"what was built lies in (\S+):", refused_build)
    assert folder is not None
    clone.run_checked("nox", "-s", "check_wheels", "--", folder[1])


@pytest.fixture(scope="module")
def documented_commands(clone: Clone, tmp_path_factory: pytest.TempPathFactory) -> list[list[str]]:
    """Return the commands of the page for a first change, in a home of the test's own."""
    page = (clone.path / "docs" / "try.md").read_text(encoding="utf-8").partition("## Your first change")[2]
    block = page.partition("```bash\n")[2].partition("```")[0]
    home = tmp_path_factory.mktemp("home")
    return [line.split() for line in block.replace("~/", f"{home}/").splitlines()]


@pytest.mark.nightly
def test_the_documented_commands_lead_to_a_tested_wheel_or_its_error(
    clone: Clone, documented_commands: list[list[str]]
) -> None:
    run_pipeline, check_tree_out, build_tree = documented_commands
    # The first is what the clone comes from.
    assert run_pipeline[-4:] == ["invoke", "ci", *SAMPLE]
    clone.run_checked(*check_tree_out)
    source = Path(build_tree[-1]) / "torch"
    with (source / "__init__.py").open("a", encoding="utf-8") as stream:
        stream.write("MINE = 1\n")

    printed = clone.run_checked(*build_tree)

    assert "edited tree, 1 file differs" in printed
    assert re.search(r"torch-\S+\.dirty\.\w+-", printed)
    assert "1 cell (1 passed), " in printed
    # Builds and tests leave nothing in the tree.
    status = process.capture(["git", "status", "--short", "--ignored"], cwd=source.parent).stdout
    assert status == " M torch/__init__.py\n"

    # A run of trees of one's own needs no source lock.
    (manifests,) = clone.path.glob("out/local-sample-torch-*/manifests")
    assert not list(manifests.glob("source-lock*"))

    require_error_at_its_line(clone, build_tree, source / "csrc" / "stub.cpp")


def require_error_at_its_line(clone: Clone, build_tree: list[str], stub: Path) -> None:
    """Break a source, and require that the end of the build's output names the line and the command."""
    stub.write_text(stub.read_text(encoding="utf-8") + "\nint wrong = missing_name;\n", encoding="utf-8")
    line_number = len(stub.read_text(encoding="utf-8").splitlines())

    last_lines = printed_by(clone.run(*build_tree)).splitlines()[-20:]

    place = rf"torch/csrc/stub\.cpp:{line_number}.*missing_name"
    assert [line for line in last_lines if re.search(place, line)]
    assert [line for line in last_lines if line.startswith("again: ")]


# Interrupted tests: at the end, as their record is a failure's

# A test that waits, beside the sample's own files in the user's tree, with a process out of its group.
LONG_TEST = """
import os, pathlib, subprocess, sys, time

def test_long():
    child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"], start_new_session=True)
    pathlib.Path("pids").write_text(f"{os.getpid()} {child.pid}")
    time.sleep(600)
"""


def is_alive(pid: int) -> bool:
    """Return whether a process runs; one that is dead and waited for by nobody does not."""
    try:
        os.kill(pid, 0)
        state = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()[0]
    except (ProcessLookupError, FileNotFoundError):
        return False
    return state != "Z"


def wait_until(condition: Callable[[], bool], *, seconds: float) -> None:
    """Wait for a condition, at most for some seconds."""
    end = time.monotonic() + seconds
    while not condition() and time.monotonic() < end:
        time.sleep(0.1)


@pytest.mark.nightly
def test_interrupted_tests_leave_no_process_behind(clone: Clone, tmp_path: Path) -> None:
    tree = tmp_path / "pytorch"
    shutil.copytree(clone.path / "src" / "sample" / "torch-tests", tree, symlinks=True)
    (tree / "test" / "test_long.py").write_text(LONG_TEST)
    pids_file = tree / "test" / "pids"
    command = ("nox", "-s", "test_torch", "--", *SAMPLE, "--pytorch-dir", tree, "--include", "test_long")

    with subprocess.Popen(
        [sys.executable, "-m", *command],
        cwd=clone.path,
        env=clone.variables(),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    ) as running:
        wait_until(lambda: pids_file.is_file() and pids_file.read_text() != "", seconds=180)
        press_ctrl_c(running)
        printed = running.communicate(timeout=120)[0]

    assert running.returncode != 0, printed
    pids = [int(pid) for pid in pids_file.read_text().split()]
    wait_until(lambda: not any(map(is_alive, pids)), seconds=20)
    assert not any(map(is_alive, pids))
    failed_record = clone.record(f"test_torch-sample-{TAG}.failed")
    assert failed_record["exit_code"] == InterruptedStageError.exit_code
