from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pytorch_build.check import DeviceFacts, Expectation, Policy, WheelView, device_code, load_policy
from pytorch_build.check.bundles import BundleError
from tests.unit.pytorch_build.check.conftest import compressed_bundle, elf_file, make_view, plain_bundle

POLICY = Policy(device_code=("torch",))


def facts(*targets: str) -> DeviceFacts:
    return DeviceFacts(targets=frozenset(targets))


def findings(view: WheelView, *targets: str) -> list[tuple[str, str, str]]:
    expectation = Expectation(distribution="torch", version="2.10.0a0+cpu", gpu_targets=targets)
    return [(one.severity, one.where, one.message) for one in device_code.check(view, expectation, POLICY)]


def test_a_library_of_bundles(tmp_path: Path) -> None:
    section = compressed_bundle(plain_bundle("gfx942")).ljust(8192, b"\0") + plain_bundle("gfx1100")
    file = tmp_path / "lib.so"
    file.write_bytes(elf_file(sections={".hip_fatbin": section, ".hipFatBinSegment": bytes(48)}))

    found = device_code.file_facts(file)

    assert found is not None
    assert len(found.bundles) == 2
    assert found.registered == 2
    assert found.targets == {"gfx942", "gfx1100"}
    file.write_bytes(elf_file(sections={".hip_fatbin": b"\1\2\3", ".rocm_kpack_ref": b"x"}))
    assert device_code.file_facts(file) == DeviceFacts(split=True)
    file.write_bytes(elf_file(sections={".hip_fatbin": plain_bundle("gfx900")[:300]}))
    with pytest.raises(BundleError, match="cut off"):
        device_code.file_facts(file)


def test_bare_bundles_and_code_objects(tmp_path: Path) -> None:
    note = b"amdhsa.target\xd9\x28amdgcn-amd-amdhsa--gfx90a:sramecc+:xnack-\xb0amdhsa.version"
    cases = {
        "plain.hipfb": (plain_bundle("gfx906"), {"gfx906"}),
        "small.hipfb": (compressed_bundle(plain_bundle("gfx908")), {"gfx908"}),
        "kernel.hsaco": (elf_file(machine=224, note=note), {"gfx90a:sramecc+:xnack-"}),
        "host.so": (elf_file(), set()),
        "text.py": (b"CCO", set()),
        "empty": (b"", set()),
    }
    for name, (data, targets) in cases.items():
        (tmp_path / name).write_bytes(data)
        found = device_code.file_facts(tmp_path / name)
        assert (found.targets if found else set()) == targets, name


@pytest.mark.parametrize(
    ("target", "found", "covered"),
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
def test_coverage(target: str, found: set[str], covered: bool) -> None:  # noqa: FBT001 - a parameter
    assert device_code.is_covered(target, found, load_policy()) is covered


@pytest.mark.parametrize(
    ("found", "wanted", "asked"),
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
def test_what_was_asked_for(found: str, wanted: list[str], asked: bool) -> None:  # noqa: FBT001 - a parameter
    assert device_code.is_asked_for(found, wanted, load_policy()) is asked


@given(
    st.sets(
        st.sampled_from(
            ["gfx90a", "gfx90a:xnack+", "gfx90a:xnack-", "gfx90a:sramecc+", "gfx90a:sramecc-:xnack+"]
        )
    )
)
def test_coverage_is_that_of_every_mode(found: set[str]) -> None:
    modes = [{f"sramecc{a}", f"xnack{b}"} for a in "+-" for b in "+-"]
    runs = [any(set(one.split(":")[1:]) <= mode for one in found) for mode in modes]
    assert device_code.is_covered("gfx90a", found, load_policy()) is all(runs)


def test_generic_processors_do_not_overlap() -> None:
    members = [member for group in load_policy().generic.values() for member in group]
    assert len(members) == len(set(members))


@pytest.mark.parametrize(
    ("files", "targets", "expected"),
    [
        ({"a.so": facts("gfx942", "gfx1100")}, ("gfx942", "gfx1100"), []),
        (
            {"a.so": facts("gfx942:xnack+")},
            ("gfx942", "gfx1100"),
            [
                ("error", "", "No device code for gfx942; there is only gfx942:xnack+."),
                ("error", "", "No device code for gfx1100."),
            ],
        ),
        (
            {"a.so": facts("gfx942", "gfx1100"), "b.so": facts("gfx942")},
            ("gfx942", "gfx1100"),
            [("note", "b.so", "No device code for gfx1100 in this file.")],
        ),
        (
            {"a.so": facts("gfx942", "gfx900", "gfx906")},
            ("gfx942",),
            [("warning", "", "Device code for gfx900, gfx906, which was not requested.")],
        ),
        (
            {"a.so": facts("gfx942")},
            (),
            [("warning", "", "Device code for gfx942, which was not requested.")],
        ),
        ({"a.py": 1}, ("gfx942",), [("error", "", "There is no device code; gfx942 are expected.")]),
    ],
)
def test_device_code_is_compared_with_what_was_requested(
    files: dict[str, Any], targets: tuple[str, ...], expected: list[Any]
) -> None:
    assert findings(make_view(files=files), *targets) == expected
    audio = make_view("torchaudio-2.10.0-cp312-cp312-linux_x86_64.whl", files={"a.py": 1})
    assert findings(audio, "gfx942") == []
    (found,) = device_code.check(make_view(files={"a.so": DeviceFacts(registered=2)}), None, POLICY)
    assert (found.severity, found.message) == ("error", "2 bundles are registered, 0 are there.")


def test_extras_of_a_split_wheel_lead_to_each_target() -> None:
    wheel = make_view(files={"a.so": DeviceFacts(split=True)})
    assert [one[0] for one in findings(wheel)] == ["note"]
    assert [one[0] for one in findings(wheel, "gfx942")] == ["note", "error"]
    assert wheel.metadata is not None
    led = replace(wheel, metadata=replace(wheel.metadata, provides_extra=("device-gfx942",)))
    assert [one[0] for one in findings(led, "gfx942")] == ["note"]


def part(gpu: str, files: dict[str, DeviceFacts]) -> list[tuple[str, str]]:
    name = f"amd_torch_device_{gpu}-2.10.0-cp312-cp312-linux_x86_64.whl"
    wheel = make_view(filename=name, files=files)
    return [(one.severity, one.message) for one in device_code.check(wheel, None, POLICY)]


def test_a_wheel_of_device_code_holds_what_its_name_says() -> None:
    def archive(*targets: str) -> dict[str, DeviceFacts]:
        held = DeviceFacts(targets=frozenset(targets), archived=frozenset({"lib/x.so"}))
        return {"torch/.kpack/torch_gfx942.kpack": held}

    assert part("gfx942", archive("gfx942", "gfx942:xnack+")) == []
    assert part("gfx12_0", {}) == []
    assert part("gfx942", {}) == [("error", "It holds no kernels for gfx942.")]
    assert part("gfx942", archive("gfx942", "gfx950")) == [
        ("error", "It holds code for gfx950, not for gfx942.")
    ]
