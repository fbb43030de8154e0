from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest

from core import installer, process, resolving
from core.errors import EnvironmentSetupError, MissingInputError, ProcessError, RocmError
from core.installer import Install, Sources
from core.process import Completed
from core.resolving import Resolved, ResolvedFile
from pytorch_build.testing import named_torch
from pytorch_build.testing.named_torch import Named, digests_of, is_ours, named_calls, newest_torch, resolved
from rocm_packaging import sources

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
    for module in (named_torch, sources):
        monkeypatch.setattr(module, "configured", lambda: own)


@pytest.fixture
def question(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """Keep what is asked of the resolver, and answer with what the test put behind it."""
    asked: list[Any] = []

    def resolve(one: Any) -> Any:
        asked.append(one)
        return asked[0]

    monkeypatch.setattr(resolving, "resolve", resolve)
    held(monkeypatch)
    return asked


def held(monkeypatch: pytest.MonkeyPatch, *names: str, version: str = "7.1") -> None:
    """Let sources have these distributions of ROCm in one version, and no others."""
    monkeypatch.setattr(installer, "versions", lambda name, _: (version,) if name in names else ())


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


LIBRARIES = "rocm-sdk-libraries"
UNSPLIT = "rocm-sdk-libraries-gfx94x-dcgpu"


@pytest.mark.parametrize(
    ("rocm", "found", "wanted"),
    [
        # a host wheel brings its device packages, and these ROCm's
        ([LIBRARIES], [LIBRARIES, "amd-torch-device-gfx942", "rocm-sdk-device-gfx942"], []),
        # a fat wheel knows of none
        ([LIBRARIES], [LIBRARIES], ["rocm-sdk-device-gfx942==2.10.0", "rocm-sdk-device-gfx950==2.10.0"]),
        # one for processors, or for others' GPUs
        ([], [], None),
    ],
)
def test_split_packages_are_asked_for_the_device_code_of_targets(
    run: Any,
    question: list[Any],
    monkeypatch: pytest.MonkeyPatch,
    rocm: list[str],
    found: list[str],
    wanted: list[str] | None,
) -> None:
    question.append(tuple(answer(name, f"/data/wheels/{name}.whl") for name in ["torch", *found]))
    held(monkeypatch, *rocm)
    named = replace(NAMED, version="2.10.0")
    resolved(named, run.target(), gpu_family="gfx94X-dcgpu;gfx950-dcgpu", targets=["gfx942", "gfx950"])
    torch = "torch==2.10.0" if wanted is None else "torch[device-gfx942,device-gfx950]==2.10.0"
    assert question[-1].requirements == (torch, *(wanted or ()))
    assert len(question) == 2 + bool(wanted)
    told = {"ROCM_SDK_TARGET_FAMILY": "gfx94X-dcgpu;gfx950-dcgpu" if wanted is None else "gfx942"}
    assert question[-1].env == told


def test_a_source_of_both_times_is_asked_in_either_layout(run: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[Any] = []

    def resolve(one: Any) -> Any:
        asked.append(one)
        if one.env["ROCM_SDK_TARGET_FAMILY"] == "gfx942":
            raise EnvironmentSetupError("no")
        return (answer("rocm", "/data/wheels/rocm.whl"),)

    monkeypatch.setattr(resolving, "resolve", resolve)
    held(monkeypatch, LIBRARIES, UNSPLIT, version="7.1")
    named = replace(NAMED, version="2.10.0")
    with pytest.raises(RocmError, match=r"has no ROCm 2\.10\.0 libraries"):
        resolved(named, run.target(), gpu_family="gfx94X-dcgpu", targets=["gfx942"])
    assert [one.env["ROCM_SDK_TARGET_FAMILY"] for one in asked] == ["gfx942", "gfx94X-dcgpu"]
    held(monkeypatch, LIBRARIES, UNSPLIT, version="2.10.0")
    with pytest.raises(RocmError, match=rf"both layouts: {LIBRARIES}, {UNSPLIT}"):
        resolved(named, run.target(), gpu_family="gfx94X-dcgpu", targets=["gfx942"])


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
        return Completed(
            returncode=0,
            stdout="torch (2.10.0+rocm7.1)\nAvailable versions: 2.10.0+rocm7.1, 2.9.1\n",
            stderr="",
        )

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
    found = [answer("torch", "/data/wheels/x"), answer("numpy", "https://own.example/numpy.whl")]
    first, *calls = named_calls(found, NAMED, folder=tmp_path, tools=tools, gpu_family="gfx94X-dcgpu")
    assert first is tools
    # somebody else may have the same name and version, so each side has its own sources
    for call, name, places in zip(calls, ("numpy", "torch"), (NAMED.beside_own, NAMED.sources), strict=True):
        assert call.hashed
        assert not call.dependencies
        assert call.sources == places
        assert call.files[0].read_text() == f"{name}==2.10.0 --hash=sha256:{'ab' * 32}\n"
        assert dict(call.env) == {}
    for names, told in (
        ([UNSPLIT], "gfx94X-dcgpu"),
        ([LIBRARIES, "rocm-sdk-device-gfx950", "rocm-sdk-device-gfx942"], "gfx942"),
    ):
        more = [answer(name, "/data/wheels/x") for name in names]
        call = named_calls(more, NAMED, folder=tmp_path, tools=tools, gpu_family="gfx94X-dcgpu")[-1]
        assert dict(call.env) == {"ROCM_SDK_TARGET_FAMILY": told}


def test_ours_are_what_this_project_builds() -> None:
    assert all(map(is_ours, ("torch", "torchaudio", "rocm", "rocm-sdk-core", "rocm-bootstrap")))
    assert all(map(is_ours, ("amd-torch-device-gfx12-0", "amd-torchvision-device-gfx942")))
    assert not any(map(is_ours, ("numpy", "rocminfo", "torchmetrics", "triton")))
