"""The checks of `rocm-sdk test`, run from their template on written installations."""

import importlib
import json
import os
import subprocess  # noqa: TID251 - a program that hangs is answered for here
import sys
import unittest
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from rocm_packaging.sdk_report import count_outcomes, read_report
from tests.kit.rocm_sdk import install_files, install_runtime
from tests.kit.windows import can_link

FAMILY = "gfx94X-dcgpu"


@dataclass(frozen=True, kw_only=True)
class Sdk:
    """An installation of ROCm's packages."""

    site: Path

    @property
    def core(self) -> Path:
        """The folder of the core package."""
        return self.site / "_rocm_sdk_core"

    @property
    def tree(self) -> Path:
        """The development tree."""
        return self.site / "_rocm_sdk_devel"

    def module(self, name: str) -> Any:
        """Return a module of the checks."""
        return importlib.import_module(f"rocm_sdk.tests.{name}")

    def check(self, function: Callable[..., object], *arguments: object) -> Any:
        """Return a check that calls this function."""
        return self.module("check").Check("group", "name", function, *arguments)

    def run(self, check: Any) -> tuple[str, str]:
        """Run a check; return its outcome and why."""
        row = self.module("check").run_check(check)
        return row["outcome"], row["text"]

    def run_tree_check(self, name: str) -> tuple[str, str]:
        """Run a check of the development tree, by its name; return its outcome and why."""
        (check,) = [check for check in self.module("devel").checks() if check.name == name]
        return self.run(check)


@pytest.fixture
def sdk(sdk_site: Path) -> Sdk:
    """Return an installation with an empty core package."""
    install_runtime(sdk_site, families={FAMILY: ("gfx942",)}, libraries=["amdhip64"])
    install_files(sdk_site, {"_rocm_sdk_core/__init__.py": ""})
    return Sdk(site=sdk_site)


# Results


def succeed() -> None:
    """Do what a check does that finds nothing wrong."""


def skip() -> None:
    raise unittest.SkipTest("no GPU")


def fail() -> None:
    raise AssertionError("first <line>\n\x1b[31mred\x00 & more")


def break_down() -> None:
    raise OSError("no disk")


@pytest.mark.parametrize(
    ("function", "expected"),
    [
        (succeed, ("passed", "")),
        (skip, ("skipped", "no GPU")),
        (fail, ("failed", "first <line>\n\x1b[31mred\x00 & more")),
        (break_down, ("failed", "OSError: no disk")),
    ],
)
def test_tells_how_a_check_ended_and_why(
    sdk: Sdk, function: Callable[[], None], expected: tuple[str, str]
) -> None:
    assert sdk.run(sdk.check(function)) == expected


def test_names_the_place_where_a_check_failed(sdk: Sdk) -> None:
    row = sdk.module("check").run_check(sdk.check(break_down))

    assert "in break_down" in row["traceback"]


def test_lists_the_first_of_many_problems(sdk: Sdk) -> None:
    problems = [f"file {number}" for number in range(30)]

    outcome, text = sdk.run(sdk.check(sdk.module("check").expect_none, problems, "files are missing"))

    assert outcome == "failed"
    assert text.splitlines()[:2] == ["30 files are missing:", "file 0"]
    assert text.endswith("and 10 more")


def test_keeps_results_in_the_order_of_the_checks(sdk: Sdk) -> None:
    check = sdk.module("check")
    checks = [check.Check("group", f"check {number}", succeed) for number in range(20)]

    rows = list(check.run_checks(checks, jobs=8))

    assert [row["name"] for row in rows] == [check.name for check in checks]


# Reports


@pytest.fixture
def rows(sdk: Sdk) -> list[Any]:
    """Return a row of each outcome; the text of the failure has what XML cannot hold."""
    check = sdk.module("check")
    checks = [
        check.Check("core", "passes", succeed),
        check.Check("core", "fails", fail),
        check.Check("devel", "skips", skip),
    ]
    return list(check.run_checks(checks))


def test_writes_a_report_that_the_verb_reads(sdk: Sdk, rows: list[Any], tmp_path: Path) -> None:
    path = tmp_path / "deep" / "report.json"

    sdk.module("report").write(path, {"rocm": "1.0.0"}, rows)

    report = read_report(path.read_bytes())
    assert count_outcomes(report.checks) == {"passed": 1, "failed": 1, "skipped": 1}
    assert report.facts == {"rocm": "1.0.0"}
    assert list(path.parent.iterdir()) == [path]


def test_prints_a_line_for_each_result(sdk: Sdk, rows: list[Any]) -> None:
    report = sdk.module("report")

    lines = [report.line(row).splitlines()[0] for row in rows]

    assert lines == [
        "ok    core: passes",
        "FAIL  core: fails",
        "skip  devel: skips (no GPU)",
    ]


# Programs and libraries


@pytest.mark.processes
def test_fails_without_a_shared_library(sdk: Sdk) -> None:
    (check,) = sdk.module("support").library_checks("core", sdk.core)

    outcome, text = sdk.run(check)

    assert outcome == "failed"
    assert str(sdk.core) in text


@pytest.mark.processes
@pytest.mark.skipif(sys.platform == "win32", reason="no program of Windows ends by a signal")
def test_names_the_signal_that_ended_a_program(sdk: Sdk) -> None:
    result = sdk.module("support").run_python("-c", "import os; os.abort()")

    assert "ended by signal 6" in result.summary


@pytest.mark.processes
def test_reads_output_of_a_program_that_is_no_text(sdk: Sdk) -> None:
    result = sdk.module("support").run_python("-c", r"import sys; sys.stdout.buffer.write(b'\xff')")

    assert result.output == "\ufffd"


@pytest.mark.processes
def test_fails_where_a_program_cannot_be_started(sdk: Sdk) -> None:
    outcome, text = sdk.run(sdk.check(sdk.module("support").run_program, sdk.site / "nonesuch"))

    assert outcome == "failed"
    assert "nonesuch" in text


def test_fails_where_a_program_hangs(sdk: Sdk, monkeypatch: pytest.MonkeyPatch) -> None:
    def hang(command: list[str], *, timeout: float, **_options: object) -> None:
        raise subprocess.TimeoutExpired(command, timeout)

    monkeypatch.setattr(subprocess, "run", hang)

    outcome, text = sdk.run(sdk.check(sdk.module("support").run_program, "hipcc"))

    assert outcome == "failed"
    assert "hipcc" in text


# Device packages


@pytest.mark.parametrize(
    ("files", "outcome", "text"),
    [
        pytest.param(
            {"lib/db_gfx942.dat": "x", ".kpack/blas_gfx942.kpack": "KPAK…"},
            "passed",
            "",
            id="sound",
        ),
        pytest.param(
            {"lib/db_gfx942.dat": None},
            "failed",
            "1 files are missing",
            id="missing",
        ),
        pytest.param({"lib/db_gfx942.dat": ""}, "failed", "1 files are empty", id="empty"),
        pytest.param(
            {".kpack/blas_gfx942.kpack": "cut off"},
            "failed",
            "damaged",
            id="damaged",
        ),
        pytest.param({"lib/db_gfx1100.dat": "x"}, "failed", "gfx942", id="other target"),
    ],
)
def test_requires_the_code_of_a_target_in_its_device_package(
    sdk_site: Path, files: dict[str, str | None], outcome: str, text: str
) -> None:
    install_runtime(
        sdk_site,
        families={"gfx942": ("gfx942",), "gfx1100": ("gfx1100",)},
        is_split=True,
    )
    links = [{"relpath": name, "target": "x"} for name in files]
    contents = {name: content for name, content in files.items() if content is not None}
    install_files(
        sdk_site / "_rocm_sdk_libraries",
        {
            "__init__.py": "",
            ".devel_links/gfx942.json": json.dumps({"links": links}),
            **contents,
        },
    )

    sdk = Sdk(site=sdk_site)
    (check,) = sdk.module("device").checks()

    found_outcome, found_text = sdk.run(check)

    assert found_outcome == outcome
    assert text in found_text


# The development tree

CORE_CHECK = "the files of core are in it"
LLVM_CHECK = "llvm is lib/llvm"


@pytest.fixture
def expanded_sdk(sdk: Sdk, monkeypatch: pytest.MonkeyPatch) -> Sdk:
    """Return an installation whose development tree is expanded, and has the files of core."""
    install_files(sdk.core, {"lib/a.so.1": "library", "bin/tool": "tool"})
    for folder in ("lib", "bin"):
        (sdk.tree / folder).mkdir(parents=True)
    os.link(sdk.core / "lib/a.so.1", sdk.tree / "lib/a.so.1")
    os.link(sdk.core / "bin/tool", sdk.tree / "bin/tool")
    if can_link():
        install_files(sdk.core, {"bin/stub": "stub"})
        (sdk.tree / "bin/stub").symlink_to("tool")

    expansion = importlib.import_module("rocm_sdk._devel")
    monkeypatch.setattr(expansion, "get_devel_root", lambda: str(sdk.tree))
    return sdk


def test_finds_the_files_of_a_package_in_the_tree(expanded_sdk: Sdk) -> None:
    assert expanded_sdk.run_tree_check(CORE_CHECK) == ("passed", "")


@pytest.mark.usefixtures("needs_links")
def test_finds_files_of_the_tree_that_are_not_the_packages(
    expanded_sdk: Sdk,
) -> None:
    tree = expanded_sdk.tree
    (tree / "bin/tool").unlink()
    (tree / "bin/tool").write_text("another tool", encoding="utf-8")
    (tree / "lib/a.so.1").unlink()
    (tree / "bin/stub").unlink()
    (tree / "bin/stub").symlink_to("/bin/sh")

    outcome, text = expanded_sdk.run_tree_check(CORE_CHECK)

    assert outcome == "failed"
    _, *problems = text.splitlines()
    assert [problem.partition(":")[0] for problem in problems] == [
        "bin/stub",
        "bin/tool",
        "lib/a.so.1",
    ]


def test_accepts_copies_where_hard_links_were_lost(expanded_sdk: Sdk) -> None:
    tool = expanded_sdk.tree / "bin/tool"
    tool.unlink()
    tool.write_text("tool", encoding="utf-8")

    assert expanded_sdk.run_tree_check(CORE_CHECK) == ("passed", "")


def test_fails_where_a_package_is_empty(expanded_sdk: Sdk) -> None:
    for path in ("lib/a.so.1", "bin/tool", "bin/stub"):
        (expanded_sdk.core / path).unlink(missing_ok=True)

    outcome, text = expanded_sdk.run_tree_check(CORE_CHECK)

    assert outcome == "failed"
    assert str(expanded_sdk.core) in text


@pytest.mark.usefixtures("needs_links")
@pytest.mark.parametrize(
    ("has_folder", "has_link", "expected_outcome"),
    [
        pytest.param(False, False, "skipped", id="no LLVM"),
        pytest.param(True, False, "failed", id="no link"),
        pytest.param(True, True, "passed", id="link"),
    ],
)
def test_requires_the_link_to_llvm(
    expanded_sdk: Sdk, expected_outcome: str, *, has_folder: bool, has_link: bool
) -> None:
    if has_folder:
        (expanded_sdk.tree / "lib/llvm").mkdir()
    if has_link:
        (expanded_sdk.tree / "llvm").symlink_to("lib/llvm")

    outcome, _ = expanded_sdk.run_tree_check(LLVM_CHECK)

    assert outcome == expected_outcome


# The whole test


def test_fails_where_checks_cannot_be_listed(
    sdk: Sdk, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def fail_to_list() -> None:
        raise RuntimeError("no core")

    run = sdk.module("run")
    monkeypatch.setattr(run, "phases", lambda: [fail_to_list])

    assert run.main() == 1
    assert "RuntimeError: no core" in capsys.readouterr().out


@pytest.mark.parametrize("has_check", [False, True], ids=["no check", "skipped check"])
def test_fails_where_nothing_passes(sdk: Sdk, monkeypatch: pytest.MonkeyPatch, *, has_check: bool) -> None:
    checks = [sdk.module("check").skipped_check("devel", "all checks", "no tree")] if has_check else []
    run = sdk.module("run")
    monkeypatch.setattr(run, "phases", lambda: [lambda: checks])

    assert run.main() == 1
