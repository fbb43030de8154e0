"""What a mirror of dependencies holds, and how it is resolved and downloaded."""

from collections.abc import Callable, Sequence
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ci.install import dependencies
from ci.install.dependencies import MirrorData, Need, collect_needs, downloads, mirror, publish, resolve_needs
from core.cell import Cell
from core.data import load_toml
from core.env.installer import Sources
from core.errors import DataError, EnvironmentSetupError, StoreError, WheelError
from core.packages.candidates import Candidate
from core.packages.groups import RunGroup
from core.packages.resolution import ResolvedPackage, ResolverQuery
from core.packages.search import others_required_by_lines
from core.run import RunOutputs
from core.stores import Store
from core.wheel.distributions import is_ours
from pytorch_build.components import distributions
from tests.kit.machines import Answer, answer_processes
from tests.kit.mirrors import MIRROR
from tests.kit.small_runs import GROUP, publish_wheel
from tests.kit.wheels import sha256, write_wheel

LINUX_312 = Cell(python="3.12", platform="linux")


# --- What is needed --------------------------------------------------------------------------


def test_leaves_out_packages_of_ours_and_those_of_extras() -> None:
    lines = ["torch==2", "numpy>=2", "x; extra == 'tests'", "y; sys_platform == 'win32'", "rocm[devel]"]

    assert others_required_by_lines(lines, where="x") == ("numpy>=2", 'y; sys_platform == "win32"')


def test_refuses_metadata_with_text_that_is_not_a_requirement() -> None:
    with pytest.raises(WheelError, match="'=1'"):
        others_required_by_lines(["=1"], where="x")


@pytest.mark.parametrize(
    "name",
    [
        "rocm",
        "rocm-sdk-core",
        "ROCm_SDK.devel",
        "rocm-sdk-libraries-gfx94x-dcgpu",
        "rocm-profiler",
        "rocm-bootstrap",
        "torch",
        "Torch",
        "torchvision",
        "torchaudio",
        "triton",
        "pytorch_triton_rocm",
        "apex",
        *distributions(),
    ],
)
def test_knows_packages_of_ours_in_any_spelling(name: str) -> None:
    assert is_ours(name)


@pytest.mark.parametrize("name", ["numpy", "torchmetrics", "tritonclient", "rocrand", "torch-geometric"])
def test_knows_packages_of_others(name: str) -> None:
    assert not is_ours(name)


def test_needs_each_distributions_requirements_once_for_every_cell() -> None:
    all_needs = collect_needs(MIRROR, [])

    cells = {(need.cell.python, need.cell.platform) for need in all_needs}
    assert cells == {("3.11", "linux"), ("3.11", "windows"), ("3.12", "linux"), ("3.12", "windows")}
    # Those of torch, and those of torch and vision together.
    assert {need.requirements for need in all_needs} == {("numpy",), ("numpy", "pillow")}
    assert len(all_needs) == 2 * len(cells)


def test_needs_a_runs_requirements_for_the_wheels_own_cell(
    store: Store,
    outputs: RunOutputs,
    tmp_path: Path,
) -> None:
    publish_wheel(store, outputs, tmp_path, tag="cp312-cp312-linux_x86_64", requires=["sympy", "rocm"])
    group = RunGroup(store=store, outputs=outputs, name=GROUP)

    all_needs = collect_needs(MIRROR, [group])

    (need,) = [need for need in all_needs if need.requirements == ("sympy",)]
    assert need.cell == LINUX_312
    assert need.required_by.startswith("torch-2.10.0")


# --- What needs resolve to -------------------------------------------------------------------


def need(*requirements: str, cell: Cell = LINUX_312) -> Need:
    return Need(cell=cell, required_by="torch", requirements=requirements)


def resolved_wheel(name: str, digest: str) -> ResolvedPackage:
    offer = Candidate(name=f"{name}-1-py3-none-any.whl", distribution=name, version="1", sha256=digest)
    return ResolvedPackage(name=name, version="1", files=(offer,))


@pytest.fixture
def answer_questions(monkeypatch: pytest.MonkeyPatch) -> Callable[..., list[ResolverQuery]]:
    """Return a function that lets an installer answer questions, and notes them."""

    def set_answer(answer: Callable[[ResolverQuery], Sequence[ResolvedPackage]]) -> list[ResolverQuery]:
        questions: list[ResolverQuery] = []

        def resolve(question: ResolverQuery) -> Sequence[ResolvedPackage]:
            questions.append(question)
            return answer(question)

        monkeypatch.setattr(dependencies, "configured_sources", lambda: Sources(index_url="https://mine"))
        monkeypatch.setattr(dependencies, "resolve", resolve)
        return questions

    return set_answer


def test_refuses_one_name_for_two_files(answer_questions: Callable[..., list[ResolverQuery]]) -> None:
    digests = {("a",): "a" * 64, ("b",): "b" * 64}
    answer_questions(lambda question: [resolved_wheel("numpy", digests[tuple(question.requirements)])])

    with pytest.raises(StoreError, match="numpy-1-py3"):
        resolve_needs(MIRROR, [need("a"), need("b")])


def test_asks_for_wheels_of_a_cell_from_the_persons_index(
    answer_questions: Callable[..., list[ResolverQuery]],
) -> None:
    questions = answer_questions(lambda _: ())

    resolve_needs(MIRROR, [need("numpy", cell=Cell(python="3.11", platform="windows"))])

    (question,) = questions
    assert question.python_version == "3.11"
    assert question.platform == "x86_64-pc-windows-msvc"
    assert question.only_wheels
    assert question.sources == Sources(index_url="https://mine")


def test_names_whose_requirements_cannot_be_resolved(
    answer_questions: Callable[..., list[ResolverQuery]],
) -> None:
    def refuse(_question: ResolverQuery) -> Sequence[ResolvedPackage]:
        raise EnvironmentSetupError("no wheel of it")

    answer_questions(refuse)

    with pytest.raises(EnvironmentSetupError, match="torch") as caught:
        resolve_needs(MIRROR, [need("numpy")])

    assert "Python 3.12, on linux" in caught.value.message


# --- Downloads -------------------------------------------------------------------------------


def mirrored_file(name: str, version: str) -> Candidate:
    return Candidate(name=f"{name}-{version}.whl", distribution=name, version=version, sha256="a" * 64)


files_of_cell = st.lists(
    st.builds(mirrored_file, st.sampled_from("abc"), st.sampled_from("12")),
    unique_by=lambda file: file.name,
)
cells = st.sampled_from([LINUX_312, Cell(python="3.11", platform="linux")])


@given(st.dictionaries(cells, files_of_cell))
def test_pip_is_called_for_each_file_once_and_never_for_a_distribution_twice(
    files_by_cell: dict[Cell, list[Candidate]],
) -> None:
    downloaded: dict[Cell, list[Candidate]] = {cell: [] for cell in files_by_cell}

    for cell, files in downloads(files_by_cell):
        assert len({file.distribution for file in files}) == len(files)
        downloaded[cell] += files

    for cell, files in files_by_cell.items():
        assert sorted(file.name for file in downloaded[cell]) == sorted(file.name for file in files)


def test_pip_downloads_by_digest_for_any_python(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    calls = answer_processes(monkeypatch, lambda _: Answer())
    monkeypatch.setattr(dependencies, "configured_sources", lambda: Sources(index_url="https://mine"))

    dependencies.download(MIRROR, LINUX_312, [mirrored_file("numpy", "1")], tmp_path)

    (call,) = calls
    assert "--require-hashes" in call.words
    assert call.option("--only-binary") == ":all:"
    assert call.option("--python-version") == "3.12"
    assert call.option("--abi") == "cp312"
    assert call.option("--platform") == "manylinux_2_28_x86_64"
    assert call.option("--index-url") == "https://mine"
    assert Path(call.words[-1]).read_text() == f"numpy==1 --hash=sha256:{'a' * 64}\n"


def test_refuses_a_wheel_with_another_name(store: Store, tmp_path: Path) -> None:
    path = write_wheel(tmp_path, name="torch", version="1")
    numpy = Candidate(name=path.name, distribution="numpy", version="1", sha256=sha256(path))

    with pytest.raises(DataError, match="torch"):
        publish(MIRROR, store, numpy, path)

    assert store.list("python-deps") == []


# --- The data --------------------------------------------------------------------------------


def test_the_data_names_every_supported_python_and_platform() -> None:
    assert set(mirror().pythons) == {"3.10", "3.11", "3.12", "3.13", "3.14"}
    assert set(mirror().platforms) == {"linux", "windows"}
    assert len({need.cell for need in collect_needs(mirror(), [])}) == 10


def test_the_data_requires_nothing_of_ours() -> None:
    for requirements in mirror().requirements.values():
        for requirement in requirements:
            assert not is_ours(requirement.partition(">")[0])


def test_names_the_place_of_text_that_is_not_a_requirement(tmp_path: Path) -> None:
    path = tmp_path / "mirror.toml"
    path.write_text('prefix = "p"\npythons = []\n[platforms]\n[requirements]\ntorch = ["filelock", "=1"]\n')

    with pytest.raises(DataError, match=r"requirements\.torch\[1\]"):
        load_toml(path, MirrorData)
