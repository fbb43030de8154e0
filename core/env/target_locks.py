"""What target environments are made from: locked build requirements."""

from __future__ import annotations

from typing import TYPE_CHECKING

from packaging.requirements import Requirement

from core import console, locks
from core.env.installer import Install

if TYPE_CHECKING:
    from collections.abc import Collection
    from pathlib import Path

    from core.cli.options import Common
    from core.env.interpreters import Interpreter

# what builds need, and what upstream's own tests need besides torch
BUILDS, TORCH_TESTS = "target", "torch-tests"


def target_lock(common: Common, target: Interpreter, lock: str = BUILDS) -> Path | None:
    """Find a lock of requirements for a platform and Python; None for a Python without one.

    A free-threaded Python has the lock of the other one: same versions, with the files of both hashed.
    """
    name = f"{lock}-{common.outputs.platform}-{target.series.removesuffix('t')}.txt"
    path = common.root / "requirements" / name
    return path if path.is_file() else None


def locked_call(
    common: Common,
    target: Interpreter,
    *,
    only: Collection[str] = (),
    replaced: Collection[str] = (),
    lock: str = BUILDS,
) -> Install:
    """Plan the installation of locked requirements.

    Args:
        common: The options.
        target: The environment's interpreter.
        only: Names to take, with what they require; all where none is given.
        replaced: Requirements that take the place of locked ones of the same name.
        lock: Which lock.

    Returns:
        A call with hashes; for a Python that has no lock, the unlocked requirements.
    """
    path = target_lock(common, target, lock)
    if path is None:
        console.warn(f"There is no lock for Python {target.series}; what {lock}.in lists is not pinned.")
        if only:
            return Install(requirements=tuple(only))
        return Install(files=(common.root / "requirements" / f"{lock}.in",))
    text = path.read_text(encoding="utf-8")
    if only:
        text = locks.only(text, only)
    text = locks.without(text, [Requirement(one).name for one in replaced])
    if not only and not replaced:
        return Install(files=(path,), hashed=True)
    return Install(files=(locks.kept(common.cache / "locks", lock, text),), hashed=True)
