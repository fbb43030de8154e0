"""What a stage of this package runs on: the torch ref, GPU family and git mirrors behind the options."""

import argparse
import functools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from core import console
from core.cell import GroupCell, python_of_tag
from core.cli.options import DEFAULT_STORE, GIT_MIRRORS, Common, environment
from core.errors import UsageError
from core.families import CPU, default_family, detect, family, group_families
from core.run import LOCAL_RUN, group_name, record_keys_by_group
from core.run.records import Record, read_all
from core.shell import command_line
from pytorch_build.refs.torch_refs import TorchRef, default_ref, torch_ref


@dataclass(frozen=True, kw_only=True)
class Context:
    """A stage's options, with the torch ref and the GPU family that they name looked up.

    Attributes:
        common: The options.
        ref: The torch ref, as this platform builds it.
        gpu_family: The GPU family; ``cpu`` for none.
        gpu_targets: Its gfx targets; none for ``cpu``.
        group: The artifact group that wheels are taken from; "" for the family's own.
    """

    common: Common
    ref: TorchRef
    gpu_family: str
    gpu_targets: tuple[str, ...]
    group: str = ""

    @property
    def gpu(self) -> bool:
        """Whether wheels are built against ROCm."""
        return self.gpu_family != CPU

    @property
    def artifact_group(self) -> str:
        """The folder of the run that wheels and records are in, such as ``gfx94X-dcgpu``."""
        return self.group or group_name(self.gpu_family, self.common.build_variant)

    @property
    def options_for_hints(self) -> str:
        """The options, as text for hints, that lead another stage to the same wheels of the same run."""
        common = self.common
        options = ["--torch-ref", self.ref.name, "--gpu-family", self.gpu_family]
        if common.run_id != LOCAL_RUN:
            options += ["--run-id", common.run_id]
        if common.store != DEFAULT_STORE:
            options += ["--store", common.store]
        if common.config_file:
            options += ["--config-file", str(common.config_file)]
        return command_line(options)

    @functools.cached_property
    def records(self) -> Sequence[Record]:
        """The records in the artifact group, those of failed steps included."""
        return read_all(self.common.open_for_reading(), self.common.outputs, self.artifact_group)

    def cell(self, python_tag: str) -> GroupCell:
        """Return the cell of the torch ref and family for a Python, by which records are named."""
        # Wheels of a group for just these families are the family's own.
        is_own_group = not self.group or group_families(self.group) == self.gpu_family
        return GroupCell(
            python=python_of_tag(python_tag) if python_tag else None,
            torch_ref=self.ref.name,
            gpu_family=self.gpu_family,
            artifact_group=None if is_own_group else self.group,
        )


def find_ref(common: Common) -> TorchRef:
    """Return the torch ref that the options name; print which one the default is."""
    name = common.torch_ref or default_ref()
    if not common.torch_ref:
        console.say(f"torch ref: {name} (the default)")
    return torch_ref(name, platform=common.outputs.platform)


def find_family(common: Common, ref: TorchRef) -> str:
    """Return the GPU family that the options name, else the ref's own default, or this machine's."""
    if common.gpu_family:
        return family(common.gpu_family).name
    if ref.default_family:
        console.say(f"GPU family: {ref.default_family} (default of {ref.name})")
        return ref.default_family
    machine_family = default_family(detect())
    console.say(f"GPU family: {machine_family} (this machine's)")
    return machine_family


def find_context(common: Common, *, group: str = "") -> Context:
    """Return the torch ref and family that options name; a `group` of wheels brings a family as default."""
    ref = find_ref(common)
    families_of_group = group_families(group)
    if families_of_group and not common.gpu_family:
        gpu_family = family(families_of_group)
    else:
        gpu_family = family(find_family(common, ref))

    if families_of_group and not set(gpu_family.targets) <= set(family(families_of_group).targets):
        raise UsageError(
            f"Artifact group {group} is for {families_of_group}, and {gpu_family.name} is not among them.",
            hint="Choose one of them with --gpu-family, or another --artifact-group.",
        )
    is_own_group = group == group_name(gpu_family.name, common.build_variant)
    return Context(
        common=common,
        ref=ref,
        gpu_family=gpu_family.name,
        gpu_targets=gpu_family.targets,
        group="" if is_own_group else group,
    )


def find_context_of_wheels(common: Common, *, group: str = "") -> Context:
    """Return the torch ref and family of what is checked or tested of a run.

    What the options do not name is that of the run's wheels, where it has wheels of one alone.
    """
    if common.torch_ref and (common.gpu_family or group):
        return find_context(common, group=group)

    run_id = common.run_id
    cells = _cells_of_builds(common, group)
    torch_refs = {cell.torch_ref for cell in cells}
    if not common.torch_ref and len(torch_refs) == 1:
        (only_ref,) = torch_refs
        console.say(f"torch ref: {only_ref} (that of run {run_id})")
        common = replace(common, torch_ref=only_ref or "")

    gpu_families = {cell.gpu_family for cell in cells if cell.torch_ref == common.torch_ref}
    if not common.gpu_family and not group and len(gpu_families) == 1:
        (only_family,) = gpu_families
        console.say(f"GPU family: {only_family} (that of run {run_id})")
        common = replace(common, gpu_family=only_family or "")
    return find_context(common, group=group)


def _cells_of_builds(common: Common, group: str) -> Sequence[GroupCell]:
    """Return what the wheels of a run's torch refs are for, in one artifact group or in all."""
    store = common.open_for_reading()
    outputs = common.outputs
    manifests = store.list(outputs.source_locks_prefix)
    record_keys = record_keys_by_group(outputs, [manifest.key for manifest in manifests])
    run_records: list[Record] = []
    for artifact_group in record_keys:
        if group in {"", artifact_group}:
            run_records += read_all(store, outputs, artifact_group)

    builds = [record for record in run_records if record.stage.startswith("build_") and record.status == "ok"]
    return [record.cell for record in builds if record.cell.torch_ref is not None]


def add_git_mirror_option(parser: argparse.ArgumentParser) -> None:
    """Add the option ``--git-mirror`` to a parser."""
    parser.add_argument(
        "--git-mirror",
        action="append",
        default=environment().get(GIT_MIRRORS, "").split(),
        metavar="PREFIX=MIRROR",
        help="fetch from MIRROR what origins have under PREFIX (https://github.com/=/mirrors/); repeatable "
        f"(besides those of {GIT_MIRRORS})",
    )


def mirrors_from(arguments: argparse.Namespace) -> Mapping[str, str]:
    """Return the mirrors of ``--git-mirror``, by the address prefix that each stands for."""
    mirrors: dict[str, str] = {}
    for text in arguments.git_mirror:
        prefix, equals, mirror = text.partition("=")
        if not prefix or not equals or not mirror:
            raise UsageError(f"--git-mirror {text!r} is not PREFIX=MIRROR.")
        mirrors[prefix] = mirror
    return mirrors
