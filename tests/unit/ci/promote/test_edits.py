import runpy
import string
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from packaging.requirements import Requirement
from packaging.version import Version

from ci.promote import edits
from ci.promote.edits import dist_info, literals, metadata_lines, requirement, requires_lines
from ci.promote.version_change import RocmChange
from core.errors import WheelError
from core.families import families
from pytorch_build.split.parts import host_metadata
from rocm_packaging.packages.plan import Distribution
from rocm_packaging.packages.wheels import dist_info as rendered
from tests.unit.ci.promote.conftest import keeping, split_wheels

CHANGE = RocmChange(old="7.10.0rc2", new="7.10.0")
OLD, NEW = "2.10.0+rocm7.10.0rc2", "2.10.0+rocm7.10.0"
EVERY = sorted({target for one in families().values() for target in one.targets})


def metadata(content: bytes) -> bytes:
    return edits.metadata(content, old=OLD, new=NEW, change=CHANGE)


def test_only_versions_change() -> None:
    content = """\
Metadata-Version: 2.4
Name: torch
Version: 2.10.0+rocm7.10.0rc2
Summary: Tensors, and 2.10.0
Author-email: Ünï <a@b>
Requires-Dist: typing-extensions>=4.10.0
Requires-Dist: rocm[libraries]==7.10.0rc2
requires-dist:   triton == 3.6.0+git0a1.rocm7.10.0rc2  ; platform_system == "Linux"\t
Requires-Dist: numpy==7.10.0rc2
Provides-Extra: x

Version: 2.10.0+rocm7.10.0rc2
Requires-Dist: rocm==7.10.0rc2
"""
    expected = (
        content.replace("Version: 2.10.0+rocm7.10.0rc2", "Version: 2.10.0+rocm7.10.0", 1)
        .replace("rocm[libraries]==7.10.0rc2", "rocm[libraries]==7.10.0")
        .replace("3.6.0+git0a1.rocm7.10.0rc2", "3.6.0+git0a1.rocm7.10.0")
    )
    assert metadata(content.encode()).decode() == expected


@pytest.mark.parametrize(
    ("old", "new"),
    [
        (
            b"Name: torch\r\nVersion: 2.10.0+rocm7.10.0rc2\r\nAuthor: \xff\r\n\r\nbody\xfe\r\n",
            b"Name: torch\r\nVersion: 2.10.0+rocm7.10.0\r\nAuthor: \xff\r\n\r\nbody\xfe\r\n",
        ),
        (b"Name: torch\nVersion: 2.10.0+rocm7.10.0rc2", b"Name: torch\nVersion: 2.10.0+rocm7.10.0"),
        (b"Version:2.10.0+ROCM7.10.0rc2\n", b"Version:2.10.0+rocm7.10.0\n"),
    ],
    ids=["line ends and bytes that are not UTF-8", "no description", "another spelling"],
)
def test_forms_of_metadata(old: bytes, new: bytes) -> None:
    assert metadata(old) == new


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b"Name: torch\n", "0 Version fields"),
        (b"Name: torch\n\nVersion: 2.10.0+rocm7.10.0rc2\n", "0 Version fields"),
        (b"Version: 2.10.0+rocm7.10.0rc2\nVersion: 2.10.0+rocm7.10.0rc2\n", "2 Version fields"),
        (b"Version: 2.10.0+rocm7.10.0rc1\n", "states version '2.10.0.rocm7.10.0rc1', not"),
        (b"Version: new\n", "states version 'new'"),
        (b"Version: 2.10.0+rocm7.10.0rc2\nRequires-Dist: =\n", "cannot be read"),
        (b"Version: 2.10.0+rocm7.10.0rc2\nRequires-Dist: rocm\n  ==7.10.0rc2\n", "goes on in the next line"),
    ],
)
def test_metadata_that_is_refused(content: bytes, said: str) -> None:
    with pytest.raises(WheelError, match=said):
        metadata(content)


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("rocm==7.10.0rc2", "rocm==7.10.0"),
        ("rocm-sdk-core===7.10.0rc2", "rocm-sdk-core===7.10.0"),
        ("ROCM_SDK.core == 7.10.0.rc2", "ROCM_SDK.core == 7.10.0"),
        ("rocm[devel, libraries] (==7.10.0rc2)", "rocm[devel, libraries] (==7.10.0)"),
        ("rocm>=7.10.0rc2,<8", "rocm>=7.10.0,<8"),
        ("rocm~=7.10.0rc2", "rocm~=7.10.0"),
        (f"torch=={OLD}", f"torch=={NEW}"),
        ('rocm==7.10.0rc2;extra=="7.10.0rc2"', 'rocm==7.10.0;extra=="7.10.0rc2"'),
        *(
            (same, same)
            for same in (
                *("rocm", "rocm>=7", "rocm==7.10.0", "rocm==7.10.*", "numpy==7.10.0rc2", "torch>=2.4"),
                *("torch==2.10.0", f"torch=={NEW}", "torch==2.10.0+cpu"),
                "rocm @ https://x.invalid/rocm-7.10.0rc2.tar.gz",
            )
        ),
    ],
)
def test_requirements(old: str, new: str) -> None:
    assert requirement(old, CHANGE) == new


@pytest.mark.parametrize(
    "text",
    [
        "rocm==7.10.0rc1",
        "rocm-sdk-core==7.9.0",
        "triton==3.6.0+rocm7.10.0rc1",
        "triton==3.6.0+rocm7.10.0rc21",
        "torch==2.10.0+devrocm7.10.0.dev0.0123abc",
    ],
)
def test_a_pin_on_another_rocm_is_refused(text: str) -> None:
    with pytest.raises(WheelError, match=r"is not on ROCm 7\.10\.0rc2"):
        requirement(text, CHANGE)


NAMES = st.sampled_from(["rocm", "rocm-sdk-core", "rocm_sdk_devel", "numpy", "filelock"])
EXTRAS = st.lists(st.text(string.ascii_lowercase, min_size=1, max_size=5), max_size=2).map(",".join)
SPECIFIERS = st.lists(st.sampled_from([">=2", "<9", "!=3.1", "==7.10.0rc2"]), max_size=3, unique=True)
MARKERS = st.sampled_from(["", ' ; python_version < "3.12"', '; sys_platform == "linux"'])


@given(NAMES, EXTRAS, SPECIFIERS, MARKERS)
def test_the_rest_of_a_requirement_stays(name: str, extras: str, specifiers: list[str], marker: str) -> None:
    old = f"{name}{f'[{extras}]' if extras else ''}{','.join(specifiers)}{marker}"
    new = requirement(old, CHANGE)
    before, after = Requirement(old), Requirement(new)
    ours = name.startswith("rocm")
    assert (after.name, after.extras, after.marker) == (before.name, before.extras, before.marker)
    expected = {str(one).replace("7.10.0rc2", "7.10.0") if ours else str(one) for one in before.specifier}
    assert {str(one) for one in after.specifier} == expected
    assert requirement(new, CHANGE) == new


FIELD = st.tuples(
    st.sampled_from(["Summary", "Author", "Keywords", "Classifier", "License"]),
    st.text(st.characters(blacklist_categories=["Cs", "Cc", "Zl", "Zp"]), max_size=40),
)


@given(st.lists(FIELD, max_size=6), st.text(max_size=200), st.sampled_from(["\n", "\r\n"]), st.integers(0, 6))
def test_metadata_comes_back_the_same(fields: list[tuple[str, str]], body: str, end: str, place: int) -> None:
    lines = [f"{name}: {value}" for name, value in fields]
    lines.insert(place, f"Version: {OLD}")
    lines.insert(place, "Requires-Dist: rocm[libraries]==7.10.0rc2")
    content = (end.join(lines) + end + end + body).encode("utf-8", "surrogatepass")
    there = metadata(content)
    back = RocmChange(old=CHANGE.new, new=CHANGE.old)
    assert edits.metadata(there, old=NEW, new=OLD, change=back) == content
    changed = [(a, b) for a, b in zip(content.split(b"\n"), there.split(b"\n"), strict=True) if a != b]
    assert len(changed) == 2


QUOTED = st.sampled_from(
    ["'7.10.0rc2'", '"7.10.0rc2"', "'7.10.0-rc2'", "'7.10.0rc21'", "7.10.0rc2", "'x 7.10.0rc2'"]
)


@given(st.lists(st.tuples(st.text("ab'\" =\n#,", max_size=12), QUOTED), max_size=6))
def test_only_whole_quoted_versions_are_replaced(pieces: list[tuple[str, str]]) -> None:
    text = "".join(f"{before}\n{version}\n" for before, version in pieces)
    edited, count = literals(text.encode(), Version(CHANGE.old), CHANGE.new)
    whole = {f"{quote}{old}{quote}" for quote in "'\"" for old in ("7.10.0rc2", "7.10.0-rc2")}
    lines = [line[0] + CHANGE.new + line[0] if line in whole else line for line in text.split("\n")]
    assert edited.decode().split("\n") == lines
    assert count == sum(a != b for a, b in zip(lines, text.split("\n"), strict=True))


def lines(*targets: str) -> list[str]:
    """The fields that a split adds to torch's METADATA."""
    plain = b"Name: torch\nRequires-Dist: rocm-bootstrap\n\nBody."
    return host_metadata(plain, split_wheels(*targets)).decode().partition("\n\n")[0].split("\n")


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
        promised={"core": ("bin/hipcc", *map("lib/oclc_isa_version_{}.bc".format, ("1100", "1200", "90a")))},
    )
    left = {one: named[one] for one in ("gfx90a", "gfx1200")}
    promised = {"core": ("bin/hipcc", "lib/oclc_isa_version_1200.bc", "lib/oclc_isa_version_90a.bc")}
    smaller = replace(own, families=left, aliases={"gfx90a-dcgpu": ("gfx90a",)}, promised=promised)
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
