"""The rehearsal as its page tells it, command by command; and once more in a bucket."""

import re
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from core import process
from core.http import served_store
from core.stores.location import open_store
from tests.kit.clones import Clone, printed_by
from tests.kit.s3_servers import S3Server

BLOCK = re.compile(r"^```(bash|console)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
TORCH, VISION = "torch-2.10.0a0+cpu.sample", "torchvision==0.25.0a0+cpu.sample"


def commands(page: str) -> Iterator[tuple[str, list[str] | None]]:
    """Read a page's commands; those of a console are refused, with the words that follow them."""
    for kind, block in BLOCK.findall(page):
        if kind == "bash":
            yield from ((line, None) for line in block.splitlines())
            continue
        for one in block.removeprefix("$ ").split("\n$ "):
            command, *words = one.strip().splitlines()
            yield command, words


@pytest.fixture(scope="module")
def checkout(tmp_path_factory: pytest.TempPathFactory) -> Clone:
    """Run every command of the page in a clone."""
    clone = Clone.create(tmp_path_factory.mktemp("rehearsal") / "checkout")
    path = f"{Path(sys.executable).parent}:{clone.variables()['PATH']}"
    for command, refused in commands((clone.path / "docs" / "rehearsal.md").read_text(encoding="utf-8")):
        done = process.capture(["bash", "-c", command], cwd=clone.path, env=clone.variables(PATH=path), check=False)
        assert (done.returncode != 0) == (refused is not None), f"{command}\n{printed_by(done)[-4000:]}"
        assert all(line in printed_by(done) for line in refused or ()), f"{command}\n{printed_by(done)[-4000:]}"
    return clone


def test_every_command_of_the_page_does_what_it_says(checkout: Clone) -> None:
    released = checkout.path / "out" / "rehearsal" / "v2" / "cpu"
    assert len(list(released.glob("*.whl"))) == 5
    assert VISION.partition("==")[0] in (released / "index.html").read_text(encoding="utf-8")


def test_nox_passes_a_python_on_to_what_has_no_environment_of_its_own(checkout: Clone) -> None:
    done = checkout.run("nox", "-s", "fetch_wheels", "-P", "2.7", "--", "--torch-ref=sample", "--dry-run")
    assert done.returncode != 0
    assert "no Python 2.7 on this machine" in printed_by(done)


def test_the_same_in_a_bucket(
    checkout: Clone, rclone: S3Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rclone.use(monkeypatch)
    bucket = f"s3://{rclone.make_bucket()}"
    user = checkout.path / "out" / "user" / "bin" / "python"
    options = ["--isolated", "--force-reinstall", "--no-deps", "--no-index", "--no-cache-dir"]

    def pip(*more: str) -> tuple[int, str]:
        with served_store(open_store(bucket, root=tmp_path), {}) as url:
            page = f"--find-links={url}/v2/cpu/index.html"
            done = process.capture([user, "-m", "pip", "install", *options, page, *more], check=False)
        return done.returncode, printed_by(done)

    def indexes(*words: str) -> str:
        return checkout.run_checked("nox", "-s", "check_indexes", "--", f"--store={bucket}", *words)

    promote = ("invoke", "promote", "--run-id=local", "--type=rehearsal", f"--distribution-store={bucket}")
    checkout.run_checked(*promote)
    assert pip(VISION)[0] == 0
    indexes("--yank", VISION, "--reason", "wrong results", "--write")
    assert "wrong results" in pip(VISION)[1]
    assert "No matching distribution" in pip("--pre", "torchvision")[1]
    indexes("--remove", TORCH, "--write")
    assert pip(VISION)[0] != 0
    assert not [one.key for one in open_store(bucket, root=tmp_path).list("") if one.key.endswith(".whl")]
    checkout.run_checked(*promote)
    indexes()
    assert "wrong results" in pip(VISION)[1], "what was yanked is yanked when it comes again"
