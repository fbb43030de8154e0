"""From a wheel for one machine to one for every machine of a manylinux policy."""

from __future__ import annotations

import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from core.errors import CheckError
from core.wheel.wheel_editing import Additions, edit_wheel
from core.wheel.wheels import parse_wheel_name
from pytorch_build.standalone.fat.binaries import Binary, read_binary
from pytorch_build.standalone.portable import grafting
from pytorch_build.standalone.portable.analysis import platform_text

if TYPE_CHECKING:
    from collections.abc import Mapping

    from core.wheel.wheel_writer import WrittenFile
    from pytorch_build.standalone.portable.analysis import Portability


@dataclass(frozen=True, kw_only=True)
class Repaired:
    """What became of a wheel."""

    file: WrittenFile | None
    platform: str
    grafted: tuple[str, ...] = ()


def repair(
    wheel: Path, found: Portability, output: Path, *, graft: bool, epoch: int | None = None
) -> Repaired:
    """Write a wheel again with the tag that it satisfies."""
    external = {} if found.portable and not graft else found.external
    if external or not found.portable:
        _require_graftable(wheel, found, graft=graft)
    platform = platform_text(found.reachable if external else found.satisfied)
    if not external and {tag.platform for tag in parse_wheel_name(wheel.name).tags} == set(
        platform.split(".")
    ):
        return Repaired(file=None, platform=platform)
    places = {name: path for name, path in external.items() if path is not None}
    distribution = wheel.name.partition("-")[0]
    with tempfile.TemporaryDirectory(prefix="repair-wheel-") as scratch:
        patches = grafting.plan(
            distribution, places, grafting.digests_of(places), found.needs, _needs_of(places)
        )
        edited = edit_wheel(
            wheel,
            output,
            version=str(parse_wheel_name(wheel.name).version),
            additions=Additions(members=grafting.patched(wheel, patches, Path(scratch)), platform=platform),
            epoch=epoch,
        )
    return Repaired(file=edited.file, platform=platform, grafted=tuple(places))


def _require_graftable(wheel: Path, found: Portability, *, graft: bool) -> None:
    if not found.reachable[0].startswith("manylinux"):
        raise CheckError(
            f"{wheel.name} satisfies no manylinux policy: its symbols or instructions are too new.",
            hint="Build it in the manylinux image: --container.",
        )
    absent = [name for name, path in found.external.items() if path is None]
    if graft and not absent:
        return
    listed = ", ".join(
        f"{name} (for {', '.join(_users(found, name)) or 'another of them'})"
        for name in (absent if graft else found.external)
    )
    if graft:
        raise CheckError(
            f"{wheel.name} needs libraries that this machine does not have: {listed}.",
            hint="Repair it where it was built.",
        )
    raise CheckError(
        f"{wheel.name} needs libraries that manylinux does not promise: {listed}.",
        hint="Put them in (--graft), or build without them: nox -s repair_wheel -- WHEEL --graft.",
    )


def _users(found: Portability, name: str) -> list[str]:
    return sorted(member for member, binary in found.needs.items() if name in binary.needed)[:3]


def _needs_of(places: Mapping[str, Path]) -> dict[str, Binary]:
    needs = {}
    for name, path in places.items():
        with path.open("rb") as stream:
            needs[name] = read_binary(stream, str(path)) or Binary(name=name, needed=())
    return needs
