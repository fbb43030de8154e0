"""The checks of `rocm-sdk test`, run from their template on written installations."""

import importlib
import importlib.metadata
import json
import os
import xml.etree.ElementTree as ET
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from rocm_packaging import selftest

FAMILY = "gfx94X-dcgpu"


@dataclass(frozen=True, kw_only=True)
class Sdk:
    site: Path

    def module(self, name: str) -> Any:
        return importlib.import_module(f"rocm_sdk.tests.{name}")

    def write(self, path: str, text: str = "") -> Path:
        target = self.site / path
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(text, encoding="utf-8")
        importlib.invalidate_caches()
        return target

    def run(self, function: Callable[..., object], *arguments: object) -> Any:
        return self.module("checks").Check("group", "name", function, *arguments).run()


@pytest.fixture
def sdk(installed_sdk: Callable[..., Path]) -> Sdk:
    made = Sdk(site=installed_sdk({FAMILY: ("gfx942",)}, "amdhip64"))
    made.write("_rocm_sdk_core/__init__.py")
    return made


def test_outcomes_say_why(sdk: Sdk) -> None:
    checks = sdk.module("checks")

    def skips() -> None:
        raise checks.Skip("not here")

    def fails() -> None:
        checks.expect(condition=False, problem="it is blue")

    def breaks() -> None:
        raise OSError("no disk")

    found = [sdk.run(one) for one in (lambda: None, lambda: "3 files", skips, fails, breaks)]
    assert [(one.outcome, one.text) for one in found] == [
        ("passed", ""),
        ("passed", "3 files"),
        ("skipped", "not here"),
        ("failed", "it is blue"),
        ("failed", "OSError: no disk"),
    ]


@pytest.mark.parametrize(
    ("files", "said"),
    [
        ({"lib/db_gfx942.dat": "x", ".kpack/blas_gfx942.kpack": "KPAK…"}, "2 files, 1 kernel archives"),
        ({"lib/db_gfx942.dat": None}, "1 files are missing"),
        ({"lib/db_gfx942.dat": ""}, "1 files are empty"),
        ({".kpack/blas_gfx942.kpack": "cut off"}, "1 kernel archives are damaged"),
        ({"lib/db_gfx1100.dat": "x"}, "nothing of 1 files is for gfx942"),
    ],
)
def test_a_device_package_holds_code_for_its_target(
    installed_sdk: Callable[..., Path], files: dict[str, str | None], said: str
) -> None:
    sdk = Sdk(site=installed_sdk({"gfx942": ("gfx942",), "gfx1100": ("gfx1100",)}, split=True))
    sdk.write("_rocm_sdk_libraries/__init__.py")
    links = [{"relpath": name, "target": "x"} for name in files]
    sdk.write("_rocm_sdk_libraries/.devel_links/gfx942.json", json.dumps({"links": links}))
    for name, text in files.items():
        if text is not None:
            sdk.write(f"_rocm_sdk_libraries/{name}", text)
    (found,) = [one.run() for one in sdk.module("device").checks()]
    assert found.text.startswith(said)
    assert (found.outcome == "passed") == ("kernel archives" in said and "damaged" not in said)


def test_results_keep_the_order_of_the_checks(sdk: Sdk) -> None:
    checks = sdk.module("checks")
    names = [f"check {number}" for number in range(50)]
    made = [checks.Check("group", name, lambda: None) for name in names]
    assert [one.name for one in checks.results_of(made, jobs=8)] == names


def test_the_report_is_junit_whatever_a_program_printed(sdk: Sdk, tmp_path: Path) -> None:
    report, checks = sdk.module("report"), sdk.module("checks")

    def fails() -> None:
        raise AssertionError("first <line>\n\x1b[31mred\x00 & more")

    def skips() -> None:
        raise checks.Skip("no GPU")

    made = [checks.Check(f"g{number}", "x", one) for number, one in enumerate((lambda: None, fails, skips))]
    results = list(checks.results_of(made))
    path = tmp_path / "deep" / "junit.xml"
    report.write(path, report.junit(results, {"rocm": "1.0.0"}))
    root = ET.parse(path).getroot()  # noqa: S314 - written above
    assert (root.get("tests"), root.get("failures"), root.get("skipped")) == ("3", "1", "1")
    assert [one.name for one in path.parent.iterdir()] == ["junit.xml"]
    read = selftest.read(path.read_bytes())
    assert selftest.results(read.cases) == {"passed": 1, "failed": 1, "skipped": 1}
    assert read.properties == {"rocm": "1.0.0"}
    assert read.failing[0].text == "first <line>\n\ufffd[31mred\ufffd & more"
    expected = ["ok    g0: x", "FAIL  g1: x", "skip  g2: x (no GPU)"]
    assert [report.line(one).splitlines()[0] for one in results] == expected


@pytest.mark.processes
def test_zero_libraries_fail(sdk: Sdk) -> None:
    root = sdk.site / "_rocm_sdk_core"
    found = [one.run() for one in sdk.module("support").library_checks("core", root)]
    assert [(one.outcome, one.text) for one in found] == [("failed", f"no shared library is in {root}")]


@pytest.mark.processes
def test_a_program_that_dies_or_hangs_is_an_outcome(sdk: Sdk, monkeypatch: pytest.MonkeyPatch) -> None:
    support = sdk.module("support")
    status, _, _ = support.python("-c", "import os; os.abort()")
    assert support.ending(status) == "ended by signal 6"
    assert support.python("-c", r"import sys; sys.stdout.buffer.write(b'\xff')")[1] == "\ufffd"
    missing = sdk.run(support.program, sdk.site / "nonesuch")
    assert (missing.outcome, "could not be started" in missing.text) == ("failed", True)
    monkeypatch.setattr(support, "_SECONDS", 0.1)
    hanging = sdk.run(support.python, "-c", "import time; time.sleep(60)")
    assert (hanging.outcome, "did not end within" in hanging.text) == ("failed", True)


def test_the_tree_holds_the_packages_own_files(sdk: Sdk) -> None:
    devel = sdk.module("devel")
    source, root = sdk.site / "_rocm_sdk_core", sdk.site / "_rocm_sdk_devel"
    for name in ("lib/a.so.1", "bin/tool", "bin/stub"):
        sdk.write(f"_rocm_sdk_core/{name}", name)
        (root / name).parent.mkdir(parents=True, exist_ok=True)
    os.link(source / "lib/a.so.1", root / "lib/a.so.1")
    os.link(source / "bin/tool", root / "bin/tool")
    (root / "bin/stub").symlink_to("tool")
    found = sdk.run(devel._mirrored, root, source)
    assert (found.outcome, found.text) == ("passed", "3 files")

    (root / "bin/tool").unlink()
    (root / "bin/tool").write_text("bin/tool", encoding="utf-8")
    (root / "lib/a.so.1").unlink()
    (root / "bin/stub").unlink()
    (root / "bin/stub").symlink_to("/bin/sh")
    found = sdk.run(devel._mirrored, root, source)
    assert found.outcome == "failed"
    assert set(found.text.splitlines()[1:]) == {
        f"bin/stub: links to {Path('/bin/sh').resolve()}",
        "bin/tool: another file of the same name",
        "lib/a.so.1: not in the tree",
    }


def test_an_empty_or_unlinked_package_is_no_mirror(sdk: Sdk, monkeypatch: pytest.MonkeyPatch) -> None:
    devel, folders = sdk.module("devel"), (sdk.site / "_rocm_sdk_devel", sdk.site / "_rocm_sdk_core")
    folders[0].mkdir()
    found = sdk.run(devel._mirrored, *folders)
    assert (found.outcome, "holds no files" in found.text) == ("failed", True)

    def refuse(*_: object) -> None:
        raise OSError("not supported")

    monkeypatch.setattr(os, "link", refuse)
    found = sdk.run(devel._mirrored, *folders)
    assert (found.outcome, found.text.partition(",")[0]) == ("skipped", "this file system has no hard links")


def test_a_tree_without_its_llvm_link_fails(sdk: Sdk) -> None:
    devel = sdk.module("devel")
    root = sdk.site / "_rocm_sdk_devel"
    root.mkdir()
    assert sdk.run(devel._llvm, root).outcome == "skipped"
    (root / "lib/llvm").mkdir(parents=True)
    assert sdk.run(devel._llvm, root).outcome == "failed"
    (root / "llvm").symlink_to("lib/llvm")
    assert sdk.run(devel._llvm, root).outcome == "passed"


def test_nothing_that_can_be_checked_is_a_failure(sdk: Sdk, capsys: pytest.CaptureFixture[str]) -> None:
    run = sdk.module("run")
    nothing = run._listed(lambda: (_ for _ in ()).throw(RuntimeError("no core")), 1)
    assert [one.run().text for one in nothing] == ["RuntimeError: no core"]
    run.phases = lambda: [list]
    assert run.main() == 1
    assert "Ran 0 checks" in capsys.readouterr().out
    skipped = run._left_out("devel", "it is not installed")
    run.phases = lambda: [lambda: [skipped]]
    assert run.main() == 1
