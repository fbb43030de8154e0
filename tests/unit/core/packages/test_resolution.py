from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from core import process
from core.env import installer
from core.env.installer import Sources
from core.errors import DataError, EnvironmentSetupError, ProcessError
from core.http import answering
from core.packages import Offer, resolution, sources
from tests.conftest import MakeWheel
from tests.kit.machines import target_in
from tests.kit.servers import Quiet


@pytest.fixture
def chosen(tmp_path: Path, make_wheel: MakeWheel) -> Callable[..., Any]:
    def made(offered: Sequence[tuple[str, str, Sequence[str]]], *asked: str, **more: Any) -> Any:
        for name, version, lines in offered:
            fields = [("Requires-Dist", line) for line in lines]
            make_wheel(tmp_path / "dist", name, version, fields=fields, tag=more.get("tag", "py3-none-any"))
        source = sources.PackageSource(find_links=(str(tmp_path / "dist"),))
        return resolution.choose(
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
        *(("torch", version, ()) for version in ("2.10.0a1", "2.10.0.dev5", "2.9.0")),
        ("torchvision", "0.25.0", ["torch==2.11.0"]),
        ("torchvision", "0.24.0", ["torch==2.9.0"]),
    ]
    assert chosen(offered, "torch").versions == {"torch": "2.10.0a1"}, "the newest of PEP 440"
    for wanted in (["torchvision", "torch"], ["torch", "torchvision"]):
        assert chosen(offered, *wanted).versions == {"torchvision": "0.24.0", "torch": "2.9.0"}


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


def resolved(name: str) -> resolution.Resolved:
    return resolution.Resolved(
        name=name,
        version="1",
        files=(Offer(name=name, distribution=name, version="1", url="https://x/y", sha256="a" * 64),),
    )


def test_others_are_never_asked_for_ours(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    asked: list[resolution.Question] = []
    answers = (resolved("numpy"),)

    def answer(one: Any) -> Any:
        asked.append(one)
        return answers

    monkeypatch.setattr(resolution, "resolve", answer)
    question = resolution.Question(requirements=(), sources=Sources(), python=tmp_path)
    assert resolution.resolve_others((), ["torch"], question) == ()
    assert resolution.resolve_others(["numpy"], ["torch"], question) == (answers[0],)
    assert (asked[0].requirements, asked[0].excludes) == (("numpy",), ("torch",))
    assert [one.allowed for one in asked] == [False]
    resolution.resolve_others(["torch==2.13"], [], question, allowed=True)
    assert asked[1].allowed


def test_both_sides_are_pinned_by_digest(chosen: Any, tmp_path: Path) -> None:
    found = chosen([TRITON], "triton")
    call = resolution.pinned_call(
        tmp_path / "locks", [*found.files, resolved("numpy")], None, family="gfx942"
    )
    first, second = call.files[0].read_text().splitlines()
    assert first == f"numpy==1 --hash=sha256:{'a' * 64}"
    assert second == f"triton==3.6.0 --hash=sha256:{found.files[0].sha256}"
    assert (call.hashed, call.dependencies, call.build_isolation) == (True, False, False)
    assert dict(call.env) == {"ROCM_SDK_TARGET_FAMILY": "gfx942"}


A, B = "a" * 64, "b" * 64
LOCK = f"""
lock-version = "1.0"
[[packages]]
name = "Torch"
version = "2.10.0+rocm7.1"
wheels = [{{ url = "http://one/torch-2.10.0%2Brocm7.1-py3-none-any.whl", hashes = {{ sha256 = "{A}" }} }}]
[[packages]]
name = "rocm"
version = "7.1"
sdist = {{ path = "../wheels/rocm-7.1.tar.gz", hashes = {{ sha256 = "{B}" }} }}
"""


def test_a_lock_is_read_with_names_as_they_are_compared_and_addresses_unquoted() -> None:
    rocm, torch = resolution.parse_pylock(LOCK)
    assert torch.name == "torch"
    assert torch.files == (
        Offer(
            name="torch-2.10.0+rocm7.1-py3-none-any.whl",
            distribution="torch",
            version="2.10.0+rocm7.1",
            url="http://one/torch-2.10.0%2Brocm7.1-py3-none-any.whl",
            sha256=A,
        ),
    )
    assert rocm.files[0].name == "rocm-7.1.tar.gz"
    assert rocm.pinned == f"rocm==7.1 --hash=sha256:{B}"
    both = resolution.Resolved(name="x", version="1", files=(*torch.files, *rocm.files))
    assert both.pinned == f"x==1 --hash=sha256:{A} --hash=sha256:{B}"


def test_an_answer_without_digests_or_that_is_not_a_lock_is_an_error() -> None:
    for package in ('wheels = [{ url = "http://one/x-1-py3-none-any.whl" }]', 'directory = { path = "x" }'):
        with pytest.raises(EnvironmentSetupError, match="x was resolved to no file whose digest is known"):
            resolution.parse_pylock(f'[[packages]]\nname = "x"\nversion = "1"\n{package}\n')
    with pytest.raises(DataError, match="uv's answer"):
        resolution.parse_pylock("error: [")


@pytest.fixture(name="asked")
def asked_fixture(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    asked: dict[str, Any] = {}

    def capture(argv: list[str], *, env: dict[str, str]) -> process.Completed:
        asked["argv"], asked["env"] = argv, env
        asked["required"] = Path(argv[-1]).read_text()
        asked["constraints"], asked["builds"] = (
            Path(argv[argv.index(option) + 1]).read_text().splitlines() if option in argv else []
            for option in ("--constraints", "--build-constraints")
        )
        return process.Completed(returncode=0, stdout=LOCK, stderr="")

    monkeypatch.setattr(process, "capture", capture)
    monkeypatch.setattr(installer, "uv_program", lambda: "uv")
    return asked


def test_the_question_is_put_to_its_sources(asked: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("UV_INDEX", "http://other")
    question = resolution.Question(
        requirements=("torch==2.10.0+rocm7.1", "numpy"),
        constraints=("rocm==7.1",),
        sources=Sources(index_url="http://deps/", extra_index_urls=("http://run/",), cert="/ca.pem"),
        python=Path("/env/bin/python"),
        excludes=("rocm",),
    )
    with pytest.raises(EnvironmentSetupError, match=r"rocm 7\.1 would .*one of our names") as caught:
        resolution.resolve(question)
    assert "require it, too" in caught.value.hint
    refused = {"torch<0.dev0", "rocm-sdk-device-gfx942<0.dev0", "rocm-sdk-libraries-gfx94x-dcgpu<0.dev0"}
    assert refused < set(asked["constraints"])
    assert {"rocm<0.dev0", *refused} < set(asked["builds"])
    assert "rocm<0.dev0" not in asked["constraints"], "what is excluded nobody asks for"
    assert [one.name for one in resolution.resolve(replace(question, allowed=True))] == ["rocm", "torch"]
    assert asked["required"] == "torch==2.10.0+rocm7.1\nnumpy\n"
    assert asked["constraints"] == ["rocm==7.1"]
    words = " ".join(asked["argv"])
    assert "--index-url http://deps/ --extra-index-url http://run/" in words
    assert "--python /env/bin/python" in words
    assert "--excludes" in words
    assert "--only-binary" not in words
    assert "--prerelease allow" not in words
    assert "UV_INDEX" not in asked["env"]
    assert asked["env"]["SSL_CERT_FILE"] == "/ca.pem"


def test_another_python_and_platform_are_resolved_for_with_wheels_alone(asked: dict[str, Any]) -> None:
    question = resolution.Question(
        requirements=("numpy",),
        sources=Sources(),
        python_version="3.13",
        platform="x86_64-pc-windows-msvc",
        only_wheels=True,
        pre=True,
        allowed=True,
    )
    resolution.resolve(question)
    words = " ".join(asked["argv"])
    assert "--python-version 3.13 --python-platform x86_64-pc-windows-msvc --prerelease allow" in words
    assert "--only-binary :all:" in words
    assert "--python " not in words


def test_a_refusal_ends_with_the_resolvers_own_words(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_words: object, **_options: object) -> None:
        raise ProcessError("uv ended with status 1.", output="no version of torch")

    monkeypatch.setattr(process, "capture", refuse)
    with pytest.raises(EnvironmentSetupError, match="torch cannot be resolved: no version of torch"):
        resolution.resolve(resolution.Question(requirements=("torch",), sources=Sources()))
    refusing = type("Refusing", (Quiet,), {"do_GET": lambda one: one.send_error(403)})
    with answering(refusing) as url, pytest.raises(EnvironmentSetupError) as caught:
        resolution.resolve(
            resolution.Question(requirements=("numpy",), sources=Sources(index_url=f"{url}/simple/"))
        )
    assert f"numpy cannot be resolved from {url}/simple/: no version of torch" in caught.value.message
    assert f"{url}/simple/: it answers 403 Forbidden." in caught.value.message
    assert "--deps-index-url" in caught.value.hint
