"""Upstream repositories in a folder, and a torch ref over them."""

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from pytorch_build.refs.torch_refs import ProjectSource, TorchRef
from tests.conftest import Commit


class Upstream:
    """Repositories by their projects' names; what a ref says beside `main` is given for each."""

    def __init__(self, root: Path, commit_files: Commit) -> None:
        self.root, self._commit = root, commit_files
        self.ref = TorchRef(name="mine", projects={}, components=(), pythons=("3.12",), platforms={})

    def commit(self, name: str, texts: Mapping[str, str]) -> str:
        return self._commit(self.root / name, texts)

    def names(self, components: tuple[str, ...], **sources: Mapping[str, Any]) -> None:
        projects = {
            name: ProjectSource(**{"project": name, "origin": str(self.root / name), "ref": "main", **source})
            for name, source in sources.items()
        }
        self.ref = replace(self.ref, projects=projects, components=components)

    def with_source(self, project: str, **changes: Any) -> TorchRef:
        source = replace(self.ref.projects[project], **changes)
        return replace(self.ref, projects={**self.ref.projects, project: source})
