"""The ROCm that wheels are built against: where it comes from, and what it says of itself."""

from __future__ import annotations

import argparse
import re
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path, PurePath
from types import MappingProxyType
from typing import TYPE_CHECKING

from pydantic import ValidationError

from core import process
from core.cli.options import split_list
from core.data import Model, read_toml
from core.env import Interpreter, interpreter, require
from core.errors import MissingInputError, ProcessError, RocmError
from core.packages.groups import RunGroup
from core.packages.options import (
    SourceOptions,
    add_package_source,
    add_staged_source,
    source_options,
)
from core.packages.sources import InstalledPackages, PackageIndex
from rocm_packaging import origin
from rocm_packaging.packages.layouts import Layout, sdk_target

if TYPE_CHECKING:
    from core.packages.package_source import PackageSource
    from pytorch_build.context import Context

QUERIES = Path(__file__).with_name("queries.toml")
_OPTION_PREFIX = "rocm-"
# The beginnings of what ROCm's packages have in site-packages.
_ROCM_NAME = re.compile(r"_?rocm")


@dataclass(frozen=True, kw_only=True)
class RocmOptions:
    """Where ROCm comes from and how it is installed, as the command line says it."""

    source: SourceOptions = field(default_factory=lambda: SourceOptions(prefix=f"--{_OPTION_PREFIX}"))
    extras: tuple[str, ...] = ()
    pip_cache_dir: Path | None = None

    @property
    def version(self) -> str:
        """The ROCm version that the user chose; "" for that of the source lock, or the newest."""
        return self.source.version


def add_rocm_options(parser: argparse.ArgumentParser, *, is_only_source: bool = True) -> None:
    """Add the options on where ROCm comes from and how it is installed to a parser."""
    if is_only_source:
        title = "where ROCm comes from (default: this run, else the family's release index)"
        add_package_source(parser, title, _OPTION_PREFIX, "")
    else:
        title = "where a ROCm comes from that is not part of the run (default: the family's release index)"
        add_package_source(parser, title, _OPTION_PREFIX)

    group = parser.add_argument_group("how ROCm is installed")
    group.add_argument(
        "--rocm-extras",
        default="",
        metavar="A,B",
        help="more extras of rocm, such as device-gfx942",
    )
    group.add_argument(
        "--pip-cache-dir",
        type=Path,
        metavar="DIR",
        help="the installer's cache",
    )


def add_tested_source_options(parser: argparse.ArgumentParser) -> None:
    """Add the options on where tests take torch from, and a ROCm of its own, to a parser."""
    sources = add_package_source(parser, "where torch comes from (default: the run's outputs)", "")
    add_staged_source(sources)
    parser.add_argument(
        "--torch-version",
        dest="version",
        default="",
        metavar="V",
        help="exact version (default: the newest)",
    )
    parser.add_argument(
        "--no-install",
        action="store_true",
        help="test what is already installed",
    )
    add_rocm_options(parser, is_only_source=False)


def rocm_options_from(
    arguments: argparse.Namespace, env: Mapping[str, str] = MappingProxyType({})
) -> RocmOptions:
    """Return where ROCm comes from and how it is installed, as arguments and variables say."""
    return RocmOptions(
        source=source_options(arguments, _OPTION_PREFIX, env),
        extras=split_list(arguments.rocm_extras),
        pip_cache_dir=arguments.pip_cache_dir,
    )


# --- Where ROCm comes from --------------------------------------------------------------------


def find_rocm_version(context: Context, options: RocmOptions) -> str:
    """Return the ROCm version to build against: chosen, the ref's own, or the newest; "" for ``cpu``."""
    if not context.gpu:
        return ""
    if options.source.no_install:
        return _rocm_of_image(context).version
    return options.version or context.ref.rocm_version or origin.newest(find_rocm_packages(context, options))


def _rocm_of_image(context: Context) -> origin.RocmSource:
    """Return the ROCm of the Python that the session's environment is based on."""
    return installed_rocm(interpreter(require(context.common.python).base_executable))


def find_rocm_packages(context: Context, options: RocmOptions) -> PackageSource:
    """Return where ROCm's packages come from: the named source, else the run, else the release index."""
    named_source = origin.named_source(options.source, context.common, context.gpu_family)
    if named_source is not None:
        return named_source
    run_packages = origin.own_run(context.common, context.artifact_group)
    if origin.has_rocm(run_packages):
        return run_packages
    url = origin.release_index_url("", context.gpu_family)
    return PackageIndex(
        url=url,
        option_prefix=f"--{_OPTION_PREFIX}",
    )


def find_rocm_source(context: Context, options: RocmOptions, version: str) -> origin.RocmSource:
    """Return where ROCm of a version comes from, and the files of it that builds need."""
    if options.source.no_install:
        image_rocm = _rocm_of_image(context)
        if image_rocm.version != version:
            raise MissingInputError(
                f"The source lock says ROCm {version}; {image_rocm.origin} is {image_rocm.version}.",
                hint="Build the image with that version (--therock-nightly-version), or resolve again.",
            )
        return image_rocm

    packages = find_rocm_packages(context, options)
    if not options.source.named:
        _require_rocm_version(context, packages, version)
    return origin.choose_for_build(
        packages, version, context.gpu_family, options.extras, context.common.outputs.platform
    )


def _require_rocm_version(context: Context, packages: PackageSource, version: str) -> None:
    """Fail where the packages that nobody named, of the run or the index, lack a ROCm version."""
    if isinstance(packages, RunGroup):
        run_versions = packages.versions("rocm")
        if version not in run_versions:
            raise MissingInputError(
                f"ROCm {version} is asked for; {packages.description} holds {run_versions[0]}.",
                hint="Correct --rocm-version or resolve again (nox -s resolve), or build it: "
                "nox -s build_rocm.",
            )
    elif context.ref.rocm_version == version:
        # The sample's ROCm is on no index.
        raise MissingInputError(
            f"ROCm {version} for {context.gpu_family} is not among the run's outputs.",
            hint=f"Build it first: nox -s build_rocm -- {context.options_for_hints}",
        )


# --- The ROCm of an environment ---------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class RocmSdk:
    """What an installed ROCm SDK says of itself: version, folders, targets and libraries.

    Attributes:
        version: Its version.
        root: The folder of its development tree.
        bin: The folder of its programs.
        cmake: The folder of its CMake packages.
        targets: The GPU targets that it has device code for.
        libraries: Those of the libraries that were asked for which it has.
        has_device_libs: Whether it has clang's device libraries.
        has_host_math: Whether it has an OpenBLAS.
        has_sysdeps: Whether it brings libraries of the system with it.
    """

    version: str
    root: PurePath
    bin: PurePath
    cmake: PurePath
    targets: tuple[str, ...]
    libraries: frozenset[str] = frozenset()
    has_device_libs: bool = True
    has_host_math: bool = True
    has_sysdeps: bool = True


class _SdkFacts(Model):
    """What the query of an installed ``rocm_sdk`` prints; `available` are its targets or families."""

    version: str
    layout: Layout
    family: str
    available: tuple[str, ...]
    libraries: frozenset[str]


def installed_rocm(python: Interpreter) -> origin.RocmSource:
    """Return the ROCm that is installed for an interpreter, as its own ``rocm_sdk`` says."""
    facts = _read_facts(python, process.handed_on(ROCM_SDK_TARGET_FAMILY=None))
    return origin.RocmSource(
        version=facts.version,
        layout=facts.layout,
        packages=InstalledPackages(python=python.executable, option_prefix=f"--{_OPTION_PREFIX}"),
    )


def link_rocm(target: Interpreter) -> None:
    """Link ROCm's packages into an environment's site-packages from the Python it is based on.

    Search paths of wheels lead from torch's folder to ROCm's beside it, so seeing it elsewhere is not enough.
    """
    for path in sorted(interpreter(target.base_executable).purelib.iterdir()):
        linked_path = target.purelib / path.name
        if not _ROCM_NAME.match(path.name) or linked_path.exists():
            continue
        if path.suffix == ".dist-info":
            # uv overlooks a link.
            shutil.copytree(path, linked_path)
        else:
            linked_path.symlink_to(path)


def ask_sdk(
    target: Interpreter,
    source: origin.RocmSource,
    *,
    family: str,
    targets: Sequence[str] = (),
    libraries: Sequence[str] = (),
) -> RocmSdk:
    """Return what an environment's ``rocm_sdk`` says of itself; another ROCm than expected is an error.

    Args:
        target: The interpreter that has it.
        source: Where it came from.
        family: The GPU family that it is for.
        targets: The targets that it must have device code for.
        libraries: The libraries that are looked for.
    """
    env = process.handed_on(ROCM_SDK_TARGET_FAMILY=sdk_target(source.layout, family) or None)
    facts = _read_facts(target, env, libraries)
    _require_matching_sdk(
        facts,
        source,
        sdk=f"rocm_sdk in {target.prefix}",
        family=family,
        targets=targets,
    )

    known_targets = tuple(_run_python(target, env, "-m", "rocm_sdk", "targets").replace(";", " ").split())
    if not known_targets:
        raise RocmError(f"rocm_sdk in {target.prefix} names no GPU targets.")
    root = _sdk_folder(target, env, "--root")
    return RocmSdk(
        version=facts.version,
        root=root,
        bin=_sdk_folder(target, env, "--bin"),
        cmake=_sdk_folder(target, env, "--cmake"),
        targets=known_targets,
        libraries=facts.libraries,
        has_device_libs=(root / "lib" / "llvm" / "amdgcn" / "bitcode").is_dir(),
        has_host_math=(root / "lib" / "host-math").is_dir(),
        has_sysdeps=(root / "lib" / "rocm_sysdeps").is_dir(),
    )


def _read_facts(target: Interpreter, env: Mapping[str, str], libraries: Sequence[str] = ()) -> _SdkFacts:
    """Return what an interpreter's ``rocm_sdk`` answers to the query in queries.toml."""
    output = _run_python(target, env, "-c", read_toml(QUERIES)["rocm_sdk"], *libraries)
    try:
        return _SdkFacts.model_validate_json(output)
    except ValidationError as problem:
        raise RocmError(f"rocm_sdk in {target.prefix} answered {output.strip()!r}.") from problem


def _require_matching_sdk(
    facts: _SdkFacts, source: origin.RocmSource, *, sdk: str, family: str, targets: Sequence[str]
) -> None:
    """Fail where an installed ROCm is of another version, layout, family or targets than expected."""
    if facts.version != source.version:
        raise RocmError(f"{sdk} is {facts.version}, not {source.version}.", hint="Use --force.")
    if facts.layout != source.layout:
        raise RocmError(f"{sdk} has {facts.layout} packages, not {source.layout} ones.", hint="Use --force.")

    if facts.layout == "unsplit":
        if facts.family != family:
            raise RocmError(
                f"{sdk} is for {facts.family!r}, not {family!r}.",
                hint="A cached build of another family was installed: run the stage again with --force.",
            )
        return

    missing_targets = [name for name in targets if name not in facts.available]
    if missing_targets:
        raise RocmError(
            f"ROCm {source.version} has no device code for {', '.join(missing_targets)}, "
            f"only for {', '.join(facts.available)}.",
            hint="Choose others with --gpu-family, --pytorch-rocm-arch or PYTORCH_ROCM_ARCH, "
            "or ROCm packages that have them.",
        )


def _sdk_folder(target: Interpreter, env: Mapping[str, str], option: str) -> Path:
    """Return the folder that ``rocm_sdk path`` prints for an option; anything else is an error."""
    output = _run_python(target, env, "-m", "rocm_sdk", "path", option).strip()
    path = Path(output)
    if not output or not path.is_absolute() or not path.is_dir():
        raise RocmError(
            f"rocm_sdk path {option} in {target.prefix} answered {output!r}, which is not a folder."
        )
    return path


def _run_python(target: Interpreter, env: Mapping[str, str], *arguments: str) -> str:
    """Return what an environment's Python prints for arguments; failure and silence are errors."""
    try:
        output = process.capture([target.executable, *arguments], env=env).stdout
    except ProcessError as problem:
        raise RocmError(
            f"rocm_sdk in {target.prefix} does not output: {problem.message}",
            hint="Install rocm[libraries,devel] for this family: nox -s install_rocm.",
        ) from problem
    if not output.strip():
        raise RocmError(f"rocm_sdk in {target.prefix} gave an empty answer to {' '.join(arguments[-2:])}.")
    return output
