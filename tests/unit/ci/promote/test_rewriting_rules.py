from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from ci.promote.version_change import RULES_FILE, Rules, rules
from core.data import load_toml
from core.errors import DataError
from pytorch_build.refs.torch_refs import DISTRIBUTIONS

if TYPE_CHECKING:
    from pathlib import Path


def test_every_project_that_we_build_takes_part() -> None:
    assert {rules().kind_of(name) for name in DISTRIBUTIONS.values()} == {"pytorch"}
    for name in ("rocm", "rocm-sdk-core", "rocm-sdk-libraries-gfx94x-dcgpu", "rocm-sdk-device-gfx942"):
        assert rules().kind_of(name) == "rocm"
    assert rules().kind_of("numpy") is None


def test_every_package_of_rocm_has_a_place() -> None:
    for name in ("rocm", "rocm-sdk-core", "rocm-sdk-libraries", "rocm-sdk-devel", "rocm-profiler"):
        assert any(place.required and place.holds == "rocm" for place in rules().places_of(name))
    assert any(place.members.endswith(".json") for place in rules().places_of("rocm-sdk-device-gfx942"))


def test_keys_that_nobody_knows_are_refused(tmp_path: Path) -> None:
    changed = tmp_path / "rewriting.toml"
    changed.write_text(
        RULES_FILE.read_text(encoding="utf-8") + '\n[[places]]\nmember = "x"\n', encoding="utf-8"
    )
    with pytest.raises(DataError, match=r"member: unknown key\. Did you mean 'members'"):
        load_toml(changed, Rules)


def test_files_that_may_go_on_mentioning_the_candidate() -> None:
    made = Rules.model_validate(
        {
            "distributions": {"rocm": ["rocm"], "pytorch": []},
            "places": [],
            "mentions": [{"distributions": ["rocm"], "members": "doc/*", "reason": "history"}],
        }
    )
    assert made.may_mention("rocm", "doc/a/changes.md")
    assert not made.may_mention("rocm", "src/doc.py")
    assert not made.may_mention("torch", "doc/changes.md")
    assert not rules().mentions
