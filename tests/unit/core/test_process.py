import ast
import os
import signal
import subprocess  # noqa: TID251 - stands in for a child
import sys
import threading
import time
from pathlib import Path
from typing import Any

import pytest

from core import console, process
from core.environment import allowed
from core.errors import FatalError, InterruptedStageError, ProcessError
from core.process import supervise, tail

processes = pytest.mark.processes


def python(code: str) -> list[str]:
    return [sys.executable, "-c", code]


def test_a_childs_environment_is_a_changed_copy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KEPT", "1")
    monkeypatch.setenv("GONE", "1")
    before = dict(os.environ)  # noqa: TID251 - what must not change
    env = process.inherited(GONE=None, NEVER_THERE=None, ADDED="2")
    assert (env["KEPT"], env["ADDED"]) == ("1", "2")
    assert not {"GONE", "NEVER_THERE"} & set(env)
    assert dict(os.environ) == before  # noqa: TID251


RIGHTS = (
    *(
        "ACTIONS_ID_TOKEN_REQUEST_TOKEN",
        "ACTIONS_ID_TOKEN_REQUEST_URL",
        "ACTIONS_RUNTIME_TOKEN",
        "GITHUB_PATH",
    ),
    *("GITHUB_TOKEN", "GITHUB_ENV", "NOTIFY_SLACK_WEBHOOK", "AWS_SESSION_TOKEN", "SSH_AUTH_SOCK", "CI"),
    *("AWS_CONTAINER_CREDENTIALS_FULL_URI", "AWS_WEB_IDENTITY_TOKEN_FILE", "PIP_INDEX_URL", "UV_INDEX_URL"),
    *("PYTEST_ADDOPTS", "PYTEST_PLUGINS", "PYTHONPATH", "PYTHONSTARTUP", "LD_PRELOAD", "GIT_ASKPASS"),
    *("INVENTED", "PYTORCH_BUILD_TOKEN", "USE_PASSWORD", "CMAKE_API_KEY", "ROCM_WEBHOOK_URL", "TORCH_AUTH"),
)


@processes
def test_a_child_gets_what_upstreams_code_may_have(monkeypatch: pytest.MonkeyPatch) -> None:
    passed = {"HOME": "/h", "USE_ROCM": "1", "CMAKE_ARGS": "-DX", "LC_ALL": "C", "HSA_XNACK": "1"}
    login = {"http_proxy": "http://me:word@p:1", "HTTPS_PROXY": "me:word@p:1", "no_proxy": "a,b"}
    for name, value in (dict.fromkeys(RIGHTS, "of-the-job") | passed | login).items():
        monkeypatch.setenv(name, value)
    said = process.capture(python("import os; print(dict(os.environ))")).stdout
    assert "of-the-job" not in said
    expected = passed | {"http_proxy": "http://p:1", "HTTPS_PROXY": "p:1", "no_proxy": "a,b"}
    assert expected.items() <= ast.literal_eval(said).items()
    server = allowed(process.inherited(), program="compiler cache")
    assert server.keys() & set(RIGHTS) == {name for name in RIGHTS if name.startswith("AWS_")}


def test_a_program_is_found_on_the_path_that_is_asked(tmp_path: Path) -> None:
    program = tmp_path / "mycc"
    program.write_text("#!/bin/sh\n")
    program.chmod(0o755)
    assert process.which("mycc", path=str(tmp_path)) == program
    assert process.which("mycc") is None


def test_a_program_that_is_not_installed_is_named() -> None:
    with pytest.raises(ProcessError, match="no-such-program is not installed or not on the PATH"):
        process.run(["no-such-program", "x"])


def test_the_childs_own_path_is_the_one_that_counts(tmp_path: Path) -> None:
    with pytest.raises(ProcessError, match="python3 is not installed"):
        process.capture(["python3"], env={"PATH": str(tmp_path)})


def test_a_program_that_cannot_start_says_where(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_arguments: Any, **_options: Any) -> None:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(subprocess, "Popen", refuse)
    with pytest.raises(ProcessError, match=r"could not be started in .*: Permission denied"):
        process.run([sys.executable], cwd=tmp_path)


@processes
def test_a_command_is_echoed_with_folder_and_env(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    code = "import os; print(os.getcwd(), os.environ.get('WORD'), 'HOME' in os.environ)"
    process.run(python(code), cwd=tmp_path, env={"WORD": "two words"})
    out, err = capfd.readouterr()
    assert out == f"{tmp_path} two words False\n"
    assert err.startswith(f"+ {sys.executable} -c 'import os;")
    assert err.splitlines()[0].endswith(f"(in {tmp_path})")


@processes
def test_a_status_other_than_zero_is_an_error_with_the_next_action() -> None:
    with pytest.raises(ProcessError) as caught:
        process.run([*python("raise SystemExit(7)"), "a", "b", "c"], hint="Look there.")
    assert caught.value.returncode == 7
    assert caught.value.message.endswith("a … ended with status 7.")
    assert caught.value.hint == "Look there."


@processes
@pytest.mark.parametrize(("number", "said"), [(int(signal.SIGKILL), "signal SIGKILL"), (40, "signal 40")])
def test_a_signal_is_named_or_numbered_where_it_has_no_name(number: int, said: str) -> None:
    with pytest.raises(ProcessError, match=said):
        process.run(python(f"import os; os.kill(os.getpid(), {number})"))


@processes
def test_a_log_holds_both_streams_after_what_was_there(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    log = tmp_path / "logs" / "build.log"
    process.run(python("print('first')"), log=log)
    code = "import sys; print('out', flush=True); print('err', file=sys.stderr); sys.exit(3)"
    with pytest.raises(ProcessError, match="ended with status 3") as caught:
        process.run(python(code), log=log)
    said = [line for line in log.read_text().splitlines() if not line.startswith("+ ")]
    assert said == ["first", "out", "err"]
    assert (caught.value.output, caught.value.log) == ("out\nerr", log)
    assert "\nout\n" not in capfd.readouterr().err
    monkeypatch.setattr(console.SCREEN, "verbose", True)
    process.run(python("print('all')"), log=log)
    assert "\nall\n" in capfd.readouterr().err


@processes
def test_only_the_last_lines_of_a_log_are_kept_with_the_error(tmp_path: Path) -> None:
    with pytest.raises(ProcessError) as caught:
        process.run(python("for i in range(100): print(i)\nraise SystemExit(1)"), log=tmp_path / "log")
    assert caught.value.output.splitlines() == [str(number) for number in range(60, 100)]


@processes
def test_a_log_that_cannot_be_written_ends_the_child(tmp_path: Path) -> None:
    (tmp_path / "log").mkdir()
    with pytest.raises(FatalError, match="log could not be written: Is a directory"):
        process.run(python("import time; time.sleep(60)"), log=tmp_path / "log")


@processes
def test_capturing_is_silent_and_keeps_the_streams_apart(capfd: pytest.CaptureFixture[str]) -> None:
    code = "import sys; print(sys.stdin.read().upper()); print('e', file=sys.stderr); sys.exit(4)"
    said = process.capture(python(code), stdin="abc", check=False)
    assert (said.returncode, said.stdout, said.stderr) == (4, "ABC\n", "e\n")
    assert process.capture(python("import sys; print(repr(sys.stdin.read()))")).stdout == "''\n"
    assert capfd.readouterr() == ("", "")


@processes
def test_a_captured_failure_says_what_the_process_said() -> None:
    code = "import sys; print('not this'); print('but this', file=sys.stderr); sys.exit(2)"
    with pytest.raises(ProcessError, match=r"ended with status 2:\nbut this") as caught:
        process.capture(python(code))
    assert (caught.value.returncode, caught.value.output) == (2, "but this")
    with pytest.raises(ProcessError, match=r"ended with status 1\.$"):
        process.capture(python("raise SystemExit(1)"))


@processes
def test_bytes_that_are_no_utf8_are_kept_readable() -> None:
    said = process.capture(python(r"import sys; sys.stdout.buffer.write(b'a\xffb')"))
    assert said.stdout == "a\N{REPLACEMENT CHARACTER}b"


@processes
def test_what_takes_too_long_is_stopped() -> None:
    with pytest.raises(ProcessError, match=r"did not end within 0 s\."):
        process.capture(python("import time; time.sleep(60)"), timeout=0.3)


class Child:
    """A child in which the user presses Ctrl-C, and that goes only when it is killed."""

    returncode = -9
    stdin = stdout = stderr = None

    def __init__(self, *, stubborn: bool) -> None:
        self.stubborn = stubborn
        self.got: list[object] = []

    def communicate(self, *_arguments: object) -> None:
        raise KeyboardInterrupt

    def wait(self, timeout: float | None = None) -> int:
        if not self.got:
            raise KeyboardInterrupt
        if self.stubborn and timeout is not None:
            raise subprocess.TimeoutExpired("child", timeout)
        return -9

    def send_signal(self, number: int) -> None:
        self.got.append(number)

    def kill(self) -> None:
        self.got.append("kill")


@pytest.mark.parametrize(("stubborn", "got"), [(False, [signal.SIGINT]), (True, [signal.SIGINT, "kill"])])
@pytest.mark.parametrize("call", [process.run, process.capture])
def test_ctrl_c_lets_the_child_clean_up_and_ends_the_stage(
    monkeypatch: pytest.MonkeyPatch, call: Any, got: list[object], *, stubborn: bool
) -> None:
    child = Child(stubborn=stubborn)
    monkeypatch.setattr(subprocess, "Popen", lambda *_arguments, **_options: child)
    with pytest.raises(InterruptedStageError):
        call([sys.executable])
    assert child.got == got


@processes
def test_ctrl_c_while_a_log_is_written_ends_a_stage(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupt(_step: object, text: str) -> None:
        if text == "started":
            raise KeyboardInterrupt

    monkeypatch.setattr(console.Step, "hear", interrupt)
    code = "import time; print('started', flush=True); time.sleep(60)"
    with pytest.raises(InterruptedStageError, match="run the same command again"):
        process.run(python(code), log=tmp_path / "log")
    assert (tmp_path / "log").read_text().endswith("\nstarted\n")


# a child that starts another one and tells its id
PARENT = """
import pathlib, subprocess, sys, time
child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"], start_new_session={apart})
pathlib.Path({told!r}).write_text(str(child.pid))
time.sleep({seconds})
"""


def supervised(tmp_path: Path, code: str, **changes: Any) -> process.Ended:
    options: dict[str, Any] = {"seconds": 30, **changes}
    return supervise(
        [sys.executable, "-c", code],
        cwd=tmp_path,
        env=process.inherited(),
        log=tmp_path / "logs" / "log",
        **options,
    )


def alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    stat = f"/proc/{pid}/stat"
    try:
        with open(stat, encoding="utf-8") as stream:  # noqa: PTH123 - no path of the test's
            return stream.read().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


def gone(pid: int) -> bool:
    end = time.monotonic() + 10
    while alive(pid) and time.monotonic() < end:
        time.sleep(0.02)
    return not alive(pid)


@processes
def test_output_goes_to_the_log_and_the_status_is_told(tmp_path: Path) -> None:
    code = "import sys; print('said'); print('complained', file=sys.stderr); sys.exit(3)"
    ended = supervised(tmp_path, code)
    assert (ended.returncode, ended.stopped, ended.words) == (3, "", "ended with status 3")
    assert tail(tmp_path / "logs" / "log").splitlines() in (["said", "complained"], ["complained", "said"])
    assert supervised(tmp_path, "print('again')").returncode == 0
    assert "said" in tail(tmp_path / "logs" / "log")


@processes
def test_a_hanging_process_says_where_and_is_stopped_with_what_it_started(tmp_path: Path) -> None:
    told = tmp_path / "pid"
    code = "import faulthandler; faulthandler.enable()\n" + PARENT.format(
        apart=False, told=str(told), seconds=60
    )
    started = time.monotonic()
    ended = supervised(tmp_path, code, seconds=5)
    assert ended.stopped == "did not end within 5.0 s"
    assert time.monotonic() - started < 50
    assert "Fatal Python error: Aborted" in tail(tmp_path / "logs" / "log", lines=50)
    assert gone(int(told.read_text()))


@processes
def test_what_ignores_every_signal_is_killed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(process, "_ABORT_SECONDS", 0.2)
    code = "import signal, time; signal.signal(signal.SIGABRT, signal.SIG_IGN); time.sleep(60)"
    ended = supervised(tmp_path, code, seconds=1)
    assert ended.stopped
    assert ended.seconds < 50


@processes
@pytest.mark.parametrize("apart", ["False", "True"])
def test_what_a_process_leaves_behind_is_ended(
    tmp_path: Path, apart: str, capsys: pytest.CaptureFixture[str]
) -> None:
    told = tmp_path / "pid"
    ended = supervised(tmp_path, PARENT.format(apart=apart, told=str(told), seconds=0))
    assert ended.returncode == 0
    pid = int(told.read_text())
    assert gone(pid)
    assert f"process {pid}" in capsys.readouterr().err or apart == "False"


@processes
def test_too_much_output_stops_it(tmp_path: Path) -> None:
    code = "import sys\nwhile True: sys.stdout.write('x' * 65536)"
    ended = supervised(tmp_path, code, seconds=60, log_bytes=1 << 20)
    assert ended.stopped == "wrote more than 1.0 MiB"
    assert ended.seconds < 30


@processes
def test_a_watcher_can_stop_it(tmp_path: Path) -> None:
    asked = iter(["", "", "test_x has run for 5 s"])
    ended = supervised(tmp_path, "import time; time.sleep(60)", stalled=lambda: next(asked))
    assert ended.words == "test_x has run for 5 s"
    assert ended.returncode == -signal.SIGABRT


@processes
def test_ctrl_c_leaves_nothing_behind(tmp_path: Path) -> None:
    told = tmp_path / "pid"

    def interrupt() -> None:
        end = time.monotonic() + 20
        while not (told.is_file() and told.read_text()) and time.monotonic() < end:
            time.sleep(0.02)
        signal.raise_signal(signal.SIGINT)

    thread = threading.Thread(target=interrupt)
    thread.start()
    with pytest.raises(InterruptedStageError):
        supervised(tmp_path, PARENT.format(apart=True, told=str(told), seconds=60))
    thread.join()
    assert gone(int(told.read_text()))


@processes
def test_a_logs_tail_is_short(tmp_path: Path) -> None:
    log = tmp_path / "log"
    assert tail(log) == ""
    log.write_bytes(b"".join(b"line %d\n" % number for number in range(100_000)) + b"\xff")
    assert tail(log, lines=2) == "line 99999\n\N{REPLACEMENT CHARACTER}"
