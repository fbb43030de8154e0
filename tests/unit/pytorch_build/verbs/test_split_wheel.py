from collections.abc import Callable
from pathlib import Path

import pytest

from core.errors import UsageError
from tests.kit.front_doors import FrontDoorResult
from tests.kit.wheels import write_wheel

Front = Callable[..., FrontDoorResult]
TAG = "cp312-cp312-linux_x86_64"


@pytest.mark.parametrize("spelling", ["torch-2.10.0", "Torch-2.10.0", "torch-2.10"])
def test_refuses_a_wheel_that_is_there_twice_in_any_spelling(
    front: Front, tmp_path: Path, spelling: str
) -> None:
    wheel = write_wheel(tmp_path / "first", name="torch", version="2.10.0", tag=TAG)
    other_wheel = tmp_path / "second" / f"{spelling}-{TAG}.whl"
    other_wheel.parent.mkdir()
    other_wheel.write_bytes(wheel.read_bytes())

    result = front("split-wheel", wheel, other_wheel)

    assert result.exit_code == UsageError.exit_code
    assert "twice" in result.report
