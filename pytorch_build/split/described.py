"""What the wheels of a split say of themselves: names, extras, requirements, licences."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from packaging.requirements import Requirement

from core.families import parents
from core.wheel.writer import file_stem

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping, Sequence

    from core.wheel import WheelMetadata

_HEADERS_END = "\n\n"
# Fields of the host's metadata that hold for its device code as well.
_KEPT = (
    *(
        "license-expression",
        "license",
        "license-file",
        "requires-python",
        "home-page",
        "author",
        "author-email",
    ),
    *("maintainer", "maintainer-email", "project-url"),
)
_OLDEST = (2, 1)  # Provides-Extra


def device_package(distribution: str, gpu: str) -> str:
    """Return the name of the distribution with a wheel's device code for a target, sub-family or family."""
    return f"amd-{distribution}-device-{gpu}"


@dataclass(frozen=True, kw_only=True)
class Wheels:
    """The wheels of a split."""

    distribution: str
    version: str
    targets: tuple[str, ...]
    groups: tuple[str, ...]
    rocm: str

    def chain(self, target: str) -> tuple[str, ...]:
        """Return whose wheels a GPU needs: its target's, and those of the groups that it is in."""
        return (target, *(group for group in parents(target) if group in self.groups))

    def file_names(self, host: str) -> Sequence[str]:
        """Return the names of all files, by the name of the host wheel, which comes first."""
        stems = [
            file_stem(device_package(self.distribution, gpu), self.version)
            for gpu in (*self.targets, *self.groups)
        ]
        return (host, *(f"{stem}-{tag_of(host)}.whl" for stem in stems))

    def _pin(self, gpu: str) -> str:
        return f"{device_package(self.distribution, gpu)} == {self.version}"

    def host_lines(self) -> Sequence[str]:
        """Write the host's extras: one a target, and all."""
        lines: list[str] = []
        extras = {f"device-{target}": self.chain(target) for target in self.targets}
        for extra, gpus in {**extras, "device-all": (*self.targets, *self.groups)}.items():
            lines.append(f"Provides-Extra: {extra}")
            lines += [f'Requires-Dist: {self._pin(gpu)}; extra == "{extra}"' for gpu in gpus]
        return lines

    def requirements(self, gpu: str) -> Sequence[str]:
        """Return what the wheel of a target or group requires."""
        host = f"{self.distribution} == {self.version}"
        if gpu not in self.targets:
            return (host,)
        return (host, f"rocm-sdk-device-{gpu} == {self.rocm}", *map(self._pin, self.chain(gpu)[1:]))


def tag_of(wheel: str) -> str:
    """Return the compatibility tag in a wheel's file name."""
    return "-".join(wheel.removesuffix(".whl").split("-")[-3:])


def host_metadata(old: bytes, wheels: Wheels) -> bytes:
    """Add the extras to the host's METADATA, behind its other fields."""
    text = old.decode()
    head, blank, body = text.partition(_HEADERS_END)
    return "\n".join((head.rstrip("\n"), *wheels.host_lines(), "")).encode() + (blank[1:] + body).encode()


def device_metadata(host: WheelMetadata, wheels: Wheels, gpu: str) -> str:
    """Write the METADATA of the wheel of a target or group; who may use it follows the host."""
    fields = _fields(host.raw)
    version = dict(fields).get("metadata-version", "2.1")
    newest = max(_OLDEST, tuple(int(part) for part in version.split(".")))
    served = [target for target in wheels.targets if gpu in wheels.chain(target)]
    lines = [
        f"Metadata-Version: {'.'.join(map(str, newest))}",
        f"Name: {device_package(wheels.distribution, gpu)}",
        f"Version: {wheels.version}",
        f"Summary: Device code of {wheels.distribution} for {', '.join(served)}",
        *(f"{name.title()}: {value}" for name, value in fields if name in _KEPT),
        *(
            f"Classifier: {value}"
            for name, value in fields
            if name == "classifier" and value.startswith("License ::")
        ),
        *(f"Requires-Dist: {one}" for one in wheels.requirements(gpu)),
    ]
    return "\n".join(lines) + "\n"


def _fields(raw: bytes) -> Sequence[tuple[str, str]]:
    from email.parser import BytesHeaderParser

    message = BytesHeaderParser().parsebytes(raw)
    # a licence's text may fill several lines, which a header continues by indenting them
    return [(name.lower(), str(value)) for name, value in message.items()]


def rocm_version(requires: Collection[str]) -> str:
    """Return the version of ROCm that a wheel requires exactly; empty where it requires none."""
    for one in map(Requirement, requires):
        if one.name == "rocm":
            return next((pin.version for pin in one.specifier if pin.operator == "=="), "")
    return ""


def licence_members(names: Collection[str], folder: str, new: str) -> Mapping[str, str]:
    """Say which licence files go along: old member -> new one."""
    starts = ("licenses/", "LICENSE", "LICENCE", "NOTICE", "COPYING", "AUTHORS")
    inside = [name for name in names if name.startswith(f"{folder}/")]
    return {
        name: f"{new}/{name.removeprefix(f'{folder}/')}"
        for name in inside
        if name.removeprefix(f"{folder}/").startswith(starts)
    }
