from __future__ import annotations

import threading
from typing import TYPE_CHECKING

import pytest

from core import console
from core.console import transfer

if TYPE_CHECKING:
    from core.console import Mode


def test_a_log_gets_a_line_a_file_under_a_fold(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(console, "mode", lambda: "github")
    with transfer("Fetching", files=2, size=3 << 20) as shown:
        for name, size in (("one", 1 << 20), ("two", 2 << 20)):
            shown.advance(size)
            shown.finish(name, size, 0.5)
    lines = capsys.readouterr().err.splitlines()
    assert lines[:4] == [
        "::group::Fetching",
        "[1/2] one  1.0 MiB  0.5 s",
        "[2/2] two  2.0 MiB  0.5 s",
        "::endgroup::",
    ]


@pytest.mark.parametrize("mode", ["terminal", "plain"])
def test_any_thread_may_report(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], mode: Mode
) -> None:
    monkeypatch.setattr(console, "mode", lambda: mode)
    with transfer("Fetching [all]", files=4, size=400) as shown:

        def report() -> None:
            shown.advance(150)
            shown.advance(-50)
            shown.finish("part[0]", 100, 0.1)

        threads = [threading.Thread(target=report) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    said = capsys.readouterr().err
    assert "Fetching [all]" in said
    assert "part[0]" in said
    assert mode == "plain" or "400/400" in said
