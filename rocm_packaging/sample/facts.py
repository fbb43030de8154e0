"""Facts of the miniature ROCm: its version, its GPUs, and the names of its artifacts."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from core.run import Platform

ROCM_VERSION = "7.99.0.dev0+sample"
FAMILY_TARGETS: Mapping[str, tuple[str, ...]] = {
    "gfx94X-dcgpu": ("gfx942",),
    "gfx110X-all": ("gfx1100", "gfx1101", "gfx1102", "gfx1103"),
}
TARGETS = (*FAMILY_TARGETS["gfx94X-dcgpu"], *FAMILY_TARGETS["gfx110X-all"])
FAMILIES = tuple(FAMILY_TARGETS)
"""The GPU families of the sample; the first is its default."""
GENERIC = "generic"
FAMILY = "{family}"
"""The target of artifacts that exist once a family."""
TEMPLATES = Path(__file__).parent / "templates"
LINUX_ARTIFACTS = frozenset(
    {
        "core-amdsmi",
        "core-runtime",
        "hipfile",
        "rccl",
        "rocdecode",
        "rocjpeg",
        "rocprofiler-sdk",
        "rocprofiler-systems",
        "rpp",
        "sysdeps",
    }
)
"""Parts of ROCm that are not built for Windows."""


@dataclass(frozen=True, kw_only=True)
class Variant:
    """One miniature ROCm.

    `split` says that device code, with the databases of each gfx target, lies in artifacts of its own
    (``KPACK_SPLIT_ARTIFACTS``), and not in those of its family.
    """

    split: bool = False
    platform: Platform = "linux"

    @property
    def is_for_windows(self) -> bool:
        """Whether it has DLLs."""
        return self.platform == "windows"

    def has_artifact(self, name: str) -> bool:
        """Return whether its platform has a part of ROCm."""
        return not (self.is_for_windows and name in LINUX_ARTIFACTS)

    def template(self, path: str) -> Path:
        """Return a file of the sample's templates, in the form of the platform."""
        windows_template = TEMPLATES / "windows" / path
        if self.is_for_windows and windows_template.is_file():
            return windows_template
        return TEMPLATES / path


@dataclass(frozen=True, kw_only=True, order=True)
class ArtifactName:
    """The name of an artifact: of a part of ROCm, a component, and a target."""

    name: str
    component: str
    target: str = GENERIC

    def folder(self, root: Path) -> Path:
        """Return its folder in an artifact directory."""
        return root / f"{self.name}_{self.component}_{self.target}"

    def expanded(self, variant: Variant) -> list["ArtifactName"]:
        """Return the artifacts that it stands for: one a family, where it is of each and ROCm is unsplit."""
        if self.target != FAMILY:
            return [self]
        if variant.split:
            return [replace(self, target=GENERIC)]
        return [replace(self, target=family) for family in FAMILIES]
