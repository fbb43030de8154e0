import argparse
import io
import json
import re
import unittest
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from core import files, process
from core.cli.options import Common, add_common
from core.env import Installed, installer
from core.env.installer import Install
from core.errors import CheckError, MissingInputError, ProcessError, UsageError
from core.packages import sources
from rocm_packaging import selftest
from rocm_packaging.origin import RocmSource
from rocm_packaging.packages.layouts import Layout
from rocm_packaging.selftest import TestRequest, parse_unittest, results, run_tests
from rocm_packaging.verbs import test as verb
from tests.unit.target_samples import target_in

FAMILY = "gfx94X-dcgpu"
REPORT = """<testsuites><testsuite><properties>
<property name="rocm" value="7.1.0"/><property name="families" value="{families}"/></properties>
{cases}</testsuite></testsuites>"""
PASSED = '<testcase classname="rocm_sdk.core" name="a" time="1.5"/>'
SKIPPED = '<testcase classname="rocm_sdk.devel" name="b" time="0"><skipped message="no GPU"/></testcase>'
FAILED = (
    '<testcase classname="rocm_sdk.core" name="c"><failure message="x">why\nit failed</failure></testcase>'
)


PYTHON = target_in(Path("/env"))


class Machine:
    """What would be installed and run, without doing it."""

    def __init__(self) -> None:
        self.calls: list[Install] = []
        self.env: Mapping[str, str] = {}
        self.runs = 0
        self.cases = PASSED + SKIPPED
        self.families = FAMILY
        self.status = 0
        self.installed = ""
        self.said: dict[str, process.Completed] = {}  # by the last word of the command

    @contextmanager
    def prepared(self, _target: object, calls: Sequence[Install], **_options: object) -> Iterator[None]:
        self.calls = list(calls)
        yield

    def capture(self, argv: Sequence[str | Path], **_options: object) -> process.Completed:
        ours = process.Completed(returncode=0, stdout="usage: --junit FILE", stderr="")
        return self.said.get(str(argv[-1]), ours)

    def run(self, argv: Sequence[str | Path], *, env: Mapping[str, str], **_options: object) -> None:
        self.env, self.runs = env, self.runs + 1
        assert argv[1:-1] == ["-m", "rocm_sdk", "test", "--junit"]
        if self.cases:
            Path(argv[-1]).write_text(REPORT.format(cases=self.cases, families=self.families))
        if self.status:
            raise ProcessError("rocm_sdk ended with status 1", returncode=1)


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch) -> Machine:
    made = Machine()
    monkeypatch.setattr(installer, "prepared", made.prepared)
    monkeypatch.setattr(process, "run", made.run)
    monkeypatch.setattr(process, "capture", made.capture)
    monkeypatch.setattr(installer, "missing_dependencies", lambda _: [])
    monkeypatch.setattr(selftest, "require", lambda _: PYTHON)
    facts: Any = {"version": "7.1", "extras": (), "folder": Path("/none")}
    monkeypatch.setattr(
        selftest, "installed", lambda _: [Installed(name=one, **facts) for one in made.installed.split()]
    )
    return made


@pytest.fixture
def request_(tmp_path: Path) -> TestRequest:
    common = Common(root=tmp_path, python=PYTHON.executable)
    (tmp_path / "requirements").mkdir()
    (tmp_path / "requirements/target-linux-3.12.txt").write_text("setuptools==80.0 --hash=sha256:0\n")
    links = files.made(tmp_path / "links")
    (links / "rocm-7.1.0.tar.gz").write_bytes(b"sdist")
    return TestRequest(
        common=common, families=(FAMILY,), targets=("gfx942",), source=source_in(links, "unsplit")
    )


def source_in(folder: Path, layout: Layout) -> RocmSource:
    packages = sources.PackageSource(find_links=(str(folder),))
    found = tuple(packages.sealed(one) for one in packages.listed)
    return RocmSource(version="7.1.0", layout=layout, packages=packages, files=found)


def test_named_packages_are_installed_tested_and_reported(
    machine: Machine, request_: TestRequest, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    report_file = tmp_path / "reports" / "rocm.xml"
    run_tests(replace(request_, junit=report_file))
    tools, rocm = machine.calls
    assert tools.files[0].read_text().startswith("setuptools==80.0")
    (pin,) = rocm.files[0].read_text().splitlines()
    assert pin.startswith("rocm==7.1.0 --hash=sha256:")
    assert rocm.sources is not None
    assert (rocm.hashed, rocm.dependencies, rocm.sources.no_index) == (True, False, True)
    assert machine.env["ROCM_SDK_TARGET_FAMILY"] == FAMILY
    assert results(selftest.read(report_file.read_bytes()).cases) == {"passed": 1, "failed": 0, "skipped": 1}
    kept = list((tmp_path / "out").glob(f"local-*/reports/{FAMILY}/rocm-cp312.xml"))
    assert [path.read_bytes() for path in kept] == [report_file.read_bytes()]
    (recorded,) = (tmp_path / "out").glob(f"local-*/manifests/{FAMILY}/test_rocm-cp312.json")
    assert json.loads(recorded.read_text())["details"]["report"]["sha256"] == files.sha256(kept[0])
    said = capsys.readouterr().err
    assert "core           1       0       0        1.5" in said
    report_file.unlink()
    run_tests(replace(request_, junit=report_file))
    assert machine.runs == 1
    assert report_file.is_file()


def test_a_changed_source_is_tested_again(machine: Machine, request_: TestRequest, tmp_path: Path) -> None:
    run_tests(request_)
    run_tests(request_)
    assert machine.runs == 1
    (tmp_path / "links" / "rocm-7.1.0.tar.gz").write_bytes(b"another")
    run_tests(replace(request_, source=source_in(tmp_path / "links", "unsplit")))
    assert request_.source is not None
    unknown = tuple(replace(one, sha256="") for one in request_.source.files)
    remote = replace(request_, source=replace(request_.source, files=unknown))
    run_tests(remote)
    run_tests(remote)
    assert machine.runs == 4


def test_another_rocm_of_the_machine_is_out_of_reach(
    machine: Machine, request_: TestRequest, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("LD_LIBRARY_PATH", "ROCM_PATH", "HIP_PATH", "PYTHONPATH"):
        monkeypatch.setenv(name, "/opt/rocm")
    run_tests(request_)
    assert not {"LD_LIBRARY_PATH", "ROCM_PATH", "HIP_PATH", "PYTHONPATH"} & set(machine.env)


@pytest.mark.parametrize(
    ("cases", "status", "problem"),
    [
        (PASSED + FAILED, 1, "1 of 2 checks failed"),
        (PASSED + FAILED, 0, "1 of 2 checks failed"),
        (SKIPPED, 0, "no check passed"),
        (PASSED, 1, "it failed, and its report names no failed check"),
        ("<testcase", 0, "cannot be read"),
        (" ", 0, "holds no check"),
        ("", 1, "without a report"),
    ],
)
def test_nothing_but_a_sound_report_passes(
    machine: Machine, request_: TestRequest, cases: str, status: int, problem: str
) -> None:
    machine.cases, machine.status = cases, status
    with pytest.raises(CheckError, match=problem):
        run_tests(request_)


def test_another_version_or_family_is_no_success(machine: Machine, request_: TestRequest) -> None:
    assert request_.source is not None
    other = replace(request_.source, version="7.2.0")
    with pytest.raises(CheckError, match=r"ROCm 7\.1\.0 was tested instead of 7\.2\.0"):
        run_tests(replace(request_, source=other))
    with pytest.raises(CheckError, match="libraries of gfx110X-all were not installed"):
        run_tests(replace(request_, families=("gfx110X-all",)))
    assert machine.runs == 2


def test_split_packages_are_tested_by_their_device_packages(machine: Machine, request_: TestRequest) -> None:
    assert request_.source is not None
    machine.families = "gfx942"
    split = replace(request_, source=replace(request_.source, layout="split"))
    run_tests(split)
    assert machine.env["ROCM_SDK_TARGET_FAMILY"] == "gfx942"
    with pytest.raises(CheckError, match="libraries of gfx1100 were not installed"):
        run_tests(replace(split, targets=("gfx942", "gfx1100")))


def test_a_run_without_rocm_says_what_to_do(request_: TestRequest) -> None:
    parser = argparse.ArgumentParser()
    add_common(parser)
    verb.add_options(parser)
    with pytest.raises(MissingInputError, match="has no ROCm packages for gfx94X-dcgpu") as raised:
        verb._source(parser.parse_args([]), request_.common, (FAMILY,), ("gfx942",), ("libraries",))
    assert "--find-links" in raised.value.hint
    folder = str(request_.common.root / "links")
    words = ["--find-links", folder, "--version", "9.9.9"]
    with pytest.raises(MissingInputError, match=r"no ROCm 9\.9\.9"):
        verb._source(parser.parse_args(words), request_.common, (FAMILY,), ("gfx942",), ("libraries",))


def test_a_family_is_chosen_or_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(verb, "detect", lambda: ("gfx1100",))
    assert verb._families(Common()) == ("gfx110X-all",)
    assert verb._families(Common(torch_ref="sample")) == (FAMILY,)
    assert verb._families(Common(gpu_family="gfx94X-dcgpu;gfx110X-all")) == (FAMILY, "gfx110X-all")
    with pytest.raises(UsageError, match="cpu"):
        verb._families(Common(gpu_family="cpu"))
    monkeypatch.setattr(verb, "detect", lambda: ())
    with pytest.raises(UsageError, match="No GPU"):
        verb._families(Common())


UNITTEST = """test_a (rocm_sdk.tests.core_test.CoreTest.test_a) ... ok
test_b (rocm_sdk.tests.devel_test.DevelTest.test_b) ... skipped 'not installed'

----------------------------------------------------------------------
Ran 2 tests in 0.002s

OK (skipped=1)
"""


def said_by_others(
    machine: Machine, *, tests: str, status: int = 0, names: str, on_stderr: bool = False
) -> None:
    def completed(stdout: str, stderr: str = "", status: int = 0) -> process.Completed:
        return process.Completed(returncode=status, stdout=stdout, stderr=stderr)

    machine.said = {
        "--help": completed("usage: rocm-sdk test [-h]"),
        "test": completed("++ Exec\n", tests, status) if on_stderr else completed(tests, "noise", status),
        "version": completed("7.1.0\n"),
    }
    machine.installed = names


@pytest.mark.parametrize("on_stderr", [False, True])
@pytest.mark.parametrize(
    ("layout", "libraries", "tested"),
    [
        ("unsplit", "rocm-sdk-libraries-gfx94x-dcgpu", FAMILY),
        ("split", "rocm-sdk-libraries rocm-sdk-device-gfx942", "gfx942"),
    ],
)
def test_packages_that_others_built_are_tested_by_their_own_words(
    tmp_path: Path,
    machine: Machine,
    request_: TestRequest,
    layout: Layout,
    libraries: str,
    tested: str,
    on_stderr: bool,  # noqa: FBT001 - a parameter
) -> None:
    said_by_others(machine, tests=UNITTEST, names=f"rocm rocm-sdk-core {libraries}", on_stderr=on_stderr)
    report_file = tmp_path / "rocm.xml"
    assert request_.source is not None
    run_tests(replace(request_, junit=report_file, source=replace(request_.source, layout=layout)))
    report = selftest.read(report_file.read_bytes())
    assert results(report.cases) == {"passed": 1, "failed": 0, "skipped": 1}
    assert (report.properties["rocm"], report.properties["families"]) == ("7.1.0", tested)
    assert machine.runs == 0


@pytest.mark.parametrize(
    ("tests", "status", "names", "why"),
    [
        (UNITTEST.replace("... ok", "... FAIL"), 1, "rocm-sdk-device-gfx942", "1 of 2 checks failed"),
        (UNITTEST, 1, "rocm-sdk-device-gfx942", "names no failed check"),
        (UNITTEST[:80], 1, "rocm-sdk-device-gfx942", "the result is unknown"),
        (UNITTEST, 0, "rocm-sdk-core", "libraries of gfx94X-dcgpu were not installed"),
    ],
)
def test_what_others_say_is_not_taken_for_a_success(
    machine: Machine, request_: TestRequest, tests: str, status: int, names: str, why: str
) -> None:
    said_by_others(machine, tests=tests, status=status, names=names)
    with pytest.raises(CheckError, match=why):
        run_tests(request_)


class CoreTest(unittest.TestCase):
    __test__ = False
    noise: io.StringIO

    def test_a(self) -> None:
        self.noise.write("a child's words\nover two lines\n")

    def test_b(self) -> None:
        raise AssertionError("the layout is another one\n\n- two\n+ lines")

    @unittest.skip("it's no GPU")
    def test_c(self) -> None:
        raise AssertionError

    def test_d(self) -> None:
        """Has a docstring."""

    def test_e(self) -> None:
        for number in range(3):
            with self.subTest(number=number):
                self.assertNotEqual(number, 1)  # noqa: PT009 - pytest would word it anew

    @unittest.expectedFailure
    def test_f(self) -> None:
        raise AssertionError

    def test_g(self) -> None:
        raise OSError("libx.so: cannot open")

    def test_h(self) -> None:
        self.noise.write("no line end")


class BrokenTest(unittest.TestCase):
    __test__ = False

    @classmethod
    def setUpClass(cls) -> None:
        raise ValueError("no folder")

    def test_never(self) -> None:
        raise AssertionError


def output(*cases: unittest.TestCase) -> str:
    stream = io.StringIO()
    CoreTest.noise = stream
    unittest.TextTestRunner(stream=stream, verbosity=2).run(unittest.TestSuite(cases))
    return stream.getvalue()


def core() -> list[unittest.TestCase]:
    return [CoreTest(f"test_{letter}") for letter in "abcdefgh"]


def test_every_result_is_read_with_its_reason() -> None:
    assert {case.test: (case.outcome, case.text) for case in parse_unittest(output(*core()))} == {
        "rocm_sdk.base::test_a": ("passed", ""),
        "rocm_sdk.base::test_b": ("failed", "AssertionError: the layout is another one"),
        "rocm_sdk.base::test_c": ("skipped", "it's no GPU"),
        "rocm_sdk.base::test_d": ("passed", ""),
        "rocm_sdk.base::test_e": ("failed", "AssertionError: 1 == 1"),
        "rocm_sdk.base::test_f": ("passed", ""),
        "rocm_sdk.base::test_g": ("failed", "OSError: libx.so: cannot open"),
        "rocm_sdk.base::test_h": ("passed", ""),
    }


def test_a_class_that_cannot_be_set_up_has_failed() -> None:
    passed, failed = parse_unittest(output(CoreTest("test_a"), BrokenTest("test_never")))
    assert passed.outcome == "passed"
    assert failed.test.endswith("::setUpClass")
    assert (failed.outcome, failed.text) == ("failed", "ValueError: no folder")


def test_an_unexpected_success_has_failed() -> None:
    said = "test_x (m.core_test.T.test_x) ... unexpected success\n\n" + "-" * 70 + "\nRan 1 test in 0.0s\n"
    (case,) = parse_unittest(said)
    assert (case.test, case.outcome) == ("rocm_sdk.core::test_x", "failed")
    assert case.text == "... unexpected success"


@pytest.mark.parametrize("lines", range(3, 30, 4))
def test_output_that_breaks_off_is_no_result(lines: int) -> None:
    broken = "\n".join(output(*core()).splitlines()[:lines])
    with pytest.raises(CheckError, match="without one total"):
        parse_unittest(broken)


def test_tests_that_are_not_listed_are_no_result() -> None:
    with pytest.raises(CheckError, match="report that 31 ran, and list 0"):
        parse_unittest("-" * 70 + "\nRan 31 tests in 1.5s\n\nOK\n")


@pytest.mark.parametrize("ran", [7, 8])
def test_skipped_tests_are_counted_or_not(ran: int) -> None:
    """Python 3.12.1 does not, others do."""
    said = re.sub(r"Ran \d tests", f"Ran {ran} tests", output(*core()))
    assert len(parse_unittest(said)) == 8
    with pytest.raises(CheckError, match="report that 6 ran, and list 8"):
        parse_unittest(said.replace(f"Ran {ran}", "Ran 6"))
