"""A C and C++ compiler for a Windows under Wine: small programs hand each call to this machine's MinGW.

The programs are one, ``windows_programs/compiler.c``, under the names of the tools. A server of this process
runs the tool of that name for Windows, with Windows' paths turned into those of this machine and back.
"""

from __future__ import annotations

import re
import shlex
import shutil
import socketserver
import struct
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path, PureWindowsPath
from threading import Thread
from typing import TYPE_CHECKING

import pytest

from core import process

if TYPE_CHECKING:
    from tests.kit.windows_python import WindowsPython

PREFIX = "x86_64-w64-mingw32-"
SOURCE = Path(__file__).with_name("windows_programs") / "compiler.c"
# The names of tools under Windows, and what this machine has for each.
TOOLS = {
    "ar": "ar",
    "c++": "g++",
    "cc": "gcc",
    "dlltool": "dlltool",
    "g++": "g++",
    "gcc": "gcc",
    "ld": "ld",
    "nm": "nm",
    "objdump": "objdump",
    "ranlib": "ranlib",
    "strip": "strip",
    "windres": "windres",
}

# A path with a drive: the whole word, or behind an option's letter, an equals sign, a comma or a quote.
_DRIVE_PATH = re.compile(r"(?P<before>^|^-[ILBo]|[=,\"'])(?P<drive>[A-Za-z]):(?=[\\/])")


@dataclass(frozen=True, kw_only=True)
class WindowsPaths:
    """How paths of a Windows under Wine and of this machine are turned into each other."""

    drive: Path

    def on_this_machine(self, path: str) -> Path:
        """Return where a whole path of Windows lies on this machine."""
        return Path(self.argument(path))

    def argument(self, argument: str) -> str:
        """Return an argument with this machine's paths."""
        turned = _DRIVE_PATH.sub(self._root_of, argument)
        # In definitions a backslash is a part of a text.
        if argument.startswith("-D"):
            return turned
        return turned.replace("\\", "/")

    def text(self, text: str) -> str:
        """Return a text of a tool with Windows' paths."""
        return text.replace(f"{self.drive}/", "C:/")

    def _root_of(self, match: re.Match[str]) -> str:
        root = str(self.drive) if match["drive"].upper() == "C" else ""
        return match["before"] + root


def run_tool(paths: WindowsPaths, name: str, folder: str, arguments: list[str]) -> process.Completed:
    """Run a tool for a program of Windows."""
    cwd = paths.on_this_machine(folder)
    command = [f"{PREFIX}{TOOLS[name]}"]
    for argument in arguments:
        if argument.startswith("@"):
            # Lists of arguments that are too long for Windows, with Windows' paths.
            words = (cwd / paths.argument(argument[1:])).read_text(encoding="utf-8")
            command += [paths.argument(word) for word in shlex.split(words.replace("\\", "/"))]
        elif argument == "-MD":
            # Windows does not see the folders of the compiler's own headers.
            command.append("-MMD")
        else:
            command.append(paths.argument(argument))

    completed = process.capture(command, cwd=cwd, check=False)
    if "-MF" in command:
        _turn_dependencies(paths, cwd / command[command.index("-MF") + 1])
    return completed


def _turn_dependencies(paths: WindowsPaths, file: Path) -> None:
    """Write Windows' paths into the list of headers that a compiler leaves for a build system."""
    if file.is_file():
        text = file.read_text(encoding="utf-8")
        file.write_text(paths.text(text), encoding="utf-8")


class _Handler(socketserver.StreamRequestHandler):
    """Answers one call of a tool."""

    server: _Server

    def handle(self) -> None:
        """Run the tool, and send its status and what it printed."""
        fields = self.rfile.read().split(b"\0")
        name, folder, *arguments = [field.decode() for field in fields[:-1]]
        paths = self.server.paths
        try:
            completed = run_tool(paths, name, folder, arguments)
        except (OSError, ValueError) as problem:
            completed = process.Completed(returncode=125, stdout="", stderr=f"{name}: {problem}\n")
        stdout = paths.text(completed.stdout).encode()
        stderr = paths.text(completed.stderr).encode()
        status = completed.returncode & 0xFFFFFFFF
        self.wfile.write(struct.pack("<III", status, len(stdout), len(stderr)) + stdout + stderr)


class _Server(socketserver.ThreadingTCPServer):
    """Answers on a free port of the loopback interface."""

    daemon_threads = True
    request_queue_size = 64

    def __init__(self, paths: WindowsPaths) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.paths = paths


@contextmanager
def windows_compiler(windows: WindowsPython, folder: Path) -> Iterator[str]:
    """Put compilers into a folder of a Windows; give the folder's path there, for its PATH."""
    if shutil.which(f"{PREFIX}gcc") is None or shutil.which(f"{PREFIX}g++") is None:
        pytest.skip(f"{PREFIX}g++ is not on the PATH: the package g++-mingw-w64-x86-64 has it")
    folder.mkdir(parents=True, exist_ok=True)
    program = folder / "gcc.exe"
    process.capture([f"{PREFIX}gcc", "-O1", "-s", "-municode", SOURCE, "-o", program, "-lws2_32"])
    for name in TOOLS:
        if name != "gcc":
            shutil.copyfile(program, folder / f"{name}.exe")

    with _Server(WindowsPaths(drive=windows.drive)) as server:
        (folder / "port").write_text(str(server.server_address[1]), encoding="ascii")
        Thread(target=server.serve_forever, daemon=True).start()
        yield str(PureWindowsPath(windows.path(folder)))
        server.shutdown()
