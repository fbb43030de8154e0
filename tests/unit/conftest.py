"""What a unit test may not do: start a process (unless it is marked so), leave this machine, know its job."""

import re
import socket
import subprocess  # noqa: TID251 - forbidden here, for everybody
from collections.abc import Callable, Generator
from pathlib import Path
from typing import Any

import pytest

from ci import install
from core import process
from core.cli.options import environment
from core.env.installer import Sources
from core.packages import resolution, sources
from core.stores import location
from tests.kit.aws import aws, s3

__all__ = ["aws", "s3"]

UNIT = Path(__file__).parent
LOOPBACK = ("127.0.0.1", "::1", "localhost")
# variables of a job of CI, of a user's git and AWS, of a build: what one needs, a test sets
OF_THE_CALLER = re.compile(
    r"(GITHUB|RUNNER|CI|ROCM_SDK)_.*|(NO|FORCE)_COLOR|GH_TOKEN|NEEDS|RELEASE_TYPE|RUN_STORE|SOURCE_LOCK"
    r"|SOURCE_DATE_EPOCH|SSL_CERT_FILE"
)


def _no_process(*arguments: object, **_options: object) -> None:
    pytest.fail(f"A unit test started a process, {arguments[0] if arguments else ''}: mark it 'processes'.")


def _guarded(connect: Callable[..., Any]) -> Callable[..., Any]:
    def guarded(self: socket.socket, address: Any) -> Any:
        if self.family != getattr(socket, "AF_UNIX", None) and address[0] not in LOOPBACK:
            pytest.fail(f"A unit test connected to {address}.")
        return connect(self, address)

    return guarded


def _without_gpus(which: Callable[..., Any]) -> Callable[..., Any]:
    """Hide the programs that would tell this machine's GPUs and libraries."""

    def hiding(program: str, **options: Any) -> Any:
        return None if program in {"rocminfo", "offload-arch", "ldconfig"} else which(program, **options)

    return hiding


def _local_names(getaddrinfo: Callable[..., Any]) -> Callable[..., Any]:
    def guarded(host: Any, *arguments: Any, **options: Any) -> Any:
        if host not in {*LOOPBACK, None, ""}:
            pytest.fail(f"A unit test looked {host} up.")
        return getaddrinfo(host, *arguments, **options)

    return guarded


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Generator[None, object, object]:
    # a hook and no fixture, so that fixtures of every scope are held to it; all folders' tests come by
    if not item.path.is_relative_to(UNIT):
        return (yield)
    with pytest.MonkeyPatch.context() as patch:
        for name in filter(OF_THE_CALLER.fullmatch, environment()):
            patch.delenv(name)
        patch.setattr(socket.socket, "connect", _guarded(socket.socket.connect))
        patch.setattr(socket.socket, "connect_ex", _guarded(socket.socket.connect_ex))
        patch.setattr(socket, "getaddrinfo", _local_names(socket.getaddrinfo))
        patch.setattr(process, "which", _without_gpus(process.which))
        # a person's own indexes
        for module in (install, resolution, sources):
            patch.setattr(module, "configured", Sources)
        # the bucket behind out/ is on another machine
        patch.setattr(location, "answers", lambda address: not address)
        if item.get_closest_marker("processes") is None:
            patch.setattr(subprocess, "Popen", _no_process)
        return (yield)
