import sys
import time
from contextlib import suppress
from pathlib import Path
from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from core import console
from core.console import Mode

SECRETS = st.text("abcdefghijklmnopqrstuvwxyz0123456789", min_size=6, max_size=20)
CREDENTIALS = st.text("abcXYZ019-._~!$&'()*+,;=%@:", min_size=1, max_size=20)
AROUND = st.text(" ./\n\"'=", max_size=10)


@pytest.fixture
def github(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GITHUB_ACTIONS", "true")


@pytest.fixture
def terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "200")
    monkeypatch.setattr(console, "mode", lambda: "terminal")


@pytest.fixture(name="clock")
def clock_fixture(monkeypatch: pytest.MonkeyPatch) -> SimpleNamespace:
    """The time, which passes as a test says."""
    clock = SimpleNamespace(now=1000.0)
    monkeypatch.setattr(time, "monotonic", lambda: clock.now)
    return clock


def test_output_is_read_by_github_on_a_terminal_or_as_a_log(monkeypatch: pytest.MonkeyPatch) -> None:
    assert console.mode() == "plain"
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    monkeypatch.setenv("TERM", "dumb")
    assert console.mode() == "plain"
    monkeypatch.setenv("TERM", "xterm")
    assert console.mode() == "terminal"
    monkeypatch.setenv("GITHUB_ACTIONS", "true")
    assert console.mode() == "github"


@given(SECRETS, SECRETS, AROUND, AROUND)
def test_no_secret_of_the_environment_is_printed(one: str, more: str, before: str, after: str) -> None:
    with pytest.MonkeyPatch.context() as patch:
        # one secret begins like the other: taking it out first would leave the rest to be read
        patch.setenv("A_TOKEN", one)
        patch.setenv("B_SECRET_KEY", one + more)
        assert console.mask(f"{before}{one}{more}{after}") == f"{before}***{after}"
        assert console.mask(f"{before}{one}{after}") == f"{before}***{after}"


@given(CREDENTIALS, st.sampled_from(["/simple/", "/a@b", "", ":8080/x?mail=a@b"]))
def test_credentials_of_an_address_are_not_printed(credentials: str, rest: str) -> None:
    assert console.mask(f"see https://{credentials}@host{rest} ok") == f"see https://***@host{rest} ok"


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
def test_what_holds_no_credentials_stays(text: str) -> None:
    assert console.mask(text) == text


def test_each_line_of_a_key_is_masked_and_short_values_are_words(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SIGNING_PRIVATE_KEY", "-----BEGIN\nabcdefghij\nx")
    monkeypatch.setenv("TOKEN_USE", "true")
    assert console.mask("line abcdefghij is true x") == "line *** is true x"


def test_lines_go_to_stderr_and_results_to_stdout(capsys: pytest.CaptureFixture[str]) -> None:
    console.say("a")
    console.detail("b")
    console.done("c")
    console.warn("d")
    console.error("e")
    console.result("f")
    assert capsys.readouterr() == ("f\n", "a\nb\nc\nwarning: d\nerror: e\n")


@pytest.mark.parametrize("mode", ["plain", "github"])
def test_a_group_ends_with_its_duration_and_a_fold_has_no_folds_inside(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, clock: SimpleNamespace, mode: Mode
) -> None:
    monkeypatch.setattr(console, "mode", lambda: mode)
    with suppress(ValueError), console.group("outer"):
        with console.group("inner"):
            console.say("said")
            clock.now += 65
        with console.group("a moment"):
            clock.now += 0.9
        raise ValueError("x")
    plain = "said\n── inner: 1 min 05 s\n── outer: failed after 1 min 05 s\n"
    moment = "── a moment\n── a moment: 0.9 s\n── outer"
    fold = f"::group::outer\n── inner\n{plain}".replace("── outer", moment)
    fold = fold.replace("── outer", "::endgroup::\nouter")
    assert capsys.readouterr().err == (fold if mode == "github" else plain)


@pytest.mark.parametrize(
    ("seconds", "said"),
    [
        (0, "0.0 s"),
        (0.44, "0.4 s"),
        (48.2, "48 s"),
        (185, "3 min 05 s"),
        (7205, "2 h 00 min"),
        (100_000, "1 d 03 h"),
    ],
)
def test_durations(seconds: float, said: str) -> None:
    assert console.duration(seconds) == said


@pytest.mark.parametrize(
    ("count", "said"),
    [(0, "0 B"), (1023, "1023 B"), (1024, "1.0 KiB"), (1_468_006, "1.4 MiB"), (3 << 30, "3.0 GiB")],
)
def test_sizes(count: int, said: str) -> None:
    assert console.size(count) == said


def test_a_table_in_a_log_is_aligned_and_not_wrapped(capsys: pytest.CaptureFixture[str]) -> None:
    console.table(("file",), [], title="no rows, no table")
    console.table(("file", "size"), [("a" * 150, "1 B"), ("b", "2 B")], title="made")
    lines = capsys.readouterr().err.splitlines()
    assert lines == ["made", "file" + " " * 148 + "size", "a" * 150 + "  1 B", "b" + " " * 151 + "2 B"]


WHEEL = "torch-2.10.0a0+devrocm7.99.0.dev0.sample-cp311-cp311-linux_x86_64.whl"


@pytest.mark.usefixtures("terminal")
@pytest.mark.parametrize("columns", [40, 60, 80, 120])
def test_what_people_copy_from_a_table_stands_whole_at_any_width(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, columns: int
) -> None:
    monkeypatch.setenv("COLUMNS", str(columns))
    monkeypatch.setenv("NO_COLOR", "1")
    monkeypatch.setenv("A_TOKEN", "swordfish")
    digest, command = "2d77974c28b0" * 5, "pip install --find-links /out/index.html torch"
    rows = [(WHEEL, "29.1 KiB", "", digest, command), ("b.whl", "2 B", "3.1", "00", "swordfish [b]")]
    console.table(("file", "size", "seconds", "sha256", "again"), rows, title="made")
    lines = capsys.readouterr().err.splitlines()
    assert lines[:2] == ["made", WHEEL]
    assert all(any(line.endswith(one) for line in lines) for one in (digest, command))
    assert (digest in lines, command in lines) == (columns < 80, columns < 60)
    assert [line for line in lines if len(line) > columns and "  " in line.strip()] == []
    assert "swordfish" not in "".join(lines)
    console.table(("file", "size"), [(WHEEL[:20], "1 B")])
    assert capsys.readouterr().err.splitlines() == ["file" + " " * 18 + "size", f"{WHEEL[:20]}  1 B"]


@pytest.mark.usefixtures("terminal")
def test_colours_where_wanted(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    console.done("made")
    monkeypatch.setenv("NO_COLOR", "1")
    console.done("made")
    monkeypatch.setenv("NO_COLOR", "")  # as if it were not set
    monkeypatch.setattr(console, "mode", lambda: "plain")
    for forced in ("", "0", "1"):
        monkeypatch.setenv("FORCE_COLOR", forced)
        console.done("made")
    green = "\033[32mmade\033[0m\n"
    assert capsys.readouterr().err == f"{green}made\nmade\nmade\n{green}"


def test_a_summary_is_appended_for_github_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    console.summary("### lost")
    summary = tmp_path / "summary.md"
    monkeypatch.setenv("GITHUB_STEP_SUMMARY", str(summary))
    console.summary("### one\n")
    console.summary("### https://me:pw@host")
    assert summary.read_text() == "### one\n\n### https://***@host\n\n"


@pytest.mark.usefixtures("github")
def test_an_annotation_is_one_line_that_names_its_place_and_cannot_be_another(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("A_TOKEN", "50%-sure")
    console.error("2%2B of 50%-sure\r\n::set-env::x", title="a,b:c", file="d%,\n::error::e.py", line=3)
    console.warn("careful\r\n")
    assert capsys.readouterr().err == (
        "::error title=a%2Cb%3Ac,file=d%25%2C%0A%3A%3Aerror%3A%3Ae.py,line=3::"
        "2%252B of ***%0D%0A::set-env::x\n::warning::careful%0D%0A\n"
    )


def test_elsewhere_an_annotation_is_a_line_with_its_place(capsys: pytest.CaptureFixture[str]) -> None:
    console.warn("slow", title="Build", file="a.py", line=3)
    console.notice("new")
    assert capsys.readouterr().err == "warning: a.py:3: Build: slow\nnotice: new\n"


@pytest.mark.usefixtures("github")
def test_what_is_printed_commands_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    console.say("name\n  ::add-path::/evil\nx ##[error]y")
    with console.group("a\n::error::b"):
        console.say("::stop-commands::t")
    lines = capsys.readouterr().err.splitlines()
    commands = [line for line in lines if line.lstrip().startswith("::") or "##[" in line]
    assert commands == ["::group::a%0A::error::b", "::endgroup::"]


def test_masks_hold_from_then_on(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(console, "_MASKED", [])
    console.add_mask("of-this-run\nsecond-part")
    console.say("a of-this-run b second-part")
    assert capsys.readouterr().err == "a *** b ***\n"
    monkeypatch.setenv("GITHUB_ACTIONS", "true")
    console.add_mask("other-secret")
    assert capsys.readouterr().err == "::add-mask::other-secret\n"


def test_a_summary_stays_below_what_github_shows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    summary = tmp_path / "summary.md"
    monkeypatch.setenv("GITHUB_STEP_SUMMARY", str(summary))
    for _ in range(3):
        console.summary("\n".join("| ä row |" for _ in range(60_000)))
    assert console.SUMMARY_LIMIT * 0.99 < summary.stat().st_size <= console.SUMMARY_LIMIT
    text = summary.read_text()
    assert text.count("cut here") == 1
    assert set(text.splitlines()) == {"| ä row |", "", "… cut here: GitHub shows no summary beyond 1 MiB."}


@pytest.mark.parametrize(
    ("line", "reached"),
    [
        ("[12/345] Building CXX object a.o", "[12/345]"),
        ("\033[1m[ 7/9]\033[0m Linking", "[7/9]"),
        ("[ 34%] Building CXX object a.o", "34%"),
        ("test/test_nn.py ....sssss [ 46%]", "46%"),
        ("In function [3/4] of", ""),
        ("[x] 5%", ""),
    ],
)
def test_how_far_a_tool_is_comes_from_what_it_prints(line: str, reached: str) -> None:
    step = console.Step("build")
    step.hear(line)
    assert step.reached == reached


def test_what_is_left_is_estimated_from_the_last_run_else_from_what_is_done(clock: SimpleNamespace) -> None:
    with console.as_last_time(600, [95]):
        known = console.Step("as last time")
    step = console.Step("build torch")
    step.hear("[1/100] a")
    clock.now += 8
    step.hear("[2/100] b")
    assert step.words == "build torch  8.0 s  [2/100]"  # too little to tell
    step.hear("[5/100] c")
    assert step.words == "build torch  8.0 s  [5/100]  about 2 min 32 s left"
    step.hear("[1/10] another graph")
    assert step.left == 0
    known.hear("[0/1] Re-running CMake...")
    assert known.left == 0
    known.hear("[4/100] as many commands")
    assert known.left == 592
    clock.now += 8
    known.hear("[4/12] few of them")  # an edit
    assert known.left == 16
    clock.now += 600
    known.hear("[6/100] slower than last time")
    assert 0 < known.left < 10_000


@pytest.mark.usefixtures("terminal")
def test_a_live_line_has_no_secret_no_control_and_the_width(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("A_TOKEN", "swordfish")
    step = console.Step("pack https://me:pw@host")
    step.hear("\033[31mswordfish\x07 \N{CJK UNIFIED IDEOGRAPH-4E2D} " + "x" * 100)
    assert step.line(60) == f"pack https://***@host  0.0 s  *** ? {'x' * 24}"


@pytest.mark.parametrize("mode", ["plain", "github"])
def test_a_log_gets_a_line_now_and_then(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, clock: SimpleNamespace, mode: Mode
) -> None:
    monkeypatch.setattr(console, "mode", lambda: mode)
    monkeypatch.setattr(console, "_TICK", 60)  # the thread's turn never comes
    with console.group("build torch", step := console.Step("build torch")):
        step.hear("[9/10] a")
        for _ in range(60):
            clock.now += 60
            console.SCREEN.beat()
        with console.covered():
            clock.now += 6000
            console.SCREEN.beat()
    beats = [line for line in capsys.readouterr().err.splitlines() if line.startswith("…")]
    assert len(beats) == (25 if mode == "plain" else 0)
    assert not beats or beats[0] == "… build torch  1 min 00 s  [9/10]  about 6.7 s left"
