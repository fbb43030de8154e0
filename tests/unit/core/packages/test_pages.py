"""An index lists what a run's records promise, sooner or later."""

import time

import pytest

from core.errors import MissingInputError
from core.http import Answer
from core.packages.candidates import Candidate
from core.packages.pages import missing_from_page, wait_for_pages
from tests.kit.index_pages import page_file, render_pages

TORCH = Candidate(
    name="torch-2.10.0+rocm7.1.whl", distribution="torch", version="2.10.0+rocm7.1", sha256="a" * 64
)
ROCM = Candidate(name="rocm-7.1.tar.gz", distribution="rocm", version="7.1", sha256="b" * 64)


def page_of(*offers: Candidate, with_digests: bool = True) -> str:
    """Return a page that lists files."""
    lines: list[str] = []
    for offer in offers:
        fragment = f"#sha256={offer.sha256}" if with_digests else ""
        lines.append(f'<a href="../../{offer.name.replace("+", "%2B")}{fragment}">{offer.name}</a>')
    return "".join(lines)


class Clock:
    """A clock that only sleeping moves."""

    def __init__(self) -> None:
        self.pauses: list[float] = []

    def sleep(self, seconds: float) -> None:
        """Let time pass."""
        self.pauses.append(seconds)

    def now(self) -> float:
        """Return the time that has passed."""
        return sum(self.pauses)


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    """Return a clock in the place of the machine's."""
    clock = Clock()
    monkeypatch.setattr(time, "sleep", clock.sleep)
    monkeypatch.setattr(time, "monotonic", clock.now)
    return clock


# One page


def test_a_page_lists_a_file_with_its_digest() -> None:
    assert missing_from_page(page_of(TORCH, ROCM), [TORCH, ROCM]) == []


def test_a_page_without_digests_lists_files_by_name() -> None:
    assert missing_from_page(page_of(TORCH, with_digests=False), [TORCH]) == []


def test_names_a_file_that_a_page_lacks() -> None:
    assert missing_from_page(page_of(ROCM), [TORCH, ROCM]) == [TORCH.name]


def test_names_every_file_where_there_is_no_page() -> None:
    assert missing_from_page(None, [TORCH, ROCM]) == [TORCH.name, ROCM.name]


def test_names_a_file_that_a_page_lists_with_another_digest() -> None:
    changed = Candidate(name=ROCM.name, distribution="rocm", version="7.1", sha256="c" * 64)

    (sentence,) = missing_from_page(page_of(changed), [ROCM])

    assert sentence.startswith(f"{ROCM.name} (")


def test_reads_the_pages_that_the_index_writes() -> None:
    wheel = Candidate(
        name="torch-2.10.0+rocm7.1-py3-none-any.whl",
        distribution="torch",
        version="2.10.0+rocm7.1",
        sha256="a" * 64,
    )

    pages = render_pages("g", [page_file(filename=wheel.name, sha256=wheel.require_digest())])

    assert missing_from_page(pages["simple/torch/index.html"], [wheel]) == []
    assert missing_from_page(pages["index.html"], [wheel]) == []


# Waiting for pages


def read_late(url: str, clock: Clock) -> Answer:
    """Answer as an index that lists rocm after a second, and torch after two."""
    if url == "torch":
        return Answer(text=page_of(TORCH) if clock.now() >= 2 else "")
    if clock.now() < 1:
        return Answer(problem="it answers 404 Not Found")
    return Answer(text=page_of(ROCM))


def test_reads_pages_until_they_list_their_files(clock: Clock) -> None:
    requests: list[str] = []

    def read(url: str) -> Answer:
        requests.append(url)
        return read_late(url, clock)

    wait_for_pages({"torch": [TORCH], "rocm": [ROCM]}, seconds=60, read=read)

    assert 2 <= clock.now() < 5
    assert requests.count("rocm") < requests.count("torch"), "a complete page is not read again"


def test_tells_what_it_waits_for(clock: Clock, capfd: pytest.CaptureFixture[str]) -> None:
    wait_for_pages({"torch": [TORCH], "rocm": [ROCM]}, seconds=60, read=lambda url: read_late(url, clock))

    first_lines = capfd.readouterr().err.splitlines()[:3]
    assert any("404 Not Found" in line and ROCM.name in line for line in first_lines)
    assert any(line.startswith("torch ") and TORCH.name in line for line in first_lines)


def test_does_not_wait_for_a_complete_page(clock: Clock, capfd: pytest.CaptureFixture[str]) -> None:
    wait_for_pages({"torch": [TORCH]}, seconds=0, read=lambda _url: Answer(text=page_of(TORCH)))

    assert clock.pauses == []
    assert capfd.readouterr().err == ""


def test_names_the_first_missing_files_when_time_is_up(clock: Clock) -> None:
    offers = [
        Candidate(name=f"x-{number}.whl", distribution="x", version=str(number), sha256="a" * 64)
        for number in range(20)
    ]

    with pytest.raises(MissingInputError) as raised:
        wait_for_pages({"flat": offers}, seconds=30, read=lambda _url: Answer(text=""))

    assert clock.now() == 30
    assert max(clock.pauses) <= 15
    assert "30 s" in raised.value.message
    assert "flat lacks x-0.whl" in raised.value.message
    assert "12 more" in raised.value.message
    assert "nox -s index" in raised.value.hint
