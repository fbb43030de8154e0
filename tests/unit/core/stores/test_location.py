from pathlib import Path

import pytest

from core.errors import UsageError
from core.stores import headers_for
from core.stores.directory import DirectoryStore
from core.stores.dry_run import DryRunStore
from core.stores.location import open_store


def test_a_folder_is_named_from_the_checkout(tmp_path: Path) -> None:
    assert open_store("out", root=tmp_path) == DirectoryStore(tmp_path / "out")


def test_a_folder_may_lie_elsewhere(tmp_path: Path) -> None:
    folder = tmp_path / "elsewhere"

    assert open_store(str(folder), root=tmp_path / "x") == DirectoryStore(folder)


def test_a_dry_run_opens_a_store_that_is_only_read(tmp_path: Path) -> None:
    assert open_store("out", root=tmp_path, dry_run=True) == DryRunStore(DirectoryStore(tmp_path / "out"))


def test_rejects_an_address_that_is_no_store(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="'ftp://host/x'"):
        open_store("ftp://host/x", root=tmp_path)


IMMUTABLE = "immutable"
REVALIDATED = "must-revalidate"


@pytest.mark.parametrize(
    ("key", "content_type", "caching"),
    [
        ("r/python/g/torch-2.10.0+rocm7.1-cp312-cp312-linux_x86_64.whl", "application/zip", IMMUTABLE),
        ("r/python/g/rocm-7.1.tar.gz", "application/gzip", IMMUTABLE),
        ("r/python/g/a.whl.metadata", "text/plain; charset=utf-8", IMMUTABLE),
        ("r/blas_lib_gfx942.tar.zst", "application/zstd", IMMUTABLE),
        ("r/x.unknown", "application/octet-stream", IMMUTABLE),
        ("r/python/g/index.html", "text/html; charset=utf-8", REVALIDATED),
        ("r/python/g/simple/", "text/html; charset=utf-8", REVALIDATED),
        ("r/manifests/g/build_torch.json", "application/json", REVALIDATED),
        ("r/logs/g/build.log.gz", "application/gzip", REVALIDATED),
        ("owner-repo/r/reports/g/x", "application/octet-stream", REVALIDATED),
    ],
)
def test_browsers_keep_files_and_ask_again_for_pages_and_records(
    key: str, content_type: str, caching: str
) -> None:
    headers = headers_for(key)

    assert headers["ContentType"] == content_type
    assert caching in headers["CacheControl"]
