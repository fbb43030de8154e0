"""The front doors of the three packages, as a shell goes through them."""

import argparse
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from types import ModuleType
from typing import Literal

import pytest

import ci.__main__
import pytorch_build.__main__
import rocm_packaging.__main__
from core.cli import Verb, main, parsed_call
from core.cli.options import Common, common_from
from core.status import Status

Package = Literal["ci", "pytorch_build", "rocm_packaging"]

VERBS: Mapping[Package, Sequence[Verb]] = {
    "ci": ci.__main__.VERBS,
    "pytorch_build": pytorch_build.__main__.VERBS,
    "rocm_packaging": rocm_packaging.__main__.VERBS,
}


def run_verb(package: Package, verb: str, *options: object) -> int:
    """Run a verb of a package with its options; return the exit code."""
    return main(package, "", VERBS[package], [verb, *map(str, options)])


def look_at_verb(package: Package, verb: str, *options: object) -> Status:
    """Return what a verb says of itself: whether there is work for it with these options."""
    module, arguments = parsed_call(package, [verb, *map(str, options)])
    status: Status = module.look(arguments)
    return status


def run_ci(verb: object, *options: object) -> int:
    """Run a verb of `ci` with its options; return the exit code."""
    return run_verb("ci", str(verb), *options)


def use_checkout(monkeypatch: pytest.MonkeyPatch, verb: ModuleType, root: Path) -> None:
    """Let the module of a verb take a folder for the checkout."""

    def common_in_checkout(arguments: argparse.Namespace) -> Common:
        return replace(common_from(arguments), root=root)

    monkeypatch.setattr(verb, "common_from", common_in_checkout)


@dataclass(frozen=True, kw_only=True)
class FrontDoorResult:
    """How a front door ended: its exit code, its standard output, and what it reported beside."""

    exit_code: int
    output: str
    report: str

    @property
    def errors(self) -> list[str]:
        """Return the lines that report errors."""
        return [line for line in self.report.splitlines() if line.startswith("error: ")]


def run_pytorch_build(verb: object, *options: object) -> int:
    """Run a verb of `pytorch_build` with its options; return the exit code."""
    return run_verb("pytorch_build", str(verb), *options)
