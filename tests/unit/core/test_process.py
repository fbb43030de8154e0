import ast
import os
import signal
import subprocess  # noqa: TID251 - stands in for a child
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from core import console, process
from core.environment import allowed
from core.errors import InterruptedStageError, MachineError, ProcessError
from core.process import supervise, tail

processes = pytest.mark.processes

# What a child waits for its end, in seconds; no test waits as long.
LONG = 60

# Rights of a job, and settings that lead a program elsewhere: nothing of upstream's code gets them.
WITHHELD = (
    "ACTIONS_ID_TOKEN_REQUEST_TOKEN",
    "ACTIONS_ID_TOKEN_REQUEST_URL",
    "ACTIONS_RUNTIME_TOKEN",
    "AWS_CONTAINER_CREDENTIALS_FULL_URI",
    "AWS_SESSION_TOKEN",
    "AWS_WEB_IDENTITY_TOKEN_FILE",
    "CI",
    "CMAKE_API_KEY",
    "GITHUB_ENV",
    "GITHUB_PATH",
    "GITHUB_TOKEN",
    "GIT_ASKPASS",
    "INVENTED",
    "LD_PRELOAD",
    "NOTIFY_SLACK_WEBHOOK",
    "PIP_INDEX_URL",
    "PYTEST_ADDOPTS",
    "PYTEST_PLUGINS",
    "PYTHONPATH",
    "PYTHONSTARTUP",
    "PYTORCH_BUILD_TOKEN",
    "ROCM_WEBHOOK_URL",
    "SSH_AUTH_SOCK",
    "TORCH_AUTH",
    "USE_PASSWORD",
    "UV_INDEX_URL",
)


def python(code: str) -> list[str]:
    """Return the command that runs code in another Python."""
    return [sys.executable, "-c", code]


def program_lines(log: Path) -> list[str]:
    """Return the lines of a log without the commands that it echoes."""
    lines = log.read_text(encoding="utf-8").splitlines()
    return [line for line in lines if not line.startswith("+ ")]


# Environments


def test_a_childs_environment_is_a_changed_copy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KEPT", "1")
    monkeypatch.setenv("REMOVED", "1")
    before = dict(os.environ)  # noqa: TID251 - what must not change

    environment = process.inherited(REMOVED=None, NEVER_SET=None, ADDED="2")

    assert environment["KEPT"] == "1"
    assert environment["ADDED"] == "2"
    assert environment.keys().isdisjoint({"REMOVED", "NEVER_SET"})
    assert dict(os.environ) == before  # noqa: TID251


def variables_of_a_child() -> dict[str, str]:
    """Return the variables that a child has by default."""
    output = process.capture(python("import os; print(dict(os.environ))")).stdout
    variables: dict[str, str] = ast.literal_eval(output)
    return variables


@processes
def test_a_child_gets_no_right_of_the_job(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in WITHHELD:
        monkeypatch.setenv(name, "of-the-job")

    assert "of-the-job" not in variables_of_a_child().values()


@processes
def test_a_child_gets_the_settings_of_builds(monkeypatch: pytest.MonkeyPatch) -> None:
    settings = {"HOME": "/h", "USE_ROCM": "1", "CMAKE_ARGS": "-DX", "LC_ALL": "C", "HSA_XNACK": "1"}
    for name, value in settings.items():
        monkeypatch.setenv(name, value)

    assert settings.items() <= variables_of_a_child().items()


@processes
def test_a_child_gets_proxies_without_their_passwords(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("http_proxy", "http://me:word@p:1")
    monkeypatch.setenv("HTTPS_PROXY", "me:word@p:1")

    proxies = {"http_proxy": "http://p:1", "HTTPS_PROXY": "p:1"}
    assert proxies.items() <= variables_of_a_child().items()


@pytest.mark.parametrize("variables_of", [process.inherited, process.handed_on])
@pytest.mark.parametrize(
    ("no_proxy", "addresses"),
    [(None, "localhost,127.0.0.1,::1"), ("a,b", "a,b,localhost,127.0.0.1,::1"), ("*", "*")],
    ids=["none", "some", "all"],
)
def test_a_child_asks_this_machine_without_a_proxy(
    monkeypatch: pytest.MonkeyPatch,
    variables_of: Callable[[], dict[str, str]],
    no_proxy: str | None,
    addresses: str,
) -> None:
    monkeypatch.setenv("HTTP_PROXY", "http://p:1")
    if no_proxy is not None:
        monkeypatch.setenv("no_proxy", no_proxy)

    assert variables_of()["no_proxy"] == addresses


def test_a_childs_variables_stay_where_there_is_no_proxy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NO_PROXY", "a,b")

    assert process.inherited()["NO_PROXY"] == "a,b"
    assert "no_proxy" not in process.inherited()


def test_a_compiler_caches_server_gets_the_rights_of_aws_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in WITHHELD:
        monkeypatch.setenv(name, "of-the-job")

    server_variables = allowed(process.inherited(), program="compiler cache")

    rights = {name for name in WITHHELD if name in server_variables}
    assert rights == {name for name in WITHHELD if name.startswith("AWS_")}


# Programs


def test_finds_a_program_on_the_path_that_is_named(tmp_path: Path) -> None:
    program = tmp_path / "mycc"
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

    assert capfd.readouterr().out == f"{tmp_path} two words False\n"


@processes
def test_echoes_a_command_with_its_folder(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    process.run(python("import os"), cwd=tmp_path)

    first_line = capfd.readouterr().err.splitlines()[0]
    assert first_line == f"+ {sys.executable} -c 'import os'  (in {tmp_path})"


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
@pytest.mark.parametrize(("number", "name"), [(int(signal.SIGKILL), "SIGKILL"), (40, "40")])
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
def test_a_log_that_cannot_be_written_ends_the_child(tmp_path: Path) -> None:
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


class InterruptedChild:
    """A child during which the user presses Ctrl-C; one that is stubborn goes only when it is killed."""

    returncode = -9
    stdin = stdout = stderr = None

    def __init__(self, *, is_stubborn: bool) -> None:
        self.is_stubborn = is_stubborn
        self.signals: list[object] = []

    def communicate(self, *_arguments: object) -> None:
        """Be interrupted."""
        raise KeyboardInterrupt

    def wait(self, timeout: float | None = None) -> int:
        """Be interrupted at first; end after a signal, or not."""
        if not self.signals:
            raise KeyboardInterrupt
        if self.is_stubborn and timeout is not None:
            raise subprocess.TimeoutExpired("child", timeout)
        return self.returncode

    def send_signal(self, number: int) -> None:
        """Take a signal."""
        self.signals.append(number)

    def kill(self) -> None:
        """Take the last signal."""
        self.signals.append("kill")


@pytest.mark.parametrize("call", [process.run, process.capture])
@pytest.mark.parametrize(
    ("is_stubborn", "signals"),
    [(False, [signal.SIGINT]), (True, [signal.SIGINT, "kill"])],
    ids=["ends", "stubborn"],
)
def test_ctrl_c_lets_the_child_clean_up_and_ends_the_stage(
    monkeypatch: pytest.MonkeyPatch, call: Any, signals: list[object], *, is_stubborn: bool
) -> None:
    child = InterruptedChild(is_stubborn=is_stubborn)
    monkeypatch.setattr(subprocess, "Popen", lambda *_arguments, **_options: child)

    with pytest.raises(InterruptedStageError):
        call([sys.executable])

    assert child.signals == signals


@contextmanager
def ctrl_c_when(happens: Callable[[], object]) -> Iterator[None]:
    """Press Ctrl-C as soon as something happens, while the block runs."""
    main_thread = threading.main_thread().ident
    assert main_thread is not None
    ending = threading.Event()

    def press() -> None:
        while not happens() and not ending.wait(0.02):
            pass
        if not ending.is_set():
            signal.pthread_kill(main_thread, signal.SIGINT)

    thread = threading.Thread(target=press)
    thread.start()
    try:
        yield
    finally:
        ending.set()
        thread.join()


def holds_text(path: Path, text: str = "") -> bool:
    """Return whether a file is there and holds a text (default: anything)."""
    if not path.is_file():
        return False
    content = path.read_text(encoding="utf-8")
    return text in content if text else bool(content)


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


# Supervised processes

# A child that starts another one, and writes its id into a file.
PARENT = """
import pathlib, subprocess, sys, time
child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep({long})"], start_new_session={apart})
pathlib.Path({pid_file!r}).write_text(str(child.pid))
time.sleep({seconds})
"""


def parent_code(pid_file: Path, *, seconds: float, is_apart: bool = False) -> str:
    """Return the code of a child that starts another one, in a session of its own if that is apart."""
    return PARENT.format(long=LONG, apart=is_apart, pid_file=str(pid_file), seconds=seconds)


def run_supervised(
    folder: Path,
    code: str,
    *,
    seconds: float = 30,
    log_bytes: int = 1 << 30,
    stalled: Callable[[], str] = str,
) -> process.Ending:
    """Supervise a Python; its log is ``log`` in the folder."""
    return supervise(
        python(code),
        cwd=folder,
        env=process.inherited(),
        log=folder / "log",
        seconds=seconds,
        log_bytes=log_bytes,
        stalled=stalled,
    )


def is_alive(pid: int) -> bool:
    """Return whether a process runs; one that ended and that nobody has asked about does not."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8")
    except (FileNotFoundError, ProcessLookupError):
        return False
    return stat.rpartition(")")[2].split()[0] != "Z"


def ends_soon(pid: int) -> bool:
    """Return whether a process ends within the time that the system takes to end one."""
    end = time.monotonic() + 10
    while is_alive(pid) and time.monotonic() < end:
        time.sleep(0.02)
    return not is_alive(pid)


@processes
def test_tells_how_a_supervised_process_ended(tmp_path: Path) -> None:
    ending = run_supervised(tmp_path, "raise SystemExit(3)")

    assert ending.returncode == 3
    assert ending.stopped is None
    assert ending.words == "ended with status 3"


@processes
def test_adds_the_output_of_supervised_processes_to_a_log(tmp_path: Path) -> None:
    run_supervised(tmp_path, "import sys; print('out', flush=True); print('err', file=sys.stderr)")

    run_supervised(tmp_path, "print('second')")

    assert tail(tmp_path / "log").splitlines() == ["out", "err", "second"]


@processes
def test_stops_a_process_at_its_time_limit(tmp_path: Path) -> None:
    ending = run_supervised(tmp_path, f"import time; time.sleep({LONG})", seconds=0.5)

    assert ending.stopped == "did not end within 0.5 s"
    assert ending.late
    assert ending.seconds < LONG


@processes
def test_stops_a_process_that_a_watcher_complains_of(tmp_path: Path) -> None:
    complaints = iter(["", "", "test_x has run for 5 s"])

    ending = run_supervised(tmp_path, f"import time; time.sleep({LONG})", stalled=lambda: next(complaints))

    assert ending.words == "test_x has run for 5 s"
    assert ending.returncode == -signal.SIGABRT


@processes
def test_a_stopped_process_says_where_it_was(tmp_path: Path) -> None:
    code = f"import faulthandler, time; faulthandler.enable(); print('on', flush=True); time.sleep({LONG})"

    # Not before the handler is there.
    run_supervised(tmp_path, code, stalled=lambda: "stopped" if holds_text(tmp_path / "log", "on") else "")

    assert "Fatal Python error: Aborted" in tail(tmp_path / "log", lines=50)


@processes
def test_a_stopped_process_takes_its_children_with_it(tmp_path: Path) -> None:
    pid_file = tmp_path / "pid"

    run_supervised(
        tmp_path,
        parent_code(pid_file, seconds=LONG),
        stalled=lambda: "stopped" if holds_text(pid_file) else "",
    )

    assert ends_soon(int(pid_file.read_text()))


@processes
def test_kills_a_process_that_ignores_signals(tmp_path: Path) -> None:
    code = "import signal, time; signal.signal(signal.SIGABRT, signal.SIG_IGN); "
    code += f"print('deaf', flush=True); time.sleep({LONG})"

    ending = run_supervised(
        tmp_path, code, stalled=lambda: "stopped" if holds_text(tmp_path / "log", "deaf") else ""
    )

    assert ending.stopped == "stopped"
    assert ending.seconds < LONG


@processes
@pytest.mark.parametrize("is_apart", [False, True], ids=["same group", "own session"])
def test_ends_what_a_process_leaves_behind(tmp_path: Path, *, is_apart: bool) -> None:
    pid_file = tmp_path / "pid"

    ending = run_supervised(tmp_path, parent_code(pid_file, seconds=0, is_apart=is_apart))

    assert ending.returncode == 0
    assert ends_soon(int(pid_file.read_text()))


@processes
def test_tells_of_a_process_that_left_its_group(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pid_file = tmp_path / "pid"

    run_supervised(tmp_path, parent_code(pid_file, seconds=0, is_apart=True))

    assert f"process {pid_file.read_text()}" in capsys.readouterr().err


@processes
def test_stops_a_process_that_writes_too_much(tmp_path: Path) -> None:
    code = "import sys\nwhile True: sys.stdout.write('x' * 65536)"

    ending = run_supervised(tmp_path, code, seconds=LONG, log_bytes=1 << 20)

    assert ending.stopped == "wrote more than 1.0 MiB"
    assert ending.seconds < LONG


@processes
def test_ctrl_c_leaves_no_process_behind(tmp_path: Path) -> None:
    pid_file = tmp_path / "pid"

    with pytest.raises(InterruptedStageError), ctrl_c_when(lambda: holds_text(pid_file)):
        run_supervised(tmp_path, parent_code(pid_file, seconds=LONG, is_apart=True))

    assert ends_soon(int(pid_file.read_text()))


def test_upstreams_code_sees_the_variables_of_builds_and_no_secret(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CFLAGS", "-O1")
    monkeypatch.setenv("HTTPS_PROXY", "http://proxy:3128")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "secret")
    monkeypatch.setenv("GITHUB_TOKEN", "secret")
    monkeypatch.setenv("MY_OWN_VARIABLE", "1")

    variables = process.handed_on()

    assert variables["CFLAGS"] == "-O1"
    assert variables["HTTPS_PROXY"] == "http://proxy:3128"
    assert "MY_OWN_VARIABLE" not in variables
    assert "secret" not in variables.values()


def test_upstreams_code_sees_what_a_stage_sets_for_it() -> None:
    assert process.handed_on(SMOKE_GPU="gfx942")["SMOKE_GPU"] == "gfx942"
