"""`install-rocm`: ROCm for a family into a target environment, verified there."""

import argparse

from core import console
from core.cli.options import common_from, environment
from core.env import installer, require
from core.env.locks import locked_call
from core.errors import UsageError
from pytorch_build.context import context
from pytorch_build.sdk import add_rocm_options, ask_sdk, find_source, find_version, rocm_options_from


def add_options(parser: argparse.ArgumentParser) -> None:
    """Declare the verb's own options."""
    add_rocm_options(parser)


def run(arguments: argparse.Namespace) -> None:
    """Install, query, and print the facts."""
    common = common_from(arguments)
    target = require(common.python)
    chosen = context(common)
    if not chosen.gpu:
        raise UsageError("Family cpu has no ROCm to install.", hint="Give a GPU family with --gpu-family.")
    options = rocm_options_from(arguments, environment())
    source = find_source(chosen, options, find_version(chosen, options))
    console.say(f"ROCm {source.version} for {chosen.gpu_family} from {source.origin}")
    with source.opened_call(common.cache / "locks", chosen.gpu_family) as rocm:
        calls = (locked_call(common, target), rocm)
        digest = installer.digest_of_calls(target, calls)
        with installer.prepared(
            target, calls, digest=digest, force=common.force, cache_dir=options.pip_cache_dir
        ):
            sdk = ask_sdk(target, source, family=chosen.gpu_family, targets=chosen.gpu_targets)
            facts = [(name, str(getattr(sdk, name))) for name in ("version", "root", "bin", "cmake")]
            facts += [("layout", source.layout), ("targets", ";".join(sdk.targets))]
            console.table(("rocm_sdk", target.prefix.name), facts)
