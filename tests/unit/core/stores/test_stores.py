from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from core.errors import UsageError
from core.stores import headers_for, open_store
from core.stores.directory import DirectoryStore
from core.stores.location import DryRunStore

if TYPE_CHECKING:
    from pathlib import Path


def test_a_folder_is_a_store_named_from_the_checkout(tmp_path: Path) -> None:
    assert open_store("out", root=tmp_path) == DirectoryStore(tmp_path / "out")
    assert open_store(str(tmp_path / "else"), root=tmp_path / "x") == DirectoryStore(tmp_path / "else")


def test_a_dry_run_opens_a_store_that_only_says_what_it_would_do(tmp_path: Path) -> None:
    assert open_store("out", root=tmp_path, dry_run=True) == DryRunStore(DirectoryStore(tmp_path / "out"))


def test_an_address_of_no_known_kind_is_no_store(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="'ftp://host/x' is no store"):
        open_store("ftp://host/x", root=tmp_path)


@pytest.mark.parametrize(
    ("key", "kind"),
    [
        ("r/python/g/torch-2.10.0+rocm7.1-cp312-cp312-linux_x86_64.whl", "application/zip"),
        ("r/python/g/rocm-7.1.tar.gz", "application/gzip"),
        ("r/python/g/a.whl.metadata", "text/plain; charset=utf-8"),
        ("r/blas_lib_gfx942.tar.zst", "application/zstd"),
        ("r/x.unknown", "application/octet-stream"),
    ],
)
def test_files_are_kept_for_ever(key: str, kind: str) -> None:
    headers = headers_for(key)
    assert headers.content_type == kind
    assert "immutable" in headers.cache_control


@pytest.mark.parametrize(
    "key",
    [
        "r/python/g/index.html",
        "r/manifests/g/build_torch.json",
        "r/logs/g/build.log.gz",
        "owner-repo/r/reports/g/x",
    ],
)
def test_pages_and_records_are_asked_for_again(key: str) -> None:
    assert "must-revalidate" in headers_for(key).cache_control
