import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from core import process
from core.env import installer
from core.errors import CheckError, EnvironmentSetupError, MissingInputError, RocmError
from core.packages import Offer, resolution
from core.packages.resolution import Resolved
from core.packages.sources import SourceOptions
from core.run import records
from pytorch_build.context import context
from pytorch_build.sdk import RocmOptions
from pytorch_build.test import gpus, installation
from pytorch_build.test.installation import planned, wheels_of
from pytorch_build.test.plugin import Line, Session
from pytorch_build.test.reports import incomplete
from pytorch_build.verbs import test_smoke
from pytorch_build.verbs.test_smoke import SmokeOptions
from pytorch_build.verbs.test_smoke import test_run as smoke
from tests.unit.pytorch_build.conftest import ROCM

FAMILY = "gfx94X-dcgpu"
PASSES = "def test_one():\n    assert True\n"
FAILS = "def test_two():\n    assert False\n"
WHEEL = Offer(name="n", distribution="numpy", version="2", url="https://own/n", sha256="b" * 64)
NUMPY = Resolved(name="numpy", version="2", files=(WHEEL,))
SKIPS = "import pytest\ndef test_three():\n    pytest.skip('torch sees no GPU in this machine')\n"


@pytest.fixture(autouse=True)
def _machine(prepared: list[Any], monkeypatch: pytest.MonkeyPatch) -> None:
    assert prepared == []
    monkeypatch.setattr(gpus, "this_machine", gpus.Machine)
    monkeypatch.setattr(installation, "detect", lambda: ())


@pytest.fixture
def tests(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "smoke"
    folder.mkdir()
    (folder / "pytest.ini").write_text("[pytest]\naddopts = -ra\n")
    (folder / "test_it.py").write_text(PASSES)
    monkeypatch.setattr(test_smoke, "SMOKE_TESTS", folder)
    return folder


@pytest.fixture
def target(run: Any, monkeypatch: pytest.MonkeyPatch) -> Any:
    interpreter = run.target(executable=Path(sys.executable))
    monkeypatch.setattr(test_smoke, "require", lambda _python: interpreter)
    return interpreter


def put_page(run: Any, *files: Any, group: str = FAMILY) -> None:
    lines = [f'<a href="{one.name}#sha256={one.sha256}">{one.name}</a>' for one in files]
    run.store.put_bytes(f"local-linux/python/{group}/index.html", "\n".join(lines).encode())


@pytest.fixture
def torch(run: Any) -> Any:
    run.put_lock()
    file = run.built("torch", gpu_family="cpu")
    put_page(run, file, group="cpu")
    return file


def totals(run: Any) -> Any:
    record = records.read(run.store, run.common().outputs, "cpu", "test_smoke-sample-cp312")
    return record and record.details["tests"]


@pytest.mark.processes
@pytest.mark.usefixtures("target")
def test_passes_are_recorded(run: Any, tests: Path, torch: Any, capsys: pytest.CaptureFixture[str]) -> None:
    # the tests know what is recorded
    text = "import json, os\ndef test_it():\n"
    text += f"    assert json.loads(os.environ['SMOKE_EXPECT']) == {{'torch': {torch.version!r}}}\n"
    tests.joinpath("test_it.py").write_text(text)
    tests.joinpath("test_more.py").write_text(SKIPS)
    smoke(run.context("cpu"), SmokeOptions())
    clean = dict.fromkeys(("failures", "errors", "unexplained"), 0)
    assert totals(run) == {**clean, "tests": 2, "existing": 2, "skipped": 1}
    record = records.read(run.store, run.common().outputs, "cpu", "test_smoke-sample-cp312")
    report = record.details["report"] if record else {}
    assert run.store.digest("local-linux/reports/cpu/smoke-sample-cp312.xml") == report["sha256"]
    smoke(run.context("cpu"), SmokeOptions())
    assert "test_smoke: unchanged" in capsys.readouterr().err
    tests.joinpath("test_more.py").write_text(FAILS)
    with pytest.raises(CheckError, match=r"1 of 2 failed"):
        smoke(run.context("cpu"), SmokeOptions())
    # its report is in the place of the success's, which is no word on it any more
    tests.joinpath("test_more.py").write_text(SKIPS)
    smoke(run.context("cpu"), SmokeOptions())
    last = records.read(run.store, run.common().outputs, "cpu", "test_smoke-sample-cp312")
    assert last
    assert run.store.digest(last.details["report"]["key"]) == last.details["report"]["sha256"]


@pytest.mark.processes
@pytest.mark.usefixtures("target", "torch")
@pytest.mark.parametrize(
    ("text", "arguments", "words"),
    [
        (PASSES + FAILS, (), "1 of 2 failed"),
        (SKIPS, (), "all 1 tests were skipped"),
        (PASSES, ("-k", "nothing"), "no test ran"),
        (PASSES, ("--setup-only",), "no test ran"),
        (PASSES, ("--co",), "no test ran"),
        (PASSES, ("--no-such-option",), "ended before any test ran"),
        ("import os\ndef test_dies():\n    os._exit(3)\n", (), "test_dies crashed"),
    ],
)
def test_what_is_no_pass_is_an_error(
    run: Any, tests: Path, text: str, arguments: tuple[str, ...], words: str
) -> None:
    tests.joinpath("test_it.py").write_text(text)
    with pytest.raises(CheckError, match=words):
        smoke(run.context("cpu"), SmokeOptions(pytest_arguments=arguments))
    assert totals(run) is None
    failed = records.read(run.store, run.common().outputs, "cpu", "test_smoke-sample-cp312.failed")
    assert failed is not None
    assert failed.exit_code == 9
    # who compares runs knows by records alone what failed
    assert len(failed.details.get("failing", ())) == ("failed" in words or "crashed" in words)
    if "failed" in words or "skipped" in words:
        assert run.store.find("local-linux/reports/cpu/smoke-sample-cp312.xml")


LAZY = "import pytest\ndef pytest_collection_modifyitems(items):\n"
LAZY += "    for one in items[1:]:\n        one.add_marker(pytest.mark.skip(reason='too slow'))\n"


@pytest.mark.processes
@pytest.mark.usefixtures("target", "torch")
@pytest.mark.parametrize(
    ("words", "why"),
    [("-vkone", "1 of 3 tests ran"), ("-plazy", "2 of 3 tests were skipped or tried again")],
)
def test_a_part_of_the_tests_is_one_whatever_chose_it(run: Any, tests: Path, words: str, why: str) -> None:
    tests.joinpath("test_it.py").write_text(f"{PASSES}def test_two(): pass\ndef test_three(): pass\n")
    tests.joinpath("lazy.py").write_text(LAZY)
    smoke(run.context("cpu"), SmokeOptions(pytest_arguments=(words, f"-opythonpath={tests}")))
    made = records.read(run.store, run.common().outputs, "cpu", "test_smoke-sample-cp312")
    assert made is not None
    assert incomplete(made.details).startswith(why)
    smoke(run.context("cpu"), SmokeOptions())
    assert totals(run)["existing"] == totals(run)["tests"] == 3


@pytest.mark.processes
@pytest.mark.usefixtures("target", "torch")
def test_tests_of_a_file_that_cannot_be_collected_exist_too(run: Any, tests: Path) -> None:
    tests.joinpath("test_torn.py").write_text(f"import nowhere\n{PASSES}")
    smoke(run.context("cpu"), SmokeOptions(pytest_arguments=(f"--ignore={tests / 'test_torn.py'}",)))
    assert "existing" not in totals(run)


@pytest.mark.processes
@pytest.mark.usefixtures("target", "torch", "tests")
def test_an_environment_filled_by_hand_is_no_tested_run(run: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    ran: list[int] = []

    def pytests(*_: Any) -> dict[str, Any]:
        ran.append(1)
        return {}

    monkeypatch.setattr(test_smoke, "_pytest", pytests)
    for install in (False, False, True):
        smoke(run.context("cpu"), SmokeOptions(install=install))
    assert len(ran) == 3
    # wheels that do not fit together are an error
    said = "The package `torch` requires `triton==3.6.0`, but it's not installed"
    monkeypatch.setattr(installer, "missing_dependencies", lambda _target: (said,))
    with pytest.raises(CheckError, match=r"triton==3\.6\.0"):
        smoke(run.context("cpu", force=True), SmokeOptions())


@pytest.mark.usefixtures("target", "tests")
def test_the_page_of_a_run_that_others_read_must_list_what_is_recorded(run: Any) -> None:
    run.put_lock(run_id="77")
    torch = run.built("torch", gpu_family="cpu", run_id="77")
    with pytest.raises(MissingInputError, match="it answers 404"):
        smoke(run.context("cpu", run_id="77"), SmokeOptions())
    page = f'<a href="{torch.name}#sha256={"0" * 64}">{torch.name}</a>'
    run.store.put_bytes("77-linux/python/cpu/index.html", page.encode())
    with pytest.raises(MissingInputError, match=r"lacks torch-.*another digest") as caught:
        smoke(run.context("cpu", run_id="77"), SmokeOptions())
    assert "nox -s index" in caught.value.hint


def test_a_runs_wheels_are_those_of_its_ref_python_and_rocm(run: Any) -> None:
    run.put_lock()
    torch, audio = run.built("torch"), run.built("audio")
    run.built("torch", python="cp313")
    run.built("torch", gpu_family="cpu")
    ours = run.rocm()
    run.rocm("7.1.0")
    found = wheels_of(run.context(), run.target())
    assert {one.name for one in found} == {torch.name, audio.name, *(one.name for one in ours)}
    run.put_lock(run.lock(torch_ref="nightly"))
    with pytest.raises(MissingInputError, match="no wheels of nightly") as caught:
        wheels_of(run.context(ref="nightly"), run.target())
    assert "nox -s build_torch" in caught.value.hint
    # failed builds offer nothing
    record = run.record("build_torch", torch, torch_ref="sample", python="cp312", gpu_family="gfx950-dcgpu")
    failed = record.model_copy(update={"status": "failed"})
    records.write(run.store, run.common().outputs, "gfx950-dcgpu", failed)
    run.store.delete(run.common().outputs.record_key("gfx950-dcgpu", record.name))
    with pytest.raises(MissingInputError):
        wheels_of(run.context("gfx950-dcgpu"), run.target())


ALL = "gfx110X-all"
KINDS = ("rocm-sdk", "amd-torch", "amd-torchvision")
LIBRARIES = ("rocm-sdk-core", "rocm-sdk-libraries", "rocm-sdk-devel")


def put_split(run: Any, *devices: str) -> None:
    """Put split packages of ROCm and a torch into the run, with device packages of these names."""
    run.put_lock()
    torch = run.built("torch", gpu_family=ALL)
    rocm = [one for one in devices if one.startswith("rocm")]
    ours = [run.wheel(one, ROCM, "py3-none-linux_x86_64") for one in (*LIBRARIES, *rocm)]
    more = [run.wheel(one, torch.version) for one in devices if one not in rocm]
    cell = {"torch_ref": "sample", "python": "cp312", "gpu_family": ALL}
    put = [run.publish(path, group=ALL) for path in (*ours, run.sdist("rocm", ROCM), *more)]
    run.record("build_torch", torch, *put[len(ours) + 1 :], group=ALL, **cell)
    run.record("build_rocm", *put[: len(ours) + 1], group=ALL)


@pytest.mark.parametrize(
    ("here", "wanted"),
    [
        # built for two targets of the family's four
        ((), ("gfx1100", "gfx1101")),
        (("gfx1101", "gfx1030"), ("gfx1101",)),
    ],
)
def test_device_packages_are_those_of_this_machine_or_of_the_family(
    run: Any, monkeypatch: pytest.MonkeyPatch, here: tuple[str, ...], wanted: tuple[str, ...]
) -> None:
    monkeypatch.setattr(installation, "detect", lambda: here)
    names = [f"{kind}-device-{one}" for kind in KINDS for one in ("gfx1100", "gfx1101", "gfx942")]
    put_split(run, *names, "amd-torch-device-gfx11", "amd-torch-device-gfx12-0")
    found = wheels_of(run.context(ALL), run.target())
    installed = {one.distribution for one in found}
    needed = {f"{kind}-device-{one}" for kind in KINDS for one in wanted}
    assert installed == {"torch", "rocm", *LIBRARIES, *needed, "amd-torch-device-gfx11"}
    _, ours = calls_of(run, run.context(ALL))
    assert dict(ours.env) == {"ROCM_SDK_TARGET_FAMILY": wanted[0]}


@pytest.mark.processes
@pytest.mark.usefixtures("target", "tests")
def test_each_family_of_a_group_has_its_record_and_report(run: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    group = "gfx942-gfx1100"
    run.put_lock()
    names = [f"{kind}-device-{gpu}" for kind in KINDS[:2] for gpu in ("gfx942", "gfx1100")]
    torch = run.built("torch", gpu_family=group)
    wheels = [
        run.wheel(one, ROCM if one.startswith("rocm") else torch.version) for one in (*LIBRARIES, *names)
    ]
    put = [run.publish(wheel, group=group) for wheel in wheels]
    cell = {"torch_ref": "sample", "python": "cp312", "gpu_family": "gfx942;gfx1100"}
    run.record("build_torch", torch, *put, group=group, **cell)
    put_page(run, torch, *put, group=group)
    monkeypatch.setattr(installation, "require_device_code", lambda *_: None)
    for family in ("gfx942", "gfx1100"):
        chosen = context(run.common(gpu_family=family), group=group)
        smoke(chosen, SmokeOptions(allow_no_gpu=True))
        record = records.read(run.store, run.common().outputs, group, f"test_smoke-sample-cp312-{family}")
        assert record is not None
        installed = {
            name.split("-")[0].rpartition("_")[2] for name in record.inputs["files"] if "_device_" in name
        }
        assert installed == {family}
        assert run.store.find(f"local-linux/reports/{group}/smoke-sample-cp312-{family}.xml")


@pytest.mark.parametrize(
    ("here", "put", "words"),
    [
        (("gfx1103",), "rocm-sdk-device-gfx1100", r"no device code of ROCm .* for gfx1103 .*gfx1100"),
        ((), "rocm-sdk-device-gfx1100", r"for gfx1101, gfx1102, gfx1103"),
        ((), f"rocm-sdk-libraries-{ALL.lower()}", "both layouts"),
    ],
)
def test_what_a_run_lacks_is_told_before_anything_is_installed(
    run: Any, monkeypatch: pytest.MonkeyPatch, here: tuple[str, ...], put: str, words: str
) -> None:
    monkeypatch.setattr(installation, "detect", lambda: here)
    put_split(run, put)
    with pytest.raises((MissingInputError, RocmError), match=words) as caught:
        wheels_of(run.context(ALL), run.target())
    assert caught.value.hint


def calls_of(run: Any, chosen: Any, **rocm: Any) -> list[Any]:
    options = RocmOptions(source=SourceOptions(prefix="--rocm-", **rocm))
    what = installation.tested(chosen, run.target(), SourceOptions(), options)
    with planned(chosen, run.target(), what, tools=[installer.Install(requirements=("pytest",))]) as (
        calls,
        _,
    ):
        return list(calls)


def test_recorded_files_are_installed_by_digest_alone(run: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[Any] = []

    def resolve(one: Any) -> Any:
        asked.append(one)
        return (NUMPY,)

    monkeypatch.setattr(resolution, "resolve", resolve)
    run.put_lock()
    run.built("torch")
    path = run.wheel("torchaudio", "2.10.0", requires=["numpy>=2", "torch==2.10.0", "x; extra == 'y'"])
    run.record("build_audio", run.publish(path), torch_ref="sample", python="cp312", gpu_family=FAMILY)
    run.rocm()
    found = wheels_of(run.context(), run.target())
    tools, theirs, ours = calls_of(run, run.context())
    assert tools.requirements == ("pytest",)
    assert ours.hashed
    assert not ours.dependencies
    assert ours.sources.no_index
    assert ours.sources.find_links[0].startswith("http://127.0.0.1:")
    assert ours.config_settings == (f"gpu-family={FAMILY}",)
    lines = ours.files[0].read_text().splitlines()
    assert lines == sorted(f"{one.distribution}=={one.version} --hash=sha256:{one.sha256}" for one in found)
    assert theirs.files[0].read_text() == f"numpy==2 --hash=sha256:{'b' * 64}\n"
    assert theirs.sources is None
    assert asked[0].requirements == ("numpy>=2",)
    assert {"torch", "rocm", "rocm-sdk-core"} < set(asked[0].excludes)


@pytest.mark.parametrize("layout", ["split", "unsplit"])
def test_rocm_from_elsewhere_has_the_layout(run: Any, layout: str, tmp_path: Path, make_wheel: Any) -> None:
    run.put_lock()
    torch = run.built("torch")
    record = run.record("build_torch", torch, torch_ref="sample", python="cp312")
    record = record.model_copy(update={"inputs": {"rocm": ["7.1.0", layout, "https://host/whl-next/"]}})
    records.write(run.store, run.common().outputs, FAMILY, record)
    names = ["rocm-sdk-libraries", "rocm-sdk-device-gfx942"]
    for name in ("rocm-sdk-core", *(names if layout == "split" else [f"{names[0]}-{FAMILY.lower()}"])):
        make_wheel(tmp_path / "rocm", name, "7.1.0")
    (tmp_path / "rocm" / "rocm-7.1.0.tar.gz").write_bytes(b"sdist")
    _, ours, rocm = calls_of(run, run.context(), find_links=(str(tmp_path / "rocm"),))
    assert "torch" in ours.files[0].read_text()
    pinned = rocm.files[0].read_text()
    assert ("rocm-sdk-device-gfx942==7.1.0 --hash" in pinned) is (layout == "split")
    assert dict(rocm.env) == {"ROCM_SDK_TARGET_FAMILY": "gfx942" if layout == "split" else FAMILY}


def test_a_prebuilt_torch_is_resolved_with_others(run: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    torch = replace(NUMPY, name="torch", version="2.13.0")
    monkeypatch.setattr(resolution, "resolve", lambda _: (torch,))
    run.put_lock()
    chosen = run.context("cpu")
    prebuilt = replace(chosen.ref.projects["torch"], prebuilt="torch==2.13.0")
    chosen = replace(chosen, ref=replace(chosen.ref, projects={"torch": prebuilt}))
    run.built("audio", gpu_family="cpu")
    _, theirs, ours = calls_of(run, chosen)
    assert theirs.files[0].read_text().startswith("torch==2.13.0 --hash")
    assert ours.files[0].read_text().startswith("torchaudio==")
    assert dict(ours.env) == {}


def test_sources_that_are_named_take_the_place_of_the_run(
    run: Any, tmp_path: Path, make_wheel: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(resolution, "resolve", lambda _: (NUMPY,))
    for version in ("2.10.0", "2.9.0"):
        make_wheel(tmp_path / "links", "torch", version, fields=[("Requires-Dist", "numpy")])
    named = SourceOptions(find_links=(str(tmp_path / "links"),))

    def tested(**changes: Any) -> installation.Tested:
        options = replace(named, **changes)
        return installation.tested(run.context("cpu"), run.target(), options, RocmOptions())

    assert [one.version for one in tested().files] == ["2.10.0"]
    assert (tested().words, tested().others) == (str(tmp_path / "links"), ("numpy",))
    assert [one.version for one in tested(version="2.9.0").files] == ["2.9.0"]
    with pytest.raises(EnvironmentSetupError, match=r"no torch==3"):
        tested(version="3")
    (tmp_path / "none").mkdir()
    with pytest.raises(MissingInputError, match=r"no torch for Python 3\.12 at"):
        tested(find_links=(str(tmp_path / "none"),))


@pytest.mark.usefixtures("target")
def test_wheels_for_a_gpu_are_not_passed_without_one(run: Any) -> None:
    chosen = run.context("gfx110X-all", ref="nightly")
    with pytest.raises(CheckError, match="no GPU driver is loaded") as caught:
        smoke(chosen, SmokeOptions())
    assert "--allow-no-gpu" in caught.value.hint
    # allowed, the run's wheels are needed next
    run.put_lock(run.lock(torch_ref="nightly"))
    with pytest.raises(MissingInputError):
        smoke(chosen, SmokeOptions(allow_no_gpu=True))


def machine(*targets: str, vendor: Any = "amd") -> gpus.Machine:
    return gpus.Machine(gpus=tuple(gpus.Gpu(target=one, uuid="GPU-1") for one in targets), vendor=vendor)


NVIDIA = machine("sm_90", vendor="nvidia")


@pytest.mark.parametrize(
    ("here", "family", "other", "told"),
    [
        (gpus.Machine(), "cpu", False, {"SMOKE_GPU": None}),
        (NVIDIA, "cpu", False, {"SMOKE_GPU": None}),
        (NVIDIA, "cpu", True, {"SMOKE_GPU": "sm_90", "CUDA_VISIBLE_DEVICES": "GPU-1"}),
        (machine("gfx942", "gfx942"), FAMILY, False, {"SMOKE_GPU": "gfx942", "HIP_VISIBLE_DEVICES": "0"}),
    ],
)
@pytest.mark.usefixtures("target", "tests")
def test_the_tests_are_told_which_gpu_torch_must_see(
    run: Any, monkeypatch: pytest.MonkeyPatch, here: gpus.Machine, family: str, told: Any, *, other: bool
) -> None:
    chosen = run.context(family, ref="nightly")
    chosen = replace(chosen, ref=replace(chosen.ref, projects={}))  # of which none is prebuilt
    monkeypatch.setattr(gpus, "this_machine", lambda: here)
    monkeypatch.setattr(installation, "wheels_of", lambda *_: [run.built("torch", gpu_family=family)])
    seen: dict[str, str] = {}
    begun = Line(kind="session")
    passed = Line(kind="test", test="test_it.py::test_one")

    def ran(*words: Any) -> Any:
        seen.update(words[3])
        return Session(began=begun, collected=(passed.test,), results=(passed,), end=begun), process.Ended(
            returncode=0
        )

    monkeypatch.setattr(test_smoke, "_session", ran)
    nothing = process.Completed(returncode=0, stdout="{}", stderr="")
    monkeypatch.setattr(process, "capture", lambda *_, **__: nothing)
    smoke(chosen, SmokeOptions(other_gpu=other, install=False))
    assert {name: seen.get(name) for name in told} == told


NO_GPU = """
class cuda:
    @staticmethod
    def is_available():
        return False
__version__ = "2.10"
"""
ON_GPU = "import pytest\n@pytest.mark.gpu\ndef test_gpu():\n    pass\ndef test_other():\n    pass\n"


@pytest.mark.processes
@pytest.mark.parametrize(
    ("gpu", "outcome", "said"),
    [
        ("", "1 passed, 1 skipped", "torch sees no GPU in this machine"),
        ("gfx942", "1 passed, 1 error", "torch sees no GPU, and this machine has gfx942"),
    ],
)
def test_a_torch_that_sees_no_gpu_there_is_no_skip(tmp_path: Path, gpu: str, outcome: str, said: str) -> None:
    for name in ("conftest.py", "pytest.ini"):
        (tmp_path / name).write_text((test_smoke.SMOKE_TESTS / name).read_text())
    (tmp_path / "torch.py").write_text(NO_GPU)
    (tmp_path / "test_it.py").write_text(ON_GPU)
    env = process.inherited(PYTHONPATH=str(tmp_path), SMOKE_GPU=gpu or None, SMOKE_EXPECT='{"torch": "2.10"}')
    argv: list[str | Path] = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "-rs", tmp_path]
    done = process.capture(argv, cwd=tmp_path, env=env, check=False)
    assert outcome in done.stdout
    assert said in done.stdout
