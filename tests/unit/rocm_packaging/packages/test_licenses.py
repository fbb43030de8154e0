"""Licences of packages: named for each artifact, and files that artifacts bring."""

from __future__ import annotations

from email import message_from_bytes
from typing import TYPE_CHECKING
from zipfile import ZipFile

import pytest
from hypothesis import given
from hypothesis import strategies as st
from packaging.licenses import canonicalize_license_expression
from pydantic import ValidationError

from rocm_packaging.artifacts import scan
from rocm_packaging.packages.build import BuildRequest, build
from rocm_packaging.packages.layouts import LicenseData, packages
from rocm_packaging.packages.payload import joined, licenses_of
from tests.unit.rocm_packaging import artifact_sets

if TYPE_CHECKING:
    from email.message import Message
    from pathlib import Path


@pytest.fixture
def split(tmp_path: Path) -> Path:
    """A split set whose artifacts bring licences; in another place, and in another spelling, too."""
    root = tmp_path / "artifacts"
    artifact_sets.write_base(root, "gfx942", split=True)
    artifact_sets.write(
        root, "amd-llvm_lib_generic", **{"lib/llvm/lib/a": "x", "lib/llvm/LICENSE.TXT": "llvm"}
    )
    artifact_sets.write(root, "core-hip_lib_generic", **{"lib/hip": "x", "lib/license.py": "print()"})
    artifact_sets.write(
        root, "core-hip_doc_generic", **{"share/doc/hip/LICENSE.md": "MIT", "share/doc/x": "y"}
    )
    artifact_sets.write(root, "blas_lib_generic", **{"lib/blas": "x"})
    artifact_sets.write(root, "blas_doc_generic", **{"share/doc/rocblas/copyright": "AMD"})
    artifact_sets.write(root, "blas_lib_gfx942", **{"lib/kernels": "x"})
    artifact_sets.write(root, "prim_dev_generic", **{"include/prim.h": "x"})
    return root


def contents(path: Path) -> tuple[Message, dict[str, bytes]]:
    with ZipFile(path) as archive:
        held = {name: archive.read(name) for name in archive.namelist()}
    info = next(name for name in held if name.endswith("/METADATA")).removesuffix("METADATA")
    licenses = {
        name.removeprefix(f"{info}licenses/"): data
        for name, data in held.items()
        if name.startswith(f"{info}licenses/")
    }
    return message_from_bytes(held[f"{info}METADATA"]), licenses


@pytest.mark.parametrize(
    ("wheel", "expression", "files"),
    [
        (
            "core",
            "Apache-2.0 WITH LLVM-exception AND MIT AND NCSA",
            {"lib/llvm/LICENSE.TXT": b"llvm", "share/doc/hip/LICENSE.md": b"MIT"},
        ),
        ("libraries", packages().licenses.of("blas"), {"share/doc/rocblas/copyright": b"AMD"}),
        ("device_gfx942", packages().licenses.of("blas"), {"share/doc/rocblas/copyright": b"AMD"}),
    ],
)
def test_a_wheel_says_what_its_artifacts_are_under(
    split: Path, tmp_path: Path, wheel: str, expression: str, files: dict[str, bytes]
) -> None:
    build(BuildRequest(artifact_dir=split, output_dir=tmp_path / "out"))
    (path,) = (tmp_path / "out").glob(f"rocm_sdk_{wheel}-*.whl")
    metadata, held = contents(path)
    assert metadata["Metadata-Version"] == "2.4"
    assert metadata["License-Expression"] == expression
    assert metadata.get_all("License-File") == sorted(files)
    assert held == files


def test_the_development_package_is_under_all_of_them(split: Path, tmp_path: Path) -> None:
    build(BuildRequest(artifact_dir=split, output_dir=tmp_path / "out"))
    (path,) = (tmp_path / "out").glob("rocm_sdk_devel-*.whl")
    metadata, held = contents(path)
    assert len(held) == 3
    for artifact in ("amd-llvm", "blas", "prim"):
        assert set(packages().licenses.of(artifact).split(" AND ")) <= set(
            metadata["License-Expression"].split(" AND ")
        )


def test_a_link_to_a_licence_becomes_its_text(split: Path) -> None:
    folder = split / "core-hip_doc_generic" / "x" / "stage" / "share" / "doc" / "hip"
    (folder / "COPYING").symlink_to("LICENSE.md")
    (folder / "NOTICE").symlink_to("missing")
    found = scan(split)
    files = licenses_of([one for one in found if one.name == "core-hip"], found).files
    assert {path: entry.source.read_text() for path, entry in files.items()} == {
        "share/doc/hip/COPYING": "MIT",
        "share/doc/hip/LICENSE.md": "MIT",
    }


@given(st.lists(st.sampled_from(sorted(packages().licenses.artifacts.values())), min_size=1))
def test_licences_that_are_joined_are_an_expression(expressions: list[str]) -> None:
    made = joined(expressions)
    assert canonicalize_license_expression(made) == made
    assert set(made.split(" AND ")) == {part for one in expressions for part in one.split(" AND ")}


@pytest.mark.parametrize("text", ["MIT License", "mit", "GPL", "MIT AND", ""])
def test_data_that_is_no_expression(text: str) -> None:
    with pytest.raises(ValidationError, match="default"):
        LicenseData(default=text, artifacts={})


def test_every_artifact_that_is_named_is_packaged() -> None:
    data = packages()
    known = {*data.core.artifacts, *data.profiler.artifacts, *data.devel.artifacts}
    known |= {*data.unsplit.libraries.artifacts, *data.split.libraries.artifacts}
    assert set(data.licenses.artifacts) <= known
