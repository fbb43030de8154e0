from __future__ import annotations

import pytest
from packaging.version import Version

from core.errors import WheelError
from pytorch_build.standalone.texts import standalone_metadata, standalone_module, standalone_version


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("2.10.0+rocm7.10.0", "2.10.0+rocm7.10.0.standalone"),
        ("2.10.0a0+devrocm7.10.0.dev0.f689a8ea", "2.10.0a0+devrocm7.10.0.dev0.f689a8ea.standalone"),
        ("2.10.0", "2.10.0+standalone"),
    ],
)
def test_versions_carry_a_mark_that_pep_440_accepts_as_it_is(old: str, new: str) -> None:
    assert standalone_version(Version(old), "standalone") == new
    assert str(Version(new)) == new
    assert Version(new) > Version(old)


def test_a_marked_version_is_not_marked_again() -> None:
    with pytest.raises(WheelError, match="already"):
        standalone_version(Version("2.10.0+rocm7.standalone"), "standalone")


def test_metadata_loses_rocm_and_nothing_else() -> None:
    old = (
        "Metadata-Version: 2.1\nName: torch\nVersion: 2.10.0+rocm7\n"
        "Requires-Dist: rocm[libraries]==7.0\n"
        "Requires-Dist: ROCm-SDK_core (==7.0);\n  python_version > '3'\n"
        "Requires-Dist: rocmtools\nrequires-dist: triton==3.6\n"
        "Requires-Dist: numpy; extra == 'all'\nProvides-Extra: all\n"
        "\nVersion: in the text\n\nRequires-Dist: rocm\n"
    )
    new = standalone_metadata(old.encode(), "2.10.0+rocm7.standalone").decode()
    assert new == (
        "Metadata-Version: 2.1\nName: torch\nVersion: 2.10.0+rocm7.standalone\n"
        "Requires-Dist: rocmtools\nrequires-dist: triton==3.6\n"
        "Requires-Dist: numpy; extra == 'all'\nProvides-Extra: all\n"
        "\nVersion: in the text\n\nRequires-Dist: rocm\n"
    )


def test_licences_are_joined_where_metadata_has_an_expression() -> None:
    old = b"Metadata-Version: 2.4\nVersion: 1\nLicense-Expression: %s\nLicense-File: LICENSE\n"
    for own, both in (
        (b"BSD-3-Clause", "BSD-3-Clause AND MIT"),
        (b"MIT", "MIT"),
        (b"MIT OR Apache-2.0", "(MIT OR Apache-2.0) AND MIT"),
    ):
        new = standalone_metadata(old % own, "2", expression="MIT", license_files=["rocm-sdk-core/LICENSE"])
        fields = f"License-Expression: {both}\nLicense-File: rocm-sdk-core/LICENSE\nLicense-File: LICENSE\n"
        assert new.decode() == f"Metadata-Version: 2.4\nVersion: 2\n{fields}"
    words = b"Metadata-Version: 2.1\nVersion: 1\nLicense: BSD\n"
    assert b"License-" not in standalone_metadata(words, "2", expression="MIT", license_files=["LICENSE"])


def test_the_version_module_changes_where_it_states_the_whole_version() -> None:
    old = b"__version__ = '2.10.0+rocm7'\nrocm: str = \"7\"\nx = '2.10.0+rocm7.1'\ny = \"2.10.0+rocm7\"\n"
    new = standalone_module(old, Version("2.10.0+rocm7"), "2.10.0+rocm7.standalone")
    assert new == old.replace(b"7'\nrocm", b"7.standalone'\nrocm").replace(
        b'7"\n', b'7.standalone"\n'
    ).replace(b'rocm: str = "7.standalone"', b'rocm: str = "7"')
