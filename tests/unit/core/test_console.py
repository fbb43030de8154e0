import subprocess  # noqa: TID251 - for a stream of its own
import sys
import time
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from core import console, process
from core.cli.options import ROOT
from tests.kit.screens import Reader, set_reader

SECRETS = st.text("abcdefghijklmnopqrstuvwxyz0123456789", min_size=6, max_size=20)
CREDENTIALS = st.text("abcXYZ019-._~!$&'()*+,;=%@:", min_size=1, max_size=20)
SURROUNDINGS = st.text(" ./\n\"'=", max_size=10)

WHEEL = "torch-2.10.0a0+devrocm7.99.0.dev0.sample-cp311-cp311-linux_x86_64.whl"
DIGEST = "2d77974c28b0" * 5
COMMAND = "pip install --find-links /out/index.html torch"

Capture = pytest.CaptureFixture[str]


@dataclass
class Clock:
    """The time, which passes only as a test says."""

    now: float = 1000.0


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    """Return the clock in the place of the machine's."""
    clock = Clock()
    monkeypatch.setattr(time, "monotonic", lambda: clock.now)
    return clock


@pytest.fixture
def terminal(capsys: Capture, monkeypatch: pytest.MonkeyPatch) -> Capture:
    """Return what is captured of a terminal."""
    set_reader(monkeypatch, "terminal")
    return capsys


@pytest.fixture
def github(capsys: Capture, monkeypatch: pytest.MonkeyPatch) -> Capture:
    """Return what is captured of a job of GitHub Actions."""
    set_reader(monkeypatch, "github")
    return capsys


# Who reads


def test_output_is_a_plain_log_by_default() -> None:
    assert console.mode() == "plain"


@pytest.mark.usefixtures("terminal")
def test_output_on_a_terminal_without_controls_is_a_plain_log(monkeypatch: pytest.MonkeyPatch) -> None:
    assert console.mode() == "terminal"

    monkeypatch.setenv("TERM", "dumb")

    assert console.mode() == "plain"


@pytest.mark.usefixtures("terminal")
def test_output_is_read_by_github_even_on_a_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GITHUB_ACTIONS", "true")

    assert console.mode() == "github"


# Secrets


@given(SECRETS, SURROUNDINGS, SURROUNDINGS)
def test_masks_a_secret_of_the_environment(secret: str, prefix: str, suffix: str) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("A_TOKEN", secret)

        assert console.mask(f"{prefix}{secret}{suffix}") == f"{prefix}***{suffix}"


@given(SECRETS, SECRETS, SURROUNDINGS, SURROUNDINGS)
def test_masks_all_of_a_secret_that_begins_like_another(
    secret: str, end: str, prefix: str, suffix: str
) -> None:
    with pytest.MonkeyPatch.context() as patch:
        # Taking the shorter one out first would leave the rest of the longer one to be read.
        patch.setenv("A_TOKEN", secret)
        patch.setenv("B_SECRET_KEY", secret + end)

        assert console.mask(f"{prefix}{secret}{end}{suffix}") == f"{prefix}***{suffix}"


@given(CREDENTIALS, st.sampled_from(["/simple/", "/a@b", "", ":8080/x?mail=a@b"]))
def test_masks_the_credentials_of_an_address(credentials: str, path: str) -> None:
    assert console.mask(f"see https://{credentials}@host{path} ok") == f"see https://***@host{path} ok"


@pytest.mark.parametrize(
    "text",
    [
        "git@example.invalid:owner/repo",
        "https://host/path@2x.png",
        "https://host?mail=a@b",
        '{"url": "https://host","mail":"a@b"}',
        "torch @ file:///wheels/torch.whl",
    ],
)
def test_keeps_a_text_without_credentials(text: str) -> None:
    assert console.mask(text) == text


def test_masks_each_long_line_of_a_key(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SIGNING_PRIVATE_KEY", "-----BEGIN\nabcdefghij\nx")

    assert console.mask("line abcdefghij is x") == "line *** is x"


def test_keeps_short_values_of_secret_variables(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TOKEN_USE", "true")

    assert console.mask("it is true") == "it is true"


def test_masks_a_secret_from_the_moment_it_is_known(capsys: Capture) -> None:
    console.add_mask("secret-of-this-run\nits-second-line")

    console.say("of secret-of-this-run and its-second-line")

    assert capsys.readouterr().err == "of *** and ***\n"


def test_tells_github_a_secret_and_each_of_its_lines(github: Capture) -> None:
    console.add_mask("100%-secret\nsecond-secret-line")

    assert github.readouterr().err.splitlines() == [
        "::add-mask::100%25-secret%0Asecond-secret-line",
        "::add-mask::100%25-secret",
        "::add-mask::second-secret-line",
    ]


# Lines


def test_prints_lines_to_stderr_and_results_to_stdout(capsys: Capture) -> None:
    console.say("a")
    console.detail("b")
    console.done("c")
    console.warn("d")
    console.error("e")
    console.result("f")

    assert capsys.readouterr() == ("f\n", "a\nb\nc\nwarning: d\nerror: e\n")


@pytest.mark.parametrize("reader", ["plain", "github", "terminal"])
@pytest.mark.parametrize(
    "control",
    [
        "\x1b[2J",
        "\x1b]0;title\x07",
        "\x1b[8m",
        "\x1b[31;7m",
        "\r",
        "\b",
        "\x9b2J",
        "\x7f",
        "\u202e",
        "\ud800",
    ],
    ids=ascii,
)
def test_controls_in_names_reach_no_terminal(
    control: str, reader: Reader, capsys: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    set_reader(monkeypatch, reader)

    console.say(f"{control}name.whl is broken")
    console.result(f"{control}name.whl")
    console.error(f"{control}name.whl is broken", file=f"{control}name.whl")
    console.table(("wheel", "message"), [(f"{control}name.whl", "broken")])

    captured = capsys.readouterr()
    assert control not in captured.out + captured.err
    assert "name.whl" in captured.out
    assert "name.whl is broken" in captured.err


def test_a_log_has_no_controls_at_all(capsys: Capture) -> None:
    console.say("\x1b[31mname.whl\tis\nbroken")

    assert capsys.readouterr().err == "\\x1b[31mname.whl\tis\nbroken\n"


def test_a_summary_has_no_controls(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    summary = tmp_path / "summary.md"
    monkeypatch.setenv("GITHUB_STEP_SUMMARY", str(summary))

    console.summary("| \x1b[2Jname.whl\ud800 |")

    assert summary.read_text(encoding="utf-8") == "| \\x1b[2Jname.whl\\ud800 |\n\n"


def test_colours_lines_on_a_terminal(terminal: Capture) -> None:
    console.done("built")

    assert terminal.readouterr().err == "\033[32mbuilt\033[0m\n"


def test_no_color_turns_colours_off(terminal: Capture, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NO_COLOR", "1")

    console.done("built")

    assert terminal.readouterr().err == "built\n"


@pytest.mark.parametrize(
    ("value", "line"),
    [("", "built\n"), ("0", "built\n"), ("1", "\033[32mbuilt\033[0m\n")],
    ids=["empty", "off", "on"],
)
def test_force_color_turns_colours_on_in_a_log(
    capsys: Capture, monkeypatch: pytest.MonkeyPatch, value: str, line: str
) -> None:
    monkeypatch.setenv("NO_COLOR", "")  # as if it were not set
    monkeypatch.setenv("FORCE_COLOR", value)

    console.done("built")

    assert capsys.readouterr().err == line


def test_printed_lines_are_no_commands_for_github(github: Capture) -> None:
    console.say("name\n  ::add-path::/evil\nx ##[error]y")
    with console.group("a\n::error::b"):
        console.say("::stop-commands::t")

    lines = github.readouterr().err.splitlines()
    commands = [line for line in lines if line.lstrip().startswith("::") or "##[" in line]
    assert commands == ["::group::a%0A::error::b", "::endgroup::"]


# Annotations


def test_an_annotation_for_github_is_one_line_with_its_place(github: Capture) -> None:
    console.error("2%2B\r\n::set-env::x", title="a,b:c", file="d%,\n::error::e.py", line=3)
    console.warn("careful\r\n")

    assert github.readouterr().err.splitlines() == [
        "::error title=a%2Cb%3Ac,file=d%25%2C%0A%3A%3Aerror%3A%3Ae.py,line=3::2%252B%0D%0A::set-env::x",
        "::warning::careful%0D%0A",
    ]


def test_an_annotation_masks_secrets_before_it_escapes_them(
    github: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("A_TOKEN", "50%-sure")

    console.error("50%-sure")

    assert github.readouterr().err == "::error::***\n"


def test_an_annotation_in_a_log_is_a_line_with_its_place(capsys: Capture) -> None:
    console.warn("slow", title="Build", file="a.py", line=3)
    console.notice("new")

    assert capsys.readouterr().err == "warning: a.py:3: Build: slow\nnotice: new\n"


# Summaries


def test_appends_summaries_to_githubs_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    summary = tmp_path / "summary.md"
    monkeypatch.setenv("GITHUB_STEP_SUMMARY", str(summary))

    console.summary("### one\n")
    console.summary("### https://me:pw@host")

    assert summary.read_text(encoding="utf-8") == "### one\n\n### https://***@host\n\n"


def test_writes_no_summary_elsewhere(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Capture
) -> None:
    monkeypatch.chdir(tmp_path)

    console.summary("### lost")

    assert list(tmp_path.iterdir()) == []
    assert capsys.readouterr() == ("", "")


def test_cuts_a_summary_at_what_github_shows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    summary = tmp_path / "summary.md"
    monkeypatch.setenv("GITHUB_STEP_SUMMARY", str(summary))
    rows = "\n".join("| ä row |" for _ in range(60_000))

    for _ in range(3):
        console.summary(rows)

    text = summary.read_text(encoding="utf-8")
    assert console.SUMMARY_LIMIT * 0.99 < summary.stat().st_size <= console.SUMMARY_LIMIT
    assert text.count("cut here") == 1
    assert len(set(text.splitlines())) == 3, "rows, blank lines and the sentence about the cut"


# Numbers


@pytest.mark.parametrize(
    ("seconds", "duration"),
    [
        (0, "0.0 s"),
        (0.44, "0.4 s"),
        (48.2, "48 s"),
        (185, "3 min 05 s"),
        (7205, "2 h 00 min"),
        (100_000, "1 d 03 h"),
    ],
)
def test_writes_durations_for_people(seconds: float, duration: str) -> None:
    assert console.duration(seconds) == duration


@pytest.mark.parametrize(
    ("count", "size"),
    [(0, "0 B"), (1023, "1023 B"), (1024, "1.0 KiB"), (1_468_006, "1.4 MiB"), (3 << 30, "3.0 GiB")],
)
def test_writes_sizes_for_people(count: int, size: str) -> None:
    assert console.size(count) == size


# Tables


def test_aligns_a_table_in_a_log_and_does_not_wrap_it(capsys: Capture) -> None:
    console.table(("file", "size"), [("a" * 150, "1 B"), ("b", "2 B")], title="wheels")

    lines = capsys.readouterr().err.splitlines()
    assert lines == ["wheels", "file" + " " * 148 + "size", "a" * 150 + "  1 B", "b" + " " * 151 + "2 B"]


def test_prints_no_table_without_rows(capsys: Capture) -> None:
    console.table(("file",), [], title="wheels")

    assert capsys.readouterr().err == ""


@pytest.fixture
def wide_table(terminal: Capture, monkeypatch: pytest.MonkeyPatch, columns: int) -> list[str]:
    """Return the lines of a table that is wider than the terminal."""
    monkeypatch.setenv("COLUMNS", str(columns))
    monkeypatch.setenv("NO_COLOR", "1")
    monkeypatch.setenv("A_TOKEN", "swordfish")
    rows = [(WHEEL, "29.1 KiB", "", DIGEST, COMMAND), ("b.whl", "2 B", "3.1", "00", "swordfish [b]")]

    console.table(("file", "size", "seconds", "sha256", "command"), rows, title="wheels")

    return terminal.readouterr().err.splitlines()


WIDTHS = pytest.mark.parametrize("columns", [40, 60, 80, 120])


@WIDTHS
def test_a_wide_table_begins_each_row_with_its_first_cell(wide_table: list[str]) -> None:
    assert wide_table[:2] == ["wheels", WHEEL]
    assert "b.whl" in wide_table


@WIDTHS
def test_a_wide_table_breaks_no_cell(wide_table: list[str], columns: int) -> None:
    assert any(line.endswith(DIGEST) for line in wide_table)
    assert any(line.endswith(COMMAND) for line in wide_table)

    # A line with several cells is never wider than the terminal.
    too_wide = [line for line in wide_table if len(line) > columns]
    assert not any("  " in line.strip() for line in too_wide)


@WIDTHS
def test_a_wide_table_gives_a_long_cell_a_line_of_its_own(wide_table: list[str], columns: int) -> None:
    assert (DIGEST in wide_table) == (columns < 80)
    assert (COMMAND in wide_table) == (columns < 60)


@WIDTHS
def test_a_wide_table_has_no_secret(wide_table: list[str]) -> None:
    assert "swordfish" not in "".join(wide_table)


def test_a_narrow_table_is_aligned_on_a_terminal(terminal: Capture, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "40")
    monkeypatch.setenv("NO_COLOR", "1")

    console.table(("file", "size"), [(WHEEL[:20], "1 B")])

    lines = terminal.readouterr().err.splitlines()
    assert lines == ["file" + " " * 18 + "size", f"{WHEEL[:20]}  1 B"]


# Groups


def print_nested_groups(clock: Clock) -> None:
    """Print a group that fails, with a group of a minute and a group of a moment in it."""
    with suppress(ValueError), console.group("outer"):
        with console.group("inner"):
            console.say("compiling")
            clock.now += 65
        with console.group("a moment"):
            clock.now += 0.9
        raise ValueError("broken")


def test_a_group_in_a_log_ends_with_its_duration(capsys: Capture, clock: Clock) -> None:
    print_nested_groups(clock)

    # What took less than a second is not worth a line.
    lines = capsys.readouterr().err.splitlines()
    assert lines == ["compiling", "── inner: 1 min 05 s", "── outer: failed after 1 min 05 s"]


def test_a_group_that_is_stopped_has_not_failed(capsys: Capture, clock: Clock) -> None:
    with suppress(KeyboardInterrupt), console.group("build"):
        clock.now += 65
        raise KeyboardInterrupt

    assert capsys.readouterr().err.splitlines() == ["── build: interrupted after 1 min 05 s"]


def test_a_group_for_github_is_a_fold_without_folds_inside(github: Capture, clock: Clock) -> None:
    print_nested_groups(clock)

    assert github.readouterr().err.splitlines() == [
        "::group::outer",
        "── inner",
        "compiling",
        "── inner: 1 min 05 s",
        "── a moment",
        "── a moment: 0.9 s",
        "::endgroup::",
        "outer: failed after 1 min 05 s",
    ]


# Steps at work


@pytest.mark.parametrize(
    ("line", "progress"),
    [
        ("[12/345] Building CXX object a.o", "[12/345]"),
        ("\033[1m[ 7/9]\033[0m Linking", "[7/9]"),
        ("[ 34%] Building CXX object a.o", "34%"),
        ("test/test_nn.py ....sssss [ 46%]", "46%"),
        ("In function [3/4] of", ""),
        ("[x] 5%", ""),
    ],
)
def test_reads_progress_from_what_a_tool_prints(line: str, progress: str) -> None:
    step = console.Step("build")

    step.hear(line)

    assert step.progress == progress


def test_estimates_the_time_left_from_the_commands_that_are_done(clock: Clock) -> None:
    step = console.Step("build torch")
    step.hear("[1/100] a")
    clock.now += 8

    step.hear("[2/100] b")
    assert step.words == "build torch  8.0 s  [2/100]", "two commands are too few to tell"

    step.hear("[5/100] c")
    assert step.words == "build torch  8.0 s  [5/100]  about 2 min 32 s left"


def test_estimates_nothing_where_another_graph_begins(clock: Clock) -> None:
    step = console.Step("build torch")
    step.hear("[1/100] a")
    clock.now += 8
    step.hear("[5/100] c")

    step.hear("[1/10] another graph")

    assert step.seconds_left is None


@pytest.fixture
def repeated_step(clock: Clock) -> console.Step:
    """Return a step that took 600 s last time, 8 s after its begin."""
    with console.as_last_time(seconds=600):
        step = console.Step("as last time")
    clock.now += 8
    return step


def test_estimates_the_time_left_from_the_last_run(repeated_step: console.Step) -> None:
    repeated_step.hear("a line that counts nothing")

    assert repeated_step.seconds_left == 592


def test_estimates_nothing_where_a_step_takes_longer_than_last_time(
    repeated_step: console.Step, clock: Clock
) -> None:
    clock.now += 600

    assert repeated_step.seconds_left is None


def test_estimates_from_what_is_done_as_soon_as_commands_are_counted(
    repeated_step: console.Step, clock: Clock
) -> None:
    repeated_step.hear("[0/12] few of them, as after an edit")
    assert repeated_step.seconds_left is None, "nothing is done, and last time there may have been more"

    clock.now += 8
    repeated_step.hear("[4/12] few of them")

    assert repeated_step.seconds_left == 16


@pytest.mark.usefixtures("terminal")
def test_a_live_line_has_no_secret_no_control_and_the_width(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("A_TOKEN", "swordfish")
    step = console.Step("pack https://me:pw@host")

    # Other letters may be two columns wide.
    step.hear("\033[31mswordfish\x07 \N{CJK UNIFIED IDEOGRAPH-4E2D} " + "x" * 100)

    assert step.line(60) == f"pack https://***@host  0.0 s  *** ? {'x' * 24}"


def beats_of_a_long_step(capsys: Capture, clock: Clock) -> list[str]:
    """Return the lines about a step that takes an hour, and then leaves the console to a program."""
    step = console.Step("build torch")
    with console.group("build torch", step):
        step.hear("[9/10] a")
        for _ in range(60):
            clock.now += 60
            console.SCREEN.report_long_steps()
        with console.covered():
            clock.now += 6000
            console.SCREEN.report_long_steps()
    return [line for line in capsys.readouterr().err.splitlines() if line.startswith("…")]


def test_a_log_gets_a_line_about_a_long_step_ever_more_rarely(capsys: Capture, clock: Clock) -> None:
    beats = beats_of_a_long_step(capsys, clock)

    assert beats[0] == "… build torch  1 min 00 s  [9/10]  about 6.7 s left"
    assert len(beats) == 25


def test_github_gets_no_lines_about_a_long_step(github: Capture, clock: Clock) -> None:
    assert beats_of_a_long_step(github, clock) == []


# Streams


LINE = "\N{BOX DRAWINGS LIGHT HORIZONTAL} pack"
PRINTING = f"from core import console; console.accept_every_letter(); console.result({LINE!r})"


def print_line(encoding: str | None) -> str:
    """Return what a program writes into a pipe; None as an encoding is the system's own."""
    env = process.inherited(PYTHONIOENCODING=encoding, PYTHONUTF8=None)
    # Not by core.process, which chooses an encoding itself.
    output = subprocess.check_output([sys.executable, "-c", PRINTING], cwd=ROOT, env=env)
    return output.decode("utf-8").strip()


@pytest.mark.processes
def test_spells_letters_that_a_stream_cannot_show() -> None:
    assert print_line("ascii") == "\\u2500 pack"


@pytest.mark.processes
def test_writes_utf8_into_a_pipe() -> None:
    assert print_line(None) == LINE
