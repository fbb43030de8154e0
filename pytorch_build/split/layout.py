"""Which wheels a split makes: their names, what they require of each other, and their METADATA."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from email.parser import BytesHeaderParser
from typing import TYPE_CHECKING

from packaging.requirements import Requirement
from packaging.version import Version

from core.families import parents
from core.wheel.writer import file_stem

if TYPE_CHECKING:
    from core.wheel import WheelMetadata

# Fields of the host's metadata that hold for its device code as well.
_KEPT_FIELDS = (
    "license-expression",
    "license",
    "license-file",
    "requires-python",
    "home-page",
    "author",
    "author-email",
    "maintainer",
    "maintainer-email",
    "project-url",
)
_VERSION_WITH_EXTRAS = Version("2.1")
_LICENSE_FILES = ("licenses/", "LICENSE", "LICENCE", "NOTICE", "COPYING", "AUTHORS")


@dataclass(frozen=True, kw_only=True)
class SplitLayout:
    """The wheels of a split: the host, one for each gfx target, and one for each group with files of its own.

    A group is a family or a sub-family of GPUs. `rocm_version` is that of ROCm's device packages.
    """

    distribution: str
    version: str
    targets: tuple[str, ...]
    groups: tuple[str, ...]
    rocm_version: str

    @property
    def gpus(self) -> tuple[str, ...]:
        """The targets, then the groups: each of them has a device wheel."""
        return (*self.targets, *self.groups)

    def device_distribution(self, gpu: str) -> str:
        """Return the distribution name of the device wheel of a target or group."""
        return f"amd-{self.distribution}-device-{gpu}"

    def groups_of(self, target: str) -> list[str]:
        """Return the families and sub-families of a target that have a device wheel of their own."""
        return [group for group in parents(target) if group in self.groups]

    def file_names(self, host: str) -> list[str]:
        """Return the file names of all wheels: the host's, which is given, and the device wheels'."""
        names = [host]
        tag = tag_of(host)
        for gpu in self.gpus:
            stem = file_stem(self.device_distribution(gpu), self.version)
            names.append(f"{stem}-{tag}.whl")
        return names

    def fields_of_extras(self) -> list[str]:
        """Return the METADATA fields of the host's extras: one extra for each target, and one for all."""
        gpus_by_extra: dict[str, Sequence[str]] = {}
        for target in self.targets:
            extra = f"device-{target}"
            gpus_by_extra[extra] = [target, *self.groups_of(target)]
        gpus_by_extra["device-all"] = self.gpus

        fields: list[str] = []
        for extra, gpus in gpus_by_extra.items():
            fields.append(f"Provides-Extra: {extra}")
            requirements = self._device_requirements(gpus)
            fields += [f'Requires-Dist: {requirement}; extra == "{extra}"' for requirement in requirements]
        return fields

    def requirements_of(self, gpu: str) -> list[str]:
        """Return what the device wheel of a target or group requires."""
        requirements = [f"{self.distribution} == {self.version}"]
        if gpu in self.targets:
            requirements.append(f"rocm-sdk-device-{gpu} == {self.rocm_version}")
            requirements += self._device_requirements(self.groups_of(gpu))
        return requirements

    def _device_requirements(self, gpus: Sequence[str]) -> list[str]:
        """Return the requirements on the device wheels of some targets and groups."""
        return [f"{self.device_distribution(gpu)} == {self.version}" for gpu in gpus]


def tag_of(wheel_name: str) -> str:
    """Return the compatibility tag in a wheel's file name, such as ``cp312-cp312-linux_x86_64``."""
    python, abi, platform = wheel_name.removesuffix(".whl").split("-")[-3:]
    return f"{python}-{abi}-{platform}"


def host_metadata(metadata: bytes, layout: SplitLayout) -> bytes:
    """Return the host wheel's METADATA: that of the fat wheel, and the extras."""
    head, blank_line, body = metadata.decode().partition("\n\n")
    new_head = "\n".join([head.rstrip("\n"), *layout.fields_of_extras(), ""])
    return (new_head + blank_line[1:] + body).encode()


def device_metadata(
    host: WheelMetadata,
    layout: SplitLayout,
    gpu: str,
) -> str:
    """Return the METADATA of a device wheel, whose licence and Python are those of the host."""
    # A licence's text may fill several lines, which a header continues by indenting them.
    message = BytesHeaderParser().parsebytes(host.raw)
    metadata_version = Version(message.get("metadata-version", "2.1"))
    served_targets = [target for target in layout.targets if gpu in {target, *layout.groups_of(target)}]
    lines = [
        f"Metadata-Version: {max(metadata_version, _VERSION_WITH_EXTRAS)}",
        f"Name: {layout.device_distribution(gpu)}",
        f"Version: {layout.version}",
        f"Summary: Device code of {layout.distribution} for {', '.join(served_targets)}",
    ]

    classifiers: list[str] = []
    for name, value in message.items():
        field = name.lower()
        if field in _KEPT_FIELDS:
            lines.append(f"{name.title()}: {value}")
        elif field == "classifier" and value.startswith("License ::"):
            classifiers.append(f"Classifier: {value}")
    lines += classifiers
    lines += [f"Requires-Dist: {requirement}" for requirement in layout.requirements_of(gpu)]
    return "\n".join(lines) + "\n"


def required_rocm(requires_dist: Sequence[str]) -> str | None:
    """Return the version of ROCm that a wheel requires exactly; None where it requires none so."""
    for requirement in map(Requirement, requires_dist):
        if requirement.name != "rocm":
            continue
        for specifier in requirement.specifier:
            if specifier.operator == "==":
                return specifier.version
    return None


def license_members(
    members: Collection[str],
    folder: str,
    new_folder: str,
) -> Mapping[str, str]:
    """Return the licence files of a ``.dist-info`` folder, each with its path in another one."""
    prefixes = tuple(f"{folder}/{name}" for name in _LICENSE_FILES)
    new_names: dict[str, str] = {}
    for member in members:
        if member.startswith(prefixes):
            path = member.removeprefix(f"{folder}/")
            new_names[member] = f"{new_folder}/{path}"
    return new_names
