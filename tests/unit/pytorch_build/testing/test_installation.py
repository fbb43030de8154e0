from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest

from core import process, resolving
from core.errors import EnvironmentSetupError, MissingInputError, ProcessError
from core.installer import Install, Sources
from core.process import Completed
from core.resolving import Resolved, ResolvedFile
from pytorch_build.testing import installation
from pytorch_build.testing.installation import Named, digests_of, is_ours, named_calls, newest_torch, resolved

if TYPE_CHECKING:
    from pathlib import Path

TORCH = "torch-2.10.0+rocm7.1-cp312-cp312-linux_x86_64.whl"
NAMED = Named(index_urls=("https://rocm.example/v2/gfx94X-dcgpu/",), find_links=("/data/wheels",))


def answer(name: str, url: str, filename: str = TORCH) -> Resolved:
    file = ResolvedFile(filename=filename, url=url, sha256="ab" * 32)
    return Resolved(name=name, version="2.10.0", files=(file,))


@pytest.fixture(autouse=True)
def _own(monkeypatch: pytest.MonkeyPatch) -> None:
    own = Sources(index_url="https://own.example/simple", find_links=("/own",), cert="/ca.pem")
    monkeypatch.setattr(installation, "configured", lambda: own)


@pytest.fixture
def question(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """Keep what is asked of the resolver, and answer with what the test put behind it."""
    asked: list[Any] = []

    def resolve(one: Any) -> Any:
        asked.append(one)
        return asked[0]

    monkeypatch.setattr(resolving, "resolve", resolve)
    return asked


def test_named_sources_are_asked_beside_ones_own_for_an_exact_torch(run: Any, question: list[Any]) -> None:
    question.append((answer("torch", f"https://ROCM.example/files/{TORCH}"),))
    named = replace(NAMED, version="2.10.0+rocm7.1")
    found = resolved(named, run.target(), gpu_family="gfx94X-dcgpu", constraints=["setuptools==80.1"])
    assert [one.name for one in found] == ["torch"]
    asked = question[1]
    assert asked.requirements == ("torch==2.10.0+rocm7.1",)
    assert asked.constraints == ("setuptools==80.1",)
    assert asked.sources.index_url == "https://own.example/simple"
    assert asked.sources.extra_index_urls == NAMED.index_urls
    assert asked.sources.find_links == ("/data/wheels", "/own")
    assert asked.env == {"ROCM_SDK_TARGET_FAMILY": "gfx94X-dcgpu"}


@pytest.mark.parametrize(
    "url", ["https://own.example/files/rocm.whl", "/own/rocm.whl", "file:///own/rocm.whl", "/data/wheels2/x"]
)
def test_nothing_of_ours_may_come_from_elsewhere(run: Any, question: list[Any], url: str) -> None:
    question.append((answer("rocm-sdk-core", url), answer("numpy", "https://own.example/numpy.whl")))
    with pytest.raises(EnvironmentSetupError, match=r"rocm-sdk-core 2\.10\.0 would be taken from"):
        resolved(NAMED, run.target(), gpu_family="")


@pytest.mark.parametrize("url", ["/data/wheels/x.whl", "file:///data/wheels/x.whl", "https://rocm.example/x"])
def test_what_lies_in_a_named_source_may_be_taken(run: Any, question: list[Any], url: str) -> None:
    question.append((answer("rocm", url), answer("numpy", "https://own.example/numpy.whl")))
    assert len(resolved(NAMED, run.target(), gpu_family="")) == 2
    assert question[1].env == {}


def test_the_newest_torch_is_asked_of_the_named_sources_alone(
    run: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    commands: list[list[str]] = []

    def capture(argv: list[str], **_: Any) -> Completed:
        commands.append(argv)
        listed = "torch (2.10.0+rocm7.1)\nAvailable versions: 2.10.0+rocm7.1\n"
        return Completed(returncode=0, stdout=listed, stderr="")

    monkeypatch.setattr(process, "capture", capture)
    assert newest_torch(NAMED, run.target()) == "2.10.0+rocm7.1"
    words = commands[0]
    assert "--isolated" in words
    assert words[words.index("--python-version") + 1] == "3.12.4"
    assert "https://own.example/simple" not in words
    assert words[words.index("--index-url") + 1] == NAMED.index_urls[0]
    assert words[words.index("--cert") + 1] == "/ca.pem"
    newest_torch(Named(find_links=("/data",)), run.target())
    assert "--no-index" in commands[1]


@pytest.mark.parametrize("silent", [True, False])
def test_sources_without_a_torch_are_an_error(run: Any, monkeypatch: pytest.MonkeyPatch, silent: Any) -> None:
    def capture(*_: Any, **__: Any) -> Completed:
        if silent:
            return Completed(returncode=0, stdout="", stderr="")
        raise ProcessError("no", returncode=1)

    monkeypatch.setattr(process, "capture", capture)
    with pytest.raises(MissingInputError, match=r"rocm\.example") as caught:
        newest_torch(NAMED, run.target())
    assert caught.value.hint


def test_a_record_names_our_files_of_this_python(run: Any) -> None:
    torch = answer("torch", "/data/wheels/x")
    more = [
        replace(torch.files[0], filename=name)
        for name in (
            "torch-2.10.0+rocm7.1-cp313-cp313-linux_x86_64.whl",
            "torch-2.10.0+rocm7.1-py3-none-any.whl",
            "torch-2.10.0.tar.gz",
        )
    ]
    found = digests_of(
        [replace(torch, files=(*torch.files, *more)), answer("numpy", "/x", "numpy-1-py3-none-any.whl")],
        run.target(),
    )
    assert set(found) == {TORCH, more[1].filename, more[2].filename}
    assert set(found.values()) == {"ab" * 32}


def test_a_resolution_is_installed_file_by_file(tmp_path: Path) -> None:
    tools = Install(requirements=("pytest",))
    first, call = named_calls(
        [answer("torch", "/data/wheels/x")], NAMED, folder=tmp_path, tools=tools, gpu_family="gfx94X-dcgpu"
    )
    assert first is tools
    assert call.hashed
    assert not call.dependencies
    assert call.files[0].read_text() == f"torch==2.10.0 --hash=sha256:{'ab' * 32}\n"
    assert dict(call.env) == {"ROCM_SDK_TARGET_FAMILY": "gfx94X-dcgpu"}


def test_ours_are_what_this_project_builds() -> None:
    assert all(map(is_ours, ("torch", "torchaudio", "rocm", "rocm-sdk-core")))
    assert not any(map(is_ours, ("numpy", "rocminfo", "torchmetrics", "triton")))
