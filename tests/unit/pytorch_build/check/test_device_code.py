from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import product
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pytorch_build.check import DeviceFacts, Expectation, WheelView, device_code
from pytorch_build.check.bundles import BundleError
from pytorch_build.check.policy import Policy
from tests.kit.binaries import EM_AMDGPU, compressed_bundle, elf_file, offload_bundle
from tests.kit.views import judged_by, wheel_view

POLICY = Policy(device_code=("torch",))


def code_for(*targets: str) -> DeviceFacts:
    """Return the facts of a file with device code for these targets."""
    return DeviceFacts(targets=frozenset(targets))


def check_torch(view: WheelView, *targets: str) -> list[tuple[str, str, str]]:
    """Return severity, member and message of what is found in a torch wheel for these targets."""
    expectation = Expectation(distribution="torch", version="2.10.0a0+cpu", gpu_targets=targets)
    findings = device_code.check(judged_by(view, POLICY, expectation))
    return [(finding.severity, finding.where, finding.message) for finding in findings]


# Reading


def write_library(folder: Path, sections: Mapping[str, bytes]) -> Path:
    """Write a library with these sections."""
    path = folder / "lib.so"
    path.write_bytes(elf_file(sections=sections))
    return path


def test_reads_every_bundle_of_a_library(tmp_path: Path) -> None:
    section = compressed_bundle(offload_bundle("gfx942")).ljust(8192, b"\0") + offload_bundle("gfx1100")
    wrappers_of_two = bytes(48)
    library = write_library(tmp_path, {".hip_fatbin": section, ".hipFatBinSegment": wrappers_of_two})

    facts = device_code.file_facts(library)

    assert facts is not None
    assert len(facts.bundles) == 2
    assert facts.registered_count == 2
    assert facts.targets == {"gfx942", "gfx1100"}


def test_reads_no_bundle_where_the_code_was_moved(tmp_path: Path) -> None:
    library = write_library(tmp_path, {".hip_fatbin": b"\1\2\3", ".rocm_kpack_ref": b"x"})

    assert device_code.file_facts(library) == DeviceFacts(is_split=True)


def test_refuses_a_library_with_a_cut_bundle(tmp_path: Path) -> None:
    library = write_library(tmp_path, {".hip_fatbin": offload_bundle("gfx900")[:300]})

    with pytest.raises(BundleError):
        device_code.file_facts(library)


NOTE = b"amdhsa.target\xd9\x28amdgcn-amd-amdhsa--gfx90a:sramecc+:xnack-\xb0amdhsa.version"


@pytest.mark.parametrize(
    ("filename", "content", "targets"),
    [
        ("plain.hipfb", offload_bundle("gfx906"), {"gfx906"}),
        ("small.hipfb", compressed_bundle(offload_bundle("gfx908")), {"gfx908"}),
        ("kernel.hsaco", elf_file(machine=EM_AMDGPU, note=NOTE), {"gfx90a:sramecc+:xnack-"}),
    ],
)
def test_reads_bare_bundles_and_code_objects(
    tmp_path: Path, filename: str, content: bytes, targets: set[str]
) -> None:
    path = tmp_path / filename
    path.write_bytes(content)

    facts = device_code.file_facts(path)

    assert facts is not None
    assert facts.targets == targets


@pytest.mark.parametrize(
    ("filename", "content"), [("host.so", elf_file()), ("text.py", b"CCO"), ("empty", b"")]
)
def test_reads_no_device_code_from_other_files(tmp_path: Path, filename: str, content: bytes) -> None:
    path = tmp_path / filename
    path.write_bytes(content)

    assert device_code.file_facts(path) is None


# Targets


@pytest.mark.parametrize(
    ("target", "code_targets", "is_covered"),
    [
        ("gfx942", {"gfx942"}, True),
        ("gfx942", {"gfx1100"}, False),
        ("gfx942", set(), False),
        ("gfx942", {"gfx942:xnack+"}, False),
        ("gfx942", {"gfx942:xnack+", "gfx942:xnack-"}, True),
        ("gfx942:xnack+", {"gfx942"}, True),
        ("gfx942:xnack+", {"gfx942:xnack+"}, True),
        ("gfx942:xnack+", {"gfx942:xnack-"}, False),
        ("gfx90a", {"gfx90a:sramecc+:xnack-", "gfx90a:sramecc+:xnack+"}, False),
        ("gfx90a", {"gfx90a:sramecc+", "gfx90a:sramecc-:xnack+", "gfx90a:sramecc-:xnack-"}, True),
        ("gfx90a:sramecc+", {"gfx90a:sramecc+:xnack-", "gfx90a:xnack+"}, True),
        ("gfx942", {"gfx9-4-generic"}, True),
        ("gfx1100", {"gfx9-4-generic"}, False),
        ("gfx1250", {"amdgcnspirv"}, True),
        ("gfx90", {"gfx906"}, False),
    ],
)
def test_covers_a_target_in_every_mode_of_the_gpu(
    target: str, code_targets: set[str], *, is_covered: bool
) -> None:
    assert device_code.is_covered(target, code_targets) is is_covered


@given(
    st.sets(
        st.sampled_from(
            ["gfx90a", "gfx90a:xnack+", "gfx90a:xnack-", "gfx90a:sramecc+", "gfx90a:sramecc-:xnack+"]
        )
    )
)
def test_covers_a_target_if_code_runs_in_each_of_its_modes(code_targets: set[str]) -> None:
    modes = [{f"sramecc{sramecc}", f"xnack{xnack}"} for sramecc, xnack in product("+-", "+-")]

    runs_in_each_mode = all(
        any(device_code.features(target) <= mode for target in code_targets) for mode in modes
    )

    assert device_code.is_covered("gfx90a", code_targets) is runs_in_each_mode


@pytest.mark.parametrize(
    ("code_target", "requested_targets", "is_requested"),
    [
        ("gfx942", ["gfx942"], True),
        ("gfx942:xnack+", ["gfx942"], True),
        ("gfx942:xnack+", ["gfx942:xnack-"], False),
        ("gfx1100", ["gfx942"], False),
        ("gfx9-4-generic", ["gfx950"], True),
        ("gfx11-generic", ["gfx950"], False),
        (device_code.PORTABLE, [], True),
    ],
)
def test_knows_code_that_was_requested(
    code_target: str, requested_targets: list[str], *, is_requested: bool
) -> None:
    assert device_code.is_requested(code_target, requested_targets) is is_requested


def test_puts_each_processor_into_one_generic_group() -> None:
    processors = [processor for members in device_code.GENERIC_PROCESSORS.values() for processor in members]

    assert len(processors) == len(set(processors))


# Wheels


@pytest.mark.parametrize(
    ("files", "targets", "findings"),
    [
        pytest.param({"a.so": code_for("gfx942", "gfx1100")}, ("gfx942", "gfx1100"), [], id="complete"),
        pytest.param(
            {"a.so": code_for("gfx942", "gfx1100"), "b.so": code_for("gfx942")},
            ("gfx942", "gfx1100"),
            [("note", "b.so", "gfx1100")],
            id="in one file alone",
        ),
        pytest.param(
            {"a.so": code_for("gfx942:xnack+")},
            ("gfx942", "gfx1100"),
            [("error", "", "gfx942:xnack+"), ("error", "", "gfx1100")],
            id="missing",
        ),
        pytest.param(
            {"a.so": code_for("gfx942", "gfx900", "gfx906")},
            ("gfx942",),
            [("warning", "", "gfx900, gfx906")],
            id="not requested",
        ),
        pytest.param(
            {"a.so": code_for("gfx942")}, (), [("warning", "", "gfx942")], id="nothing was requested"
        ),
        pytest.param({"a.py": 1}, ("gfx942",), [("error", "", "gfx942")], id="none"),
    ],
)
def test_compares_device_code_with_the_requested_targets(
    files: dict[str, int | DeviceFacts], targets: tuple[str, ...], findings: list[tuple[str, str, str]]
) -> None:
    reported_findings = check_torch(wheel_view(files=files), *targets)

    assert len(reported_findings) == len(findings)
    for (severity, member, message), (expected_severity, expected_member, name) in zip(
        reported_findings, findings, strict=True
    ):
        assert severity == expected_severity
        assert member == expected_member
        assert name in message


def test_accepts_any_device_code_where_nothing_is_known_of_the_targets() -> None:
    view = wheel_view(
        "rocm_sdk_libraries_gfx94x_dcgpu-7.2.4-py3-none-linux_x86_64.whl", files={"a.so": code_for("gfx942")}
    )
    expectation = Expectation(distribution="rocm-sdk-libraries-gfx94x-dcgpu", version="7.2.4")

    assert list(device_code.check(judged_by(view, POLICY, expectation))) == []


def test_requires_no_device_code_of_a_wheel_that_may_have_none() -> None:
    audio = wheel_view("torchaudio-2.10.0-cp312-cp312-linux_x86_64.whl", files={"a.py": 1})

    assert check_torch(audio, "gfx942") == []


def test_finds_registered_bundles_that_are_not_there() -> None:
    view = wheel_view(files={"a.so": DeviceFacts(registered_count=2)})

    (finding,) = device_code.check(judged_by(view, POLICY))

    assert finding.severity == "error"
    assert "2 bundles" in finding.message


# Split wheels


@pytest.mark.parametrize(
    ("targets", "extras", "severities"),
    [
        pytest.param((), (), ["note"], id="no target"),
        pytest.param(("gfx942",), (), ["note", "error"], id="no extra"),
        pytest.param(("gfx942",), ("device-gfx942",), ["note"], id="extra"),
    ],
)
def test_requires_an_extra_of_a_host_wheel_for_each_target(
    targets: Sequence[str], extras: tuple[str, ...], severities: list[str]
) -> None:
    view = wheel_view(files={"a.so": DeviceFacts(is_split=True)})
    assert view.metadata is not None
    view = replace(view, metadata=replace(view.metadata, provides_extra=extras))

    assert [severity for severity, _, _ in check_torch(view, *targets)] == severities


@pytest.mark.parametrize(
    ("group", "archived_targets", "problem"),
    [
        pytest.param("gfx942", ["gfx942", "gfx942:xnack+"], None, id="its target"),
        pytest.param("gfx12_0", [], None, id="empty group"),
        pytest.param("gfx942", [], "gfx942", id="empty target"),
        pytest.param("gfx942", ["gfx942", "gfx950"], "gfx950", id="another target"),
    ],
)
def test_requires_a_device_wheel_to_hold_code_of_its_name(
    group: str, archived_targets: list[str], problem: str | None
) -> None:
    files: dict[str, DeviceFacts] = {}
    if archived_targets:
        archive = DeviceFacts(targets=frozenset(archived_targets), archived_binaries=frozenset({"lib/x.so"}))
        files["torch/.kpack/torch_gfx942.kpack"] = archive
    view = wheel_view(f"amd_torch_device_{group}-2.10.0-cp312-cp312-linux_x86_64.whl", files=files)

    findings = [*device_code.check(judged_by(view, POLICY))]

    if problem is None:
        assert findings == []
    else:
        (finding,) = findings
        assert finding.severity == "error"
        assert problem in finding.message
