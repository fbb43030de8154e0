"""Wheels that were built and then refused: kept on this machine, so that they need not be built again."""

from __future__ import annotations

import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from core import console, files
from core.cli import this_again
from core.cli.options import Common
from core.data import Document
from core.errors import FatalError
from core.run import records, stage
from pytorch_build.check import Expectation  # noqa: TC001 - pydantic reads it

_NAME = "refused.json"


class Built(Document):
    """What a build made, and what is needed to go on from there without its tree."""

    promised: Expectation
    torch_ref: str
    requirements: Mapping[str, str]  # digests of the tree's own requirement files
    details: Mapping[str, Any]
    imported: bool = False
    wheels: Mapping[str, str] = {}  # name -> digest
    input_digest: str = ""
    again: str = ""


@dataclass(frozen=True, kw_only=True)
class Keeper:
    """Keeps the wheels of a cell that were refused last; the `details` are of its record."""

    run: stage.Stage
    input_digest: str
    details: dict[str, Any]

    @property
    def folder(self) -> Path:
        """Where they lie, with their build's log."""
        name = records.record_name(self.run.name, self.run.cell)
        return _group(self.run.common, self.run.artifact_group) / name

    def kept(self) -> Built | None:
        """Return what was refused, if the inputs are the same, it is whole, and nothing is forced."""
        file, log = self.folder / _NAME, self.folder / self.run.log.name
        built = Built.read(file) if file.is_file() and not self.run.common.force else None
        if built is None or built.input_digest != self.input_digest:
            return None
        there = [path for name in built.wheels if (path := self.folder / name).is_file()]
        if {path.name: files.sha256(path) for path in there} != built.wheels:
            return None
        if log.is_file():
            files.copy(log, self.run.log)
        return built

    def keep(self, wheels: Sequence[Path], built: Built, problem: FatalError) -> None:
        """Keep wheels in the place of those from before; say where in the error and in the record."""
        log, digests = self.run.log, {path.name: files.sha256(path) for path in wheels}
        again = console.mask(this_again()).replace(" --force", "")
        known = {"wheels": digests, "input_digest": self.input_digest, "again": again}
        with files.replaced(self.folder) as fresh:
            for path in (*wheels, *([log] if log.is_file() else [])):
                files.link_or_copy(path, fresh / path.name)
            built.model_copy(update=known).write(fresh / _NAME)
        self.details["refused"] = place = str(self.folder.relative_to(self.run.common.root))
        problem.hint = (
            f"{problem.hint}\nThe wheel is kept in {place}: the same command checks it again without a build "
            "(--policy FILE: by limits of your own), and --force builds it anew."
        )

    def clear(self) -> None:
        """Forget what was refused, as the run has its wheel now."""
        shutil.rmtree(self.folder, ignore_errors=True)


def of_ref(common: Common, artifact_group: str, torch_ref: str) -> Mapping[Path, Built]:
    """Return what this machine keeps of a run's group and ref, by folder."""
    found = {path.parent: Built.read(path) for path in _group(common, artifact_group).glob(f"*/{_NAME}")}
    return {path: built for path, built in sorted(found.items()) if built.torch_ref == torch_ref}


def _group(common: Common, artifact_group: str) -> Path:
    return common.cache / "refused" / common.outputs.prefix / artifact_group
