import json
from dataclasses import dataclass, field, replace
from pathlib import Path

import pytest

from core.env.installer import Sources
from core.errors import DataError, EnvironmentSetupError, WheelError
from core.http_server import answering
from core.packages import resolution
from core.packages.candidates import Candidate
from core.packages.resolution import ResolverQuery
from tests.kit.machines import Answer, Call, answer_processes
from tests.kit.servers import RefusingServer

A = "a" * 64
B = "b" * 64

# Packages of others, which uv resolves

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

NUMPY = resolution.ResolvedPackage(
    name="numpy",
    version="1",
    files=(Candidate(name="numpy", distribution="numpy", version="1", url="https://x/y", sha256=A),),
)


TRITON = Candidate(name="triton.whl", distribution="triton", version="3.6.0", sha256=B)


def test_reads_names_as_they_are_compared_and_addresses_unquoted() -> None:
    _rocm, torch = resolution.parse_pylock(LOCK)

    assert torch.name == "torch"
    assert torch.files == (
        Candidate(
            name="torch-2.10.0+rocm7.1-py3-none-any.whl",
            distribution="torch",
            version="2.10.0+rocm7.1",
            url="http://one/torch-2.10.0%2Brocm7.1-py3-none-any.whl",
            sha256=A,
        ),
    )


def test_pins_a_resolved_package_by_the_digests_of_its_files() -> None:
    rocm, torch = resolution.parse_pylock(LOCK)
    other_file = replace(torch.files[0], sha256=B)
    package = replace(torch, files=(*torch.files, other_file))

    assert rocm.pin == f"rocm==7.1 --hash=sha256:{B}"
    assert package.pin == f"torch==2.10.0+rocm7.1 --hash=sha256:{A} --hash=sha256:{B}"


@pytest.mark.parametrize(
    "file",
    ['wheels = [{ url = "http://one/x-1-py3-none-any.whl" }]', 'directory = { path = "x" }'],
    ids=["wheel without a digest", "folder"],
)
def test_rejects_a_resolved_package_without_a_digest(file: str) -> None:
    with pytest.raises(EnvironmentSetupError, match="x was resolved"):
        resolution.parse_pylock(f'[[packages]]\nname = "x"\nversion = "1"\n{file}\n')


def test_rejects_an_answer_that_is_no_lock() -> None:
    with pytest.raises(DataError, match="uv's answer"):
        resolution.parse_pylock("error: [")


@dataclass(kw_only=True)
class Resolver:
    """uv, which answers every question with one lock, and the last question's files."""

    lock: str = LOCK
    calls: list[Call] = field(default_factory=list)
    files: dict[str, list[str]] = field(default_factory=dict)

    def run(self, call: Call) -> Answer:
        """Answer a call. Its files are read now, because they do not outlive it."""
        self.files = {"requirements": read_lines(call.words[-1])}
        for option in ("--constraints", "--build-constraints", "--excludes"):
            self.files[option] = read_lines(call.option(option)) if option in call.words else []
        return Answer(stdout=self.lock)


def read_lines(path: str) -> list[str]:
    """Return the lines of a file."""
    return Path(path).read_text(encoding="utf-8").splitlines()


@pytest.fixture
def resolver(monkeypatch: pytest.MonkeyPatch) -> Resolver:
    """Return a uv that answers with torch and rocm."""
    resolver = Resolver()
    resolver.calls = answer_processes(monkeypatch, resolver.run)
    return resolver


QUERY = ResolverQuery(
    requirements=("torch==2.10.0+rocm7.1", "numpy"),
    constraints=("rocm==7.1",),
    sources=Sources(index_url="http://deps/", extra_index_urls=("http://run/",), cert="/ca.pem"),
    python=Path("/env/bin/python"),
    excludes=("rocm",),
)
ALLOWED = replace(QUERY, allows_ours=True)


def test_rejects_a_package_of_our_names_from_others(resolver: Resolver) -> None:
    with pytest.raises(EnvironmentSetupError) as raised:
        resolution.resolve(QUERY)

    assert "rocm 7.1" in raised.value.message
    assert resolver.calls


def test_refuses_all_our_names_but_those_that_nobody_asks_for(resolver: Resolver) -> None:
    with pytest.raises(EnvironmentSetupError):
        resolution.resolve(QUERY)

    refused = {"torch<0.dev0", "rocm-sdk-device-gfx942<0.dev0", "rocm-sdk-libraries-gfx94x-dcgpu<0.dev0"}
    assert refused < set(resolver.files["--constraints"])
    assert "rocm<0.dev0" not in resolver.files["--constraints"]
    assert resolver.files["--excludes"] == ["rocm"]


def test_refuses_all_our_names_where_sdists_are_built(resolver: Resolver) -> None:
    resolution.resolve(ALLOWED)

    assert {"rocm<0.dev0", "torch<0.dev0"} < set(resolver.files["--build-constraints"])


def test_takes_a_package_of_our_names_where_that_is_allowed(resolver: Resolver) -> None:
    resolved = resolution.resolve(ALLOWED)

    assert [package.name for package in resolved] == ["rocm", "torch"]
    assert resolver.files["requirements"] == ["torch==2.10.0+rocm7.1", "numpy"]
    assert resolver.files["--constraints"] == ["rocm==7.1"]


def test_asks_the_sources_of_the_question_alone(resolver: Resolver, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("UV_INDEX", "http://other")

    resolution.resolve(ALLOWED)

    (call,) = resolver.calls
    assert call.option("--index-url") == "http://deps/"
    assert call.option("--extra-index-url") == "http://run/"
    assert "UV_INDEX" not in call.variables
    assert call.variables["SSL_CERT_FILE"] == "/ca.pem"


def test_resolves_for_an_interpreter(resolver: Resolver) -> None:
    resolution.resolve(ALLOWED)

    (call,) = resolver.calls
    assert call.option("--python") == str(Path("/env/bin/python"))
    assert {"--only-binary", "--prerelease"}.isdisjoint(call.words)


def test_resolves_for_another_python_and_platform_with_wheels_alone(resolver: Resolver) -> None:
    query = ResolverQuery(
        requirements=("numpy",),
        sources=Sources(),
        python_version="3.13",
        platform="x86_64-pc-windows-msvc",
        only_wheels=True,
        pre=True,
        allows_ours=True,
    )

    resolution.resolve(query)

    (call,) = resolver.calls
    assert call.option("--python-version") == "3.13"
    assert call.option("--python-platform") == "x86_64-pc-windows-msvc"
    assert call.option("--prerelease") == "allow"
    assert call.option("--only-binary") == ":all:"
    assert "--python" not in call.words


def test_asks_nothing_where_nothing_is_required_of_others(resolver: Resolver) -> None:
    assert resolution.resolve_others((), ["torch"], QUERY) == ()
    assert resolver.calls == []


def test_asks_others_for_what_is_required_of_them_and_never_for_ours(resolver: Resolver) -> None:
    resolver.lock = numpy_lock()

    resolved = resolution.resolve_others(["numpy"], ["torch"], QUERY)

    assert [package.name for package in resolved] == ["numpy"]
    assert resolver.files["requirements"] == ["numpy"]
    assert resolver.files["--excludes"] == ["torch"]


def numpy_lock() -> str:
    """Return uv's answer that has numpy alone."""
    url = json.dumps("https://x/numpy-1-py3-none-any.whl")
    wheel = f'{{ url = {url}, hashes = {{ sha256 = "{A}" }} }}'
    return f'[[packages]]\nname = "numpy"\nversion = "1"\nwheels = [{wheel}]\n'


def test_others_may_bring_a_torch_that_is_installed_instead_of_a_build(resolver: Resolver) -> None:
    resolved = resolution.resolve_others(["torch==2.13"], [], QUERY, allows_ours=True)

    assert "torch" in [package.name for package in resolved]
    assert "torch<0.dev0" not in resolver.files["--constraints"]


def test_a_refusal_repeats_the_resolver(monkeypatch: pytest.MonkeyPatch) -> None:
    answer_processes(monkeypatch, lambda _call: Answer(status=1, stderr="no version of torch"))

    with pytest.raises(EnvironmentSetupError) as raised:
        resolution.resolve(ResolverQuery(requirements=("torch",), sources=Sources()))

    assert raised.value.message.startswith("torch ")
    assert raised.value.message.endswith("no version of torch")


def test_a_refusal_names_an_index_that_does_not_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    answer_processes(monkeypatch, lambda _call: Answer(status=1, stderr="no version of numpy"))

    with answering(RefusingServer) as url, pytest.raises(EnvironmentSetupError) as raised:
        resolution.resolve(
            ResolverQuery(requirements=("numpy",), sources=Sources(index_url=f"{url}/simple/"))
        )

    assert f"{url}/simple/: it answers 403" in raised.value.message
    assert "--deps-index-url" in raised.value.hint


# Calls that install exact files


def test_installs_packages_of_others_by_their_digests(tmp_path: Path) -> None:
    request = resolution.call_for_others(tmp_path / "locks", [NUMPY], None)

    assert request.files[0].read_text().splitlines() == [f"numpy==1 --hash=sha256:{A}"]
    assert request.hashed
    assert not request.dependencies
    assert request.build_isolation, "their sdists are built with what they ask for"


def test_installs_files_of_ours_by_their_digests(tmp_path: Path) -> None:
    request = resolution.call_for_ours(tmp_path / "locks", [TRITON], None)

    assert request.files[0].read_text().splitlines() == [f"triton==3.6.0 --hash=sha256:{B}"]
    assert request.hashed
    assert not request.dependencies
    assert not request.build_isolation


def test_builds_sdists_of_ours_for_the_gpu_family(tmp_path: Path) -> None:
    request = resolution.call_for_ours(tmp_path / "locks", [TRITON], None, gpu_family="gfx942")

    assert request.env == {"ROCM_SDK_TARGET_FAMILY": "gfx942"}


def test_refuses_to_install_a_file_without_its_digest(tmp_path: Path) -> None:
    with pytest.raises(WheelError, match="triton"):
        resolution.call_for_ours(tmp_path / "locks", [replace(TRITON, sha256=None)], None)
