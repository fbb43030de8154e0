"""What a process has started on Windows: one job object a command, which closes with this process.

Windows ends every process of a job when the last handle to it closes, and this process holds the only one. So
what a command starts ends with this process, however that ends.
"""

from __future__ import annotations

import ctypes
import sys
import threading
from collections.abc import Mapping
from typing import Any

from core.errors import MachineError

# Of <winnt.h> and <jobapi2.h>.
_BASIC_PROCESS_ID_LIST = 3
_EXTENDED_LIMIT_INFORMATION = 9
_KILL_ON_JOB_CLOSE = 0x2000
_PROCESS_ALL_ACCESS = 0x1FFFFF
_EXIT_CODE = 1
_MOST_STRAYS = 1000

# Held while a command is started, until its process is in its job.
STARTING = threading.Lock()


class _ExtendedLimits(ctypes.Structure):
    """JOBOBJECT_EXTENDED_LIMIT_INFORMATION, of which the flags alone are set."""

    _fields_ = (
        ("times", ctypes.c_int64 * 2),
        ("flags", ctypes.c_uint32),
        ("working_sets", ctypes.c_size_t * 2),
        ("most_processes", ctypes.c_uint32),
        ("affinity", ctypes.c_size_t),
        ("classes", ctypes.c_uint32 * 2),
        ("counters", ctypes.c_uint64 * 6),
        ("memory", ctypes.c_size_t * 4),
    )


class _ProcessIds(ctypes.Structure):
    """JOBOBJECT_BASIC_PROCESS_ID_LIST."""

    _fields_ = (
        ("assigned", ctypes.c_uint32),
        ("listed", ctypes.c_uint32),
        ("ids", ctypes.c_size_t * _MOST_STRAYS),
    )


def take_charge(*, grace_after_death: float, ends_with_parent: bool) -> None:
    """Do nothing: jobs close with this process, and this process is in the job of the one that started it."""


def _kernel() -> Any:  # noqa: ANN401 - a library, whose functions have no types
    """Return the system's library."""
    # Looked up by name, because type checkers know no such library on other systems.
    load_library = getattr(ctypes, "WinDLL", None)
    if load_library is None:
        raise MachineError(f"{sys.platform} has no job objects.")
    return load_library("kernel32", use_last_error=True)


class CommandTree:
    """Everything that one command starts."""

    def __init__(self) -> None:
        self._kernel = _kernel()
        self._kernel.CreateJobObjectW.restype = ctypes.c_void_p
        self._kernel.OpenProcess.restype = ctypes.c_void_p
        self._job = ctypes.c_void_p(self._kernel.CreateJobObjectW(None, None))
        limits = _ExtendedLimits(flags=_KILL_ON_JOB_CLOSE)
        self._kernel.SetInformationJobObject(
            self._job, _EXTENDED_LIMIT_INFORMATION, ctypes.byref(limits), ctypes.sizeof(limits)
        )

    @property
    def variables(self) -> Mapping[str, str]:
        """The variables that mark what the command starts: none, as the job knows it."""
        return {}

    def attach(self, process_id: int) -> None:
        """Take the command's process, and all that it starts from now on, into the job."""
        process = ctypes.c_void_p(self._kernel.OpenProcess(_PROCESS_ALL_ACCESS, 0, process_id))
        self._kernel.AssignProcessToJobObject(self._job, process)
        self._kernel.CloseHandle(process)

    def signal(self, number: int) -> None:  # noqa: ARG002 - Windows has no signal but the one that ends a process
        """End every process of the tree."""
        self.kill()

    def kill(self) -> None:
        """End every process of the tree at once."""
        self._kernel.TerminateJobObject(self._job, _EXIT_CODE)

    def end_strays(self) -> Mapping[int, str]:
        """End what the command's process, which has ended, left running; return its names by process id."""
        process_ids = _ProcessIds()
        self._kernel.QueryInformationJobObject(
            self._job, _BASIC_PROCESS_ID_LIST, ctypes.byref(process_ids), ctypes.sizeof(process_ids), None
        )
        names = {int(process_id): "a program" for process_id in process_ids.ids[: process_ids.listed]}
        self.kill()
        self._kernel.CloseHandle(self._job)
        return names
