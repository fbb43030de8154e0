"""What is tested, and how it is installed: a run's recorded files, or a torch of another source.

Ours come from their source alone, others' from the person's own indexes alone; all by digest.
"""

from __future__ import annotations

import re
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

from packaging.requirements import Requirement

from core import console, files
from core.errors import MissingInputError
from core.packages.offers import offer_of
from core.packages.resolution import choose, others_question, pinned_call, required_by_files, resolve_others
from core.parallel import each
from core.run import records
from pytorch_build.check.contents import run_lock
from pytorch_build.refs.torch_refs import DISTRIBUTIONS
from pytorch_build.rocm.options import packages_of
from pytorch_build.test.devices import PREFIXES, targets_of, told_to_sdist
from rocm_packaging.packages.layouts import (
    BOOTSTRAP,
    LIBRARIES,
    device_package,
    device_target,
    is_rocm,
    layout_of,
    serves,
)
from rocm_packaging.rocm_sources import (
    for_tests,
    named_source,
    own_run,
    require_devices,
    sdist_requires,
    with_layout,
)

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from core.env import Interpreter
    from core.env.installer import Install
    from core.packages.offers import Offer
    from core.packages.options import SourceOptions
    from core.packages.sources import PackageSource
    from core.run.records import FileRecord
    from pytorch_build.context import Context
    from pytorch_build.rocm.options import RocmOptions

_PIN = re.compile(r"^[\w.-]+==[^\s;\\]+", re.MULTILINE)


@dataclass(frozen=True, kw_only=True)
class Tested:
    """What is tested."""

    parts: tuple[tuple[PackageSource, tuple[Offer, ...]], ...]
    others: tuple[str, ...]
    prebuilt: tuple[str, ...] = ()
    targets: tuple[str, ...] = ()
    words: str = ""

    @property
    def files(self) -> tuple[Offer, ...]:
        """All of our files."""
        return tuple(one for _, files in self.parts for one in files)

    @property
    def inputs(self) -> Mapping[str, object]:
        """What a record says of it."""
        return {
            "files": {one.name: one.sha256 for one in self.files},
            "prebuilt": list(self.prebuilt),
            "source": self.words,
        }


def tested(context: Context, target: Interpreter, options: SourceOptions, rocm: RocmOptions) -> Tested:
    """Find what is tested: of the sources that are named, else of the run."""
    packages = named_source(options, context.common, context.gpu_family)
    if packages is not None:
        return _named(context, target, packages, options.version)
    wheels = wheels_of(context, target)
    parts = [
        (own_run(context.common, context.artifact_group), tuple(map(offer_of, wheels))),
        *_elsewhere(context, target, [one.distribution for one in wheels], rocm),
    ]
    platform = context.common.outputs.platform
    others = {
        line
        for source, found in parts
        for line in required_by_files(source, found, python=target, platform=platform)
    }
    return Tested(
        parts=tuple(parts),
        others=tuple(sorted({*others, *prebuilt(context)})),
        prebuilt=tuple(prebuilt(context)),
        targets=targets_of(context, [one.distribution for _, found in parts for one in found]),
    )


def installed(context: Context, target: Interpreter) -> Tested:
    """Say what an environment that is filled already should hold, by the run's records."""
    wheels = tuple(map(offer_of, wheels_of(context, target)))
    parts = ((own_run(context.common, context.artifact_group), wheels),)
    return Tested(parts=parts, others=(), prebuilt=tuple(prebuilt(context)))


def wheels_of(context: Context, target: Interpreter) -> Sequence[FileRecord]:
    """Gather what the run's records promise for this ref, family and Python, ROCm included.

    Device packages are those of the targets that are tested, where the run has split packages.
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


def _elsewhere(
    context: Context, target: Interpreter, names: Sequence[str], rocm: RocmOptions
) -> Iterator[tuple[PackageSource, tuple[Offer, ...]]]:
    """Choose the ROCm that is no part of the run, in the version that its torch was built against."""
    if not context.gpu or any(is_rocm(name) for name in names):
        return
    common = context.common
    for record in records.read_all(common.open_for_reading(), common.outputs, context.artifact_group):
        said = record.inputs.get("rocm")
        if said and record.cell.torch_ref == context.ref.name:
            source = for_tests(
                packages_of(context, rocm),
                rocm.version or said[0],
                context.gpu_family.split(";"),
                targets_of(context, names),
                ("libraries",),
                python=target,
                platform=common.outputs.platform,
            )
            yield source.packages, tuple(each(source.packages.sealed, source.files))
            return


def _named(context: Context, target: Interpreter, packages: PackageSource, version: str) -> Tested:
    """Choose torch and what it requires of ours, with the device packages of the targets."""
    found = packages.versions("torch", target.tag)
    if not found:
        raise packages.lacks(f"torch for Python {target.series}")
    version = version or found[0]
    console.say(f"torch {version} from {packages.words}")
    targets = targets_of(context)
    # an extra that a fat wheel lacks asks for nothing
    extras = f"[{','.join(f'device-{one}' for one in targets)}]" if targets else ""
    family = context.gpu_family if context.gpu else ""

    def asked(*more: str) -> tuple[tuple[Offer, ...], tuple[str, ...]]:
        chosen = choose(
            packages,
            [f"torch{extras}=={version}", *more],
            python=target,
            platform=context.common.outputs.platform,
            sdist_requires=sdist_requires(packages, family, targets),
        )
        return chosen.files, chosen.others

    ours, others = asked()
    held = {one.distribution: one.version for one in ours}
    host = any(name.startswith(PREFIXES["torch"]) for name in held)
    absent = [device_package(one) for one in targets if device_package(one) not in held]
    if LIBRARIES in held and absent and not host:
        # a fat torch knows of no device packages of ROCm
        ours, others = asked(*(f"{name}=={held[LIBRARIES]}" for name in absent))
    if family and held.get("rocm"):
        with_layout(packages, held["rocm"], family)  # refuses both layouts of one version
    return Tested(
        parts=((packages, ours),),
        others=others,
        targets=targets_of(context, list(held)),
        words=packages.words,
    )


@contextmanager
def planned(
    context: Context, target: Interpreter, what: Tested, *, tools: Install
) -> Iterator[tuple[Sequence[Install], str]]:
    """Plan the installation: test tools, what others have, ours; addresses live as long as the context."""
    folder = context.common.cache / "locks"
    names = [one.distribution for one in what.files]
    # the tests' tools stay what they are locked to
    pins = tuple(pin for path in tools.files for pin in _PIN.findall(path.read_text(encoding="utf-8")))
    question = others_question(target.executable, None, constraints=pins)
    others = resolve_others(what.others, names, question, allowed=bool(what.prebuilt))
    told = told_to_sdist(names, context.gpu_family if context.gpu else "")
    with ExitStack() as stack:
        calls = [tools, *([pinned_call(folder, others, None)] if others else [])]
        for source, found in what.parts:
            sources = stack.enter_context(source.opened(found, wait=0))
            calls.append(pinned_call(folder, found, sources, told=told))
        yield calls, files.digest_of([files.sha256(path) for call in calls for path in call.files])


def prebuilt_names(what: Tested) -> Sequence[str]:
    """Name the distributions that are installed instead of built."""
    return [Requirement(one).name for one in what.prebuilt]
