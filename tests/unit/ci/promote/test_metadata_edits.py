from __future__ import annotations

import string

import pytest
from hypothesis import given
from hypothesis import strategies as st
from packaging.requirements import Requirement

from ci.promote import edits
from ci.promote.edits import requirement, requires_txt
from ci.promote.version_change import RocmChange
from core.errors import WheelError

CHANGE = RocmChange(old="7.10.0rc2", new="7.10.0")
OLD, NEW = "2.10.0+rocm7.10.0rc2", "2.10.0+rocm7.10.0"


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


def test_line_ends_and_bytes_that_are_no_utf8_stay() -> None:
    content = b"Name: torch\r\nVersion: 2.10.0+rocm7.10.0rc2\r\nAuthor: \xff\r\n\r\nbody\xfe\r\n"
    assert metadata(content) == content.replace(b"rc2", b"")


def test_metadata_without_a_description() -> None:
    assert (
        metadata(b"Name: torch\nVersion: 2.10.0+rocm7.10.0rc2") == b"Name: torch\nVersion: 2.10.0+rocm7.10.0"
    )


def test_other_spellings_of_the_version() -> None:
    assert metadata(b"Version:2.10.0+ROCM7.10.0rc2\n") == b"Version:2.10.0+rocm7.10.0\n"


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
        ("rocm", "rocm"),
        ("rocm>=7", "rocm>=7"),
        ("rocm==7.10.0", "rocm==7.10.0"),
        ("torch>=2.4", "torch>=2.4"),
        ("torch==2.10.0", "torch==2.10.0"),
        (f"torch=={OLD}", f"torch=={NEW}"),
        (f"torch=={NEW}", f"torch=={NEW}"),
        ("torch==2.10.0+cpu", "torch==2.10.0+cpu"),
        ("rocm==7.10.*", "rocm==7.10.*"),
        ("numpy==7.10.0rc2", "numpy==7.10.0rc2"),
        ("rocm @ https://x.invalid/rocm-7.10.0rc2.tar.gz", "rocm @ https://x.invalid/rocm-7.10.0rc2.tar.gz"),
        ('rocm==7.10.0rc2;extra=="7.10.0rc2"', 'rocm==7.10.0;extra=="7.10.0rc2"'),
        (
            'rocm-sdk-device-gfx942==7.10.0rc2 ; sys_platform == "linux" and extra == "device"',
            'rocm-sdk-device-gfx942==7.10.0 ; sys_platform == "linux" and extra == "device"',
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


def test_requires_txt_of_setuptools() -> None:
    content = (
        b"rocm-sdk-core==7.10.0rc2\nnumpy\n\n[devel]\nrocm-sdk-devel==7.10.0rc2\n\n[libraries:extra]\n# x\n"
    )
    assert requires_txt(content, CHANGE) == content.replace(b"7.10.0rc2", b"7.10.0")


NAMES = st.sampled_from(["rocm", "rocm-sdk-core", "rocm_sdk_devel", "numpy", "filelock"])
EXTRAS = st.lists(st.text(string.ascii_lowercase, min_size=1, max_size=5), max_size=2).map(",".join)
SPECIFIERS = st.lists(st.sampled_from([">=2", "<9", "!=3.1", "==7.10.0rc2"]), max_size=3, unique=True)
MARKERS = st.sampled_from(["", ' ; python_version < "3.12"', '; sys_platform == "linux"'])


@given(NAMES, EXTRAS, SPECIFIERS, MARKERS)
def test_what_a_requirement_says_besides_stays(
    name: str, extras: str, specifiers: list[str], marker: str
) -> None:
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
def test_there_and_back_gives_the_same_metadata(
    fields: list[tuple[str, str]], body: str, end: str, place: int
) -> None:
    lines = [f"{name}: {value}" for name, value in fields]
    lines.insert(place, f"Version: {OLD}")
    lines.insert(place, "Requires-Dist: rocm[libraries]==7.10.0rc2")
    content = (end.join(lines) + end + end + body).encode("utf-8", "surrogatepass")
    there = metadata(content)
    back = RocmChange(old=CHANGE.new, new=CHANGE.old)
    assert edits.metadata(there, old=NEW, new=OLD, change=back) == content
    changed = [(a, b) for a, b in zip(content.split(b"\n"), there.split(b"\n"), strict=True) if a != b]
    assert len(changed) == 2
