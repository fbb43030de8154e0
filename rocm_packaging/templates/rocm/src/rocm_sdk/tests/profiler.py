"""Checks of the profiler package: what it promises, libraries, console scripts."""

from .. import _dist_info
from . import core, support
from .check import Check, skipped_check

# Those that do not start without packages or programs that ROCm leaves to the machine.
_NEED_THE_MACHINE = frozenset(
    {"rocprof-compute", "rocprof-sys-attach", "rocprof-sys-python"}
)


def checks():
    """Yield the checks of the profiler package."""
    root = support.payload("profiler")
    yield support.promise_check("profiler", root)
    if _dist_info.PROMISED_FILES.get("profiler") or support.shared_libraries(
        root
    ):
        yield from support.library_checks("profiler", root)
    else:
        reason = "this distribution was packaged without them"
        yield skipped_check("profiler", "there are shared libraries", reason)

    from rocm_profiler import _cli

    for name, relative in _cli.PROGRAMS.items():
        must_only_start = name in _NEED_THE_MACHINE
        yield Check(
            "profiler",
            f"{name} runs",
            core.check_script,
            name,
            root / relative,
            must_only_start,
        )
