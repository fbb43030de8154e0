from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from core import process
from core.env import installer
from core.env.installer import Sources
from core.errors import DataError, EnvironmentSetupError, ProcessError
from core.packages.resolution import Question, Resolved, ResolvedFile, parse_pylock, resolve

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
    rocm, torch = parse_pylock(LOCK)
    assert torch.name == "torch"
    assert torch.files == (
        ResolvedFile(
            filename="torch-2.10.0+rocm7.1-py3-none-any.whl",
            url="http://one/torch-2.10.0%2Brocm7.1-py3-none-any.whl",
            sha256=A,
        ),
    )
    assert rocm.files[0].filename == "rocm-7.1.tar.gz"
    assert rocm.pinned == f"rocm==7.1 --hash=sha256:{B}"


def test_every_file_of_a_distribution_may_satisfy_its_pin() -> None:
    files = tuple(ResolvedFile(filename=name, url="", sha256=name * 64) for name in "ab")
    assert Resolved(name="x", version="1", files=files).pinned == f"x==1 --hash=sha256:{A} --hash=sha256:{B}"


@pytest.mark.parametrize(
    "package",
    ['wheels = [{ url = "http://one/x-1-py3-none-any.whl" }]', 'directory = { path = "x" }'],
    ids=["no-digest", "folder"],
)
def test_what_has_no_digest_is_refused(package: str) -> None:
    with pytest.raises(EnvironmentSetupError, match="x was resolved to no file whose digest is known"):
        parse_pylock(f'[[packages]]\nname = "x"\nversion = "1"\n{package}\n')


def test_an_answer_that_is_no_lock_is_one() -> None:
    with pytest.raises(DataError, match="uv's answer"):
        parse_pylock("error: [")


@pytest.fixture(name="asked")
def asked_fixture(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    asked: dict[str, Any] = {}

    def capture(argv: list[str], *, env: dict[str, str]) -> process.Completed:
        asked["argv"], asked["env"] = argv, env
        asked["required"], asked["constraints"] = Path(argv[-1]).read_text(), Path(argv[-2]).read_text()
        return process.Completed(returncode=0, stdout=LOCK, stderr="")

    monkeypatch.setattr(process, "capture", capture)
    monkeypatch.setattr(installer, "uv_program", lambda: "uv")
    return asked


def test_the_question_is_asked_of_its_sources_alone(
    asked: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("UV_INDEX", "http://other")
    monkeypatch.delenv("SSL_CERT_FILE", raising=False)
    question = Question(
        requirements=("torch==2.10.0+rocm7.1", "numpy"),
        constraints=("rocm==7.1",),
        sources=Sources(index_url="http://deps/", extra_index_urls=("http://run/",), cert="/ca.pem"),
        python=Path("/env/bin/python"),
        excludes=("rocm",),
    )
    assert [one.name for one in resolve(question)] == ["rocm", "torch"]
    assert asked["required"] == "torch==2.10.0+rocm7.1\nnumpy\n"
    assert asked["constraints"] == "rocm==7.1\n"
    words = " ".join(asked["argv"])
    assert "--index-url http://deps/ --extra-index-url http://run/" in words
    assert "--python /env/bin/python" in words
    assert "--excludes" in words
    assert "--only-binary" not in words
    assert "--prerelease allow" not in words
    assert "UV_INDEX" not in asked["env"]
    assert asked["env"]["SSL_CERT_FILE"] == "/ca.pem"


def test_another_python_and_platform_are_resolved_for_with_wheels_alone(asked: dict[str, Any]) -> None:
    question = Question(
        requirements=("numpy",),
        sources=Sources(),
        python_version="3.13",
        platform="x86_64-pc-windows-msvc",
        only_wheels=True,
        pre=True,
    )
    resolve(question)
    words = " ".join(asked["argv"])
    assert "--python-version 3.13 --python-platform x86_64-pc-windows-msvc --prerelease allow" in words
    assert "--only-binary :all:" in words
    assert "--python " not in words


def test_a_refusal_ends_with_the_resolvers_own_words(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_words: object, **_options: object) -> None:
        raise ProcessError("uv ended with status 1.", output="no version of torch")

    monkeypatch.setattr(process, "capture", refuse)
    with pytest.raises(EnvironmentSetupError, match="torch cannot be resolved: no version of torch"):
        resolve(Question(requirements=("torch",), sources=Sources()))
