"""The packages that are tested: those of a run, recorded or staged, or a torch of another source.

Our packages come from their source alone, each by its digest. Device code may lie in packages of its own:
those of the tested gfx targets belong to what is tested, or are missed with an error.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from packaging.version import Version

from core import console
from core.cli.sessions import option_of_python
from core.errors import MissingInputError
from core.families import detect
from core.packages.candidates import Candidate, candidate_of_record, with_digest
from core.packages.search import Selection, choose_packages, others_required_by_files
from core.parallel import map_in_threads
from pytorch_build.components import COMPONENTS, TORCH, component_of, distributions
from pytorch_build.lock.stored import stored_lock
from pytorch_build.sdk import RocmOptions, find_rocm_packages
from rocm_packaging import origin
from rocm_packaging.packages import layouts

if TYPE_CHECKING:
    from core.env import Interpreter
    from core.packages.groups import RunGroup
    from core.packages.options import SourceOptions
    from core.packages.package_source import PackageSource
    from core.run.records import FileRecord
    from pytorch_build.context import Context
    from pytorch_build.lock.source_lock import SourceLock


@dataclass(frozen=True, kw_only=True)
class SourcePart:
    """Files of ours that one source has."""

    source: PackageSource
    files: tuple[Candidate, ...]


@dataclass(frozen=True, kw_only=True)
class TestedPackages:
    """What is tested.

    Attributes:
        source_parts: Our files, by their source.
        foreign_requirements: What they require of other people's packages.
        prebuilt_requirements: Requirements in the place of projects that the torch ref does not build.
        gpu_targets: The gfx targets whose device code has to be there.
        description: Where the files come from; "" for the run's own outputs.
    """

    source_parts: tuple[SourcePart, ...]
    foreign_requirements: tuple[str, ...] = ()
    prebuilt_requirements: tuple[str, ...] = ()
    gpu_targets: tuple[str, ...] = ()
    description: str = ""

    @property
    def files(self) -> tuple[Candidate, ...]:
        """All of our files."""
        files: list[Candidate] = []
        for source_part in self.source_parts:
            files += source_part.files
        return tuple(files)

    @property
    def names(self) -> Sequence[str]:
        """The distributions of our files."""
        return [file.distribution for file in self.files]

    @property
    def inputs(self) -> Mapping[str, object]:
        """What a record holds of it."""
        return {
            "files": {file.name: file.sha256 for file in self.files},
            "prebuilt": list(self.prebuilt_requirements),
            "source": self.description,
        }


def find_tested_packages(
    context: Context,
    target: Interpreter,
    options: SourceOptions,
    rocm: RocmOptions,
) -> TestedPackages:
    """Find what is tested: at the source that is named, else in the run or where it was staged."""
    named_source = origin.named_source(options, context.common, context.gpu_family)
    if named_source is not None:
        return _packages_of_source(context, target, named_source, options.version)

    if options.staged:
        packages = _staged_packages(context, target, options, rocm)
        rocm_version = _require_lock(context).rocm_version
    else:
        packages = packages_of_run(context, target)
        rocm_version = _rocm_of_builds(context)

    source_parts = list(packages.source_parts)
    has_rocm = any(map(layouts.is_rocm, packages.names))
    if context.gpu and rocm_version and not has_rocm:
        # A ROCm that is not part of the run, in the version that its torch was built against.
        rocm_source = origin.choose_for_tests(
            find_rocm_packages(context, rocm),
            rocm.version or rocm_version,
            context.gpu_family.split(";"),
            targets_to_test(context, packages.names),
            ("libraries",),
            python=target,
            platform=context.common.outputs.platform,
        )
        rocm_files = tuple(map_in_threads(with_digest, rocm_source.files))
        source_parts.append(SourcePart(source=rocm_source.packages, files=rocm_files))

    requirements = set(packages.prebuilt_requirements)
    distribution_names: list[str] = []
    for source_part in source_parts:
        required_by_files = others_required_by_files(
            source_part.source,
            source_part.files,
            python=target,
            platform=context.common.outputs.platform,
        )
        requirements.update(required_by_files)
        distribution_names += [file.distribution for file in source_part.files]
    return TestedPackages(
        source_parts=tuple(source_parts),
        foreign_requirements=tuple(sorted(requirements)),
        prebuilt_requirements=packages.prebuilt_requirements,
        gpu_targets=targets_to_test(context, distribution_names),
        description=packages.description,
    )


def targets_to_test(context: Context, distributions: Collection[str] = ()) -> tuple[str, ...]:
    """Return the gfx targets whose device packages are tested.

    They are this machine's; without a GPU of the family those that torch was built for, as far as the
    names of distributions say so.
    """
    if not context.gpu:
        return ()
    machine_targets = detect()
    gpu_targets = layouts.tested_targets(context.gpu_family, machine_targets)
    if not set(gpu_targets).isdisjoint(machine_targets):
        return gpu_targets

    torch_targets: set[str] = set()
    for distribution in distributions:
        if distribution.startswith(TORCH.device_prefix):
            torch_targets.add(layouts.device_target(distribution))
    built_targets = [gpu_target for gpu_target in gpu_targets if gpu_target in torch_targets]
    return tuple(built_targets) or gpu_targets


def _choose_files_for_tested_gpus(
    context: Context,
    files: Collection[Candidate],
    *,
    where: str,
) -> tuple[Candidate, ...]:
    """Return the files for the tested GPUs; of a ROCm with split packages none of them may be missing."""
    versions = {file.distribution: file.version for file in files}
    gpu_targets = targets_to_test(context, versions)
    if layouts.layout_of(versions, where=where) == "split":
        rocm_version = versions[layouts.LIBRARIES]
        origin.require_devices(
            gpu_targets,
            versions,
            where=where,
            version=rocm_version,
        )

    gpu_families = context.gpu_family.split(";")
    served_files = [file for file in files if layouts.serves(file.distribution, gpu_families, gpu_targets)]
    served_files.sort(key=lambda file: file.name)
    return tuple(served_files)


def _prebuilt_requirements(context: Context) -> tuple[str, ...]:
    projects = context.ref.projects.values()
    return tuple(project.prebuilt for project in projects if project.prebuilt)


# The run's own files


def packages_of_run(context: Context, target: Interpreter) -> TestedPackages:
    """Return what the run's records promise for this ref, family and Python, ROCm included."""
    outputs = context.common.outputs
    files: dict[str, Candidate] = {}
    for recorded_file in _recorded_files(context, target):
        # Several records may name one file.
        files[recorded_file.name] = candidate_of_record(recorded_file)
    names = {file.distribution for file in files.values()}
    run_group = origin.own_run(context.common, context.artifact_group)
    if names.isdisjoint(distributions()):
        raise _no_wheels_error(context, target, run_group)

    where = f"Run {outputs.run_id} in {context.common.store}"
    files_for_tested_gpus = _choose_files_for_tested_gpus(context, files.values(), where=where)
    return TestedPackages(
        source_parts=(SourcePart(source=run_group, files=files_for_tested_gpus),),
        prebuilt_requirements=_prebuilt_requirements(context),
    )


def _no_wheels_error(
    context: Context,
    target: Interpreter,
    run_group: RunGroup,
) -> MissingInputError:
    """Return the error of a run that has no wheels of a ref, or none that are known to be."""
    problem = (
        f"Run {run_group.outputs.run_id} has no wheels of {context.ref.name} "
        f"for {context.gpu_family} and Python {target.series}"
    )
    uploaded_count = 0
    for record in context.records:
        # What was uploaded from a folder is of no torch ref.
        if record.cell.torch_ref is None:
            uploaded_count += sum(_is_of_component(file.distribution) for file in record.files)
    if uploaded_count:
        return MissingInputError(
            f"{problem}: no record of a build says that the "
            f"{console.counted(uploaded_count, 'wheel')} that it has are of that torch ref.",
            hint=f"Test them as those of any source: --find-links {run_group.page_url}",
        )
    python_option = option_of_python(target.series)
    return MissingInputError(
        f"{problem}.",
        hint=f"Build some first: nox -s build_torch{python_option} -- {context.options_for_hints}",
    )


def _recorded_files(context: Context, target: Interpreter) -> Iterator[FileRecord]:
    """Yield the files of the ref for a Python, and those of the ROCm that they were built against."""
    rocm_version = _rocm_of_builds(context)
    if context.gpu and not rocm_version:
        lock = stored_lock(context)
        rocm_version = "" if lock is None else lock.rocm_version

    for record in context.records:
        if record.status != "ok":
            continue
        cell = record.cell
        is_of_ref = cell.torch_ref == context.ref.name and cell.python_tag == target.tag
        for file in record.files:
            if layouts.is_rocm(file.distribution):
                # The version of what finds the device code is its own.
                is_tested_rocm = file.version == rocm_version or file.distribution == layouts.BOOTSTRAP
                if context.gpu and is_tested_rocm:
                    yield file
            elif is_of_ref and _is_of_component(file.distribution):
                yield file


def _is_of_component(distribution: str) -> bool:
    """Return whether a distribution is a component's, or holds device code of one."""
    if distribution in distributions():
        return True
    return layouts.host_distribution(distribution) in distributions()


def _rocm_of_builds(context: Context) -> str:
    """Return the ROCm that a ref's wheels were built against, by their records; "" for none."""
    for record in context.records:
        rocm = record.inputs.get("rocm")
        if record.cell.torch_ref == context.ref.name and rocm:
            return str(rocm[0])
    return ""


# Staged files


def _staged_packages(
    context: Context,
    target: Interpreter,
    options: SourceOptions,
    rocm: RocmOptions,
) -> TestedPackages:
    """Choose the run's wheels in staging, where other runs' are, too: by the versions of its source lock."""
    source = origin.staged_source(options, context.common, context.artifact_group)
    lock = _require_lock(context)
    versions = dict(lock.wheel_versions(context.ref.components, gpu=context.gpu))
    platform = context.common.outputs.platform
    candidates = [file for file in source.listed if file.fits(target.tag, platform)]

    foundations: set[str] = set()
    for dependent in COMPONENTS.values():
        foundations.update(dependent.built_first)
    files: list[Candidate] = []
    for distribution, version in versions.items():
        named_files = [file for file in candidates if file.distribution == distribution]
        wheels = [file for file in named_files if origin.is_version(file, version)]
        # A release may leave out what nothing else is built on. Promotion asks whether a set is whole.
        component = component_of(distribution)
        if not wheels and component is not None and component.name in foundations:
            raise source.missing_error(f"{distribution} {version} for Python {target.series}")
        files += wheels
    if not files:
        raise source.missing_error(f"any of {', '.join(versions)} for Python {target.series}")

    files += _staged_device_packages(candidates, versions)
    if context.gpu:
        files += _staged_rocm(candidates, rocm.version or lock.rocm_version)
    files_for_tested_gpus = _choose_files_for_tested_gpus(context, files, where=source.description)
    return TestedPackages(
        source_parts=(SourcePart(source=source, files=files_for_tested_gpus),),
        prebuilt_requirements=_prebuilt_requirements(context),
        description=source.description,
    )


def _require_lock(context: Context) -> SourceLock:
    """Return the run's source lock, which says what was staged of it."""
    lock = stored_lock(context)
    if lock is None:
        raise MissingInputError(
            f"Run {context.common.run_id} has no source lock of {context.ref.name}, "
            "so nothing says which of the staged versions are its own.",
            hint="Name the run that was staged (--run-id, --store), or give its lock in SOURCE_LOCK.",
        )
    return lock


def _staged_device_packages(
    files: Sequence[Candidate],
    versions: Mapping[str, str],
) -> Sequence[Candidate]:
    """Return the device packages of wheels with these versions."""
    device_packages: list[Candidate] = []
    for file in files:
        host = layouts.host_distribution(file.distribution)
        if host in versions and origin.is_version(file, versions[host]):
            device_packages.append(file)
    return device_packages


def _staged_rocm(files: Sequence[Candidate], version: str) -> Sequence[Candidate]:
    """Return ROCm's packages of a version, with what finds their device code; none where none is staged."""
    packages: list[Candidate] = []
    bootstraps: list[Candidate] = []
    for file in files:
        if file.distribution == layouts.BOOTSTRAP:
            bootstraps.append(file)
        elif layouts.is_rocm(file.distribution) and origin.is_version(file, version):
            packages.append(file)

    if packages and bootstraps:
        # Its version is not ROCm's: it finds the device code of every ROCm.
        newest_bootstrap = max(bootstraps, key=lambda file: Version(file.version))
        packages.append(newest_bootstrap)
    return packages


# A torch of another source


def _packages_of_source(
    context: Context,
    target: Interpreter,
    source: PackageSource,
    version: str,
) -> TestedPackages:
    """Choose torch and what it requires of ours, with the device packages of the targets."""
    versions = source.versions(TORCH.distribution, target.tag)
    if not versions:
        raise source.missing_error(f"torch for Python {target.series}")
    version = version or versions[0]
    console.say(f"torch {version} from {source.description}")

    gpu_family = context.gpu_family if context.gpu else ""
    gpu_targets = targets_to_test(context)

    def choose(requirements: Sequence[str]) -> Selection:
        return choose_packages(
            source,
            requirements,
            python=target,
            platform=context.common.outputs.platform,
            sdist_requirements=origin.sdist_requirements(source, gpu_family, gpu_targets),
        )

    # An extra that a fat wheel lacks requires nothing.
    extras = ",".join(f"device-{gpu_target}" for gpu_target in gpu_targets)
    torch = f"torch[{extras}]=={version}"
    selection = choose([torch])
    device_packages = _unstated_device_packages(selection.versions, gpu_targets)
    if device_packages:
        selection = choose([torch, *device_packages])

    rocm_version = selection.versions.get("rocm")
    if gpu_family and rocm_version:
        # This refuses packages of both layouts in one version.
        origin.with_layout(source, rocm_version, gpu_family)
    return TestedPackages(
        source_parts=(SourcePart(source=source, files=selection.files),),
        foreign_requirements=selection.others,
        gpu_targets=targets_to_test(context, selection.versions),
        description=source.description,
    )


def _unstated_device_packages(
    versions: Mapping[str, str],
    gpu_targets: Sequence[str],
) -> Sequence[str]:
    """Return the requirements on device packages of ROCm that a fat torch needs and does not state."""
    rocm_version = versions.get(layouts.LIBRARIES)
    is_split_torch = any(name.startswith(TORCH.device_prefix) for name in versions)
    if rocm_version is None or is_split_torch:
        return []

    requirements: list[str] = []
    for gpu_target in gpu_targets:
        name = layouts.device_package(gpu_target)
        if name not in versions:
            requirements.append(f"{name}=={rocm_version}")
    return requirements
