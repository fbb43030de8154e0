"""What a process has started on Windows: one job object a command, which closes with this process.

Windows ends every process of a job when the last handle to it closes, and this process holds the only one. So
what a command starts ends with this process, however that ends. A command's process is taken into its job
before it runs, so that nothing that it starts is outside.

A command has a process group of its own: Ctrl-C in a console reaches this program alone, which then hands it
on as Ctrl-Break, the only event that Windows sends to one group.
"""

from __future__ import annotations

import ctypes
import os
import signal
import sys
import threading
from collections.abc import Mapping
from pathlib import PureWindowsPath
from typing import Any

from core.errors import MachineError

# Of <winnt.h>, <winbase.h> and <jobapi2.h>.
_BASIC_PROCESS_ID_LIST = 3
_EXTENDED_LIMIT_INFORMATION = 9
_KILL_ON_JOB_CLOSE = 0x2000
_PROCESS_ALL_ACCESS = 0x1FFFFF
_PROCESS_QUERY_LIMITED_INFORMATION = 0x1000
_CREATE_SUSPENDED = 0x4
_CREATE_NEW_PROCESS_GROUP = 0x200
_EXIT_CODE = 1
_MOST_STRAYS = 1000
_LONGEST_PATH = 32_768

# How a command's process is started: it waits until it is in its job.
CREATION_FLAGS = _CREATE_SUSPENDED | _CREATE_NEW_PROCESS_GROUP

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


def _library(name: str) -> Any:  # noqa: ANN401 - a library, whose functions have no types
    """Return a library of the system's."""
    # Looked up by name, because type checkers know no such library on other systems.
    load_library = getattr(ctypes, "WinDLL", None)
    if load_library is None:
        raise MachineError(f"{sys.platform} has no job objects.")
    return load_library(name, use_last_error=True)


class CommandTree:
    """Everything that one command starts."""

    def __init__(self) -> None:
        self._kernel = _library("kernel32")
        self._kernel.CreateJobObjectW.restype = ctypes.c_void_p
        self._kernel.OpenProcess.restype = ctypes.c_void_p
        self._process_id: int | None = None
        self._job = ctypes.c_void_p(self._kernel.CreateJobObjectW(None, None))
        limits = _ExtendedLimits(flags=_KILL_ON_JOB_CLOSE)
        is_limited = self._kernel.SetInformationJobObject(
            self._job, _EXTENDED_LIMIT_INFORMATION, ctypes.byref(limits), ctypes.sizeof(limits)
        )
        if not is_limited:
            raise _windows_error("Windows gives no job object that ends with its program")

    @property
    def variables(self) -> Mapping[str, str]:
        """The variables that mark what the command starts: none, as the job knows it."""
        return {}

    def attach(self, process_id: int) -> None:
        """Take the command's process, and all that it starts, into the job, and let it run."""
        self._process_id = process_id
        handle = ctypes.c_void_p(self._kernel.OpenProcess(_PROCESS_ALL_ACCESS, 0, process_id))
        try:
            if not self._kernel.AssignProcessToJobObject(self._job, handle):
                # Before other calls of Windows change the number of the last error.
                error = _windows_error("Windows takes the command's process into no job object")
                self._kernel.TerminateProcess(handle, _EXIT_CODE)
                raise error
            # The documented function asks for a thread, whose handle Python has closed.
            _library("ntdll").NtResumeProcess(handle)
        finally:
            self._kernel.CloseHandle(handle)

    def signal(self, number: int) -> None:
        """Let the tree's processes clean up at SIGINT; end them at another signal, or without a console."""
        if number != signal.SIGINT or self._process_id is None:
            self.kill()
            return

        try:
            os.kill(self._process_id, getattr(signal, "CTRL_BREAK_EVENT"))  # noqa: B009 - of Windows alone
        except OSError:
            self.kill()

    def kill(self) -> None:
        """End every process of the tree at once."""
        self._kernel.TerminateJobObject(self._job, _EXIT_CODE)

    def end_strays(self) -> Mapping[int, str]:
        """End what the command's process, which has ended, left running; return its names by process id."""
        if self._job.value is None:
            return {}

        process_ids = _ProcessIds()
        self._kernel.QueryInformationJobObject(
            self._job, _BASIC_PROCESS_ID_LIST, ctypes.byref(process_ids), ctypes.sizeof(process_ids), None
        )
        names: dict[int, str] = {}
        for process_id in process_ids.ids[: process_ids.listed]:
            if process_id != self._process_id:
                names[int(process_id)] = self._name_of(process_id)
        self.kill()
        self._kernel.CloseHandle(self._job)
        self._job = ctypes.c_void_p(None)
        return names

    def _name_of(self, process_id: int) -> str:
        handle = ctypes.c_void_p(self._kernel.OpenProcess(_PROCESS_QUERY_LIMITED_INFORMATION, 0, process_id))
        path = ctypes.create_unicode_buffer(_LONGEST_PATH)
        length = ctypes.c_uint32(_LONGEST_PATH)
        is_known = self._kernel.QueryFullProcessImageNameW(handle, 0, path, ctypes.byref(length))
        self._kernel.CloseHandle(handle)
        return PureWindowsPath(path.value).name if is_known else "a program"


def _windows_error(problem: str) -> MachineError:
    """Return an error that ends with the number of the last call's."""
    number = getattr(ctypes, "get_last_error", int)()
    return MachineError(f"{problem} (error {number}).")
