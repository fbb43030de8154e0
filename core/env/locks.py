"""What target environments are made from: locked build requirements."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from core import console, files
from core.env.installer import Install
from core.errors import DataError, nearest

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence
    from pathlib import Path

    from core.cli.options import Common
    from core.env import Interpreter


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
        text = subset(text, only)
    text = without(text, [Requirement(one).name for one in replaced])
    if not only and not replaced:
        return Install(files=(path,), hashed=True)
    return Install(files=(kept(common.cache / "locks", lock, text),), hashed=True)


_START = re.compile(r"(?P<name>[A-Za-z0-9][A-Za-z0-9._-]*)(\[[^]]*\])?==")
_VIA = re.compile(r"^ +#(?: +via)?(?P<parent> +\S.*)?$")


@dataclass(frozen=True, kw_only=True)
class Locked:
    """One requirement of a lock."""

    name: str
    text: str
    via: tuple[str, ...]


def parse_lock(text: str) -> Sequence[Locked]:
    """Read a lock's requirements, in their order."""
    blocks: list[list[str]] = []
    for line in text.splitlines():
        if _START.match(line):
            blocks.append([line])
        elif blocks and line.startswith(" "):
            blocks[-1].append(line)
    return [_locked(block) for block in blocks]


def subset(text: str, roots: Collection[str]) -> str:
    """Keep the named distributions and all that is there for their sake."""
    locked = parse_lock(text)
    wanted = {str(canonicalize_name(root)) for root in roots}
    names = {str(one.name) for one in locked}
    for root in sorted(wanted - names):
        raise DataError(
            f"The lock has no {root!r}. {nearest(root, names)}", hint="Compile it again: nox -s lock."
        )
    while True:
        more = {one.name for one in locked if wanted.intersection(one.via)} - wanted
        if not more:
            return _joined([one for one in locked if one.name in wanted])
        wanted |= more


def without(text: str, names: Collection[str]) -> str:
    """Leave the named distributions out, for a caller that asks for other versions of them."""
    unwanted = {canonicalize_name(name) for name in names}
    return _joined([one for one in parse_lock(text) if one.name not in unwanted])


def kept(folder: Path, name: str, text: str) -> Path:
    """Write a requirements file whose name ends with its digest: no other text is ever found in it."""
    path = folder / f"{name}-{files.sha256_text(text)[:16]}.txt"
    files.write_text(path, text)
    return path


def _locked(block: Sequence[str]) -> Locked:
    match = _START.match(block[0])
    if match is None:
        raise DataError(f"{block[0]!r} is no pinned requirement.")
    parents = []
    for line in block:
        via = _VIA.match(line)
        if via and via["parent"]:
            parents.append(via["parent"].strip())
    names = (parent for parent in parents if not parent.startswith("-"))
    return Locked(
        name=canonicalize_name(match["name"]),
        text="\n".join(block),
        via=tuple(canonicalize_name(name.partition("[")[0]) for name in names if " " not in name),
    )


def _joined(locked: Sequence[Locked]) -> str:
    return "".join(f"{one.text}\n" for one in locked)
