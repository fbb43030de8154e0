from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from core.cli.options import Common
from core.errors import MissingInputError
from rocm_packaging.verbs.build import _fetched

if TYPE_CHECKING:
    from pathlib import Path


@pytest.mark.parametrize(
    ("family", "group"), [("gfx110X-all", "gfx110X-all"), ("gfx110X-all,gfx1151", "gfx110X-all-gfx1151")]
)
def test_what_was_fetched_for_the_run_and_family_is_packaged(tmp_path: Path, family: str, group: str) -> None:
    common = Common(root=tmp_path, run_id="17", gpu_family=family)
    folder = common.outputs.artifacts_folder(tmp_path / ".cache", group)
    with pytest.raises(MissingInputError, match=f"none was fetched into .*/{group}") as caught:
        _fetched(common)
    assert "nox -s fetch_artifacts" in caught.value.hint
    folder.mkdir(parents=True)
    assert _fetched(common) == (folder, family.replace(",", ";"))
