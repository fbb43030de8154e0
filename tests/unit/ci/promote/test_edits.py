"""What becomes of a candidate's metadata and modules where it becomes a release."""

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

from ci.promote.edits import (
    change_requirement,
    edit_dist_info,
    edit_metadata,
    keep_metadata_lines,
    keep_requires_lines,
    replace_literals,
)
from ci.promote.version_change import RocmChange
from core.errors import WheelError
from core.families import families
from pytorch_build.split.layout import host_metadata
from rocm_packaging.packages.plan import DistInfo
from rocm_packaging.packages.wheels import dist_info_module as rendered_dist_info
from tests.kit import runs

CHANGE = RocmChange(old="7.10.0rc2", new="7.10.0")
OLD = "2.10.0+rocm7.10.0rc2"
NEW = "2.10.0+rocm7.10.0"
TARGETS = sorted({target for family in families().values() for target in family.targets})


def keep_targets(*targets: str) -> RocmChange:
    """Return the change that keeps device code for these targets alone."""
    return RocmChange(old="7.10.0rc2", new="7.10.0", targets=targets)


def edit_candidate(content: bytes) -> bytes:
    """Return torch's METADATA as the release's."""
    return edit_metadata(content, old=OLD, new=NEW, change=CHANGE)


# Metadata


def test_changes_nothing_but_versions_in_metadata() -> None:
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
    assert edit_candidate(content.encode()).decode() == expected


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
def test_keeps_the_form_of_metadata(old: bytes, new: bytes) -> None:
    assert edit_candidate(old) == new


@pytest.mark.parametrize(
    ("content", "phrase"),
    [
        (b"Name: torch\n", "0 Version"),
        (b"Name: torch\n\nVersion: 2.10.0+rocm7.10.0rc2\n", "0 Version"),
        (b"Version: 2.10.0+rocm7.10.0rc2\nVersion: 2.10.0+rocm7.10.0rc2\n", "2 Version"),
        (b"Version: 2.10.0+rocm7.10.0rc1\n", "'2.10.0+rocm7.10.0rc1'"),
        (b"Version: new\n", "'new'"),
        (b"Version: 2.10.0+rocm7.10.0rc2\nRequires-Dist: =\n", "'='"),
        (b"Version: 2.10.0+rocm7.10.0rc2\nRequires-Dist: rocm\n  ==7.10.0rc2\n", "next line"),
    ],
    ids=[
        "no version",
        "a version in the description alone",
        "two versions",
        "another version",
        "no number",
        "no requirement",
        "a folded requirement",
    ],
)
def test_rejects_metadata_that_it_cannot_edit(content: bytes, phrase: str) -> None:
    with pytest.raises(WheelError) as raised:
        edit_candidate(content)

    assert phrase in raised.value.message


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
    ],
)
def test_changes_the_version_in_a_requirement_on_the_candidate(old: str, new: str) -> None:
    assert change_requirement(old, CHANGE) == new


@pytest.mark.parametrize(
    "text",
    [
        "rocm",
        "rocm>=7",
        "rocm==7.10.0",
        "rocm==7.10.*",
        "numpy==7.10.0rc2",
        "torch>=2.4",
        "torch==2.10.0",
        f"torch=={NEW}",
        "torch==2.10.0+cpu",
        "rocm @ https://x.invalid/rocm-7.10.0rc2.tar.gz",
    ],
)
def test_keeps_a_requirement_that_does_not_pin_the_candidate(text: str) -> None:
    assert change_requirement(text, CHANGE) == text


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
def test_rejects_a_pin_on_another_rocm(text: str) -> None:
    with pytest.raises(WheelError) as raised:
        change_requirement(text, CHANGE)

    assert text in raised.value.message
    assert "7.10.0rc2" in raised.value.message


NAMES = st.sampled_from(["rocm", "rocm-sdk-core", "rocm_sdk_devel", "numpy", "filelock"])
EXTRAS = st.lists(st.text(string.ascii_lowercase, min_size=1, max_size=5), max_size=2).map(",".join)
SPECIFIERS = st.lists(st.sampled_from([">=2", "<9", "!=3.1", "==7.10.0rc2"]), max_size=3, unique=True)
MARKERS = st.sampled_from(["", ' ; python_version < "3.12"', '; sys_platform == "linux"'])


@given(NAMES, EXTRAS, SPECIFIERS, MARKERS)
def test_keeps_the_rest_of_a_requirement(name: str, extras: str, specifiers: list[str], marker: str) -> None:
    old = f"{name}{f'[{extras}]' if extras else ''}{','.join(specifiers)}{marker}"

    new = change_requirement(old, CHANGE)

    old_requirement = Requirement(old)
    new_requirement = Requirement(new)
    expected = {str(specifier) for specifier in old_requirement.specifier}
    if name.startswith("rocm"):
        expected = {specifier.replace("7.10.0rc2", "7.10.0") for specifier in expected}
    assert new_requirement.name == old_requirement.name
    assert new_requirement.extras == old_requirement.extras
    assert new_requirement.marker == old_requirement.marker
    assert {str(specifier) for specifier in new_requirement.specifier} == expected
    assert change_requirement(new, CHANGE) == new


# Beyond ASCII a few letters are enough: what is edited is ASCII, and the rest are bytes.
TEXT = st.text("aZ 0.:+-=\t\"';[]\\äλ漢\U0001f600", max_size=40)
FIELD = st.tuples(st.sampled_from(["Summary", "Author", "Keywords", "Classifier", "License"]), TEXT)
BODY = st.text("aV:= \n\r\x00\x0b\x0c\x1c\x85\u2028\ud800ä", max_size=100)


@given(st.lists(FIELD, max_size=6), BODY, st.sampled_from(["\n", "\r\n"]), st.integers(0, 6))
def test_changes_two_lines_of_metadata_and_back(
    fields: list[tuple[str, str]], body: str, line_end: str, position: int
) -> None:
    lines = [f"{name}: {value}" for name, value in fields]
    lines.insert(position, f"Version: {OLD}")
    lines.insert(position, "Requires-Dist: rocm[libraries]==7.10.0rc2")
    content = (line_end.join(lines) + line_end + line_end + body).encode("utf-8", "surrogatepass")

    edited = edit_candidate(content)

    reverse = RocmChange(old=CHANGE.new, new=CHANGE.old)
    line_pairs = zip(content.split(b"\n"), edited.split(b"\n"), strict=True)
    assert sum(old != new for old, new in line_pairs) == 2
    assert edit_metadata(edited, old=NEW, new=OLD, change=reverse) == content


# Versions in modules


QUOTED = st.sampled_from(
    ["'7.10.0rc2'", '"7.10.0rc2"', "'7.10.0-rc2'", "'7.10.0rc21'", "7.10.0rc2", "'x 7.10.0rc2'"]
)
WHOLE_LITERALS = ("'7.10.0rc2'", '"7.10.0rc2"', "'7.10.0-rc2'", '"7.10.0-rc2"')


@given(st.lists(st.tuples(st.text("ab'\" =\n#,", max_size=12), QUOTED), max_size=6))
def test_replaces_only_a_version_that_fills_its_quotes(pieces: list[tuple[str, str]]) -> None:
    text = "".join(f"{filler}\n{version}\n" for filler, version in pieces)
    expected: list[str] = []
    for line in text.split("\n"):
        quote = line[:1]
        expected.append(f"{quote}{CHANGE.new}{quote}" if line in WHOLE_LITERALS else line)

    edited, count = replace_literals(text.encode(), Version(CHANGE.old), CHANGE.new)

    assert edited.decode().split("\n") == expected
    assert count == sum(line in WHOLE_LITERALS for line in text.split("\n"))


# Fewer targets


def split_lines(*targets: str) -> list[str]:
    """Return torch's METADATA with the fields that a split adds."""
    metadata = b"Name: torch\nRequires-Dist: rocm-bootstrap\n\nBody."
    fields, _blank, _body = host_metadata(metadata, runs.split_layout(*targets)).decode().partition("\n\n")
    return fields.split("\n")


@given(st.lists(st.sampled_from(TARGETS), min_size=1, max_size=6, unique=True), st.data())
def test_leaves_the_lines_that_a_split_for_fewer_targets_writes(
    targets: list[str], data: st.DataObject
) -> None:
    kept_targets = data.draw(st.lists(st.sampled_from(targets), min_size=1, unique=True))

    lines = keep_metadata_lines(split_lines(*sorted(targets)), keep_targets(*kept_targets))

    assert list(lines) == split_lines(*sorted(kept_targets))


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


def test_names_another_default_in_pkg_info_where_its_own_is_left_out() -> None:
    lines = keep_metadata_lines(PKG_INFO.splitlines(), keep_targets("gfx942"))

    assert [line for line in lines if "gfx1100" in line] == []
    assert 'Requires-Dist: rocm-sdk-device-gfx942==7.10.0rc2; extra == "device"' in lines


def test_names_another_default_in_requires_txt_where_its_own_is_left_out() -> None:
    text = "\n".join(keep_requires_lines(REQUIRES.split("\n"), keep_targets("gfx942")))

    assert "gfx1100" not in text
    assert "[device]\nrocm-sdk-device-gfx942==7.10.0rc2\n" in text
    assert '[device-gfx942:sys_platform == "linux"]\nrocm-sdk-device-gfx942==7.10.0rc2\n' in text


def test_changes_nothing_where_every_target_is_kept() -> None:
    every_target = keep_targets("gfx942", "gfx1100")

    assert list(keep_metadata_lines(PKG_INFO.splitlines(), every_target)) == PKG_INFO.splitlines()
    assert "\n".join(keep_requires_lines(REQUIRES.split("\n"), every_target)) == REQUIRES


def test_rejects_a_target_that_pkg_info_does_not_name() -> None:
    with pytest.raises(WheelError, match="gfx90a"):
        keep_metadata_lines(PKG_INFO.splitlines(), keep_targets("gfx90a"))


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


def run_module(content: bytes, folder: Path) -> dict[str, Any]:
    """Run a module; return its names."""
    path = folder / "info.py"
    path.write_bytes(content)
    return runpy.run_path(str(path))


def test_keeps_targets_in_the_lists_that_therock_writes(tmp_path: Path) -> None:
    edited = edit_dist_info(THEROCK.encode(), keep_targets("gfx90a", "gfx1200"))

    names = run_module(edited, tmp_path)
    assert names["AVAILABLE_TARGET_FAMILIES"] == ["gfx90a", "gfx90a:xnack+", "gfx1200"]
    assert names["WINDOWS_TARGET_FAMILIES"] == ["gfx1200"]
    # The default must be there on either platform.
    assert names["DEFAULT_TARGET_FAMILY"] == "gfx1200"


def test_writes_the_module_that_a_build_for_fewer_targets_writes() -> None:
    targets = ("gfx1100", "gfx90a", "gfx1200")
    isa_files = [f"lib/oclc_isa_version_{number}.bc" for number in ("1100", "1200", "90a")]
    dist_info = DistInfo(
        version="7.10.0",
        platform="linux",
        families={target: (target,) for target in targets},
        libraries=("amdhip64",),
        split=True,
        aliases={"gfx110X-all": ("gfx1100",), "gfx90a-dcgpu": ("gfx90a",)},
        promised_files={"core": ("bin/hipcc", *isa_files)},
    )
    smaller_dist_info = replace(
        dist_info,
        families={target: (target,) for target in ("gfx90a", "gfx1200")},
        aliases={"gfx90a-dcgpu": ("gfx90a",)},
        promised_files={"core": ("bin/hipcc", *isa_files[1:])},
    )

    edited = edit_dist_info(rendered_dist_info(dist_info, "core"), keep_targets("gfx90a", "gfx1200"))

    assert edited == rendered_dist_info(smaller_dist_info, "core")


@pytest.mark.parametrize(
    ("content", "phrase"),
    [
        (b"__version__ = '7'\n", "target"),
        (b"AVAILABLE_TARGET_FAMILIES = ['gfx942']\n", "target"),
        (b"AVAILABLE_TARGET_FAMILIES = [a for a in b]\n", "program"),
    ],
    ids=["no list", "a list without it", "a computed list"],
)
def test_rejects_a_module_that_does_not_list_the_kept_targets(content: bytes, phrase: str) -> None:
    with pytest.raises(WheelError, match=phrase):
        edit_dist_info(content, keep_targets("gfx90a"))
