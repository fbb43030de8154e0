from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from packaging.version import Version

from core.env.installer import Sources
from core.errors import EnvironmentSetupError
from core.packages import resolution, sources
from core.packages.resolution import Question, Resolved, ResolvedFile, choose, pinned_call, resolve_others
from core.packages.sources import PackageSource
from tests.unit.target_samples import target_in

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

    MakeWheel = Callable[..., Path]


@pytest.fixture(autouse=True)
def _configuration(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (sources, resolution):
        monkeypatch.setattr(module, "configured", Sources)


@pytest.fixture
def chosen(tmp_path: Path, make_wheel: MakeWheel) -> Callable[..., Any]:
    """Choose among wheels: name, version and requirements of each."""

    def made(offered: Sequence[tuple[str, str, Sequence[str]]], *asked: str, **more: Any) -> Any:
        for name, version, lines in offered:
            fields = [("Requires-Dist", line) for line in lines]
            make_wheel(tmp_path / "dist", name, version, fields=fields, tag=more.get("tag", "py3-none-any"))
        source = PackageSource(find_links=(str(tmp_path / "dist"),))
        return choose(
            source,
            asked,
            python=target_in(tmp_path / "env", version="3.12.4"),
            platform="linux",
            sdist_requires=more.get("sdist_requires", lambda *_: ()),
        )

    return made


TRITON = ("triton", "3.6.0", ())


def test_ours_are_chosen_alone_and_what_they_require_of_others_is_gathered(chosen: Any) -> None:
    torch = (
        "torch",
        "2.10.0",
        ["triton==3.6.0; sys_platform == 'linux'", "numpy>=2", "pywin32; os_name == 'nt'"],
    )
    found = chosen([torch, TRITON, ("rocm", "7.1", ())], "torch", "pytest")
    assert found.versions == {"torch": "2.10.0", "triton": "3.6.0"}
    assert found.others == ("numpy>=2", "pytest")
    assert all(len(one.sha256) == 64 for one in found.files)


def test_extras_count_where_they_are_asked_for(chosen: Any) -> None:
    lines = ["amd-torch-device-gfx942==2; extra == 'device-gfx942'", "numpy; extra == 'more'"]
    offered = [
        ("torch", "2", lines),
        ("amd-torch-device-gfx942", "2", ["torch==2"]),
        ("apex", "1", ["torch[more]"]),
    ]
    assert set(chosen(offered, "torch").versions) == {"torch"}
    assert set(chosen(offered, "torch[device-gfx942]").versions) == {"torch", "amd-torch-device-gfx942"}
    # another one asks for more of what is chosen already
    assert chosen(offered, "torch", "apex").others == ("numpy",)


def test_an_older_version_is_taken_where_the_newest_does_not_fit(chosen: Any) -> None:
    offered = [
        ("torch", "2.10.0", ()),
        ("torch", "2.9.0", ()),
        ("torchvision", "0.25.0", ["torch==2.11.0"]),
        ("torchvision", "0.24.0", ["torch==2.9.0"]),
    ]
    assert chosen(offered, "torchvision", "torch").versions == {"torchvision": "0.24.0", "torch": "2.9.0"}
    assert chosen(offered, "torch", "torchvision").versions == {"torchvision": "0.24.0", "torch": "2.9.0"}


@pytest.mark.parametrize(
    ("asked", "said"),
    [
        ("torch==3", r"There is no torch==3 for Python 3\.12: .*/dist has 2"),
        ("apex", "There is no apex for .* has none of it"),
        ("torch", r"There is no triton==9, which torch-2-py3-none-any\.whl requires, for .* has 3\.6\.0"),
    ],
)
def test_what_is_missing_is_said_with_what_there_is(chosen: Any, asked: str, said: str) -> None:
    with pytest.raises(EnvironmentSetupError, match=said) as caught:
        chosen([("torch", "2", ["triton==9"]), TRITON], asked)
    assert "--find-links" in caught.value.hint


def test_files_of_another_python_or_platform_are_none(chosen: Any) -> None:
    for tag in ("cp311-cp311-linux_x86_64", "cp312-cp312-win_amd64"):
        with pytest.raises(EnvironmentSetupError, match="no torch"):
            chosen([("torch", "2", ())], "torch", tag=tag)
    assert chosen([("torch", "2", ())], "torch", tag="cp312-cp312-manylinux_2_28_x86_64").files


def test_an_sdist_requires_what_the_caller_knows(chosen: Any, tmp_path: Path) -> None:
    (tmp_path / "dist").mkdir()
    (tmp_path / "dist" / "rocm-7.1.tar.gz").write_bytes(b"sdist")
    told: list[Any] = []

    def sdist_requires(one: Any, extras: Any) -> list[str]:
        told.append((one.distribution, set(extras)))
        return ["rocm-sdk-core==7.1"]

    found = chosen([("rocm-sdk-core", "7.1", ())], "rocm[libraries]", sdist_requires=sdist_requires)
    assert set(found.versions) == {"rocm", "rocm-sdk-core"}
    assert ("rocm", {"libraries"}) in told


def resolved(name: str) -> Resolved:
    return Resolved(
        name=name, version="1", files=(ResolvedFile(filename=name, url="https://x/y", sha256="a" * 64),)
    )


def test_others_are_never_asked_for_ours(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    asked: list[Question] = []
    answers = [resolved("numpy")]

    def resolve(one: Any) -> Any:
        asked.append(one)
        return tuple(answers)

    monkeypatch.setattr(resolution, "resolve", resolve)
    question = Question(requirements=(), sources=Sources(), python=tmp_path)
    assert resolve_others((), ["torch"], question) == ()
    assert resolve_others(["numpy"], ["torch"], question) == (answers[0],)
    assert (asked[0].requirements, asked[0].excludes) == (("numpy",), ("torch",))
    answers.append(resolved("rocm"))
    with pytest.raises(
        EnvironmentSetupError, match="rocm 1 would come from https://x/y, and it is one of our names"
    ):
        resolve_others(["numpy"], ["torch"], question)
    assert len(resolve_others(["torch==2.13"], [], question, allowed=True)) == 2


def test_both_sides_are_pinned_by_digest(chosen: Any, tmp_path: Path) -> None:
    found = chosen([TRITON], "triton")
    call = pinned_call(tmp_path / "locks", [*found.files, resolved("numpy")], None, told="gfx942")
    first, second = call.files[0].read_text().splitlines()
    assert first == f"numpy==1 --hash=sha256:{'a' * 64}"
    assert second == f"triton==3.6.0 --hash=sha256:{found.files[0].sha256}"
    assert (call.hashed, call.dependencies, call.build_isolation) == (True, False, False)
    assert dict(call.env) == {"ROCM_SDK_TARGET_FAMILY": "gfx942"}


def test_newest_means_pep_440(chosen: Any) -> None:
    versions = ["2.9.0", "2.10.0a1", "2.10.0.dev5"]
    found = chosen([("torch", one, ()) for one in versions], "torch")
    assert Version(found.versions["torch"]) == max(map(Version, versions))
