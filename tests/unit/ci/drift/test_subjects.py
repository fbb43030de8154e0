"""Every subject on a TheRock that says what our data says, and on one where a word of it is another."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest

from ci.__main__ import VERBS
from ci.drift.tree import tree
from ci.verbs import drift
from ci.verbs.drift import differences
from core import process
from core.cli.frontdoor import main
from core.errors import DataError
from tests.unit.ci.drift import miniature

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture(name="therock")
def therock_fixture(tmp_path: Path) -> Path:
    return miniature.write(tmp_path / "therock")


def found(therock: Path) -> set[tuple[str, str]]:
    return {
        (one.subject, one.key) for subject in drift.SUBJECTS for one in differences(subject, tree(therock))
    }


def test_nothing_differs_from_what_says_the_same(therock: Path) -> None:
    assert found(therock) == set()
    names = [subject.name for subject in drift.SUBJECTS]
    assert len(names) == len(set(names))


_PACKAGING = "build_tools/packaging/python"
_ACTIONS = "build_tools/github_actions"
_BUCKETS = "build_tools/_therock_utils/s3_buckets.py"
_PYTORCH = "external-builds/pytorch"
_WINDOWS = ".github/workflows/multi_arch_build_windows_pytorch_wheels.yml"
_WORKFLOW = ".github/workflows/multi_arch_build_portable_linux_pytorch_wheels.yml"


@pytest.mark.parametrize(
    ("path", "before", "after", "subject"),
    [
        ("cmake/therock_amdgpu_targets.cmake", "(gfx1201 ", "(gfx1202 ", "targets"),
        ("build_tools/build_python_packages.py", "'rocr-debug-agent'", "'rocdbg'", "artifacts"),
        ("build_tools/build_python_packages.py", "lib/llvm/lib", "lib/llvm", "artifacts"),
        ("BUILD_TOPOLOGY.toml", "[artifacts.rocgdb]", "[artifacts.gdb]", "topology"),
        (f"{_PACKAGING}/templates/rocm-sdk-core/setup.py", '"hipcc=', '"hipcc2=', "programs"),
        (
            f"{_PACKAGING}/rocm_whl_next_ownership.yaml",
            "      torch:",
            "      torchao:",
            "products",
        ),
        ("build_tools/setup_venv.py", "https://nightly.", "https://new.", "indexes"),
        (_BUCKETS, "'therock-nightly'", "'therock-night'", "buckets"),
        (
            "build_tools/_therock_utils/s3_buckets.py",
            "'nightly': 'nightly'",
            "'nightly': 'x'",
            "product buckets",
        ),
        ("build_tools/_therock_utils/python_package_paths.py", "v5/rocm", "v5/amd", "product buckets"),
        (_WORKFLOW, "role-duration-seconds: 2", "role-duration-seconds: 3", "compiler caches"),
        (_WORKFLOW, "x86_64@sha256:c", "x86_64@sha256:d", "images"),
        (
            f"{_ACTIONS}/amdgpu_family_matrix.py",
            "linux-gfx1030-",
            "linux-gfx103X-",
            "machines",
        ),
        (f"{_ACTIONS}/configure_pytorch_release_matrix.py", "'3.14'", "'3.15'", "matrix"),
        (f"{_ACTIONS}/configure_pytorch_release_matrix.py", "'release/2.14']", "]", "matrix"),
        (f"{_PYTORCH}/build_prod_wheels.py", "'hipfile'", "'hipfiles'", "preloads"),
        (f"{_PYTORCH}/run_pytorch_tests_full.py", "'test_ops'", "'test_op'", "tests"),
        (f"{_PYTORCH}/skip_tests/generic.py", "test_RNN_dropout_state", "test_RNN_new", "skips"),
        (f"{_PYTORCH}/skip_tests/pytorch_2.13.py", "test_hip_device_count", "test_new", "skips"),
        (_WINDOWS, "ninja --version 1", "ninja --version 2", "Windows tools"),
        (_WINDOWS, "-b v1", "-b v2", "Windows tools"),
        ("version.json", "10.", "11.", "ROCm's version"),
        (f"{_PYTORCH}/ci_commit_pins/triton-windows.txt", "6fe895", "7fe895", "triton on Windows"),
    ],
)
def test_what_differs_is_found_in_its_subject(
    therock: Path, path: str, before: str, after: str, subject: str
) -> None:
    text = (therock / path).read_text(encoding="utf-8")
    assert before in text
    (therock / path).write_text(text.replace(before, after), encoding="utf-8")
    assert {one for one, _ in found(therock)} == {subject}


def test_a_documented_index_that_nobody_knows_differs(therock: Path) -> None:
    with (therock / "RELEASES.md").open("a", encoding="utf-8") as releases:
        releases.write("pip install --index-url https://new.example/whl/ torch\n")
    assert found(therock) == {("documented indexes", "indexes")}


def test_each_file_that_is_gone_or_says_nothing_is_named(therock: Path) -> None:
    for path in [one for one in therock.rglob("*.*") if one.is_file()]:
        name, text = path.relative_to(therock).as_posix(), path.read_text(encoding="utf-8")
        if name.endswith("README.md") or name == "BUILD_TOPOLOGY.toml" or "/skip_tests/" in name:
            continue
        path.unlink()
        with pytest.raises(DataError, match=path.name):
            found(therock)
        path.write_text("" if path.suffix != ".json" else '{"rocm-version": ""}', encoding="utf-8")
        with pytest.raises(DataError, match=path.name):
            found(therock)
        path.write_text(text, encoding="utf-8")


def test_the_verb_prints_what_differs_and_what_has_a_reason(
    therock: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    accepted = tmp_path / "drift.toml"
    accepted.write_text("")
    monkeypatch.setattr(drift, "ACCEPTED", accepted)
    words = ["drift", "--therock", str(therock)]
    assert main("ci", "", VERBS, words) == 0
    (therock / "version.json").write_text('{"rocm-version": "99.0.0"}')
    assert main("ci", "", VERBS, [*words, "--json"]) == 9
    (row,) = json.loads(capsys.readouterr().out)
    assert (row["subject"], row["upstream"], row["only_upstream"]) == (
        "ROCm's version",
        "version.json",
        ["99.0.0"],
    )
    assert main("ci", "", VERBS, words) == 9
    assert "version.json of TheRock, ci/triggers.toml here" in capsys.readouterr().err
    row_of = '[[accepted]]\nsubject = "{}"\nkey = "rocm"\nupstream = ["99.*"]\nhere = ["*"]\n'
    row_of += 'reason = "it is new there"\n'
    accepted.write_text(row_of.format("ROCm's version"))
    assert main("ci", "", VERBS, words) == 0
    accepted.write_text(row_of.format("ROCm's version") + row_of.format("matrix"))
    assert main("ci", "", VERBS, words) == 9
    assert "drift.toml gives a reason for matrix, rocm, which does not differ" in capsys.readouterr().err


@pytest.mark.processes
def test_a_git_directory_is_read_at_a_commit(therock: Path) -> None:
    git = ("git", "-C", str(therock), "-c", "user.name=a", "-c", "user.email=a@example.com")
    for words in (("init", "--quiet"), ("add", "."), ("commit", "--quiet", "--message", "one")):
        process.capture([*git, *words])
    assert found(therock / ".git") == set()
    process.capture([*git, "rm", "--quiet", "version.json"])
    process.capture([*git, "commit", "--quiet", "--message", "two"])
    with pytest.raises(DataError, match=r"version\.json of TheRock no longer has the file"):
        found(therock / ".git")
    assert tree(therock / ".git", "HEAD~1").text("version.json")
