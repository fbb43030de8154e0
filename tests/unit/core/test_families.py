import stat
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from core import families, process
from core.errors import UsageError


def kfd(folder: Path, *versions: int) -> Path:
    for number, version in enumerate(versions):
        node = folder / str(number)
        node.mkdir(parents=True)
        (node / "properties").write_text(f"cpu_cores_count 0\ngfx_target_version {version}\nlds_size 64\n")
    return folder


@pytest.mark.parametrize(
    ("name", "targets"),
    [
        ("gfx94X-dcgpu", ("gfx942",)),
        ("gfx110X-all", ("gfx1100", "gfx1101", "gfx1102", "gfx1103")),
        ("gfx103X-igpu", ("gfx1033", "gfx1035", "gfx1036")),
        ("dcgpu-all", ("gfx908", "gfx90a", "gfx942", "gfx950", "gfx1250")),
        ("gfx1151", ("gfx1151",)),
        ("cpu", ()),
        ("gfx120X-all; gfx942", ("gfx1200", "gfx1201", "gfx942")),
        ("gfx1100,gfx110X-dgpu", ("gfx1100", "gfx1101", "gfx1102")),
    ],
)
def test_families_expand_to_targets(name: str, targets: tuple[str, ...]) -> None:
    assert families.gpu_targets(name) == targets


def test_aggregates_hold_every_target_once() -> None:
    parts = [families.gpu_targets(name) for name in ("dcgpu-all", "dgpu-all", "igpu-all")]
    held = [target for part in parts for target in part]
    assert len(held) == len(set(held)) == 28


@pytest.mark.parametrize("name", ["gfx94x-dcgpu", "gfx94X-dgcpu"])
def test_unknown_family_names_the_nearest(name: str) -> None:
    with pytest.raises(UsageError, match="Did you mean 'gfx94X-dcgpu'"):
        families.family(name)


@pytest.mark.parametrize("name", ["", " ; ", "cpu;gfx942"])
def test_senseless_families_are_refused(name: str) -> None:
    with pytest.raises(UsageError):
        families.family(name)


@given(st.sampled_from(sorted(name for name, f in families.families().items() if f.targets == (name,))))
def test_every_known_target_has_a_kernel_version(target: str) -> None:
    digits = target.removeprefix("gfx")
    major, minor, step = int(digits[:-2]), int(digits[-2], 16), int(digits[-1], 16)
    assert families.target_of_version(major * 10000 + minor * 100 + step) == target


def test_kernel_topology_is_read_in_the_order_of_nodes(tmp_path: Path) -> None:
    # node 0 is a processor; ten nodes show that 10 comes after 9
    root = kfd(tmp_path, 0, 90402, 90402, 0, 0, 0, 0, 0, 0, 0, 110000)
    assert families.detect(root) == ("gfx942", "gfx1100")


def test_programs_answer_where_the_kernel_does_not(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    program = tmp_path / "rocminfo"
    program.write_text("")
    program.chmod(program.stat().st_mode | stat.S_IXUSR)
    monkeypatch.setattr(process, "which", lambda name: program if name == "rocminfo" else None)
    said = "  Name:   gfx90a:sramecc+:xnack-\n  Name: amdgcn-amd-amdhsa--gfx90a\n  Name: gfx90a\n"
    monkeypatch.setattr(
        process, "capture", lambda *_, **__: process.Completed(returncode=0, stdout=said, stderr="")
    )
    assert families.detect(tmp_path / "absent") == ("gfx90a",)


def test_a_failing_program_sees_no_gpu(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(process, "which", lambda _: tmp_path)
    failed = process.Completed(returncode=1, stdout="gfx942\n", stderr="")
    monkeypatch.setattr(process, "capture", lambda *_, **__: failed)
    assert families.detect(tmp_path) == ()


@pytest.mark.parametrize(
    ("detected", "family"),
    [
        (("gfx942",), "gfx94X-dcgpu"),
        (("gfx1101",), "gfx110X-all"),
        (("gfx1151",), "gfx1151"),
        (("gfx1036", "gfx1100"), "gfx110X-all"),
        (("gfx1036",), "gfx103X-igpu"),
        (("gfx1200", "gfx1201"), "gfx120X-all"),
    ],
)
def test_default_family_of_a_machine(detected: tuple[str, ...], family: str) -> None:
    assert families.default_family(detected) == family


@pytest.mark.parametrize(
    ("detected", "said"),
    [
        ((), ("gfx94X-dcgpu", "--gpu-family cpu", "--torch-ref sample")),
        (("gfx942", "gfx1100"), ("--gpu-family gfx110X-all or --gpu-family gfx94X-dcgpu",)),
        (("gfx1399",), ("gfx1399",)),
    ],
)
def test_where_no_family_follows_the_ways_are_named(detected: tuple[str, ...], said: tuple[str, ...]) -> None:
    with pytest.raises(UsageError) as caught:
        families.default_family(detected)
    assert all(way in str(caught.value) for way in said)
