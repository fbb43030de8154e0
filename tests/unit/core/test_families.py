from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from core import families, process
from core.errors import UsageError
from tests.kit.machines import Answer, answer_processes
from tests.kit.repos import write_files
from tests.kit.windows import program_file

TARGETS = sorted(name for name, family in families.families().items() if family.targets == (name,))


def write_nodes(folder: Path, *versions: int) -> Path:
    """Write the kernel's topology of these nodes; return its folder. A processor has version 0."""
    for number, version in enumerate(versions):
        properties = f"cpu_cores_count 0\ngfx_target_version {version}\nlds_size 64\n"
        write_files(folder / str(number), {"properties": properties})
    return folder


def install_program(folder: Path, monkeypatch: pytest.MonkeyPatch, *, name: str, answer: Answer) -> None:
    """Put one program on the machine, which answers like this."""
    program = folder / program_file(name)
    program.write_text("")
    program.chmod(0o755)
    # Unit tests hide the programs that tell about GPUs from `which`; this one is the test's own.
    monkeypatch.setattr(process, "which", lambda program_name: program if program_name == name else None)
    answer_processes(monkeypatch, lambda _call: answer)


# Names


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
def test_expands_a_family_into_its_targets(name: str, targets: tuple[str, ...]) -> None:
    assert families.gpu_targets(name) == targets


def test_the_three_aggregates_hold_every_target_once() -> None:
    aggregates = ("dcgpu-all", "dgpu-all", "igpu-all")
    targets = [target for name in aggregates for target in families.gpu_targets(name)]

    assert sorted(targets) == TARGETS


@pytest.mark.parametrize("name", ["gfx94x-dcgpu", "gfx94X-dgcpu"])
def test_proposes_the_family_that_an_unknown_name_is_nearest_to(name: str) -> None:
    with pytest.raises(UsageError) as raised:
        families.family(name)

    assert name in raised.value.message
    assert "'gfx94X-dcgpu'" in raised.value.message


@pytest.mark.parametrize("name", ["", " ; ", "cpu;gfx942"])
def test_rejects_a_senseless_family(name: str) -> None:
    with pytest.raises(UsageError):
        families.family(name)


# Detection


@given(st.sampled_from(TARGETS))
def test_reads_every_target_from_its_kernel_version(target: str) -> None:
    # gfx90a: major 9, minor 0, stepping 10; the last two are hexadecimal digits.
    major = int(target.removeprefix("gfx")[:-2])
    minor = int(target[-2], 16)
    stepping = int(target[-1], 16)

    assert families.target_of_version(major * 10000 + minor * 100 + stepping) == target


def test_detects_targets_in_the_order_of_the_kernels_nodes(tmp_path: Path) -> None:
    # Ten GPUs, so that 10 comes after 9, and not after 1.
    nodes = write_nodes(tmp_path, 0, 90402, 90402, 0, 0, 0, 0, 0, 0, 0, 110000)

    assert families.detect(nodes) == ("gfx942", "gfx1100")


def test_asks_programs_where_the_kernel_tells_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    output = "  Name:   gfx90a:sramecc+:xnack-\n  Name: amdgcn-amd-amdhsa--gfx90a\n  Name: gfx90a\n"
    install_program(tmp_path, monkeypatch, name="rocminfo", answer=Answer(stdout=output))

    assert families.detect(tmp_path / "absent") == ("gfx90a",)


def test_detects_nothing_where_a_program_fails(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    install_program(tmp_path, monkeypatch, name="rocminfo", answer=Answer(status=1, stdout="gfx942\n"))

    assert families.detect(tmp_path / "absent") == ()


# Defaults


@pytest.mark.parametrize(
    ("targets", "family"),
    [
        (("gfx942",), "gfx94X-dcgpu"),
        (("gfx1101",), "gfx110X-all"),
        (("gfx1151",), "gfx1151"),
        (("gfx1036", "gfx1100"), "gfx110X-all"),
        (("gfx1036",), "gfx103X-igpu"),
        (("gfx1200", "gfx1201"), "gfx120X-all"),
    ],
    ids=",".join,
)
def test_chooses_the_family_of_a_machine(targets: tuple[str, ...], family: str) -> None:
    assert families.default_family(targets) == family


@pytest.mark.parametrize(
    ("targets", "mentioned"),
    [
        ((), ["gfx94X-dcgpu", "--gpu-family cpu", "--torch-ref sample"]),
        (("gfx942", "gfx1100"), ["--gpu-family gfx110X-all", "--gpu-family gfx94X-dcgpu"]),
        (("gfx1399",), ["gfx1399"]),
    ],
    ids=["no GPU", "two families", "unknown GPU"],
)
def test_names_the_choices_where_no_family_follows(targets: tuple[str, ...], mentioned: list[str]) -> None:
    with pytest.raises(UsageError) as raised:
        families.default_family(targets)

    assert all(name in str(raised.value) for name in mentioned)
