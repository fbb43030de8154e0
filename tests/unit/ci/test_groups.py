from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from core.errors import MissingInputError
from core.run import artifact_groups, group_name

if TYPE_CHECKING:
    from collections.abc import Callable

    from core.run import RunOutputs
    from core.run.records import FileRecord
    from core.stores import Store


def test_the_groups_of_a_run_are_those_with_wheels(
    store: Store, outputs: RunOutputs, publish: Callable[..., FileRecord]
) -> None:
    publish(group="gfx110X-all")
    publish(group="cpu")
    store.put_bytes(f"{outputs.manifests_prefix('gfx1151')}/build_torch.json", b"{}")
    assert artifact_groups(store, outputs, "") == ["cpu", "gfx110X-all"]
    assert artifact_groups(store, outputs, "cpu") == ["cpu"]
    with pytest.raises(MissingInputError, match="no group 'gfx110x-all'") as caught:
        artifact_groups(store, outputs, "gfx110x-all")
    assert "gfx110X-all" in caught.value.hint


def test_a_run_without_wheels_is_an_error(store: Store, outputs: RunOutputs) -> None:
    with pytest.raises(MissingInputError, match="Run 17 has no wheels in"):
        artifact_groups(store, outputs, "")


@pytest.mark.parametrize(
    ("family", "group"),
    [("cpu", "cpu"), ("gfx942;gfx1100", "gfx942-gfx1100"), ("gfx942, gfx1100", "gfx942-gfx1100"), ("", "")],
)
def test_a_list_of_families_shares_a_folder(family: str, group: str) -> None:
    assert group_name(family) == group
