"""What is tested, and how it is installed: a run's recorded or staged files, or a torch of another source.

Our packages come from their source alone, others' from the user's own indexes alone; all by digest. Device
code may lie in packages of its own: those of the tested gfx targets are installed, or missed with an error.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

from packaging.version import Version

from core import console, env, files
from core.errors import CheckError, MissingInputError
from core.families import detect
from core.packages.candidates import Candidate, candidate_of_record, with_digest
from core.packages.resolution import call_for_others, call_for_ours, query_for_others, resolve_others
from core.packages.search import Selection, choose_packages, others_required_by_files
from core.parallel import map_in_threads
from core.run import records
from pytorch_build.components import COMPONENTS, TORCH, distributions
from pytorch_build.lock.stored import stored_lock
from pytorch_build.sdk import RocmOptions, packages_of
from rocm_packaging import origin
from rocm_packaging.packages import layouts

if TYPE_CHECKING:
    from core.env.installer import Install
    from core.packages.options import SourceOptions
    from core.packages.package_source import PackageSource
    from pytorch_build.context import Context
    from pytorch_build.lock.source_lock import SourceLock
    from pytorch_build.test.gpus import Assignment

_ROCM_DEVICE_PREFIX = "rocm-sdk-device-"
_PIN = re.compile(r"^[\w.-]+==[^\s;\\]+", re.MULTILINE)


def device_prefixes() -> Mapping[str, str]:
    """Return the distributions whose device code may lie in packages of its own: name -> start of theirs."""
    prefixes = {layouts.LIBRARIES: _ROCM_DEVICE_PREFIX}
    for component in COMPONENTS.values():
        if component.has_split_device_code:
            prefixes[component.distribution] = component.device_prefix
    return prefixes


def _foundations() -> frozenset[str]:
    """Return the distributions that other components are built on."""
    names: set[str] = set()
    for component in COMPONENTS.values():
        names.update(component.built_first)
    return frozenset(COMPONENTS[name].distribution for name in names)


@dataclass(frozen=True, kw_only=True)
class Tested:
    """What is tested: our files by source, the requirements of others, and the gfx targets."""

    parts: tuple[tuple[PackageSource, tuple[Candidate, ...]], ...]
    others: tuple[str, ...] = ()
    prebuilt: tuple[str, ...] = ()
    targets: tuple[str, ...] = ()
    words: str = ""

    @property
    def files(self) -> tuple[Candidate, ...]:
        """All of our files."""
        return tuple(one for _, files in self.parts for one in files)

    @property
    def inputs(self) -> Mapping[str, object]:
        """What a record holds of it."""
        return {
            "files": {one.name: one.sha256 for one in self.files},
            "prebuilt": list(self.prebuilt),
            "source": self.words,
        }


def tested(context: Context, target: env.Interpreter, options: SourceOptions, rocm: RocmOptions) -> Tested:
    """Find what is tested: from the sources that are named, else from the run, which may have staged it."""
    packages = origin.named_source(options, context.common, context.gpu_family)
    if packages is not None:
        return _named(context, target, packages, options.version)

    if options.staged:
        run = _staged(context, target, options, rocm)
        built_against = _locked(context).rocm_version
    else:
        run = installed(context, target)
        built_against = _built_against(context)

    names = [file.distribution for file in run.files]
    parts = (*run.parts, *_elsewhere(context, target, names, rocm, version=built_against))
    platform = context.common.outputs.platform
    required: set[str] = set()
    distributions: list[str] = []
    for source, source_files in parts:
        required.update(others_required_by_files(source, source_files, python=target, platform=platform))
        distributions += [file.distribution for file in source_files]

    return Tested(
        parts=parts,
        others=tuple(sorted({*required, *run.prebuilt})),
        prebuilt=run.prebuilt,
        targets=targets_of(context, distributions),
        words=run.words,
    )


def _locked(context: Context) -> SourceLock:
    """Return the run's source lock, which says what was staged of it."""
    lock = stored_lock(context)
    if lock is None:
        raise MissingInputError(
            f"Run {context.common.run_id} has no source lock of {context.ref.name}, so nothing says which of "
            "the staged versions are its own.",
            hint="Name the run that was staged (--run-id, --store), or give its lock in SOURCE_LOCK.",
        )
    return lock


def _staged(context: Context, target: env.Interpreter, options: SourceOptions, rocm: RocmOptions) -> Tested:
    """Choose the run's wheels in staging, where other runs' are, too: by the versions of its source lock."""
    packages = origin.staged_source(options, context.common, context.artifact_group)
    lock = _locked(context)
    versions = dict(lock.wheel_versions(context.ref.components, gpu=context.gpu))
    platform = context.common.outputs.platform
    fitting = [file for file in packages.listed if file.fits(target.tag, platform)]

    files: list[Candidate] = []
    for distribution, version in versions.items():
        wheels = [
            file for file in fitting if file.distribution == distribution and origin.is_version(file, version)
        ]
        # A release may leave out what nothing else is built on. Promotion asks whether a set is whole.
        if not wheels and distribution in _foundations():
            raise packages.missing_error(f"{distribution} {version} for Python {target.series}")
        files += wheels
    if not files:
        raise packages.missing_error(f"any of {', '.join(versions)} for Python {target.series}")

    files += _staged_devices(fitting, versions)
    if context.gpu:
        files += _staged_rocm(fitting, rocm.version or lock.rocm_version)

    names = {file.distribution for file in files}
    targets = targets_of(context, names)
    if layouts.layout_of(names, where=packages.description) == "split":
        origin.require_devices(targets, names, where=packages.description, version=lock.rocm_version)
    families = context.gpu_family.split(";")
    served = [file for file in files if layouts.serves(file.distribution, families, targets)]
    return Tested(
        parts=((packages, tuple(sorted(served, key=lambda file: file.name))),),
        prebuilt=_prebuilt(context),
        words=packages.description,
    )


def _staged_devices(files: Sequence[Candidate], versions: Mapping[str, str]) -> Sequence[Candidate]:
    """Return the device packages of wheels with these versions."""
    devices: list[Candidate] = []
    for file in files:
        host = layouts.host_distribution(file.distribution)
        if host in versions and origin.is_version(file, versions[host]):
            devices.append(file)
    return devices


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
        packages.append(max(bootstraps, key=lambda file: Version(file.version)))
    return packages


def _prebuilt(context: Context) -> tuple[str, ...]:
    """Return the requirements that stand for what the ref does not build."""
    return tuple(source.prebuilt for source in context.ref.projects.values() if source.prebuilt)


def installed(context: Context, target: env.Interpreter) -> Tested:
    """Return what an environment that is filled already should hold, by the run's records."""
    wheels = tuple(map(candidate_of_record, wheels_of(context, target)))
    run = origin.own_run(context.common, context.artifact_group)
    return Tested(parts=((run, wheels),), prebuilt=_prebuilt(context))


def wheels_of(context: Context, target: env.Interpreter) -> Sequence[records.FileRecord]:
    """List what the run's records promise for this ref, family and Python, ROCm included.

    Device packages are those of the targets that are tested, where the run has split packages.
    """
    common, outputs = context.common, context.common.outputs
    found = {one.name: one for one in _recorded(context, target)}
    names = {one.distribution for one in found.values()}
    if not names & set(distributions()):
        raise MissingInputError(
            f"Run {outputs.run_id} has no wheels of {context.ref.name} for {context.gpu_family} and Python "
            f"{target.series}.",
            hint=f"Build some first: nox -s build_torch -P {target.series} -- {context.words}",
        )
    version = next((one.version for one in found.values() if one.distribution == layouts.LIBRARIES), "")
    targets, where = targets_of(context, names), f"Run {outputs.run_id} in {common.store}"
    if layouts.layout_of(names, where=where) == "split":
        origin.require_devices(targets, names, where=where, version=version)
    families = context.gpu_family.split(";")
    return [
        found[name] for name in sorted(found) if layouts.serves(found[name].distribution, families, targets)
    ]


def _built_against(context: Context) -> str:
    """Return the ROCm that a ref's wheels were built against, by their records; "" for none."""
    against = (one.inputs.get("rocm") for one in context.records if one.cell.torch_ref == context.ref.name)
    return next((str(versions[0]) for versions in against if versions), "")


def _recorded(context: Context, target: env.Interpreter) -> Iterator[records.FileRecord]:
    rocm_version = _built_against(context)
    lock = None if rocm_version or not context.gpu else stored_lock(context)
    rocm_version = lock.rocm_version if lock else rocm_version
    for record in context.records:
        same = record.cell.torch_ref == context.ref.name and record.cell.python_tag == target.tag
        for one in record.files if record.status == "ok" else ():
            if layouts.is_rocm(one.distribution):
                # what finds the device code has a version of its own
                if context.gpu and (one.version == rocm_version or one.distribution == layouts.BOOTSTRAP):
                    yield one
            elif same and (one.distribution in distributions() or layouts.device_target(one.distribution)):
                yield one


def _elsewhere(
    context: Context, target: env.Interpreter, names: Sequence[str], rocm: RocmOptions, *, version: str
) -> Iterator[tuple[PackageSource, tuple[Candidate, ...]]]:
    """Choose the ROCm that is not part of the run, in the version that its torch was built against."""
    if not context.gpu or any(layouts.is_rocm(name) for name in names):
        return
    if version:
        source = origin.choose_for_tests(
            packages_of(context, rocm),
            rocm.version or version,
            context.gpu_family.split(";"),
            targets_of(context, names),
            ("libraries",),
            python=target,
            platform=context.common.outputs.platform,
        )
        yield source.packages, tuple(map_in_threads(with_digest, source.files))


def _named(context: Context, target: env.Interpreter, packages: PackageSource, version: str) -> Tested:
    """Choose torch and what it requires of ours, with the device packages of the targets."""
    versions = packages.versions("torch", target.tag)
    if not versions:
        raise packages.missing_error(f"torch for Python {target.series}")
    version = version or versions[0]
    console.say(f"torch {version} from {packages.description}")
    targets = targets_of(context)
    # an extra that a fat wheel lacks requires nothing
    extras = f"[{','.join(f'device-{one}' for one in targets)}]" if targets else ""
    family = context.gpu_family if context.gpu else ""

    def select(*more_requirements: str) -> Selection:
        return choose_packages(
            packages,
            [f"torch{extras}=={version}", *more_requirements],
            python=target,
            platform=context.common.outputs.platform,
            sdist_requirements=origin.sdist_requirements(packages, family, targets),
        )

    selection = select()
    held = selection.versions
    absent = [layouts.device_package(one) for one in targets if layouts.device_package(one) not in held]
    if (
        layouts.LIBRARIES in held
        and absent
        and not any(name.startswith(TORCH.device_prefix) for name in held)
    ):
        # a fat torch does not require device packages of ROCm
        selection = select(*(f"{name}=={held[layouts.LIBRARIES]}" for name in absent))
    if family and held.get("rocm"):
        origin.with_layout(packages, held["rocm"], family)  # refuses both layouts of one version
    return Tested(
        parts=((packages, selection.files),),
        others=selection.others,
        targets=targets_of(context, held),
        words=packages.description,
    )


@contextmanager
def planned(
    context: Context, target: env.Interpreter, what: Tested, *, tools: Sequence[Install]
) -> Iterator[tuple[Sequence[Install], str]]:
    """Plan the installation: test tools, what others have, ours; addresses live as long as the context."""
    folder = context.common.cache / "locks"
    names = [one.distribution for one in what.files]
    # the tests' tools stay what they are locked to
    texts = [path.read_text(encoding="utf-8") for one in tools for path in one.files]
    pins = tuple(pin for text in texts for pin in _PIN.findall(text))
    pins += tuple(one for call in tools for one in call.requirements)
    query = query_for_others(target.executable, constraints=pins)
    others = resolve_others(what.others, names, query, allows_ours=bool(what.prebuilt))
    family = sdist_target(names, context.gpu_family if context.gpu else "")
    with ExitStack() as stack:
        calls = list(tools)
        if others:
            calls.append(call_for_others(folder, others, None))
        for source, candidates in what.parts:
            sources = stack.enter_context(source.opened(candidates, wait=0))
            calls.append(call_for_ours(folder, candidates, sources, gpu_family=family))
        yield calls, files.digest_of([pins, [files.sha256(path) for call in calls for path in call.files]])


@contextmanager
def prepared(
    context: Context,
    target: env.Interpreter,
    what: Tested,
    *,
    tools: Sequence[Install],
    inputs: Mapping[str, object],
    rocm: RocmOptions,
) -> Iterator[None]:
    """Make the environment hold what is tested, and keep it while it is tested."""
    with planned(context, target, what, tools=tools) as (calls, known):
        digest = _environment_digest(target, inputs, known)
        with env.installer.prepared(
            target, calls, digest=digest, force=context.common.force, cache_dir=rocm.pip_cache_dir
        ):
            env.installer.require_complete(target)
            require_device_code(target, what.targets)
            yield


def is_prepared(
    context: Context,
    target: env.Interpreter,
    what: Tested,
    *,
    tools: Sequence[Install],
    inputs: Mapping[str, object],
) -> bool:
    """Return whether the environment holds what is tested, as `prepared` would make it."""
    with planned(context, target, what, tools=tools) as (_calls, known):
        return env.installer.is_filled(target, _environment_digest(target, inputs, known))


def _environment_digest(target: env.Interpreter, inputs: Mapping[str, object], calls_digest: str) -> str:
    return files.digest_of({"inputs": inputs, "python": target.version, "calls": calls_digest})


def targets_of(context: Context, names: Collection[str] = ()) -> tuple[str, ...]:
    """Return the gfx targets whose device packages are tested: this machine's, else those there are."""
    if not context.gpu:
        return ()
    here = detect()
    wanted = layouts.tested_targets(context.gpu_family, here)
    built = {layouts.device_target(one) for one in names if one.startswith(TORCH.device_prefix)}
    return wanted if set(wanted) & set(here) else tuple(one for one in wanted if one in built) or wanted


def amd_targets(assigned: Sequence[Assignment]) -> tuple[str, ...]:
    """Return the gfx targets of the GPUs that tests run on; none without a GPU, or on others' GPUs."""
    return tuple(dict.fromkeys(one.target for one in assigned if one.target.startswith("gfx")))


def sdist_target(names: Collection[str], gpu_family: str) -> str:
    """Return what the sdist of `rocm` gets: the family, or a target of split packages; "" without ROCm."""
    layout = layouts.layout_of(names, where="The installation")
    devices = sorted(layouts.device_target(one) for one in names if one.startswith(_ROCM_DEVICE_PREFIX))
    return layouts.sdk_target(layout, gpu_family, devices) if layout else ""


def require_device_code(target: env.Interpreter, targets: Sequence[str]) -> None:
    """Require device packages for whatever is installed without device code of its own.

    Such a torch imports, and fails at its first kernel.
    """
    if not targets:
        return
    held = {one.name: (one.version, one.extras) for one in reversed(env.installed(target))}
    for name, prefix in device_prefixes().items():
        version, extras = held.get(name, ("", ()))
        if not version or (
            name != layouts.LIBRARIES and not any(one.startswith("device-gfx") for one in extras)
        ):
            continue
        for package, gpu in ((f"{prefix}{gpu}", gpu) for gpu in targets):
            found, _ = held.get(package, ("", ()))
            if found != version:
                problem = (
                    f"{package} {found} in {target.prefix} does not fit {name} {version}."
                    if found
                    else f"{name} {version} in {target.prefix} holds no device code, and {package} is not "
                    f"installed: the first kernel on {gpu} would fail."
                )
                hint = f'Install it: pip install "{package}=={version}", from where {name} came.'
                raise CheckError(problem, hint=hint)
