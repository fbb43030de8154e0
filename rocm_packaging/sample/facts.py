"""Facts of the miniature ROCm: its version, its GPUs, and the names of its artifacts."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

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


@dataclass(frozen=True, kw_only=True, order=True)
class ArtifactName:
    """The name of an artifact: of a part of ROCm, a component, and a target."""

    name: str
    component: str
    target: str = GENERIC

    def folder(self, root: Path) -> Path:
        """Return its folder in an artifact directory."""
        return root / f"{self.name}_{self.component}_{self.target}"

    def expanded(self, *, split: bool) -> list["ArtifactName"]:
        """Return the artifacts that it stands for: one a family, where it is of each and ROCm is unsplit."""
        if self.target != FAMILY:
            return [self]
        if split:
            return [replace(self, target=GENERIC)]
        return [replace(self, target=family) for family in FAMILIES]
