"""`install-rocm`: ROCm for a family into a target environment, verified there."""

import argparse

from core import console
from core.cli.options import GROUP_OPTIONS, RUN_OPTIONS, common_from, environment
from core.env import installer, require
from core.env.locks import locked_call
from core.errors import UsageError
from pytorch_build.context import find_context
from pytorch_build.sdk import (
    add_rocm_options,
    ask_sdk,
    find_rocm_source,
    find_rocm_version,
    rocm_options_from,
)

COMMON_OPTIONS = ("torch-ref", *GROUP_OPTIONS, *RUN_OPTIONS, "python", "force")


def add_options(parser: argparse.ArgumentParser) -> None:
    """Declare the verb's own options."""
    add_rocm_options(parser)


def run(arguments: argparse.Namespace) -> None:
    """Install ROCm into the session's environment, and print its version, folders and targets."""
    common = common_from(arguments)
    target = require(common.python)
    group = find_context(common)
    if not group.gpu:
        raise UsageError("Family cpu has no ROCm to install.", hint="Give a GPU family with --gpu-family.")
    options = rocm_options_from(arguments, environment())
    source = find_rocm_source(group, options, find_rocm_version(group, options))
    console.say(f"ROCm {source.version} for {group.gpu_family} from {source.origin}")

    with source.opened_call(common.cache / "locks", group.gpu_family) as rocm:
        calls = (locked_call(common, target), rocm)
        with installer.prepared(
            target,
            calls,
            digest=installer.digest_of_calls(target, calls),
            force=common.force,
            cache_dir=options.pip_cache_dir,
        ):
            sdk = ask_sdk(
                target,
                source,
                family=group.gpu_family,
                targets=group.gpu_targets,
            )

    rows = [
        ("version", sdk.version),
        ("root", str(sdk.root)),
        ("bin", str(sdk.bin)),
        ("cmake", str(sdk.cmake)),
        ("layout", source.layout),
        ("targets", ";".join(sdk.targets)),
    ]
    console.table(("rocm_sdk", target.prefix.name), rows)
