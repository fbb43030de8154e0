"""The guard of unit tests: they start no process unless they are marked so, and stay on this machine."""

import socket
import sys

import pytest

from core import process


def test_a_unit_test_starts_no_process() -> None:
    with pytest.raises(pytest.fail.Exception, match="mark it 'processes'"):
        process.capture([sys.executable, "--version"])


@pytest.mark.processes
def test_a_unit_test_that_is_marked_may_start_a_process() -> None:
    assert process.capture([sys.executable, "--version"]).stdout.startswith("Python 3.")


def test_a_unit_test_connects_to_no_other_machine() -> None:
    # An address for examples in documents (RFC 5737).
    with socket.socket() as stream, pytest.raises(pytest.fail.Exception, match="connected to"):
        stream.connect(("192.0.2.1", 80))


def test_a_unit_test_looks_no_host_up() -> None:
    with pytest.raises(pytest.fail.Exception, match=r"looked example\.invalid up"):
        socket.create_connection(("example.invalid", 80))


def test_a_unit_test_may_connect_to_its_own_machine() -> None:
    server = socket.create_server(("127.0.0.1", 0))
    with server, socket.create_connection(server.getsockname()) as stream:
        accepted, _ = server.accept()
        accepted.close()
        assert stream.recv(1) == b""
