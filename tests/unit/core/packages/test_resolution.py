import json
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import pytest

from core.env.installer import Sources
from core.errors import DataError, EnvironmentSetupError
from core.http import answering
from core.packages import Offer, resolution
from core.packages.resolution import Chosen, Question, SdistRequires
from core.packages.sources import PackageSource
from tests.kit.machines import Answer, Call, answer_processes, target_in
from tests.kit.servers import RefusingServer
from tests.kit.wheels import write_sdist, write_wheel

A = "a" * 64
B = "b" * 64


@dataclass(frozen=True)
class Packages:
    """A folder of packages to choose from."""

    folder: Path

    def add(self, name: str, version: str, *requires: str, tag: str = "py3-none-any") -> None:
        """Write a wheel."""
        write_wheel(self.folder, name=name, version=version, requires=requires, tag=tag)

    def choose(
        self, *requirements: str, sdist_requires: SdistRequires = lambda _sdist, _extras: ()
    ) -> Chosen:
        """Choose packages for Python 3.12 on Linux."""
        return resolution.choose(
            PackageSource(find_links=(str(self.folder),)),
            requirements,
            python=target_in(self.folder / "env", version="3.12.4"),
            platform="linux",
            sdist_requires=sdist_requires,
        )


@pytest.fixture
def packages(tmp_path: Path) -> Packages:
    """Return a folder without packages."""
    return Packages(tmp_path / "dist")


# Our packages


def test_chooses_our_packages_and_what_they_require_of_ours(packages: Packages) -> None:
    packages.add("torch", "2.10.0", "triton==3.6.0; sys_platform == 'linux'")
    packages.add("triton", "3.6.0")
    packages.add("rocm", "7.1")

    choice = packages.choose("torch")

    assert choice.versions == {"torch": "2.10.0", "triton": "3.6.0"}
    assert all(len(offer.sha256) == 64 for offer in choice.files)


def test_gathers_what_is_required_of_others(packages: Packages) -> None:
    packages.add("torch", "2.10.0", "numpy>=2", "pywin32; os_name == 'nt'")

    assert packages.choose("torch", "pytest").others == ("numpy>=2", "pytest")


@pytest.fixture
def packages_with_extras(packages: Packages) -> Packages:
    """Return a torch whose extras require a package of ours and one of others, and an apex that has one."""
    packages.add(
        "torch", "2", "amd-torch-device-gfx942==2; extra == 'device-gfx942'", "numpy; extra == 'more'"
    )
    packages.add("amd-torch-device-gfx942", "2", "torch==2")
    packages.add("apex", "1", "torch[more]")
    return packages


@pytest.mark.parametrize(
    ("requirement", "names"),
    [("torch", {"torch"}), ("torch[device-gfx942]", {"torch", "amd-torch-device-gfx942"})],
)
def test_extras_count_where_they_are_required(
    packages_with_extras: Packages, requirement: str, names: set[str]
) -> None:
    assert set(packages_with_extras.choose(requirement).versions) == names


def test_extras_count_for_a_package_that_is_chosen_already(packages_with_extras: Packages) -> None:
    assert packages_with_extras.choose("torch", "apex").others == ("numpy",)


@pytest.fixture
def packages_of_several_versions(packages: Packages) -> Packages:
    """Return three versions of torch, and two torchvisions, of which only the older one has its torch."""
    for version in ("2.10.0a1", "2.10.0.dev5", "2.9.0"):
        packages.add("torch", version)
    packages.add("torchvision", "0.25.0", "torch==2.11.0")
    packages.add("torchvision", "0.24.0", "torch==2.9.0")
    return packages


def test_chooses_the_newest_version(packages_of_several_versions: Packages) -> None:
    # PEP 440: an alpha is newer than a development release.
    assert packages_of_several_versions.choose("torch").versions == {"torch": "2.10.0a1"}


@pytest.mark.parametrize("requirements", [["torchvision", "torch"], ["torch", "torchvision"]], ids=" ".join)
def test_chooses_an_older_version_where_the_newest_does_not_fit(
    packages_of_several_versions: Packages, requirements: Sequence[str]
) -> None:
    choice = packages_of_several_versions.choose(*requirements)

    assert choice.versions == {"torchvision": "0.24.0", "torch": "2.9.0"}


@pytest.mark.parametrize(
    ("requirement", "mentioned"),
    [
        ("torch==3", ["torch==3", "Python 3.12", "/dist has 2"]),
        ("apex", ["no apex", "none of it"]),
        ("torch", ["triton==9", "torch-2-py3-none-any.whl", "has 3.6.0"]),
    ],
    ids=["version", "package", "requirement of a package"],
)
def test_names_what_is_missing_and_what_there_is(
    packages: Packages, requirement: str, mentioned: list[str]
) -> None:
    packages.add("torch", "2", "triton==9")
    packages.add("triton", "3.6.0")

    with pytest.raises(EnvironmentSetupError) as raised:
        packages.choose(requirement)

    assert all(name in raised.value.message for name in mentioned)
    assert "--find-links" in raised.value.hint


@pytest.mark.parametrize("tag", ["cp311-cp311-linux_x86_64", "cp312-cp312-win_amd64"])
def test_chooses_no_file_of_another_python_or_platform(packages: Packages, tag: str) -> None:
    packages.add("torch", "2", tag=tag)

    with pytest.raises(EnvironmentSetupError, match="no torch"):
        packages.choose("torch")


def test_chooses_a_file_for_the_python_and_platform(packages: Packages) -> None:
    packages.add("torch", "2", tag="cp312-cp312-manylinux_2_28_x86_64")

    assert packages.choose("torch").versions == {"torch": "2"}


def test_an_sdist_requires_what_the_caller_knows_of_its_extras(packages: Packages) -> None:
    write_sdist(packages.folder, name="rocm", version="7.1")
    packages.add("rocm-sdk-core", "7.1")
    questions: list[tuple[str, frozenset[str]]] = []

    def sdist_requires(sdist: Offer, extras: frozenset[str]) -> Sequence[str]:
        questions.append((sdist.distribution, extras))
        return ["rocm-sdk-core==7.1"]

    choice = packages.choose("rocm[libraries]", sdist_requires=sdist_requires)

    assert set(choice.versions) == {"rocm", "rocm-sdk-core"}
    assert ("rocm", frozenset({"libraries"})) in questions


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

NUMPY = resolution.Resolved(
    name="numpy",
    version="1",
    files=(Offer(name="numpy", distribution="numpy", version="1", url="https://x/y", sha256=A),),
)


def test_reads_names_as_they_are_compared_and_addresses_unquoted() -> None:
    _rocm, torch = resolution.parse_pylock(LOCK)

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


def test_pins_a_resolved_package_by_the_digests_of_its_files() -> None:
    rocm, torch = resolution.parse_pylock(LOCK)
    package = resolution.Resolved(name="x", version="1", files=(*torch.files, *rocm.files))

    assert rocm.pinned == f"rocm==7.1 --hash=sha256:{B}"
    assert package.pinned == f"x==1 --hash=sha256:{A} --hash=sha256:{B}"


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


QUESTION = Question(
    requirements=("torch==2.10.0+rocm7.1", "numpy"),
    constraints=("rocm==7.1",),
    sources=Sources(index_url="http://deps/", extra_index_urls=("http://run/",), cert="/ca.pem"),
    python=Path("/env/bin/python"),
    excludes=("rocm",),
)
ALLOWED = replace(QUESTION, allowed=True)


def test_rejects_a_package_of_our_names_from_others(resolver: Resolver) -> None:
    with pytest.raises(EnvironmentSetupError) as raised:
        resolution.resolve(QUESTION)

    assert "rocm 7.1" in raised.value.message
    assert resolver.calls


def test_refuses_all_our_names_but_those_that_nobody_asks_for(resolver: Resolver) -> None:
    with pytest.raises(EnvironmentSetupError):
        resolution.resolve(QUESTION)

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
    assert call.option("--python") == "/env/bin/python"
    assert {"--only-binary", "--prerelease"}.isdisjoint(call.words)


def test_resolves_for_another_python_and_platform_with_wheels_alone(resolver: Resolver) -> None:
    question = Question(
        requirements=("numpy",),
        sources=Sources(),
        python_version="3.13",
        platform="x86_64-pc-windows-msvc",
        only_wheels=True,
        pre=True,
        allowed=True,
    )

    resolution.resolve(question)

    (call,) = resolver.calls
    assert call.option("--python-version") == "3.13"
    assert call.option("--python-platform") == "x86_64-pc-windows-msvc"
    assert call.option("--prerelease") == "allow"
    assert call.option("--only-binary") == ":all:"
    assert "--python" not in call.words


def test_asks_nothing_where_nothing_is_required_of_others(resolver: Resolver) -> None:
    assert resolution.resolve_others((), ["torch"], QUESTION) == ()
    assert resolver.calls == []


def test_asks_others_for_what_is_required_of_them_and_never_for_ours(resolver: Resolver) -> None:
    resolver.lock = numpy_lock()

    resolved = resolution.resolve_others(["numpy"], ["torch"], QUESTION)

    assert [package.name for package in resolved] == ["numpy"]
    assert resolver.files["requirements"] == ["numpy"]
    assert resolver.files["--excludes"] == ["torch"]


def numpy_lock() -> str:
    """Return uv's answer that has numpy alone."""
    url = json.dumps("https://x/numpy-1-py3-none-any.whl")
    wheel = f'{{ url = {url}, hashes = {{ sha256 = "{A}" }} }}'
    return f'[[packages]]\nname = "numpy"\nversion = "1"\nwheels = [{wheel}]\n'


def test_others_may_bring_a_torch_that_is_installed_instead_of_a_build(resolver: Resolver) -> None:
    resolved = resolution.resolve_others(["torch==2.13"], [], QUESTION, allowed=True)

    assert "torch" in [package.name for package in resolved]
    assert "torch<0.dev0" not in resolver.files["--constraints"]


def test_a_refusal_repeats_the_resolver(monkeypatch: pytest.MonkeyPatch) -> None:
    answer_processes(monkeypatch, lambda _call: Answer(status=1, stderr="no version of torch"))

    with pytest.raises(EnvironmentSetupError) as raised:
        resolution.resolve(Question(requirements=("torch",), sources=Sources()))

    assert raised.value.message.startswith("torch ")
    assert raised.value.message.endswith("no version of torch")


def test_a_refusal_names_an_index_that_does_not_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    answer_processes(monkeypatch, lambda _call: Answer(status=1, stderr="no version of numpy"))

    with answering(RefusingServer) as url, pytest.raises(EnvironmentSetupError) as raised:
        resolution.resolve(Question(requirements=("numpy",), sources=Sources(index_url=f"{url}/simple/")))

    assert f"{url}/simple/: it answers 403" in raised.value.message
    assert "--deps-index-url" in raised.value.hint


def test_pins_our_files_and_those_of_others_by_digest(packages: Packages, tmp_path: Path) -> None:
    packages.add("triton", "3.6.0")
    choice = packages.choose("triton")

    request = resolution.pinned_call(tmp_path / "locks", [*choice.files, NUMPY], None)

    assert request.files[0].read_text().splitlines() == [
        f"numpy==1 --hash=sha256:{A}",
        f"triton==3.6.0 --hash=sha256:{choice.files[0].sha256}",
    ]
    assert request.hashed
    assert not request.dependencies
    assert not request.build_isolation


def test_builds_sdists_of_pinned_files_for_the_gpu_family(tmp_path: Path) -> None:
    request = resolution.pinned_call(tmp_path / "locks", [NUMPY], None, family="gfx942")

    assert request.env == {"ROCM_SDK_TARGET_FAMILY": "gfx942"}
