"""`test`: ROCm's packages into a clean environment, and `rocm-sdk test` there."""

import argparse
from pathlib import Path

from core import console
from core.cli.options import GROUP_OPTIONS, RUN_OPTIONS, Common, add_group, common_from
from core.env import require
from core.errors import MissingInputError, UsageError
from core.families import CPU, default_family, detect, family
from core.packages.options import (
    SourceOptions,
    add_package_source,
    add_staged_source,
    options_of_tested_source,
)
from core.run import group_name
from rocm_packaging.origin import (
    RocmSource,
    choose_for_tests,
    has_package,
    has_rocm,
    named_source,
    newest,
    own_run,
    staged_source,
)
from rocm_packaging.packages.layouts import tested_targets
from rocm_packaging.sample_refs import brings_sample_rocm
from rocm_packaging.selftest import TestRequest, run_tests

_EXTRAS = ("libraries", "devel", "profiler")

COMMON_OPTIONS = ("torch-ref", *GROUP_OPTIONS, *RUN_OPTIONS, "python", "force", "dry-run")


def add_options(parser: argparse.ArgumentParser) -> None:
    """Declare the verb's own options."""
    add = parser.add_argument
    source_options = add_package_source(
        parser, "where ROCm comes from (default: the run's outputs)", "", "rocm-"
    )
    add_staged_source(source_options)
    add(
        "--rocm-extras",
        default=",".join(_EXTRAS),
        metavar="A,B",
        help="extras of rocm that an index or --find-links gives "
        "(default: libraries,devel and, if any, profiler)",
    )
    add_group(parser, default="the GPU families")
    add("--no-install", action="store_true", help="test what is already installed")
    add("--pip-cache-dir", type=Path, metavar="DIR", help="the installer's cache")
    add(
        "--junit",
        type=Path,
        metavar="FILE",
        help="also write the JUnit report there",
    )


def run(arguments: argparse.Namespace) -> None:
    """Install and test."""
    common = common_from(arguments)
    families = _families(common)
    targets = tested_targets(";".join(families), detect())
    extras = tuple(extra for extra in arguments.rocm_extras.split(",") if extra)
    options = options_of_tested_source(arguments)
    source = None
    if not arguments.no_install:
        source = _source(
            options,
            common,
            families,
            targets,
            extras,
            group=arguments.artifact_group,
        )
    run_tests(
        TestRequest(
            common=common,
            families=families,
            targets=targets,
            source=source,
            version=arguments.version,
            extras=extras,
            cache_dir=arguments.pip_cache_dir,
            junit=arguments.junit,
            group=arguments.artifact_group,
        )
    )


def _families(common: Common) -> tuple[str, ...]:
    """Choose the GPU families: the ones given, the sample's, or this machine's."""
    name = common.gpu_family
    if not name and brings_sample_rocm(common.torch_ref):
        from rocm_packaging.sample import FAMILIES

        name = next(iter(FAMILIES))
    gpu_family = family(name or default_family(detect()))
    if gpu_family.name == CPU:
        raise UsageError(
            "Family cpu has no ROCm to test.",
            hint="Choose a GPU family with --gpu-family.",
        )
    return tuple(gpu_family.name.split(";"))


def _source(
    options: SourceOptions,
    common: Common,
    families: tuple[str, ...],
    targets: tuple[str, ...],
    extras: tuple[str, ...],
    *,
    group: str,
) -> RocmSource:
    """Find what is tested: of the sources that are named, else of the run, which may have staged it."""
    packages = named_source(options, common, families[0])
    version = options.version

    if packages is None:
        artifact_group = group or group_name(";".join(families), common.build_variant)
        packages = own_run(common, artifact_group)
        if not has_rocm(packages):
            raise MissingInputError(
                f"{packages.description} has no ROCm packages for {', '.join(families)}.",
                hint="Build some (nox -s build_rocm), name another run (--run-id, --store), or a place: "
                "--find-links DIR, --index-url URL.",
            )

        if options.staged:
            # other runs' versions are staged in the same folder
            version = version or newest(packages)
            packages = staged_source(options, common, artifact_group)

    version = version or newest(packages)
    if version not in packages.versions("rocm"):
        raise packages.missing_error(f"ROCm {version}")
    if extras == _EXTRAS and not has_package(packages, version, "rocm-profiler"):
        extras = extras[:-1]  # Windows has none
    console.say(f"ROCm {version} for {', '.join(families)} from {packages.description}")
    return choose_for_tests(
        packages,
        version,
        families,
        targets,
        extras,
        python=require(common.python),
        platform=common.outputs.platform,
    )
