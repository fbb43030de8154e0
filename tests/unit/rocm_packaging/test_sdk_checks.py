"""The checks of `rocm-sdk test`, run from their template on written installations."""

import importlib
import json
import os
import subprocess  # noqa: TID251 - a program that hangs is answered for here
import xml.etree.ElementTree as ET
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from rocm_packaging import selftest
from tests.kit.rocm_sdk import install_files, install_runtime

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

    def run(self, function: Callable[..., object], *arguments: object) -> Any:
        """Return the result of a check that calls this function."""
        return self.module("checks").Check("group", "name", function, *arguments).run()

    def run_tree_check(self, name: str) -> Any:
        """Return the result of a check of the development tree, by its name."""
        (check,) = [check for check in self.module("devel").checks() if check.name == name]
        return check.run()


@pytest.fixture
def sdk(sdk_site: Path) -> Sdk:
    """Return an installation with an empty core package."""
    install_runtime(sdk_site, families={FAMILY: ("gfx942",)}, libraries=["amdhip64"])
    install_files(sdk_site, {"_rocm_sdk_core/__init__.py": ""})
    return Sdk(site=sdk_site)


# Results


def test_passes_without_words_or_with_a_remark(sdk: Sdk) -> None:
    silent_result = sdk.run(lambda: None)
    result = sdk.run(lambda: "3 files")

    assert (silent_result.outcome, silent_result.text) == ("passed", "")
    assert (result.outcome, result.text) == ("passed", "3 files")


def test_says_why_a_check_was_skipped(sdk: Sdk) -> None:
    def skip() -> None:
        raise sdk.module("checks").Skip("not here")

    result = sdk.run(skip)

    assert (result.outcome, result.text) == ("skipped", "not here")


def test_says_why_a_check_failed(sdk: Sdk) -> None:
    def fail() -> None:
        sdk.module("checks").expect(condition=False, problem="it is blue")

    result = sdk.run(fail)

    assert (result.outcome, result.text) == ("failed", "it is blue")


def test_counts_a_check_that_breaks_as_failed(sdk: Sdk) -> None:
    def fail() -> None:
        raise OSError("no disk")

    result = sdk.run(fail)

    assert (result.outcome, result.text) == ("failed", "OSError: no disk")


def test_keeps_results_in_the_order_of_the_checks(sdk: Sdk) -> None:
    checks = sdk.module("checks")
    names = [f"check {number}" for number in range(20)]

    results = checks.results_of([checks.Check("group", name, lambda: None) for name in names], jobs=8)

    assert [result.name for result in results] == names


# Reports


@pytest.fixture
def results(sdk: Sdk) -> list[Any]:
    """Return a result of each outcome; that of the failure has what XML cannot hold."""
    checks = sdk.module("checks")

    def fail() -> None:
        raise AssertionError("first <line>\n\x1b[31mred\x00 & more")

    def skip() -> None:
        raise checks.Skip("no GPU")

    return list(
        checks.results_of(
            [
                checks.Check("core", "passes", lambda: None),
                checks.Check("core", "fails", fail),
                checks.Check("devel", "skips", skip),
            ]
        )
    )


def test_writes_a_junit_report_whatever_a_program_printed(
    sdk: Sdk, results: list[Any], tmp_path: Path
) -> None:
    report = sdk.module("report")
    path = tmp_path / "deep" / "junit.xml"

    report.write(path, report.junit(results, {"rocm": "1.0.0"}))

    root = ET.parse(path).getroot()  # noqa: S314 - written above
    assert {name: root.get(name) for name in ("tests", "failures", "skipped")} == {
        "tests": "3",
        "failures": "1",
        "skipped": "1",
    }
    assert list(path.parent.iterdir()) == [path]


def test_writes_a_report_that_the_verb_reads(sdk: Sdk, results: list[Any]) -> None:
    content = sdk.module("report").junit(results, {"rocm": "1.0.0"})

    report = selftest.read(content)

    assert selftest.results(report.cases) == {"passed": 1, "failed": 1, "skipped": 1}
    assert report.properties == {"rocm": "1.0.0"}
    assert report.failing[0].text == "first <line>\n\ufffd[31mred\ufffd & more"


def test_prints_a_line_for_each_result(sdk: Sdk, results: list[Any]) -> None:
    report = sdk.module("report")

    lines = [report.line(result).splitlines()[0] for result in results]

    assert lines == ["ok    core: passes", "FAIL  core: fails", "skip  devel: skips (no GPU)"]


# Programs and libraries


@pytest.mark.processes
def test_fails_without_a_shared_library(sdk: Sdk) -> None:
    (check,) = sdk.module("support").library_checks("core", sdk.core)

    result = check.run()

    assert result.outcome == "failed"
    assert str(sdk.core) in result.text


@pytest.mark.processes
def test_names_the_signal_that_ended_a_program(sdk: Sdk) -> None:
    support = sdk.module("support")

    status, _, _ = support.python("-c", "import os; os.abort()")

    assert support.ending(status) == "ended by signal 6"


@pytest.mark.processes
def test_reads_output_of_a_program_that_is_no_text(sdk: Sdk) -> None:
    _, output, _ = sdk.module("support").python("-c", r"import sys; sys.stdout.buffer.write(b'\xff')")

    assert output == "\ufffd"


@pytest.mark.processes
def test_fails_where_a_program_cannot_be_started(sdk: Sdk) -> None:
    result = sdk.run(sdk.module("support").program, sdk.site / "nonesuch")

    assert result.outcome == "failed"
    assert "nonesuch" in result.text


def test_fails_where_a_program_hangs(sdk: Sdk, monkeypatch: pytest.MonkeyPatch) -> None:
    def hang(command: list[str], *, timeout: float, **_options: object) -> None:
        raise subprocess.TimeoutExpired(command, timeout)

    monkeypatch.setattr(subprocess, "run", hang)

    result = sdk.run(sdk.module("support").program, "hipcc")

    assert result.outcome == "failed"
    assert "hipcc" in result.text


# Device packages


@pytest.mark.parametrize(
    ("files", "outcome", "text"),
    [
        pytest.param(
            {"lib/db_gfx942.dat": "x", ".kpack/blas_gfx942.kpack": "KPAK…"},
            "passed",
            "2 files, 1 kernel archives",
            id="sound",
        ),
        pytest.param({"lib/db_gfx942.dat": None}, "failed", "1 files are missing", id="missing"),
        pytest.param({"lib/db_gfx942.dat": ""}, "failed", "1 files are empty", id="empty"),
        pytest.param({".kpack/blas_gfx942.kpack": "cut off"}, "failed", "damaged", id="damaged"),
        pytest.param({"lib/db_gfx1100.dat": "x"}, "failed", "gfx942", id="other target"),
    ],
)
def test_requires_the_code_of_a_target_in_its_device_package(
    sdk_site: Path, files: dict[str, str | None], outcome: str, text: str
) -> None:
    install_runtime(sdk_site, families={"gfx942": ("gfx942",), "gfx1100": ("gfx1100",)}, is_split=True)
    links = [{"relpath": name, "target": "x"} for name in files]
    contents = {name: content for name, content in files.items() if content is not None}
    install_files(
        sdk_site / "_rocm_sdk_libraries",
        {"__init__.py": "", ".devel_links/gfx942.json": json.dumps({"links": links}), **contents},
    )

    (check,) = Sdk(site=sdk_site).module("device").checks()
    result = check.run()

    assert result.outcome == outcome
    assert text in result.text


# The development tree

CORE_CHECK = "the files of core are in it"
LLVM_CHECK = "llvm is lib/llvm"


@pytest.fixture
def expanded_sdk(sdk: Sdk, monkeypatch: pytest.MonkeyPatch) -> Sdk:
    """Return an installation whose development tree is expanded, and has the files of core."""
    install_files(sdk.core, {"lib/a.so.1": "library", "bin/tool": "tool", "bin/stub": "stub"})
    for folder in ("lib", "bin"):
        (sdk.tree / folder).mkdir(parents=True)
    os.link(sdk.core / "lib/a.so.1", sdk.tree / "lib/a.so.1")
    os.link(sdk.core / "bin/tool", sdk.tree / "bin/tool")
    (sdk.tree / "bin/stub").symlink_to("tool")

    expansion = importlib.import_module("rocm_sdk._devel")
    monkeypatch.setattr(expansion, "get_devel_root", lambda: str(sdk.tree))
    return sdk


def test_finds_the_files_of_a_package_in_the_tree(expanded_sdk: Sdk) -> None:
    result = expanded_sdk.run_tree_check(CORE_CHECK)

    assert (result.outcome, result.text) == ("passed", "3 files")


def test_finds_files_of_the_tree_that_are_not_the_packages(expanded_sdk: Sdk) -> None:
    tree = expanded_sdk.tree
    (tree / "bin/tool").unlink()
    (tree / "bin/tool").write_text("tool", encoding="utf-8")
    (tree / "lib/a.so.1").unlink()
    (tree / "bin/stub").unlink()
    (tree / "bin/stub").symlink_to("/bin/sh")

    result = expanded_sdk.run_tree_check(CORE_CHECK)

    assert result.outcome == "failed"
    _, *problems = result.text.splitlines()
    assert [problem.partition(":")[0] for problem in problems] == ["bin/stub", "bin/tool", "lib/a.so.1"]


def test_fails_where_a_package_is_empty(expanded_sdk: Sdk) -> None:
    for path in ("lib/a.so.1", "bin/tool", "bin/stub"):
        (expanded_sdk.core / path).unlink()

    result = expanded_sdk.run_tree_check(CORE_CHECK)

    assert result.outcome == "failed"
    assert str(expanded_sdk.core) in result.text


def test_skips_the_comparison_without_hard_links(expanded_sdk: Sdk, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_paths: object) -> None:
        raise OSError("not supported")

    monkeypatch.setattr(os, "link", refuse)

    assert expanded_sdk.run_tree_check(CORE_CHECK).outcome == "skipped"


@pytest.mark.parametrize(
    ("has_folder", "has_link", "outcome"),
    [
        pytest.param(False, False, "skipped", id="no LLVM"),
        pytest.param(True, False, "failed", id="no link"),
        pytest.param(True, True, "passed", id="link"),
    ],
)
def test_requires_the_link_to_llvm(
    expanded_sdk: Sdk, outcome: str, *, has_folder: bool, has_link: bool
) -> None:
    if has_folder:
        (expanded_sdk.tree / "lib/llvm").mkdir()
    if has_link:
        (expanded_sdk.tree / "llvm").symlink_to("lib/llvm")

    assert expanded_sdk.run_tree_check(LLVM_CHECK).outcome == outcome


# The whole test


def test_fails_where_checks_cannot_be_listed(sdk: Sdk, capsys: pytest.CaptureFixture[str]) -> None:
    def fail() -> None:
        raise RuntimeError("no core")

    run = sdk.module("run")
    run.phases = lambda: [fail]

    assert run.main() == 1
    assert "RuntimeError: no core" in capsys.readouterr().out


def test_fails_without_a_check(sdk: Sdk) -> None:
    run = sdk.module("run")
    run.phases = lambda: [list]

    assert run.main() == 1


def test_fails_where_every_check_was_skipped(sdk: Sdk) -> None:
    def skip() -> None:
        raise checks.Skip("it is not installed")

    checks = sdk.module("checks")
    run = sdk.module("run")
    run.phases = lambda: [lambda: [checks.Check("devel", "all checks", skip)]]

    assert run.main() == 1
