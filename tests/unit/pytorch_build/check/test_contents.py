from dataclasses import replace
from pathlib import Path

import pytest
from packaging.tags import parse_tag
from packaging.version import Version

from core.binaries.elf import ElfFacts
from core.cli.options import Common
from core.families import family
from pytorch_build.check import Expectation, Finding, Policy, SizeLimit, WheelView, contents, load_policy
from pytorch_build.context import Context
from pytorch_build.refs.torch_refs import torch_ref
from tests.kit.runs import write_record
from tests.kit.views import wheel_view

HOST_CODE = ElfFacts(machine="EM_X86_64", kind="ET_DYN", stack="RW")
GPU_CODE = ElfFacts(machine="EM_AMDGPU", kind="ET_DYN")
EXTENSION = "torch/_C.cpython-312-x86_64-linux-gnu.so"
AUDIO = "torchaudio-2.10.0-cp312-cp312-linux_x86_64.whl"
SAMPLE = "torch-2.10.0a0+cpu.sample-cp312-cp312-linux_x86_64.whl"
PORTABLE = "torch-2.10.0a0+cpu-py3-none-any.whl"


def check_contents(view: WheelView, policy: Policy | None = None, *, label: str = "") -> list[Finding]:
    """Return what is found in the contents of a torch wheel."""
    expectation = Expectation(distribution="torch", version="1", local_label=label)
    return [*contents.check(view, expectation, policy or load_policy())]


def check_archive(view: WheelView) -> list[Finding]:
    """Return what is found in a wheel that nothing is expected of."""
    return [*contents.check_archive(view, None)]


def severities(findings: list[Finding]) -> list[str]:
    """Return the severity of each finding."""
    return [finding.severity for finding in findings]


# Members


@pytest.mark.parametrize(
    "member",
    [
        "torch/__init__.py",
        "torch/include/ATen/hip/HIPContext.h",
        "torch/share/cmake/Torch/TorchConfig.cmake",
        "torch/lib/libunwind.a",
        "torch/testing/_internal/common.py",
        "torch/_inductor/codegen/build_tools.py",
        "functorch/__init__.py",
        "torch-2.10.0a0+cpu.dist-info/licenses/home/LICENSE",
    ],
)
def test_accepts_a_member_that_belongs_into_a_wheel(member: str) -> None:
    view = wheel_view(files={member: 10, "torch/version.py": 1})

    assert check_contents(view) == []


@pytest.mark.parametrize(
    ("member", "severity"),
    [
        ("torch/.git/HEAD", "error"),
        (".git", "error"),
        ("torch/__pycache__/x.cpython-312.pyc", "error"),
        ("torch/x.pyc", "error"),
        ("torch/csrc/x.o", "error"),
        ("torch/CMakeFiles/a.txt", "error"),
        ("build/lib/torch/x.py", "error"),
        ("home/me/x.py", "error"),
        ("torch/csrc/x.cpp.prehip", "error"),
        ("torch/x.py.orig", "error"),
        ("torch/csrc/hip/kernel.hip", "warning"),
        ("_rocm_sdk_core/lib/libamdhip64.so.7x", "error"),
        ("rocm_sdk/__init__.py", "error"),
        ("tests/test_torch.py", "error"),
        ("torch/test/assets/a.wav", "warning"),
        ("torch/.netrc", "error"),
    ],
)
def test_finds_a_member_that_does_not_belong_into_a_wheel(member: str, severity: str) -> None:
    view = wheel_view(files={member: 10, "torch/__init__.py": 1})

    findings = [finding for finding in check_contents(view) if member in finding.message]

    assert severities(findings) == [severity]


def test_lets_rocms_wheels_hold_rocm() -> None:
    core = wheel_view(
        "rocm_sdk_core-7.1-py3-none-linux_x86_64.whl", files={"_rocm_sdk_core/lib/x.py": 5, "a.a": 1}
    )

    assert check_contents(core) == []


def test_finds_a_static_library_in_a_wheel_other_than_torch() -> None:
    audio = wheel_view(AUDIO, files={"torchaudio/lib/x.a": 5}, size=500_000)

    assert severities(check_contents(audio)) == ["warning"]


def test_warns_of_a_wheel_that_holds_only_metadata() -> None:
    view = wheel_view(files={"torch-2.10.0a0+cpu.dist-info/METADATA": 10})

    assert severities(check_contents(view)) == ["warning"]


def test_reports_many_members_of_one_kind_once() -> None:
    view = wheel_view(files={f"torch/x{index}.pyc": 1 for index in range(30)})

    (finding,) = check_contents(view)

    assert "30" in finding.message


def test_finds_libraries_that_hold_no_code() -> None:
    view = wheel_view(
        files={
            "torch/empty.so": 0,
            "torch/text.so.1": 900,
            "torch/library.so": HOST_CODE,
            "torch/empty.dll": 0,
            "torch/empty.sock": 0,
        }
    )

    findings = check_contents(view)

    assert severities(findings) == ["error"] * 3
    assert [finding.where for finding in findings] == ["torch/empty.dll", "torch/empty.so", "torch/text.so.1"]


# Sizes

LIMITS = Policy(
    exempt_labels=("sample",), sizes={"torch": SizeLimit(minimum=1000, warn_above=5000, error_above=9000)}
)


@pytest.mark.parametrize(
    ("size", "expected_severities"),
    [(999, ["error"]), (1000, []), (5000, []), (5001, ["warning"]), (9001, ["error"])],
)
def test_compares_the_size_with_its_limits(size: int, expected_severities: list[str]) -> None:
    view = wheel_view(files={"a.py": 1}, size=size)

    assert severities(check_contents(view, LIMITS)) == expected_severities


@pytest.mark.parametrize(
    ("filename", "label", "expected_severities"),
    [
        pytest.param(SAMPLE, "", [], id="miniature by its version"),
        pytest.param(SAMPLE.replace("+cpu.sample", "+cpu"), "sample", [], id="miniature by its label"),
        pytest.param(SAMPLE.replace("sample", "samples"), "", ["error"], id="other label"),
        pytest.param(AUDIO, "", [], id="no limits"),
    ],
)
def test_lets_miniatures_be_small(filename: str, label: str, expected_severities: list[str]) -> None:
    view = wheel_view(filename, files={"a.py": 1}, size=5)

    assert severities(check_contents(view, LIMITS, label=label)) == expected_severities


# Names, metadata and tags


def sound_view() -> WheelView:
    """Return a wheel without a fault."""
    return wheel_view(files={EXTENSION: HOST_CODE, "torch/x.py": 10}, requires=["rocm[libraries]==7.1"])


def with_metadata(view: WheelView, *, name: str = "torch", version: str = "2.10.0a0+cpu") -> WheelView:
    """Return a wheel whose METADATA names another distribution or version."""
    assert view.metadata is not None
    return replace(view, metadata=replace(view.metadata, name=name, version=Version(version)))


def with_info(
    view: WheelView,
    *,
    tags: frozenset[str] = frozenset({"cp312-cp312-linux_x86_64"}),
    build: str = "",
    wheel_version: str = "1.0",
) -> WheelView:
    """Return a wheel whose WHEEL file says something else."""
    assert view.info is not None
    return replace(view, info=replace(view.info, tags=tags, build=build, wheel_version=wheel_version))


def test_finds_nothing_in_a_sound_wheel() -> None:
    assert check_archive(sound_view()) == []


def test_finds_nothing_where_metadata_cannot_be_read() -> None:
    # Its own finding tells that it cannot.
    assert check_archive(replace(sound_view(), metadata=None, info=None)) == []


def test_accepts_a_build_tag() -> None:
    view = wheel_view("torch-2-1-cp312-cp312-linux_x86_64.whl", files={EXTENSION: HOST_CODE})

    assert check_archive(view) == []


@pytest.mark.parametrize(
    ("view", "severity", "subject"),
    [
        pytest.param(with_metadata(sound_view(), name="pytorch"), "error", "pytorch", id="name"),
        pytest.param(with_metadata(sound_view(), version="2.10.0"), "error", "2.10.0,", id="version"),
        pytest.param(
            with_info(sound_view(), tags=frozenset({"cp311-cp311-linux_x86_64"})),
            "error",
            "cp312-cp312-linux_x86_64",
            id="tag",
        ),
        pytest.param(
            with_info(sound_view(), tags=frozenset()), "error", "cp312-cp312-linux_x86_64", id="no tag"
        ),
        pytest.param(with_info(sound_view(), build="3"), "error", "'3'", id="build tag"),
        pytest.param(with_info(sound_view(), wheel_version="2.0"), "error", "2.0", id="format version"),
    ],
)
def test_finds_a_file_name_that_the_wheel_contradicts(view: WheelView, severity: str, subject: str) -> None:
    (finding,) = check_archive(view)

    assert finding.severity == severity
    assert subject in finding.message


def test_warns_of_a_wheel_without_a_licence() -> None:
    view = sound_view()
    assert view.metadata is not None

    (finding,) = check_archive(replace(view, metadata=replace(view.metadata, license="")))

    assert finding.severity == "warning"
    assert "licence" in finding.message


@pytest.mark.parametrize("requirement", ["a ==", "b @ https://example.com/b.whl"])
def test_finds_a_requirement_that_installers_or_indexes_refuse(requirement: str) -> None:
    (finding,) = check_archive(wheel_view(files={EXTENSION: HOST_CODE}, requires=[requirement]))

    assert finding.severity == "error"
    assert requirement in finding.message


@pytest.mark.parametrize(
    ("view", "expected_severities"),
    [
        pytest.param(
            wheel_view(PORTABLE, files={"a/b.so": HOST_CODE}, is_pure=True),
            ["error"],
            id="library for any platform",
        ),
        pytest.param(
            wheel_view(PORTABLE, files={"a/b.dll": 5}, is_pure=True), ["error"], id="DLL for any platform"
        ),
        pytest.param(
            wheel_view(files={EXTENSION: HOST_CODE}, is_pure=True), ["warning"], id="library in a pure wheel"
        ),
        pytest.param(wheel_view(files={"a.py": 1}), ["warning"], id="platform without code"),
        pytest.param(
            wheel_view(PORTABLE, files={"a.py": 1, "kernel.hsaco": GPU_CODE}, is_pure=True),
            [],
            id="GPU code for any platform",
        ),
    ],
)
def test_compares_compiled_files_with_the_platform(view: WheelView, expected_severities: list[str]) -> None:
    assert severities(check_archive(view)) == expected_severities


@pytest.mark.parametrize(
    ("member", "filename", "wrong_tag"),
    [
        ("a.cpython-311-x86_64-linux-gnu.so", "torch-2-cp312-cp312-linux_x86_64.whl", "cp311"),
        ("a.cpython-313t-x86_64-linux-gnu.so", "torch-2-cp313-cp313t-linux_x86_64.whl", None),
        ("a.cpython-313-x86_64-linux-gnu.so", "torch-2-cp313-cp313t-linux_x86_64.whl", "cp313,"),
        ("a.cp312-win_amd64.pyd", "torch-2-cp312-cp312-win_amd64.whl", None),
        ("a.cp311-win_amd64.pyd", "torch-2-cp312-cp312-win_amd64.whl", "cp311"),
        ("a.abi3.so", "torch-2-cp39-abi3-linux_x86_64.whl", None),
        ("a.cpython-311-x86_64-linux-gnu.so", "rocm_sdk_core-2-py3-none-linux_x86_64.whl", None),
    ],
)
def test_finds_an_extension_module_for_another_python(
    member: str, filename: str, wrong_tag: str | None
) -> None:
    messages = [finding.message for finding in check_archive(wheel_view(filename, files={member: HOST_CODE}))]

    if wrong_tag is None:
        assert messages == []
    else:
        assert wrong_tag in messages[0]


# Expectations

ROCM_SUFFIX = "+devrocm7.99.0.dev0.sample"
TORCH_VERSION = f"2.10.0a0{ROCM_SUFFIX}"
TORCH_ROCM = f"torch-{TORCH_VERSION}-cp312-cp312-linux_x86_64.whl"


def expect(
    *,
    distribution: str = "torch",
    version: str = TORCH_VERSION,
    python_tag: str = "cp312",
    requires: tuple[str, ...] = (),
) -> Expectation:
    """Return what is expected of a torch wheel."""
    return Expectation(distribution=distribution, version=version, python_tag=python_tag, requires=requires)


def unmet_expectations(view: WheelView, expectation: Expectation) -> list[str]:
    """Return the messages of what a wheel is not, each of which is an error."""
    findings = [
        finding for finding in contents.check_archive(view, expectation) if finding.check == "expected"
    ]
    assert severities(findings) == ["error"] * len(findings)
    return [finding.message for finding in findings]


@pytest.mark.parametrize(
    "requires",
    [
        pytest.param([], id="none"),
        pytest.param(["rocm==7.1"], id="no extra"),
        pytest.param(["rocm[libraries]==7.1.1"], id="other version"),
        pytest.param(["rocm[libraries]>=7.1"], id="any later version"),
        pytest.param(["rocm[libraries]==7.1; extra == 'gpu'"], id="under a condition"),
        pytest.param(["rocm[", "torch"], id="unreadable"),
    ],
)
def test_finds_an_expected_requirement_that_is_missing(requires: list[str]) -> None:
    view = wheel_view(TORCH_ROCM, requires=requires)

    (message,) = unmet_expectations(view, expect(requires=("rocm[libraries]==7.1",)))

    assert "rocm[libraries]==7.1" in message


def test_compares_requirements_by_their_meaning() -> None:
    view = wheel_view(
        TORCH_ROCM, requires=["rocm[libraries,devel] ==7.99.0.dev0+sample", "triton==3.6.0", "numpy"]
    )
    requires = ("rocm[libraries]==7.99.0.dev0+sample", "triton==3.6.0")

    assert unmet_expectations(view, expect(requires=requires)) == []


def test_compares_versions_by_their_meaning() -> None:
    view = wheel_view(TORCH_ROCM)

    assert unmet_expectations(view, expect(version=TORCH_VERSION.replace(".sample", "-sample"))) == []


@pytest.mark.parametrize(
    ("expectation", "subject"),
    [
        (expect(version="2.10.0a0"), f"{TORCH_VERSION}; 2.10.0a0 "),
        (expect(distribution="Torch_Audio"), "Torch_Audio"),
        (expect(python_tag="cp313"), "cp313"),
    ],
    ids=["version", "distribution", "Python"],
)
def test_finds_a_wheel_that_is_not_the_expected_one(expectation: Expectation, subject: str) -> None:
    (message,) = unmet_expectations(wheel_view(TORCH_ROCM), expectation)

    assert subject in message


@pytest.mark.parametrize(
    ("tag", "python", "fits"),
    [
        ("cp312-cp312-linux_x86_64", "cp312", True),
        ("cp312-cp312-linux_x86_64", "cp312-cp312", True),
        ("cp313-cp313t-linux_x86_64", "cp313-cp313t", True),
        ("cp313-cp313-linux_x86_64", "cp313-cp313t", False),
        ("cp313-cp313t-linux_x86_64", "cp313t", True),
        ("cp313-cp313t-linux_x86_64", "cp313", False),
        ("cp39-abi3-linux_x86_64", "cp312", True),
        ("cp313-abi3-linux_x86_64", "cp312", False),
        ("cp39-abi3-linux_x86_64", "cp313-cp313t", False),
        ("py3-none-any", "cp312", True),
        ("py2-none-any", "cp312", False),
        ("cp312-none-linux_x86_64", "cp312", True),
    ],
)
def test_knows_which_tags_a_python_takes(tag: str, python: str, *, fits: bool) -> None:
    (parsed_tag,) = parse_tag(tag)

    assert contents.fits(parsed_tag, python) is fits


# Expectations from a run's records

FAMILY = "gfx94X-dcgpu"
ROCM_VERSION = "7.99.0.dev0+sample"


def run_context(folder: Path, gpu_family: str = FAMILY) -> Context:
    """Return the context of a run below a folder that builds the sample."""
    return Context(
        common=Common(root=folder, torch_ref="sample", gpu_family=gpu_family),
        ref=torch_ref("sample"),
        gpu_family=gpu_family,
        gpu_targets=family(gpu_family).targets,
    )


def record_build(context: Context, component: str, version: str, *, ref: str = "sample") -> None:
    """Write the record of a component's build."""
    write_record(
        context.common.open_store(),
        context.common.outputs,
        step=f"build_{component}",
        family=context.gpu_family,
        python="cp312",
        torch_ref=ref,
        inputs={
            "version": version,
            "rocm": [ROCM_VERSION, "unsplit", {}] if context.gpu else None,
            "gpu_targets": list(context.gpu_targets),
        },
    )


def test_expects_nothing_of_a_run_without_builds(tmp_path: Path) -> None:
    assert contents.expectations(run_context(tmp_path)) == {}


def test_expects_no_triton_where_torch_was_built_alone(tmp_path: Path) -> None:
    context = run_context(tmp_path)
    record_build(context, "torch", TORCH_VERSION)

    torch = contents.expectations(context)["torch"]

    assert torch.requires == (f"rocm[libraries]=={ROCM_VERSION}",)


def test_expects_what_was_built_of_a_runs_wheels(tmp_path: Path) -> None:
    context = run_context(tmp_path)
    version = f"{TORCH_VERSION}.dirty.1f3a9c20"
    record_build(context, "torch", version)
    record_build(context, "triton", f"3.6.0{ROCM_SUFFIX}")
    record_build(context, "audio", f"2.10.0a0{ROCM_SUFFIX}")
    record_build(context, "vision", f"0.25.0a0{ROCM_SUFFIX}")
    record_build(context, "apex", f"1.10.0{ROCM_SUFFIX}")

    expectations = contents.expectations(context)

    assert {name: expectation.requires for name, expectation in expectations.items()} == {
        "apex": (),
        "torch": (f"rocm[libraries]=={ROCM_VERSION}", f"triton==3.6.0{ROCM_SUFFIX}"),
        "torchaudio": (f"torch=={version}",),
        "torchvision": (f"torch=={version}",),
        "triton": (),
    }
    assert expectations["torch"].version == version
    assert expectations["torch"].local_label == "sample"
    assert expectations["torch"].gpu_targets == family(FAMILY).targets


def test_expects_no_torch_of_ours_on_a_prebuilt_one(tmp_path: Path) -> None:
    context = run_context(tmp_path, "cpu")
    record_build(context, "audio", "2.10.0a0+cpu.sample")
    record_build(context, "torch", "2.10.0a0+cpu", ref="nightly")

    expectations = contents.expectations(context)

    assert "torch" not in expectations
    assert expectations["torchaudio"].requires == ()
