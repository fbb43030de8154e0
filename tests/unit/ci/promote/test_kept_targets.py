from __future__ import annotations

import runpy
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from packaging.requirements import Requirement

from ci.promote.edits import dist_info, metadata_lines, requires_lines
from ci.promote.version_change import RocmChange, kept_facts
from core.errors import FatalError, WheelError
from core.families import families, parents
from pytorch_build.split.parts import Wheels, host_metadata
from rocm_packaging.packages.layouts import device_target
from rocm_packaging.packages.plan import Distribution
from rocm_packaging.packages.wheels import dist_info as rendered
from tests.unit.ci.promote.test_policy import facts, wheel

if TYPE_CHECKING:
    from pathlib import Path

TORCH = "2.10.0+rocm7.10.0rc2"


def keeping(*targets: str) -> RocmChange:
    return RocmChange(old="7.10.0rc2", new="7.10.0", targets=targets)


TARGETS = ("gfx942", "gfx1100", "gfx1101", "gfx1200", "gfx1201")
EVERY = sorted({target for one in families().values() for target in one.targets})


def wheels(*targets: str) -> Wheels:
    groups = sorted({group for one in targets for group in parents(one)})
    return Wheels(
        distribution="torch", version=TORCH, targets=targets, groups=tuple(groups), rocm="7.10.0rc2"
    )


def lines(*targets: str) -> list[str]:
    """Give the fields that a split adds to torch's METADATA."""
    text = host_metadata(b"Name: torch\nRequires-Dist: rocm-bootstrap\n\nBody.", wheels(*targets)).decode()
    return text.partition("\n\n")[0].split("\n")


def needed(fields: Any) -> set[str]:
    texts = (line.removeprefix("Requires-Dist: ") for line in fields if line.startswith("Requires-Dist"))
    return {Requirement(text).name for text in texts}


def test_groups_that_upstream_loses_stay_with_their_targets() -> None:
    """TheRock's keep-list gfx1201,gfx1100 drops gfx12-0, gfx110x and gfx11, and flash attention with them."""
    left = metadata_lines(lines(*TARGETS), keeping("gfx1201", "gfx1100"))
    groups = ("gfx12-0", "gfx12", "gfx110x", "gfx11")
    device = {f"amd-torch-device-{one}" for one in ("gfx1201", "gfx1100", *groups)}
    assert needed(left) == {"rocm-bootstrap", *device}
    extras = [line for line in left if line.startswith("Provides-Extra")]
    assert extras == [f"Provides-Extra: device-{one}" for one in ("gfx1100", "gfx1201", "all")]


@given(st.lists(st.sampled_from(EVERY), min_size=1, max_size=6, unique=True), st.data())
def test_what_is_left_is_what_a_split_for_these_targets_says(targets: list[str], data: st.DataObject) -> None:
    kept = data.draw(st.lists(st.sampled_from(targets), min_size=1, unique=True))
    left = metadata_lines(lines(*sorted(targets)), keeping(*kept))
    assert list(left) == lines(*sorted(kept))


PKG_INFO = """\
Name: rocm
Provides-Extra: device
Requires-Dist: rocm-sdk-device-gfx1100==7.10.0rc2; extra == "device"
Provides-Extra: device-gfx1100
Requires-Dist: rocm-sdk-device-gfx1100==7.10.0rc2; extra == "device-gfx1100"
Provides-Extra: device-gfx942
Requires-Dist: rocm-sdk-device-gfx942==7.10.0rc2; sys_platform == "linux" and extra == "device-gfx942"
Provides-Extra: device-all
Requires-Dist: rocm-sdk-device-gfx1100==7.10.0rc2; extra == "device-all"
Requires-Dist: rocm-sdk-device-gfx942==7.10.0rc2; sys_platform == "linux" and extra == "device-all"
"""
REQUIRES = """\
rocm-sdk-core==7.10.0rc2

[device]
rocm-sdk-device-gfx1100==7.10.0rc2

[device-all]
rocm-sdk-device-gfx1100==7.10.0rc2

[device-all:sys_platform == "linux"]
rocm-sdk-device-gfx942==7.10.0rc2

[device-gfx1100]
rocm-sdk-device-gfx1100==7.10.0rc2

[device-gfx942]

[device-gfx942:sys_platform == "linux"]
rocm-sdk-device-gfx942==7.10.0rc2
"""


def test_the_sdist_names_another_default_where_its_own_is_left_out() -> None:
    kept = keeping("gfx942")
    left = metadata_lines(PKG_INFO.splitlines(), kept)
    assert [line for line in left if "gfx1100" in line] == []
    assert 'Requires-Dist: rocm-sdk-device-gfx942==7.10.0rc2; extra == "device"' in left
    text = "\n".join(requires_lines(REQUIRES.split("\n"), kept))
    assert "gfx1100" not in text
    assert "[device]\nrocm-sdk-device-gfx942==7.10.0rc2\n" in text
    assert '[device-gfx942:sys_platform == "linux"]\nrocm-sdk-device-gfx942==7.10.0rc2\n' in text
    same = keeping("gfx942", "gfx1100")
    assert list(metadata_lines(PKG_INFO.splitlines(), same)) == PKG_INFO.splitlines()
    assert "\n".join(requires_lines(REQUIRES.split("\n"), same)) == REQUIRES
    with pytest.raises(WheelError, match="does not name rocm-sdk-device- of gfx90a"):
        metadata_lines(PKG_INFO.splitlines(), keeping("gfx90a"))


THEROCK = """\
DEFAULT_TARGET_FAMILY: str = "DEFAULT"
AVAILABLE_TARGET_FAMILIES: list[str] = []
LINUX_TARGET_FAMILIES: list[str] = []
WINDOWS_TARGET_FAMILIES: list[str] = []
DEFAULT_TARGET_FAMILY = 'gfx1100'
AVAILABLE_TARGET_FAMILIES.append('gfx1100')
AVAILABLE_TARGET_FAMILIES.append('gfx90a')
AVAILABLE_TARGET_FAMILIES.append('gfx90a:xnack+')
AVAILABLE_TARGET_FAMILIES.append('gfx1200')
LINUX_TARGET_FAMILIES.append('gfx1100')
LINUX_TARGET_FAMILIES.append('gfx90a')
LINUX_TARGET_FAMILIES.append('gfx1200')
WINDOWS_TARGET_FAMILIES.append('gfx1100')
WINDOWS_TARGET_FAMILIES.append('gfx1200')
"""


def run(content: bytes, folder: Path) -> dict[str, Any]:
    (folder / "info.py").write_bytes(content)
    return runpy.run_path(str(folder / "info.py"))


def test_lists_of_targets_in_both_builders_files(tmp_path: Path) -> None:
    kept = keeping("gfx90a", "gfx1200")
    theirs = run(dist_info(THEROCK.encode(), kept), tmp_path)
    assert theirs["AVAILABLE_TARGET_FAMILIES"] == ["gfx90a", "gfx90a:xnack+", "gfx1200"]
    assert theirs["WINDOWS_TARGET_FAMILIES"] == ["gfx1200"]
    # what either platform can resolve
    assert theirs["DEFAULT_TARGET_FAMILY"] == "gfx1200"
    named = {one: (one,) for one in ("gfx1100", "gfx90a", "gfx1200")}
    own = Distribution(
        version="7.10.0",
        platform="linux",
        families=named,
        libraries=("amdhip64",),
        split=True,
        aliases={"gfx110X-all": ("gfx1100",), "gfx90a-dcgpu": ("gfx90a",)},
    )
    smaller = replace(
        own,
        families={one: named[one] for one in ("gfx90a", "gfx1200")},
        aliases={"gfx90a-dcgpu": ("gfx90a",)},
    )
    assert dist_info(rendered(own, "core"), kept) == rendered(smaller, "core")


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b"__version__ = '7'\n", "does not list a gfx target that is kept"),
        (b"AVAILABLE_TARGET_FAMILIES = ['gfx942']\n", "does not list a gfx target that is kept"),
        (b"AVAILABLE_TARGET_FAMILIES = [a for a in b]\n", "by a program"),
    ],
)
def test_a_file_that_does_not_list_kept_targets_is_refused(content: bytes, said: str) -> None:
    with pytest.raises(WheelError, match=said):
        dist_info(content, keeping("gfx90a"))


def test_facts_without_what_is_left_out() -> None:
    host = replace(
        wheel(), requires=tuple(one.partition(": ")[2] for one in lines(*TARGETS) if "Dist" in one)
    )
    names = [f"amd-torch-device-{one}" for one in (*TARGETS, *wheels(*TARGETS).groups)]
    rocm = [wheel(name=f"rocm-sdk-device-{one}", version="7.10.0", python="") for one in TARGETS]
    whole = facts(host, *(wheel(name=one) for one in names), *rocm)
    less, left = kept_facts(whole, keeping("gfx1201"))
    found = {device_target(one.file.distribution) for one in less.wheels}
    assert found == {"", "gfx1201", "gfx12-0", "gfx12"}
    assert len(left) == len(whole.wheels) - len(less.wheels)
    assert all("gfx12" in one or "bootstrap" in one for one in less.wheels[0].requires)
    assert kept_facts(whole, keeping(*TARGETS)) == (whole, ())


@pytest.mark.parametrize(
    ("targets", "said"),
    [
        (("gfx12-0",), "gfx12-0 is not a gfx target"),
        (("gfx90a",), "no device code of .* would be left; it has device packages of gfx1100, gfx942"),
        (("gfx942", "gfx90a"), "has no device packages of ROCm for gfx90a"),
        (("gfx942", "gfx1100"), "has no device packages of torch for gfx1100"),
    ],
)
def test_lists_that_a_set_does_not_have(targets: tuple[str, ...], said: str) -> None:
    found = [wheel(), wheel(name="amd-torch-device-gfx942")]
    found += [
        wheel(name=f"rocm-sdk-device-{one}", version="7.10.0", python="") for one in ("gfx942", "gfx1100")
    ]
    with pytest.raises(FatalError, match=said) as refused:
        kept_facts(facts(*found), keeping(*targets))
    assert "\n" not in refused.value.message
