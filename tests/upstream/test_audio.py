"""A real torchaudio wheel from real sources, through the commands of the README."""

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.kit.clones import Clone
from tests.kit.upstream_inputs import TORCH, torch_wheels

REFS = """
[refs.mine]
components = ["audio"]

[refs.mine.torch]
prebuilt = "torch==2.13.0"

[refs.mine.audio]
origin = "{origin}"
ref = "HEAD"
env = {{ BUILD_SOX = "0", USE_FFMPEG = "0" }}
"""


# Runs a session with arguments; returns what it prints.
RunSession = Callable[..., str]


@pytest.fixture(scope="module")
def clone(tmp_path_factory: pytest.TempPathFactory) -> Clone:
    return Clone.create(tmp_path_factory.mktemp("checkout") / "clone")


@pytest.fixture
def nox(clone: Clone, tmp_path: Path, upstream_sources: dict[str, Path]) -> RunSession:
    """Return a function that runs a session for torch's released wheel and this torchaudio."""
    if "audio" not in upstream_sources:
        pytest.skip("--sources has no torchaudio")
    if not torch_wheels():
        pytest.skip(
            f"pip's find-links have no {TORCH}; the public index's torch is several gigabytes of CUDA"
        )
    refs = tmp_path / "refs.toml"
    refs.write_text(REFS.format(origin=upstream_sources["audio"].as_posix()))

    def run_session(session: str, *arguments: str | Path) -> str:
        options = ["--gpu-family", "cpu", "--torch-ref", "mine", "--config-file", str(refs)]
        if arguments and session == "check_wheels":
            options = []
        return clone.run_checked("nox", "-s", session, "-P", "3.11", "--", *arguments, *options)

    return run_session


def test_a_real_torchaudio_is_built_checked_indexed_installed_and_used(
    nox: RunSession, clone: Clone, tmp_path: Path
) -> None:
    output = tmp_path / "wheels"
    nox("build_audio", "--output-dir", output)
    (wheel,) = output.glob("torchaudio-*+torch2.13.cpu-cp311-cp311-linux_x86_64.whl")
    assert "1 wheel, 0 errors" in nox("check_wheels", output)

    nox("index")
    page = (clone.wheels("cpu") / "index.html").read_text()
    assert wheel.name in page

    smoke_tests = nox("test_smoke")
    assert "0 failed" not in smoke_tests
    assert " passed" in smoke_tests
    assert "unchanged, nothing to do" in nox("build_audio")
