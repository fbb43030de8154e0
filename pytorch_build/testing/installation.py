"""What is tested of a run, and how it is installed: the recorded files, by their digests."""

from __future__ import annotations

from typing import TYPE_CHECKING

from core import records, serving
from core.errors import MissingInputError
from core.installer import Install, Sources, configured, pinned
from core.target_locks import pinned_file
from pytorch_build.checks.expected import run_lock
from pytorch_build.refs.torch_refs import DISTRIBUTIONS
from pytorch_build.testing.devices import targets_of, told_to_sdist
from rocm_packaging.layouts import (
    BOOTSTRAP,
    device_package,
    device_target,
    is_rocm,
    layout_of,
    sdk_target,
    serves,
)
from rocm_packaging.sources import require_devices

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Sequence
    from contextlib import AbstractContextManager

    from core.interpreters import Interpreter
    from core.records import FileRecord
    from pytorch_build.context import Context


def wheels_of(context: Context, target: Interpreter) -> Sequence[FileRecord]:
    """Gather what the run's records promise for this ref, family and Python, ROCm included.

    Device packages are those of the targets that are tested, where the run has split packages.

    Raises:
        MissingInputError: No record names a wheel of the ref, or a device package is missing.
        RocmError: The run has ROCm packages of both layouts.
    """
    common, outputs = context.common, context.common.outputs
    found = {one.name: one for one in _recorded(context, target)}
    if not any(one.distribution in DISTRIBUTIONS.values() for one in found.values()):
        raise MissingInputError(
            f"Run {outputs.run_id} has no wheels of {context.ref.name} for {context.gpu_family} and Python "
            f"{target.series}.",
            hint="Build some first: nox -s build_torch (with the same --torch-ref, --gpu-family and -P).",
        )
    names = {one.distribution for one in found.values()}
    targets, where = targets_of(context, names), f"Run {outputs.run_id} in {common.store}"
    if layout_of(names, where=where) == "split":
        require_devices(targets, names, where=where, version=run_lock(context).rocm_version)
    return [
        found[name]
        for name in sorted(found)
        if serves(found[name].distribution, context.gpu_family.split(";"), targets)
    ]


def _recorded(context: Context, target: Interpreter) -> Iterator[FileRecord]:
    """Give the records' files of the ref, the Python and ROCm, device packages of every target among them."""
    rocm_version = run_lock(context).rocm_version if context.gpu else ""
    store, outputs = context.common.open_for_reading(), context.common.outputs
    for record in records.read_all(store, outputs, context.artifact_group):
        same = record.cell.torch_ref == context.ref.name and record.cell.python == target.tag
        for one in record.files if record.status == "ok" else ():
            if is_rocm(one.distribution):
                # what finds the device code has a version of its own
                if context.gpu and (one.version == rocm_version or one.distribution == BOOTSTRAP):
                    yield one
            elif same and (one.distribution in DISTRIBUTIONS.values() or device_target(one.distribution)):
                yield one


def prebuilt(context: Context) -> Sequence[str]:
    """Give the requirements of the ref's projects that are installed instead of built."""
    return tuple(source.prebuilt for source in context.ref.projects.values() if source.prebuilt)


def page_of(context: Context, wheels: Sequence[FileRecord]) -> AbstractContextManager[str]:
    """Give the address of the run's flat page, which must list what the records promise."""
    common = context.common
    return serving.flat_page(common.open_for_reading(), common.outputs, context.artifact_group, wheels)


def install_calls(
    context: Context, wheels: Sequence[FileRecord], page: str, *, tools: Install
) -> Sequence[Install]:
    """Plan the installation: test tools, the recorded files by digest, then what they require.

    Args:
        context: The ref and family.
        wheels: The recorded files.
        page: Address of the run's flat page.
        tools: Installs what the tests need, and what the sdist of `rocm` is built with.
    """
    exact = Sources(find_links=(page,), no_index=True, cert=configured().cert)
    pins = tuple(f"{one.distribution}=={one.version}" for one in wheels)
    names = [one.distribution for one in wheels]
    devices, told = elsewhere(context, names)
    return (
        tools,
        pinned(
            pinned_file(context.common, wheels), exact, gpu_family=told_to_sdist(names, context.gpu_family)
        ),
        # ours are there already and pinned, so only third parties' packages are added
        Install(
            requirements=(*pins, *devices, *prebuilt(context)),
            sources=configured().with_find_links(page),
            gpu_family=told,
        ),
    )


def elsewhere(context: Context, names: Collection[str]) -> tuple[tuple[str, ...], str]:
    """Say what is asked of a ROCm that is no part of the run, by the record of a build against it.

    Args:
        context: The ref and family.
        names: The run's distributions that are tested.

    Returns:
        Requirements of its device packages, where it is split, and what the sdist of `rocm` is told.
    """
    if not context.gpu or any(is_rocm(name) for name in names):
        return (), ""
    common = context.common
    for record in records.read_all(common.open_for_reading(), common.outputs, context.artifact_group):
        said = record.inputs.get("rocm")
        if said and record.cell.torch_ref == context.ref.name:
            version, layout = said[:2]
            targets = targets_of(context, names) if layout == "split" else ()
            pins = tuple(f"{device_package(target)}=={version}" for target in targets)
            return pins, sdk_target(layout, context.gpu_family.split(";")[0], targets)
    return (), ""
