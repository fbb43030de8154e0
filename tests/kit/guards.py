"""What a unit test may not do: start a process, unless it is marked so, leave this machine, know its job."""

import re
import socket
import subprocess
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from types import SimpleNamespace
from typing import Any

import pytest

from ci import install
from core import process, run, temporary
from core.cli.options import environment
from core.env.installer import Sources
from core.packages import candidates, package_source, pages, resolution
from core.stores import overlay

LOOPBACK = ("127.0.0.1", "::1", "localhost")

# Variables of a job of CI and of a build, and credentials of AWS: an S3 in this process sets those for
# all of its threads. A test sets what it needs.
VARIABLES_OF_JOBS = re.compile(
    r"(GITHUB|RUNNER|CI|ROCM_SDK)_.*|(NO|FORCE)_COLOR|GH_TOKEN|NEEDS|RELEASE_TYPE|RUN_STORE|SOURCE_LOCK"
    r"|SOURCE_DATE_EPOCH|SSL_CERT_FILE|NOX_CURRENT_SESSION"
    r"|AWS_(ACCESS_KEY_ID|SECRET_ACCESS_KEY|SESSION_TOKEN|SECURITY_TOKEN|REGION|DEFAULT_REGION|ENDPOINT_URL.*)"
)

# They would tell which GPUs and libraries this machine has.
HIDDEN_PROGRAMS = {"rocminfo", "offload-arch", "ldconfig"}


@cache
def is_variable_of_jobs(name: str) -> bool:
    """Return whether a variable is of a job or a build, or a credential; every test asks again."""
    return VARIABLES_OF_JOBS.fullmatch(name) is not None


@contextmanager
def guarded(item: pytest.Item) -> Iterator[None]:
    """Guard a unit test for as long as it runs, its fixtures included."""
    may_start_processes = item.get_closest_marker("processes") is not None
    with pytest.MonkeyPatch.context() as patch:
        guard_unit_test(patch, may_start_processes=may_start_processes)
        yield


def guard_unit_test(patch: pytest.MonkeyPatch, *, may_start_processes: bool) -> None:
    """Let a test fail where it does what a unit test may not, for as long as the patches live."""
    for name in environment():
        if is_variable_of_jobs(name):
            patch.delenv(name)

    patch.setattr(socket.socket, "connect", refuse_other_machines(socket.socket.connect))
    patch.setattr(socket.socket, "connect_ex", refuse_other_machines(socket.socket.connect_ex))
    patch.setattr(socket, "getaddrinfo", refuse_other_names(socket.getaddrinfo))
    # The test runner's other children are no command's.
    patch.setattr(process, "take_charge", lambda **_options: None)
    patch.setattr(temporary, "keep_journal", lambda _cache: None)
    patch.setattr(process, "which", hide_programs(process.which))

    # What tests build, publish and install is for Linux, where they name no platform.
    patch.setattr(run, "sys", SimpleNamespace(platform="linux"))

    # A person's own indexes, and the bucket behind out/, which is on another machine.
    for module in (install, candidates, package_source, pages, resolution):
        patch.setattr(module, "configured_sources", Sources)
    patch.setattr(overlay, "is_reachable", lambda endpoint: endpoint is None)

    if not may_start_processes:
        patch.setattr(subprocess, "Popen", RefusedProcess)


class RefusedProcess(subprocess.Popen[Any]):
    """Fails the test that starts a process. It is a class, as asyncio derives its own from it on Windows."""

    def __init__(self, *arguments: object, **_options: object) -> None:
        # As after a start that has failed: nothing is waited for when it is deleted.
        self.returncode = 0
        words = arguments[0] if arguments else "without words"
        pytest.fail(f"A unit test started a process, {words}: mark it 'processes'.")


def refuse_other_machines(connect: Callable[..., Any]) -> Callable[..., Any]:
    """Return a `socket.connect` that reaches this machine alone."""

    def connect_here(connection: socket.socket, address: Any) -> Any:
        is_local_socket = connection.family == getattr(socket, "AF_UNIX", None)
        if not is_local_socket and address[0] not in LOOPBACK:
            pytest.fail(f"A unit test connected to {address}.")
        return connect(connection, address)

    return connect_here


def refuse_other_names(getaddrinfo: Callable[..., Any]) -> Callable[..., Any]:
    """Return a `socket.getaddrinfo` that knows this machine alone."""

    def look_up_here(host: Any, *arguments: Any, **options: Any) -> Any:
        if host not in {*LOOPBACK, None, ""}:
            pytest.fail(f"A unit test looked {host} up.")
        return getaddrinfo(host, *arguments, **options)

    return look_up_here


def hide_programs(which: Callable[..., Any]) -> Callable[..., Any]:
    """Return a `process.which` that does not find the programs that describe this machine."""

    def find(program: str, **options: Any) -> Any:
        return None if program in HIDDEN_PROGRAMS else which(program, **options)

    return find
