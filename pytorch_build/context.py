"""What a stage of this package runs on: the torch ref, GPU family and git mirrors behind the options."""

import argparse
import functools
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from core import console
from core.cell import GroupCell, python_of_tag
from core.cli.options import DEFAULT_STORE, GIT_MIRRORS, Common, environment
from core.errors import UsageError
from core.families import CPU, default_family, detect, family, group_families
from core.run import LOCAL_RUN, group_name
from core.run.records import Record, read_all
from pytorch_build.refs.torch_refs import TorchRef, default_ref, torch_ref


@dataclass(frozen=True, kw_only=True)
class Context:
    """A stage's options with their names looked up."""

    common: Common
    ref: TorchRef  # as this platform builds it
    gpu_family: str  # ``cpu`` for none
    gpu_targets: tuple[str, ...]  # gfx targets; empty for ``cpu``
    group: str = ""  # the artifact group that wheels are taken from, where it is not the family's own

    @property
    def gpu(self) -> bool:
        """Whether wheels are built against ROCm."""
        return self.gpu_family != CPU

    @property
    def artifact_group(self) -> str:
        """The folder name under ``python/``."""
        return self.group or group_name(self.gpu_family, self.common.build_variant)

    @property
    def words(self) -> str:
        """The options that lead another stage to the same wheels of the same run, for hints."""
        common = self.common
        words = ["--torch-ref", self.ref.name, "--gpu-family", self.gpu_family]
        words += ["--run-id", common.run_id] if common.run_id != LOCAL_RUN else []
        words += ["--store", common.store] if common.store != DEFAULT_STORE else []
        words += ["--config-file", str(common.config_file)] if common.config_file else []
        return shlex.join(words)

    @functools.cached_property
    def records(self) -> Sequence[Record]:
        """Read the records of the group, failures included."""
        return read_all(self.common.open_for_reading(), self.common.outputs, self.artifact_group)

    def cell(self, python_tag: str) -> GroupCell:
        """Return what a test of this family and Python runs on."""
        # Wheels of a group for just these families are the family's own.
        is_own_group = not self.group or group_families(self.group) == self.gpu_family
        return GroupCell(
            python=python_of_tag(python_tag) if python_tag else None,
            torch_ref=self.ref.name,
            gpu_family=self.gpu_family,
            artifact_group=None if is_own_group else self.group,
        )


def chosen_ref(common: Common) -> TorchRef:
    """Look the torch ref up; print which one the default is."""
    name = common.torch_ref or default_ref()
    if not common.torch_ref:
        console.say(f"torch ref: {name} (the default)")
    return torch_ref(name, platform=common.outputs.platform)


def chosen_family(common: Common, ref: TorchRef) -> str:
    """Choose the GPU family: the one given, the ref's own default, or this machine's."""
    if common.gpu_family:
        return family(common.gpu_family).name
    if ref.default_family:
        console.say(f"GPU family: {ref.default_family} (default of {ref.name})")
        return ref.default_family
    found = default_family(detect())
    console.say(f"GPU family: {found} (this machine's)")
    return found


def context(common: Common, *, group: str = "") -> Context:
    """Look up what the options name; where wheels are taken from a `group`, its families are the default."""
    ref, whole = chosen_ref(common), group_families(group)
    name = whole if whole and not common.gpu_family else chosen_family(common, ref)
    chosen = family(name)
    if whole and not set(chosen.targets) <= set(family(whole).targets):
        raise UsageError(
            f"Artifact group {group} is for {whole}, and {name} is not among them.",
            hint="Choose one of them with --gpu-family, or another --artifact-group.",
        )
    own = group not in {"", group_name(name, common.build_variant)}
    return Context(
        common=common, ref=ref, gpu_family=name, gpu_targets=chosen.targets, group=group if own else ""
    )


def add_source_options(parser: argparse.ArgumentParser) -> None:
    """Declare how origins are reached."""
    parser.add_argument(
        "--git-mirror",
        action="append",
        default=environment().get(GIT_MIRRORS, "").split(),
        metavar="PREFIX=MIRROR",
        help="fetch from MIRROR what origins have under PREFIX (https://github.com/=/mirrors/); repeatable "
        f"(besides those of {GIT_MIRRORS})",
    )


def mirrors_from(arguments: argparse.Namespace) -> Mapping[str, str]:
    """Read the mirrors."""
    pairs = [pair.partition("=") for pair in arguments.git_mirror]
    if wrong := ["".join(one) for one in pairs if not all(one)]:
        raise UsageError(f"--git-mirror {wrong[0]!r} is not PREFIX=MIRROR.")
    return {prefix: mirror for prefix, _, mirror in pairs}
