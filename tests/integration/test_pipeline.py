"""The whole pipeline on the sample, in a clone of this checkout: real nox, real builds, real installers.

It has run once (`sample_run`); each test changes the clone that it ran in, where environments are kept.
"""

import hashlib
import json
import re
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from core import process
from core.archive.zips import read_archive
from core.errors import CheckError
from core.wheel.editor import Additions, edit_sdist, edit_wheel
from pytorch_build.build.search_paths import rocm_folders, search_paths
from pytorch_build.standalone.libraries import read_members
from tests.kit import sample
from tests.kit.clones import FAMILY, SERIES, TAG, Clone, printed_by
from tests.kit.documented_commands import read_commands
from tests.kit.front_doors import run_ci
from tests.kit.sample import SampleRun

ROCM_VERSION = "7.99.0.dev0+sample"
SAMPLE = ("--torch-ref", "sample")
CPU = ("--torch-ref=sample", "--gpu-family=cpu")

# Records of the steps that leave wheels.
BUILD_RECORDS = (
    "build_rocm",
    f"build_triton-sample-{TAG}",
    f"build_torch-sample-{TAG}",
    f"build_audio-sample-{TAG}",
    f"build_vision-sample-{TAG}",
    f"build_apex-sample-{TAG}",
)
TORCH_RECORD = f"build_torch-sample-{TAG}"
AUDIO_RECORD = f"build_audio-sample-{TAG}"
SMOKE_RECORD = f"test_smoke-sample-{TAG}"
TORCH_TESTS_RECORD = f"test_torch-sample-{TAG}"

# Rights that a job of CI has, and code of others must not.
RIGHTS = {
    "ACTIONS_ID_TOKEN_REQUEST_TOKEN": "of-the-job",
    "GITHUB_TOKEN": "of-the-job",
    "GITHUB_ENV": "of-the-job",
    "PYTEST_PLUGINS": "of-the-job",
    "INVENTED": "of-the-job",
}

# Python that appends all its variables to a file.
NOTE_VARIABLES = """
import os
with open({path!r}, "a") as file:
    file.write(str(dict(os.environ)))
"""


def sha256(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


def run_session(clone: Clone, session: str, *options: str | Path, **variables: str | None) -> str:
    """Run a session of nox that has to succeed; return what it printed."""
    return clone.run_checked("nox", "-s", session, "--", *options, **variables)


def append(path: Path, text: str) -> None:
    """Append text to a file."""
    with path.open("a", encoding="utf-8") as file:
        file.write(text)


def component_wheel(clone: Clone, component: str) -> dict[str, Any]:
    """Return what its record says of a component's own wheel; wheels of device code follow it there."""
    record = clone.record(f"build_{component}-sample-{TAG}")
    wheel: dict[str, Any] = record["files"][0]
    return wheel


def clone_project(clone: Clone, project: str, tree: Path) -> Path:
    """Clone the sample's repository of a project to a tree of one's own; return the tree."""
    repository = clone.path / ".cache" / "sample" / "repos" / project
    sample.clone_repository(repository, tree)
    return tree


@pytest.fixture(scope="module")
def cpu_torch(clone: Clone) -> None:
    """Build torch and torchaudio for family cpu."""
    clone.run_checked("nox", "-s", "build_torch", "build_audio", "--", *CPU)


# What the pipeline left


def test_prints_a_table_of_every_wheel(sample_run: SampleRun, clone: Clone) -> None:
    printed = sample_run.printed
    table = printed[printed.rindex("run local, ") :]
    lines = table.splitlines()

    # Wheels of device code are among the seven.
    assert "check_wheels: 7 wheels, 0 errors, 0 warnings" in printed
    for name in BUILD_RECORDS:
        for file in clone.record(name)["files"]:
            row = next(line for line in lines if line.startswith(file["name"]))
            assert file["sha256"][:12] in row
            assert file["version"] in row


@pytest.mark.parametrize("name", BUILD_RECORDS)
def test_records_every_wheel_that_it_built(clone: Clone, name: str) -> None:
    record = clone.record(name)

    assert record["status"] == "ok"
    for file in record["files"]:
        path = clone.path / "out" / file["key"]
        assert sha256(path) == file["sha256"]
        assert path.stat().st_size == file["size"]
        assert "sample" in file["version"]


@pytest.mark.parametrize("component", ["triton", "torch", "audio", "vision", "apex"])
def test_builds_what_the_source_lock_says(clone: Clone, component: str) -> None:
    project = clone.locked_projects()[component]
    wheel = component_wheel(clone, component)

    assert wheel["version"] == project["versions"]["rocm"]


@pytest.mark.parametrize("name", [SMOKE_RECORD, TORCH_TESTS_RECORD])
def test_tests_pass_on_the_wheels(clone: Clone, name: str) -> None:
    tests = clone.record(name)["details"]["tests"]

    assert tests["tests"] > tests["skipped"]
    assert tests["failures"] == 0
    assert tests["errors"] == 0


def test_upstreams_tests_are_of_the_built_wheel_and_its_commit(clone: Clone) -> None:
    inputs = clone.record(TORCH_TESTS_RECORD)["inputs"]
    wheel = component_wheel(clone, "torch")
    torch_project = clone.locked_projects()["torch"]

    assert inputs["files"][wheel["name"]] == wheel["sha256"]
    assert inputs["tests"]["commit"] == torch_project["commit"]


def test_leaves_no_byte_code_in_sources(clone: Clone) -> None:
    # Byte code is shared outside of trees.
    assert not list((clone.path / "src").rglob("__pycache__"))


def test_index_lists_every_wheel_with_its_digest(clone: Clone) -> None:
    index = clone.wheels() / "index.html"
    page = index.read_text(encoding="utf-8")
    wheels = sorted(clone.wheels().glob("*.whl"))

    names = {wheel.name.partition("-")[0] for wheel in wheels}
    assert names > {"torch", "amd_torch_device_gfx942"}
    assert len(wheels) == 12
    for wheel in wheels:
        metadata = wheel.with_name(f"{wheel.name}.metadata")
        assert f">{wheel.name}</a>" in page
        assert sha256(wheel) in page
        assert metadata.is_file()


@pytest.mark.parametrize("component", ["torch", "audio", "vision", "apex"])
def test_libraries_look_into_rocms_run_time_packages_and_nowhere_else(
    sample_run: SampleRun, clone: Clone, component: str
) -> None:
    wheel = clone.wheels() / component_wheel(clone, component)["name"]
    libraries = read_members(wheel, read_archive(wheel).members)
    rocm = rocm_folders("split", FAMILY)

    assert libraries
    for member, library in libraries.items():
        assert library.is_rpath, member
        assert library.search == search_paths(member, rocm, library.search)
    assert f"{wheel.name} imports beside ROCm's run-time packages" in sample_run.printed


# Another run of the same


def read_files(folder: Path) -> dict[Path, tuple[int, bytes]]:
    """Return when each file below a folder was written, and its content."""
    files: dict[Path, tuple[int, bytes]] = {}
    for path in folder.rglob("*"):
        if path.is_file():
            time_ns = path.stat().st_mtime_ns
            files[path] = (time_ns, path.read_bytes())
    return files


def test_finds_nothing_to_do_where_nothing_has_changed(clone: Clone) -> None:
    outputs = clone.outputs_of("local")
    files = read_files(outputs)

    printed = clone.run_checked("invoke", "ci", *SAMPLE)

    assert "nox >" not in printed
    assert "build_rocm: unchanged" in printed
    assert "build_triton: unchanged" in printed
    assert "build_torch: unchanged" in printed
    assert "build_audio: unchanged" in printed
    assert "build_vision: unchanged" in printed
    assert "build_apex: unchanged" in printed
    assert "test_smoke: unchanged" in printed
    assert "test_torch: unchanged" in printed
    assert read_files(outputs) == files


def damage_wheel(wheel: Path) -> None:
    """Add a line to the modules of a wheel's packages, and leave its RECORD as it was."""
    # Others may be linked to the file, so that another one takes its place.
    damaged_wheel = wheel.with_name(f"{wheel.name}.part")
    with zipfile.ZipFile(wheel) as source, zipfile.ZipFile(damaged_wheel, "w") as target:
        for info in source.infolist():
            content = source.read(info)
            if info.filename.endswith("__init__.py"):
                content += b"# more\n"
            target.writestr(info, content)
    damaged_wheel.replace(wheel)


@pytest.mark.nightly
def test_finds_a_damaged_wheel_and_builds_it_again(clone: Clone) -> None:
    (audio,) = clone.wheels().glob("torchaudio-*.whl")
    good_digest = sha256(audio)
    damage_wheel(audio)

    check = clone.run("pytorch_build", "check-wheels", *SAMPLE)
    smoke_test = clone.nox("-s", "test_smoke", "--", *SAMPLE, "--force")
    printed = clone.run_checked("nox", "-s", "build_torch", "build_audio", "--", *SAMPLE)

    assert check.returncode == CheckError.exit_code, printed_by(check)
    assert smoke_test.returncode == 1
    assert "build_torch: unchanged" in printed
    assert sha256(audio) == good_digest


# Family cpu, cells, interpreters


@pytest.mark.usefixtures("cpu_torch")
@pytest.mark.nightly
def test_builds_for_family_cpu_with_nox_alone(clone: Clone) -> None:
    torch_record = clone.record(TORCH_RECORD, "cpu")
    audio_record = clone.record(AUDIO_RECORD, "cpu")
    (torch_wheel,) = torch_record["files"]
    audio_wheel = audio_record["files"][0]

    assert torch_wheel["version"] == "2.10.0a0+cpu.sample"
    assert audio_wheel["version"] == "2.10.0a0+cpu.sample"
    assert torch_record["inputs"]["rocm"] is None
    dependencies = audio_record["inputs"]["dependencies"]
    assert dependencies == {"torch": {"digest": torch_wheel["sha256"]}}


def test_cells_are_named_by_what_they_build(clone: Clone) -> None:
    listing = clone.nox("-l", "--json", MATRIX="ci")
    sessions = json.loads(listing.stdout)

    (cell,) = [session for session in sessions if session["name"] == "build_torch"]
    assert cell["session"] == f"build_torch({FAMILY}, nightly, Python 3.12)"
    assert cell["python"] == "3.12"


def test_sessions_without_a_matrix_name_no_family(clone: Clone) -> None:
    listing = clone.nox("-l").stdout

    assert re.search(r"^[*-] build_torch .*->", listing, re.MULTILINE)
    assert "gpu_family" not in listing


@pytest.fixture
def cpu_cell(clone: Clone) -> str:
    """Write a plan of one cell, for family cpu; return the cell's session."""
    plan = f"""\
        pythons = ["{SERIES}"]
        torch_refs = ["sample"]
        tool_pythons = ["{SERIES}"]
        [gpu_families]
        linux = ["cpu"]
        """
    (clone.path / "plan.toml").write_text(plan, encoding="utf-8")
    return f"build_triton(cpu, sample, Python {SERIES})"


def test_an_option_cannot_contradict_a_cell(clone: Clone, cpu_cell: str) -> None:
    refused = clone.nox(
        "-s",
        cpu_cell,
        "--",
        f"--gpu-family={FAMILY}",
        "--dry-run",
        MATRIX="plan.toml",
    )

    printed = printed_by(refused)
    assert refused.returncode != 0, printed
    assert f"'{FAMILY}'" in printed


def test_an_option_may_repeat_what_a_cell_is_for(clone: Clone, cpu_cell: str) -> None:
    printed = run_session(
        clone,
        cpu_cell,
        "--gpu-family=cpu",
        "--dry-run",
        MATRIX="plan.toml",
    )

    assert f"'{FAMILY}'" not in printed


def test_fails_without_the_interpreter(clone: Clone) -> None:
    completed = clone.nox("-s", "build_torch", "-P", "3.99", "--", *CPU)

    printed = printed_by(completed)
    assert completed.returncode == 1
    assert "3.99" in printed
    assert "skipped" not in printed.lower()


def test_checks_the_options_of_every_session_before_the_first_one_works(clone: Clone) -> None:
    completed = clone.nox("-s", "checkout", "check_wheels", "--", "--torch-ref=sample", "--stash")

    printed = printed_by(completed)
    assert completed.returncode == 1
    assert "check_wheels" in printed
    assert "--stash" in printed
    assert "checked out" not in printed


# What promotion asks of a run


@pytest.fixture
def ask_for_promotion(
    clone: Clone,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> Callable[[], str]:
    """Return what stages the run and asks for its promotion, which is refused: it returns the reasons."""
    # Wheels of the sample are never published, which would be the only reason.
    for module in ("staging", "policy"):
        monkeypatch.setattr(f"ci.promote.{module}.is_for_rehearsals", lambda _: False)
    bucket = (f"--distribution-store={tmp_path / 'bucket'}", "--release-type=nightly")
    run = ("--run-id=local", f"--store={clone.path / 'out'}", f"--gpu-family={FAMILY}")

    def ask() -> str:
        assert run_ci("stage", *bucket, *run) == 0
        assert run_ci("promote", *bucket, "--by", "a user") == CheckError.exit_code
        return capsys.readouterr().err

    return ask


# Quick tests hold it, too: of promotion's verb (few tests ran), of reports and of the report.
@pytest.mark.nightly
def test_a_part_of_the_tests_is_no_test(clone: Clone, ask_for_promotion: Callable[[], str]) -> None:
    run_session(clone, "test_smoke", *SAMPLE, "--ignore-glob=/*/test_torch.py")

    reported = clone.nox("-s", "test_report")
    refusal = ask_for_promotion()
    report = run_session(clone, "report")

    printed = printed_by(reported)
    assert reported.returncode == 1, printed
    assert re.search(r"test_torch.py has \d+ tests, and 0 ", printed)
    assert re.search(r"test_smoke .*: \d+ of \d+ tests", refusal)
    assert "untested" in report


# Quick tests hold it, too: upstream's code does not get this variable, and all tests of a file are counted.
@pytest.mark.nightly
def test_pytests_own_variable_leaves_no_test_out(clone: Clone, ask_for_promotion: Callable[[], str]) -> None:
    run_session(clone, "test_smoke", *SAMPLE, "--force", PYTEST_ADDOPTS="-k triton")

    refusal = ask_for_promotion()

    assert not re.search(r"test_smoke .*: \d+ of \d+ tests", refusal)


def test_a_report_without_the_cases_of_a_file_fails(clone: Clone, tmp_path: Path) -> None:
    reports = clone.outputs_of("local") / "reports" / FAMILY
    report = reports / f"smoke-sample-{TAG}.xml"
    text = report.read_text(encoding="utf-8")
    (suite,) = re.findall(r'<testsuite name="test_torch.py".*?</testsuite>', text)
    suite_without_cases = re.sub("(<testcase.*?</testcase>)+", "", suite)
    changed_report = tmp_path / report.name
    changed_report.write_text(text.replace(suite, suite_without_cases), encoding="utf-8")

    completed = clone.run("pytorch_build", "test-report", "--input-dir", tmp_path)

    assert completed.returncode == CheckError.exit_code, printed_by(completed)


# Quick tests hold it, too: of the report (other bytes), of changed trees and of promotion (an edited tree).
@pytest.mark.nightly
def test_results_of_other_builds_are_stale(
    clone: Clone, ask_for_promotion: Callable[[], str], tmp_path: Path
) -> None:
    tree = clone_project(clone, "apex", tmp_path / "tree")
    append(tree / "apex" / "__init__.py", "MINE = 1\n")

    run_session(clone, "build_apex", *SAMPLE, "--apex-dir", tree)

    report = run_session(clone, "report")
    test_report = clone.nox("-s", "test_report")
    assert "edited tree, 1 file differs" in report
    assert "out of date" in report
    assert "out of date" in printed_by(test_report)
    assert "edited tree, 1 file differs" in ask_for_promotion()


# Code of others, and the rights of a job


def require_no_rights(variables_file: Path) -> None:
    """Require that what wrote its variables to a file saw a PATH, and no right of the job."""
    variables = variables_file.read_text(encoding="utf-8")
    assert "PATH" in variables
    assert "of-the-job" not in variables


def note_variables_in(source: Path, variables_file: Path) -> None:
    """Let a Python file append all its variables to another file."""
    append(source, NOTE_VARIABLES.format(path=str(variables_file)))


def test_setup_py_sees_no_right_of_the_job(clone: Clone, tmp_path: Path) -> None:
    tree = clone_project(clone, "apex", tmp_path / "tree")
    variables_file = tmp_path / "variables"
    note_variables_in(tree / "setup.py", variables_file)

    run_session(clone, "build_apex", *SAMPLE, "--force", f"--apex-dir={tree}", **RIGHTS)

    require_no_rights(variables_file)


@pytest.mark.nightly
def test_upstreams_tests_see_no_right_of_the_job(clone: Clone, tmp_path: Path) -> None:
    tree = clone_project(clone, "torch", tmp_path / "tree")
    variables_file = tmp_path / "variables"
    note_variables_in(tree / "test" / "conftest.py", variables_file)

    run_session(
        clone,
        "test_torch",
        *SAMPLE,
        "--force",
        "--include=test_nn",
        "--allow-version-mismatch",
        f"--pytorch-dir={tree}",
        **RIGHTS,
    )

    require_no_rights(variables_file)


@pytest.mark.nightly
def test_rocms_own_programs_see_no_right_of_the_job(clone: Clone, tmp_path: Path) -> None:
    variables_of_programs = tmp_path / "programs"
    variables_of_setup = tmp_path / "setup"
    note_in_shell = f"#!/bin/sh\nenv >> {variables_of_programs}\n".encode()
    note_in_python = NOTE_VARIABLES.format(path=str(variables_of_setup)).encode()

    def plant_in_program(_member: str, content: bytes) -> bytes:
        return content.replace(b"#!/bin/sh\n", note_in_shell, 1)

    def plant_in_setup(member: str, content: bytes) -> bytes:
        if member == "setup.py":
            return content + note_in_python
        return content

    packages = tmp_path / "rocm"
    for wheel in clone.wheels().glob("rocm_*.whl"):
        edit_wheel(
            wheel,
            packages,
            version=ROCM_VERSION,
            edit=plant_in_program,
            additions=Additions(),
        )
    (sdist,) = clone.wheels().glob("rocm-*.tar.gz")
    edit_sdist(sdist, packages, version=ROCM_VERSION, edit=plant_in_setup)

    run_session(
        clone,
        "test_rocm",
        *SAMPLE,
        f"--find-links={packages}",
        "--run-id=attacked",
        **RIGHTS,
    )

    require_no_rights(variables_of_programs)
    require_no_rights(variables_of_setup)


# Trees of one's own


@pytest.mark.nightly
def test_names_the_wheel_of_an_own_tree_that_a_policy_refuses(clone: Clone, tmp_path: Path) -> None:
    tree = tmp_path / "torch"
    policy = tmp_path / "mine.toml"
    policy.write_text("[[forbidden]]\npattern = '^torch/nn/'\nmessage = 'not wanted'\n")
    run_session(clone, "checkout", *SAMPLE, "--components=torch", f"--checkout-dir={tree}")

    refused_build = clone.nox(
        "-s",
        "build_torch",
        "--",
        *CPU,
        "--run-id=local-mine",
        f"--pytorch-dir={tree}",
        f"--policy={policy}",
    )

    printed = printed_by(refused_build)
    assert "torch/nn/__init__.py: This is not wanted" in printed
    folder = re.search(r"what was built lies in (\S+):", printed)
    assert folder is not None
    run_session(clone, "check_wheels", folder[1])


@pytest.fixture(scope="module")
def documented_commands(clone: Clone, tmp_path_factory: pytest.TempPathFactory) -> list[list[str]]:
    """Return the commands of the page for a first change, in a home of the test's own."""
    page = clone.path / "docs" / "try.md"
    text = page.read_text(encoding="utf-8")
    section = text.partition("## Your first change")[2].partition("\n## ")[0]

    home = tmp_path_factory.mktemp("home")
    commands = []
    for command in read_commands(section):
        line = command.line.replace("~/", f"{home}/")
        commands.append(line.split())
    return commands


@pytest.mark.nightly
def test_the_documented_commands_lead_to_a_tested_wheel_or_its_error(
    clone: Clone, documented_commands: list[list[str]]
) -> None:
    run_pipeline, check_tree_out, build_tree = documented_commands
    # The first is what the clone comes from.
    assert run_pipeline[-4:] == ["invoke", "ci", *SAMPLE]
    clone.run_checked(*check_tree_out)
    tree = Path(build_tree[-1])
    torch = tree / "torch"
    append(torch / "__init__.py", "MINE = 1\n")

    printed = clone.run_checked(*build_tree)

    assert "edited tree, 1 file differs" in printed
    assert re.search(r"torch-\S+\.dirty\.\w+-", printed)
    assert "1 cell (1 passed), " in printed
    # Builds and tests leave nothing in the tree.
    status = process.capture(["git", "status", "--short", "--ignored"], cwd=tree)
    assert status.stdout == " M torch/__init__.py\n"

    # A run of trees of one's own needs no source lock.
    (manifests,) = clone.path.glob("out/local-sample-torch-*/manifests")
    assert not list(manifests.glob("source-lock*"))

    require_error_at_its_line(clone, build_tree, torch / "csrc" / "stub.cpp")


def require_error_at_its_line(clone: Clone, build_tree: list[str], source: Path) -> None:
    """Break a source, and require that the end of the build's output names the line and the command."""
    append(source, "\nint wrong = missing_name;\n")
    text = source.read_text(encoding="utf-8")
    line_number = len(text.splitlines())

    completed = clone.run(*build_tree)

    lines = printed_by(completed).splitlines()
    last_lines = lines[-20:]
    place = rf"torch/csrc/stub\.cpp:{line_number}.*missing_name"
    assert [line for line in last_lines if re.search(place, line)]
    assert [line for line in last_lines if line.startswith("again: ")]
