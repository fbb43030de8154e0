from __future__ import annotations

from docs import support_tables
from pytorch_build.refs import torch_refs as refs


def tables() -> str:
    by_platform = {platform: refs.load_refs(platform=platform) for platform in refs.PLATFORMS}
    return support_tables.support_tables(refs.embedded(), by_platform)


def row(start: str) -> list[str]:
    (line,) = [line for line in tables().splitlines() if line.startswith(f"| {start} |")]
    return [cell.strip() for cell in line.strip("|").split(" | ")]


def test_features_carry_their_issue() -> None:
    link = "(see issue [#2056](https://github.com/ROCm/TheRock/issues/2056))"
    assert row("FBGEMM GenAI")[1:] == [f"❌ Not supported {link}"] * 2
    assert row("torchaudio")[1:] == ["✅ Supported", "✅ Supported"]


def test_a_release_shows_the_fork_and_its_pins() -> None:
    _, name, _, linux, windows = row("2.9")
    assert name == "`release/2.9`"
    assert linux.startswith("✅ Using downstream ROCm/pytorch fork<br>triton: ")
    fork = "https://github.com/ROCm/pytorch"
    assert f"[ROCm/pytorch `release/2.9`]({fork}/tree/release/2.9)" in linux
    assert f"{fork}/blob/release/2.9/.ci/docker/ci_commit_pins/triton.txt" in linux
    assert f"at [`related_commits`]({fork}/blob/release/2.9/related_commits)" in windows
    assert "triton" not in windows


def test_unsupported_and_previous_builds_say_so() -> None:
    assert row("2.8")[4] == "❌ Not supported"
    assert row("2.9 alpha")[3:] == ["Previously built", "Previously built"]


def test_rows_stand_in_the_order_of_the_data_without_the_sample() -> None:
    places = [
        tables().index(f"\n| {name} |") for name in ("nightly", "main", "2.14", "2.10", "2.10 alpha", "2.7")
    ]
    assert places == sorted(places)
    assert "sample" not in tables()
