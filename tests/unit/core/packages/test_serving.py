from __future__ import annotations

from typing import TYPE_CHECKING
from urllib.error import HTTPError
from urllib.request import urlopen

import pytest

from core.packages.server import served

if TYPE_CHECKING:
    from pathlib import Path


def test_a_folder_is_served_while_it_is_needed(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "torch-2.10.0+rocm7.1.whl").write_bytes(b"wheel")
    with served(tmp_path) as url:
        assert url.startswith("http://127.0.0.1:")
        with urlopen(f"{url}/torch-2.10.0%2Brocm7.1.whl") as answer:  # noqa: S310 - our own address
            assert answer.read() == b"wheel"
        with pytest.raises(HTTPError, match="404") as caught:
            urlopen(f"{url}/../etc/passwd")  # noqa: S310
        caught.value.close()
    with pytest.raises(OSError, match="refused"):
        urlopen(url)  # noqa: S310
    assert capfd.readouterr() == ("", "")
