"""The symbolic links of the miniature ROCm, besides libraries' names."""

from dataclasses import dataclass
from pathlib import Path

from rocm_packaging.sample.facts import ArtifactName

AMD_COMPILERS = (
    "amdclang",
    "amdclang++",
    "amdclang-cpp",
    "amdclang-cl",
    "amdflang",
    "amdlld",
)
_COMPILERS = ArtifactName(name="amd-llvm", component="run")
_STAGE = "compiler/amd-llvm/stage"


@dataclass(frozen=True, kw_only=True)
class SampleLink:
    """A symbolic link: its path in the artifact, the stage folder first, and what it says."""

    artifact: ArtifactName
    path: str
    target: str


def _compiler_link(name: str) -> SampleLink:
    return SampleLink(
        artifact=_COMPILERS,
        path=f"{_STAGE}/bin/{name}",
        target=f"../lib/llvm/bin/{name}",
    )


# An ELF program behind a symlink, and a symlinked folder: both occur in real artifacts.
LINKS = (
    *map(_compiler_link, AMD_COMPILERS),
    _compiler_link("offload-arch"),
    SampleLink(artifact=_COMPILERS, path=f"{_STAGE}/llvm", target="lib/llvm"),
)


def make_links(root: Path) -> None:
    """Make the links in an artifact directory."""
    for link in LINKS:
        path = link.artifact.folder(root) / link.path
        path.parent.mkdir(parents=True, exist_ok=True)
        path.symlink_to(link.target)
