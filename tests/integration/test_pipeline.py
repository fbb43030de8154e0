"""The whole pipeline on the sample, in a clone of this checkout: real nox, real builds, real installers."""

import hashlib
import json
import os
import re
import shutil
import signal
import subprocess  # noqa: TID251 - a build is interrupted here, which the door for processes cannot do
import sys
import threading
import zipfile
from collections.abc import Callable, Mapping
from pathlib import Path

import pytest

from core import process
from core.errors import CheckError
from core.wheel.editor import Additions, edit_sdist, edit_wheel
from pytorch_build.build.stage import search_paths
from pytorch_build.standalone.libraries import read_members
from rocm_packaging.packages.layouts import Layout
from tests.kit.clones import FAMILY, SERIES, TAG, Clone, said
from tests.kit.front_doors import run_ci

ROCM = "7.99.0.dev0+sample"
BUILDS = ("build_triton", "build_torch", "build_audio", "build_vision", "build_apex")
SAMPLE = ("--torch-ref", "sample")
RIGHTS = dict.fromkeys(
    ("ACTIONS_ID_TOKEN_REQUEST_TOKEN", "GITHUB_TOKEN", "GITHUB_ENV", "PYTEST_PLUGINS", "INVENTED"),
    "of-the-job",
)
CPU = ("--torch-ref=sample", "--gpu-family=cpu")


def sha256(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


@pytest.fixture(scope="module")
def checkout(tmp_path_factory: pytest.TempPathFactory) -> Clone:
    return Clone.made(tmp_path_factory.mktemp("pipeline") / "checkout")


@pytest.fixture(scope="module")
def first(checkout: Clone) -> str:
    """Run the whole pipeline once; everything else stands on it."""
    return checkout.passes("invoke", "ci", *SAMPLE, "--verbose")


@pytest.fixture
def built(checkout: Clone, first: str) -> Clone:
    assert first
    return checkout


def test_the_pipeline_ends_with_a_table_of_every_wheel(built: Clone, first: str) -> None:
    table = first[first.rindex("run local, ") :]
    assert "check_wheels: 7 wheels, 0 errors, 0 warnings" in first  # those of device code among them
    for stage in ("build_rocm", *BUILDS):
        name = stage if stage == "build_rocm" else f"{stage}-sample-{TAG}"
        record = built.record(name)
        assert (record["status"], record["exit_code"]) == ("ok", 0)
        for one in record["files"]:
            path = built.path / "out" / one["key"]
            assert sha256(path) == one["sha256"]
            assert path.stat().st_size == one["size"]
            assert "sample" in one["version"]
            row = next(line for line in table.splitlines() if line.startswith(one["name"]))
            assert one["sha256"][:12] in row
            assert one["version"] in row
    for stage in ("test_smoke", "test_torch"):
        tests = built.record(f"{stage}-sample-{TAG}")["details"]["tests"]
        assert tests["tests"] > tests["skipped"]
        assert tests["failures"] == tests["errors"] == 0


def test_the_index_lists_every_wheel_with_its_digest(built: Clone) -> None:
    page = (built.wheels() / "index.html").read_text(encoding="utf-8")
    wheels = sorted(built.wheels().glob("*.whl"))
    assert len(wheels) == 12
    assert {one.name.partition("-")[0] for one in wheels} > {"torch", "amd_torch_device_gfx942"}
    for path in wheels:
        assert f">{path.name}</a>" in page
        assert sha256(path) in page
        assert (path.parent / f"{path.name}.metadata").is_file()


def test_every_library_looks_into_rocms_run_time_packages_and_nowhere_else(built: Clone, first: str) -> None:
    (rocm,) = (one for one in built.wheels().glob("rocm_sdk_libraries*.whl"))
    layout: Layout = "split" if rocm.name.startswith("rocm_sdk_libraries-") else "unsplit"
    for stage in BUILDS[1:]:
        (wheel,) = built.wheels().glob(built.record(f"{stage}-sample-{TAG}")["files"][0]["name"])
        with zipfile.ZipFile(wheel) as archive:
            found = read_members(wheel, archive.infolist())
        assert found, wheel.name
        for member, binary in found.items():
            assert binary.is_rpath, member
            assert binary.search == search_paths(member, layout, FAMILY, binary.search)
        assert f"{wheel.name} imports beside ROCm's run-time packages" in first


def test_again_nothing_has_changed_stage_by_stage(built: Clone) -> None:
    before = snapshot(built.path / "out" / "local-linux")
    again = built.passes("invoke", "ci", *SAMPLE)
    assert "nox >" not in again
    for stage in ("build_rocm", *BUILDS, "test_smoke", "test_torch"):
        assert f"{stage}: unchanged" in again
    assert snapshot(built.path / "out" / "local-linux") == before
    next(built.wheels().glob("torchaudio-*.whl")).unlink()
    again = built.passes("invoke", "ci", *SAMPLE)
    assert re.findall("(?m)(.*)session build_(?:torch|audio)$", again) == ["", "nox > Running "]


def test_family_cpu_through_nox_alone(built: Clone) -> None:
    done = built.passes("nox", "-s", "build_torch", "build_audio", "--", *CPU)
    assert "has no triton wheel" not in done
    torch, audio = (built.record(f"{stage}-sample-{TAG}", "cpu") for stage in ("build_torch", "build_audio"))
    assert torch["files"][0]["version"] == audio["files"][0]["version"] == "2.10.0a0+cpu.sample"
    assert torch["inputs"]["rocm"] is None
    assert audio["inputs"]["dependencies"] == {"torch": {"digest": torch["files"][0]["sha256"]}}


def test_cells_are_named_by_what_they_build(checkout: Clone) -> None:
    listed = checkout.nox("-l", "--json", MATRIX="ci")
    cells = [one for one in json.loads(listed.stdout) if "build_torch" in one["tags"]]
    assert [one["session"] for one in cells] == [
        f"build_torch-3.12(torch_ref='nightly', gpu_family='{FAMILY}')"
    ]
    assert cells[0]["python"] == "3.12"
    plain = checkout.nox("-l").stdout
    assert re.search(r"^[*-] build_torch .*->", plain, re.MULTILINE)
    assert "gpu_family" not in plain


@pytest.fixture
def matrix(checkout: Clone) -> dict[str, str | None]:
    """Return a matrix of one cell that this machine's Python can run."""
    text = f'pythons = ["{SERIES}"]\ntorch_refs = ["sample"]\ntool_pythons = ["{SERIES}"]\n'
    (checkout.path / "plan.toml").write_text(text + '[gpu_families]\nlinux = ["cpu"]\n')
    return {"MATRIX": "plan.toml"}


def test_a_posarg_cannot_contradict_a_cell(built: Clone, matrix: Mapping[str, str | None]) -> None:
    cell = f"build_triton-{SERIES}(torch_ref='sample', gpu_family='cpu')"
    done = built.nox("-s", cell, "--", f"--gpu-family={FAMILY}", **matrix)
    assert done.returncode == 1
    assert f"--gpu-family is 'cpu' here and cannot be '{FAMILY}' too" in said(done)
    assert not (built.wheels("cpu") / "triton").exists()
    built.passes("nox", "-s", cell, "--", "--gpu-family=cpu", "--dry-run", **matrix)


def test_a_missing_interpreter_is_an_error(checkout: Clone) -> None:
    done = checkout.nox("-s", "build_torch", "-P", "3.99", "--", *CPU)
    assert done.returncode == 1
    assert "3.99" in said(done)
    assert "skipped" not in said(done).lower()


@pytest.mark.parametrize("how", ["Ctrl-C", "a cancelled job", "a cancelled group"])
def test_an_interrupted_build_says_so_and_the_next_one_completes(built: Clone, how: str) -> None:
    record = f"build_torch-sample-{TAG}"
    assert built.nox("-s", "build_torch", "--", *CPU).returncode == 0
    words = ["nox", "-s", "build_torch", "--", *CPU, "--force", "--clean"]
    if how != "Ctrl-C":
        python = built.path / ".nox" / "build_torch" / "bin" / "python"
        words = ["pytorch_build", "build", "torch", *CPU, "--force", "--clean", f"--python={python}"]
    argv = [sys.executable, "-m", *words]
    nox = subprocess.Popen(
        argv,
        cwd=built.path,
        env=built.env(),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )
    watchdog = threading.Timer(120, nox.kill)
    watchdog.start()
    assert nox.stdout is not None
    lines = []
    for line in nox.stdout:
        lines.append(line)
        if line.startswith("+ ") and "-m build --wheel" in line:
            if how == "Ctrl-C":
                # as a terminal does: to every process of the group
                os.killpg(nox.pid, signal.SIGINT)
            elif how == "a cancelled group":
                # as servers do: its compilers end by themselves
                os.killpg(nox.pid, signal.SIGTERM)
            else:
                nox.terminate()
    code = nox.wait()
    nox.stdout.close()
    watchdog.cancel()
    text = "".join(lines)
    assert code == 130 or (code and how == "Ctrl-C"), text
    assert "Traceback" not in text, text
    assert re.search(r"(?i)interrupted", text), text
    failed = built.record(f"{record}.failed", "cpu")
    assert (failed["status"], failed["exit_code"]) == ("failed", 130)
    again = ("--force",) if how == "Ctrl-C" else ()
    built.passes("nox", "-s", "build_torch", "--", *CPU, *again)
    assert built.record(record, "cpu")["status"] == "ok"
    assert not built.manifest(f"{record}.failed", "cpu").exists()


def break_record(source: Path, target: Path) -> Path:
    """Copy a wheel with one member's bytes changed and its RECORD left as it was."""
    target.parent.mkdir(parents=True, exist_ok=True)
    with zipfile.ZipFile(source) as old, zipfile.ZipFile(target, "w") as new:
        for info in old.infolist():
            data = old.read(info)
            new.writestr(info, data + b"# more\n" if info.filename.endswith("__init__.py") else data)
    return target


def test_a_damaged_wheel_of_the_run_is_found_and_made_again(built: Clone, tmp_path: Path) -> None:
    (audio,) = built.wheels().glob("torchaudio-*.whl")
    good = sha256(audio)
    shutil.copy(break_record(audio, tmp_path / audio.name), f"{audio}.part")
    Path(f"{audio}.part").replace(audio)
    found = built.run("pytorch_build", "check-wheels", *SAMPLE)
    assert found.returncode == 9, said(found)
    smoke = built.nox("-s", "test_smoke", "--", *SAMPLE, "--force")
    assert smoke.returncode == 1
    built.passes("nox", "-s", "build_audio", "--", *SAMPLE)
    assert sha256(audio) == good


@pytest.fixture
def refusal(
    built: Clone, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Callable[[], str]:
    """Stage the run and ask for its promotion: what is said against it."""
    for module in ("runs", "policy"):
        monkeypatch.setattr(f"ci.promote.{module}.is_sample", lambda _: False)

    def asked() -> str:
        where = ["--distribution-store", str(tmp_path / "bucket"), "--release-type", "nightly"]
        run = ["--run-id", "local", "--store", str(built.path / "out"), "--gpu-family", FAMILY]
        assert run_ci("stage", *where, *run) == 0
        assert run_ci("promote", *where, "--by", "one") == CheckError.exit_code
        return capsys.readouterr().err

    return asked


def test_a_part_of_the_tests_is_no_test(built: Clone, refusal: Callable[[], str]) -> None:
    smoke = ("nox", "-s", "test_smoke", "--", *SAMPLE)
    for words in (("-vktriton",), ("--deselect=test_torch.py",), ("--ignore-glob=/*/test_torch.py",)):
        built.passes(*smoke, *words)
        done = built.nox("-s", "test_report")
        assert done.returncode == 1, said(done)
        assert re.search(r"test_torch.py has \d+ tests, and 0 are reported", said(done))
        assert re.search(r"test_smoke does not count: \d+ of \d+ tests ran", refusal())
        assert "untested" in built.passes("nox", "-s", "report")
    built.passes(*smoke, PYTEST_ADDOPTS="-k triton")
    assert "tests ran" not in refusal()
    built.passes("nox", "-s", "test_report")
    cut_out(built)


def cut_out(built: Clone) -> None:
    """Cut cases or a suite out of a real report, with the counts of what it was or is."""
    report = built.path / "out/local-linux/reports" / FAMILY / f"smoke-sample-{TAG}.xml"
    whole = report.read_text(encoding="utf-8")
    (suite,) = re.findall(r'<testsuite name="test_torch.py".*?</testsuite>', whole)
    less = re.sub("(<testcase.*?</testcase>)+", "", suite)
    for text in (less, re.sub('(tests|skipped)="[0-9]+"', "", less), ""):
        report.write_text(whole.replace(suite, text), encoding="utf-8")
        for words in ((), ("--input-dir", report.parent)):
            done = built.run("pytorch_build", "test-report", *words)
            assert done.returncode == CheckError.exit_code, said(done)
    report.write_text(whole, encoding="utf-8")


def snapshot(tree: Path) -> dict[str, tuple[int, bytes]]:
    files = (path for path in sorted(tree.rglob("*")) if path.is_file())
    return {str(path): (path.stat().st_mtime_ns, path.read_bytes()) for path in files}


@pytest.mark.parametrize(
    ("stage", "file", "words"),
    [
        ("build_apex", "setup.py", ("--apex-dir",)),
        (
            "test_torch",
            "test/conftest.py",
            ("--include=test_nn", "--allow-version-mismatch", "--pytorch-dir"),
        ),
    ],
)
def test_code_of_sources_sees_no_right_of_the_job(
    built: Clone, tmp_path: Path, stage: str, file: str, words: tuple[str, ...]
) -> None:
    tree, seen, project = tmp_path / "tree", tmp_path / "seen", stage.partition("_")[2]
    process.capture(["git", "clone", "--quiet", built.path / ".cache/sample/repos" / project, tree])
    with (tree / file).open("a", encoding="utf-8") as stream:
        stream.write(f"\nimport os\nopen({str(seen)!r}, 'a').write(str(dict(os.environ)))\n")
    built.passes("nox", "-s", stage, "--", *SAMPLE, "--force", *words, tree, **RIGHTS)
    require_unseen(seen)


def require_unseen(seen: Path) -> None:
    assert "PATH" in seen.read_text(encoding="utf-8")
    assert "of-the-job" not in seen.read_text(encoding="utf-8")


def test_rocms_own_programs_see_no_right_of_the_job(built: Clone, tmp_path: Path) -> None:
    seen, sdist_seen = tmp_path / "seen", tmp_path / "sdist"

    def planted(_member: str, content: bytes) -> bytes:
        return content.replace(b"#!/bin/sh\n", f"#!/bin/sh\nenv >> {seen}\n".encode(), 1)

    for path in built.wheels().glob("rocm_*.whl"):
        edit_wheel(path, tmp_path / "rocm", version=ROCM, edit=planted, additions=Additions())
    (sdist,) = built.wheels().glob("rocm-*.tar.gz")
    setup = f"import os\nopen({str(sdist_seen)!r}, 'a').write(str(dict(os.environ)))\n".encode()
    edit_sdist(
        sdist, tmp_path / "rocm", version=ROCM, edit=lambda name, text: text + setup * (name == "setup.py")
    )
    words = ("--find-links", tmp_path / "rocm", "--run-id", "attacked")
    built.passes("nox", "-s", "test_rocm", "--", *SAMPLE, *words, **RIGHTS)
    require_unseen(seen)
    require_unseen(sdist_seen)


def test_results_of_other_builds_are_stale(built: Clone, refusal: Callable[[], str], tmp_path: Path) -> None:
    built.passes("nox", "-s", "build_apex", "test_smoke", "--", *SAMPLE)
    tree = tmp_path / "tree"
    process.capture(["git", "clone", "--quiet", built.path / ".cache/sample/repos/apex", tree])
    with (tree / "apex" / "__init__.py").open("a", encoding="utf-8") as stream:
        stream.write("MINE = 1\n")
    built.passes("nox", "-s", "build_apex", "--", *SAMPLE, "--apex-dir", tree)
    report = built.passes("nox", "-s", "report")
    assert "edited tree, 1 file differs" in report
    for text in (report, said(built.nox("-s", "test_report"))):
        assert "out of date" in text
    assert "was built from: edited tree, 1 file differs" in refusal()


def test_an_own_trees_wheel_is_kept_when_it_is_refused_and_its_run_needs_no_lock(
    checkout: Clone, tmp_path: Path
) -> None:
    tree, mine, run = tmp_path / "torch", tmp_path / "mine.toml", (*CPU, "--run-id=local-mine")
    checkout.passes("nox", "-s", "checkout", "--", *SAMPLE, "--components=torch", f"--checkout-dir={tree}")
    mine.write_text("[[forbidden]]\npattern = '^torch/nn/'\nmessage = 'not wanted'\n")
    build = ("-s", "build_torch", "--", *run, f"--pytorch-dir={tree}")
    assert "torch/nn/__init__.py is not wanted" in said(checkout.nox(*build, f"--policy={mine}"))
    assert "refused by its build: passes now" in checkout.passes("nox", "-s", "check_wheels", "--", *run)
    again = checkout.passes("nox", *build)
    assert "checked again, not built" in again
    assert "build torch" not in again
    checkout.passes("nox", "-s", "check_wheels", "index", "test_smoke", "report", "--", *run)
    manifests = checkout.path / "out" / "local-mine-linux" / "manifests"
    assert not list(manifests.glob("source-lock*"))


def test_three_commands_of_the_docs_lead_to_a_tested_wheel_or_its_error(built: Clone, tmp_path: Path) -> None:
    page = (built.path / "docs" / "try.md").read_text(encoding="utf-8").partition("## Your first change")[2]
    block = page.partition("```bash\n")[2].partition("```")[0].replace("~/", f"{tmp_path}/")
    made, tree, build = (line.split() for line in block.splitlines())
    assert made[-4:] == ["invoke", "ci", *SAMPLE]  # which has made what `built` is
    built.passes(*tree)
    source = tmp_path / "sample-torch" / "torch"
    with (source / "__init__.py").open("a", encoding="utf-8") as stream:
        stream.write("MINE = 1\n")
    ended = built.passes(*build)
    # nothing else is in the tree, of builds or tests
    left = process.capture(["git", "status", "--short", "--ignored"], cwd=source.parent).stdout
    assert left == " M torch/__init__.py\n"
    assert "edited tree, 1 file differs" in ended
    assert re.search(r"torch-\S+\.dirty\.\w+-", ended)
    assert "1 cell (1 passed), " in ended
    stub = source / "csrc" / "stub.cpp"
    stub.write_text(stub.read_text(encoding="utf-8") + "\nint wrong = missing_name;\n", encoding="utf-8")
    failed = said(built.run(*build)).splitlines()[-20:]
    line = len(stub.read_text(encoding="utf-8").splitlines())
    assert [one for one in failed if re.search(rf"torch/csrc/stub\.cpp:{line}.*missing_name", one)]
    assert [one for one in failed if one.startswith("again: ")]
