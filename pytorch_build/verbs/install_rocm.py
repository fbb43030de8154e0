"""`install-rocm`: ROCm for a family into a target environment, asked what it is."""

from __future__ import annotations

from typing import TYPE_CHECKING

from core import console
from core.cli.options import common_from, environment
from core.env import installer, require
from core.env.locks import locked_call
from core.errors import UsageError
from pytorch_build.context import context
from pytorch_build.rocm.options import add_rocm_options, find_source, find_version, rocm_options_from
from pytorch_build.rocm.sdk import ask

if TYPE_CHECKING:
    import argparse

    from core.env import Interpreter
    from pytorch_build.context import Context
    from rocm_packaging.rocm_sources import RocmSource


def add_options(parser: argparse.ArgumentParser) -> None:
    """Declare the verb's own options."""
    add_rocm_options(parser)


def run(arguments: argparse.Namespace) -> None:
    """Install, ask, and print the answers."""
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
        with installer.prepared(
            target,
            calls,
            digest=installer.digest_of_calls(target, calls),
            backend=options.installer,
            cache_dir=options.pip_cache_dir,
            force=common.force,
        ):
            _tell(target, source, chosen)


def _tell(target: Interpreter, source: RocmSource, chosen: Context) -> None:
    sdk = ask(
        target,
        version=source.version,
        layout=source.layout,
        family=chosen.gpu_family,
        targets=chosen.gpu_targets,
    )
    facts = [
        ("version", sdk.version),
        ("layout", sdk.layout),
        ("root", sdk.root),
        ("bin", sdk.bin),
        ("cmake", sdk.cmake),
    ]
    facts.append(("targets", ";".join(sdk.targets)))
    console.table(("rocm_sdk", target.prefix.name), [(name, str(value)) for name, value in facts])
