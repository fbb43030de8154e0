import os
import socket
import subprocess  # noqa: TID251
import sys
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from core import console, process
from core.errors import InterruptedStageError, MachineError, ProcessError
from core.process import tail
from core.shell import command_line
from tests.kit.processes import LONG, ctrl_c_when, ends_soon, holds_text, is_alive, parent_code, python
from tests.kit.windows import ON_WINDOWS, not_on_windows

processes = pytest.mark.processes


def program_lines(log: Path) -> list[str]:
    """Return the lines of a log without the commands that it echoes."""
    lines = log.read_text(encoding="utf-8").splitlines()
    return [line for line in lines if not line.startswith("+ ")]


def test_finds_a_program_on_the_path_that_is_named(tmp_path: Path) -> None:
    program = tmp_path / ("mycc.exe" if ON_WINDOWS else "mycc")
    program.write_text("#!/bin/sh\n")
    program.chmod(0o755)

    assert process.which("mycc", path=str(tmp_path)) == program
    assert process.which("mycc") is None


def test_names_a_program_that_is_not_installed() -> None:
    with pytest.raises(ProcessError, match="no-such-program"):
        process.run(["no-such-program", "x"])


def test_looks_for_programs_on_the_path_of_the_child(tmp_path: Path) -> None:
    with pytest.raises(ProcessError, match="python3"):
        process.capture(["python3"], env={"PATH": str(tmp_path)})


def test_names_the_folder_where_a_program_cannot_start(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_arguments: Any, **_options: Any) -> None:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(subprocess, "Popen", refuse)
    with pytest.raises(ProcessError) as raised:
        process.run([sys.executable], cwd=tmp_path)

    assert str(tmp_path) in raised.value.message
    assert "Permission denied" in raised.value.message


# Processes that people follow


@processes
def test_runs_a_command_in_its_folder_and_environment(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    code = "import os; print(os.getcwd(), os.environ.get('WORD'), 'HOME' in os.environ)"

    process.run(python(code), cwd=tmp_path, env={"WORD": "two words"})

    assert capfd.readouterr().out.splitlines() == [f"{tmp_path} two words False"]


@processes
def test_echoes_a_command_with_its_folder(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    process.run(python("import os"), cwd=tmp_path)

    first_line = capfd.readouterr().err.splitlines()[0]
    shown_command = command_line(python("import os"))
    assert first_line == f"+ {shown_command}  (in {tmp_path})"


@processes
def test_a_status_other_than_zero_is_an_error_with_the_next_action() -> None:
    command = [*python("raise SystemExit(7)"), "a", "b", "c"]

    with pytest.raises(ProcessError) as raised:
        process.run(command, hint="Look there.")

    assert raised.value.returncode == 7
    assert "status 7" in raised.value.message
    assert " b" not in raised.value.message, "a long command is shortened"
    assert raised.value.hint == "Look there."


@processes
@not_on_windows("Windows ends no process by a signal")
@pytest.mark.parametrize(("number", "name"), [(9, "SIGKILL"), (40, "40")])
def test_names_the_signal_that_ended_a_process(number: int, name: str) -> None:
    with pytest.raises(ProcessError, match=f"signal {name}"):
        process.run(python(f"import os; os.kill(os.getpid(), {number})"))


# Logs


@processes
def test_adds_both_streams_to_a_log(tmp_path: Path) -> None:
    log = tmp_path / "logs" / "build.log"
    process.run(python("print('first')"), log=log)

    process.run(python("import sys; print('out', flush=True); print('err', file=sys.stderr)"), log=log)

    assert program_lines(log) == ["first", "out", "err"]


@processes
@pytest.mark.parametrize("is_verbose", [False, True])
def test_prints_what_goes_into_a_log_only_where_all_is_echoed(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, *, is_verbose: bool
) -> None:
    monkeypatch.setattr(console.SCREEN, "verbose", is_verbose)

    process.run(python("print('compiled')"), log=tmp_path / "build.log")

    assert ("compiled" in capfd.readouterr().err.splitlines()) is is_verbose


@processes
def test_keeps_the_last_lines_of_a_log_with_the_error(tmp_path: Path) -> None:
    code = "for number in range(100): print(number)\nraise SystemExit(1)"

    with pytest.raises(ProcessError) as raised:
        process.run(python(code), log=tmp_path / "log")

    assert raised.value.output.splitlines() == [str(number) for number in range(60, 100)]
    assert raised.value.log == tmp_path / "log"


@processes
def test_names_a_log_that_cannot_be_written(tmp_path: Path) -> None:
    log = tmp_path / "folder"
    log.mkdir()

    with pytest.raises(MachineError) as raised:
        process.run(python(f"import time; time.sleep({LONG})"), log=log)

    assert str(log) in raised.value.message


def test_returns_the_last_lines_of_a_log(tmp_path: Path) -> None:
    log = tmp_path / "log"
    lines = b"".join(b"line %d\n" % number for number in range(10_000))
    log.write_bytes(lines + b"\xff")

    assert tail(log, lines=2) == "line 9999\n\N{REPLACEMENT CHARACTER}"


def test_returns_nothing_of_a_log_that_is_not_there(tmp_path: Path) -> None:
    assert tail(tmp_path / "log") == ""


# Captured processes


@processes
def test_captures_both_streams_silently(capfd: pytest.CaptureFixture[str]) -> None:
    code = "import sys; print(sys.stdin.read().upper()); print('e', file=sys.stderr); sys.exit(4)"

    completed = process.capture(python(code), stdin="abc", check=False)

    assert completed == process.Completed(returncode=4, stdout="ABC\n", stderr="e\n")
    assert capfd.readouterr() == ("", "")


@processes
def test_a_captured_process_reads_nothing_by_default() -> None:
    completed = process.capture(python("import sys; print(repr(sys.stdin.read()))"))

    assert completed.stdout == "''\n"


@processes
def test_a_captured_failure_repeats_what_the_process_complained_of() -> None:
    code = "import sys; print('output'); print('complaint', file=sys.stderr); sys.exit(2)"

    with pytest.raises(ProcessError) as raised:
        process.capture(python(code))

    assert raised.value.returncode == 2
    assert raised.value.output == "complaint"
    assert raised.value.message.endswith("status 2:\ncomplaint")


@processes
def test_a_captured_failure_without_a_word_has_its_status() -> None:
    with pytest.raises(ProcessError, match=r"status 1\.$"):
        process.capture(python("raise SystemExit(1)"))


@processes
def test_keeps_bytes_readable_that_are_no_utf8() -> None:
    completed = process.capture(python(r"import sys; sys.stdout.buffer.write(b'a\xffb')"))

    assert completed.stdout == "a\N{REPLACEMENT CHARACTER}b"


@processes
def test_stops_a_captured_process_that_takes_too_long() -> None:
    with pytest.raises(ProcessError, match=r"within 0 s"):
        process.capture(python(f"import time; time.sleep({LONG})"), timeout=0.3)


# Ctrl-C


@processes
def test_ctrl_c_while_a_log_is_written_keeps_its_lines(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def press_ctrl_c(_step: object, line: str) -> None:
        if line == "started":
            raise KeyboardInterrupt

    # The thread that reads the output is the one that Ctrl-C interrupts.
    monkeypatch.setattr(console.Step, "hear", press_ctrl_c)
    code = f"import time; print('started', flush=True); time.sleep({LONG})"
    with pytest.raises(InterruptedStageError):
        process.run(python(code), log=tmp_path / "log")

    assert program_lines(tmp_path / "log") == ["started"]


def interrupts(call: Callable[..., object], pid_file: Path) -> None:
    """Press Ctrl-C as soon as a command has started a child, and wait for the end of both."""
    with pytest.raises(InterruptedStageError), ctrl_c_when(lambda: holds_text(pid_file)):
        call(python(parent_code(pid_file, seconds=LONG)))


@processes
@pytest.mark.parametrize("call", [process.run, process.capture])
def test_ctrl_c_ends_a_command_and_its_children(tmp_path: Path, call: Callable[..., object]) -> None:
    interrupts(call, tmp_path / "pid")

    assert ends_soon(int((tmp_path / "pid").read_text()))


@processes
@not_on_windows("Wine hands Ctrl-Break to no program without a console, and a real Windows was not there")
def test_ctrl_c_lets_a_command_clean_up(tmp_path: Path) -> None:
    code = f"import pathlib, time\ntry: pathlib.Path('on').write_text('on'); time.sleep({LONG})\n"
    code += "finally: pathlib.Path('tidied').touch()"

    with pytest.raises(InterruptedStageError), ctrl_c_when(lambda: holds_text(tmp_path / "on")):
        process.run(python(code), cwd=tmp_path)

    assert (tmp_path / "tidied").exists()


@processes
def test_ctrl_c_kills_a_command_that_does_not_end(tmp_path: Path) -> None:
    code = "import pathlib, signal, time; signal.signal(signal.SIGINT, signal.SIG_IGN)\n"
    code += f"pathlib.Path('on').write_text('on'); time.sleep({LONG})"

    with pytest.raises(InterruptedStageError), ctrl_c_when(lambda: holds_text(tmp_path / "on")):
        process.run(python(code), cwd=tmp_path, grace_seconds=0.2)


# What a command leaves running


@processes
@pytest.mark.parametrize("is_apart", [False, True], ids=["same session", "own session"])
def test_a_command_ends_with_its_process_whoever_holds_its_output(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], *, is_apart: bool
) -> None:
    code = parent_code(tmp_path / "pid", seconds=0, is_apart=is_apart)

    process.run(python(f"{code}\nprint('last line')"), log=tmp_path / "log")

    assert program_lines(tmp_path / "log")[-1] == "last line"
    child_id = int((tmp_path / "pid").read_text())
    assert ends_soon(child_id)
    assert f"process {child_id}" in capsys.readouterr().err


@processes
@not_on_windows("Python on Windows gives no handle to another process")
def test_output_ends_with_its_process_where_no_process_of_it_holds_it(tmp_path: Path) -> None:
    # The other end is given to this process, which nobody ends.
    code = (
        "import os, socket\n"
        f"door = socket.socket(socket.AF_UNIX); door.connect({str(tmp_path / 'door')!r})\n"
        "socket.send_fds(door, [b'x'], [1]); print('last line')"
    )
    with socket.socket(socket.AF_UNIX) as door:
        door.bind(str(tmp_path / "door"))
        door.listen()
        process.run(python(code), log=tmp_path / "log")
        connection, _address = door.accept()
        with connection:
            _data, descriptors, _flags, _peer = socket.recv_fds(connection, 1, 1)
            os.close(descriptors[0])

    assert program_lines(tmp_path / "log")[-1] == "last line"


@processes
def test_a_captured_command_ends_with_its_process(tmp_path: Path) -> None:
    code = parent_code(tmp_path / "pid", seconds=0)

    assert process.capture(python(f"{code}\nprint('last line')")).stdout == "last line\n"

    assert ends_soon(int((tmp_path / "pid").read_text()))


@processes
def test_commands_at_a_time_keep_what_they_have_started(tmp_path: Path) -> None:
    long_code = parent_code(tmp_path / "pid", seconds=0, is_apart=True)
    long_code += f"\nwhile not pathlib.Path({str(tmp_path / 'end')!r}).exists(): time.sleep(0.02)"
    with ThreadPoolExecutor() as pool:
        running = pool.submit(process.capture, python(long_code))
        while not holds_text(tmp_path / "pid"):
            time.sleep(0.02)
        process.capture(python(parent_code(tmp_path / "other", seconds=0, is_apart=True)))

        assert is_alive(int((tmp_path / "pid").read_text()))
        assert ends_soon(int((tmp_path / "other").read_text()))
        (tmp_path / "end").touch()
        running.result()
