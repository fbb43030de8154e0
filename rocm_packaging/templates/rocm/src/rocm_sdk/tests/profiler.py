"""Checks of the profiler package: what it promises, libraries, console scripts."""

from .. import _dist_info
from . import core, support
from .checks import Check, Skip

# Those that do not start without packages or programs that ROCm leaves to the machine.
_NEEDY = frozenset({"rocprof-compute", "rocprof-sys-attach", "rocprof-sys-python"})


def checks():
    root = support.payload("profiler")
    yield support.promise_check("profiler", root)
    if _dist_info.PROMISED_FILES.get("profiler") or support.shared_libraries(root):
        yield from support.library_checks("profiler", root)
    else:
        yield Check("profiler", "there are shared libraries", _none)
    from rocm_profiler import _cli

    for name, relative in _cli.PROGRAMS.items():
        yield Check("profiler", f"{name} runs", core.script, name, root / relative, name in _NEEDY)


def _none():
    raise Skip("this distribution was packaged without them")
