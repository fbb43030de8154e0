"""The command `rocm-sdk`, also `python -m rocm_sdk`."""

import argparse
import sys

from . import _dist_info


def _print_path(arguments):
    from . import _devel

    try:
        root = _devel.get_devel_root()
    except ModuleNotFoundError as problem:
        hint = _dist_info.ALL_PACKAGES["devel"].install_hint
        sys.exit(
            f"ERROR: Could not load the rocm[devel] package: {problem}. Please install it: {hint}"
        )
    except (OSError, RuntimeError) as problem:
        sys.exit(f"ERROR: Could not expand the rocm[devel] package: {problem}")

    if arguments.cmake:
        print(root / "lib" / "cmake")
    elif arguments.bin:
        print(root / "bin")
    else:
        print(root)


def _expand(arguments):
    from . import _devel

    try:
        root = _devel.get_devel_root(force=True)
    except (ImportError, OSError, RuntimeError) as problem:
        sys.exit(f"ERROR running init: {problem}")
    if not arguments.quiet:
        print(f"The ROCm development tree is ready in {root}")


def _run_checks(arguments):
    from .tests import run

    sys.exit(run.main(report_path=arguments.json, jobs=arguments.jobs))


def _print_version(_arguments):
    print(_dist_info.__version__)


def _print_targets(_arguments):
    print(";".join(_dist_info.get_targets()))


def _positive(text):
    number = int(text)
    if number < 1:
        raise ValueError(text)
    return number


def _parser():
    parser = argparse.ArgumentParser(
        prog="rocm-sdk", description="ROCm in this Python environment"
    )
    commands = parser.add_subparsers(dest="command", required=True)

    path = commands.add_parser(
        "path", help="print a folder of the development tree"
    )
    folders = path.add_mutually_exclusive_group(required=True)
    folders.add_argument(
        "--root", action="store_true", help="the tree itself (ROCM_PATH)"
    )
    folders.add_argument("--bin", action="store_true", help="its programs")
    folders.add_argument(
        "--cmake",
        action="store_true",
        help="its CMake packages (CMAKE_PREFIX_PATH)",
    )
    path.set_defaults(run=_print_path)

    init = commands.add_parser(
        "init", help="expand the development tree, or bring it up to date"
    )
    init.add_argument("--quiet", action="store_true", help="print nothing")
    init.set_defaults(run=_expand)

    test = commands.add_parser("test", help="test this installation")
    test.add_argument(
        "--json", metavar="FILE", help="also write the results as JSON"
    )
    test.add_argument(
        "--jobs",
        type=_positive,
        metavar="N",
        help="how many checks run side by side (default: one a core)",
    )
    test.set_defaults(run=_run_checks)

    targets = commands.add_parser(
        "targets",
        help="print the gfx targets that the installed libraries hold code for",
    )
    targets.set_defaults(run=_print_targets)
    version = commands.add_parser("version", help="print the version")
    version.set_defaults(run=_print_version)
    return parser


def main(argv=None):
    """Run a command; its failure ends the process."""
    arguments = _parser().parse_args(argv)
    arguments.run(arguments)


if __name__ == "__main__":
    main()
