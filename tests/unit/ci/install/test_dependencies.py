from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ci.install import dependencies
from ci.install.dependencies import Cell, Mirror, Need, Source, batches, mirror, needs, publish, resolved
from core import files, process
from core.data import load_toml
from core.env.installer import Sources
from core.errors import DataError, EnvironmentSetupError, StoreError, WheelError
from core.packages import Offer, RunGroup, offered
from core.packages.resolution import Resolved, others_of
from core.run import RunOutputs
from core.run.records import FileRecord
from core.stores import Store
from core.wheel.distributions import is_ours
from pytorch_build.refs.torch_refs import DISTRIBUTIONS
from tests.kit.mirrors import MIRROR

LINUX_312 = Cell(python="3.12", platform="linux")


def test_names_of_ours_and_what_an_extra_asks_for_are_left_out() -> None:
    lines = ["torch==2", "numpy>=2", "x; extra == 'tests'", "y; sys_platform == 'win32'", "rocm[devel]"]
    assert others_of(lines, where="x") == ("numpy>=2", 'y; sys_platform == "win32"')
    with pytest.raises(WheelError, match="'=1', which is not a requirement"):
        others_of(["=1"], where="x")


def test_each_distribution_is_resolved_by_itself_and_the_data_together_for_every_cell() -> None:
    found = needs(MIRROR, [], [])
    assert len(found) == 2 * 2 * 2, "what is the same for two is asked once"
    assert {(one.cell.python, one.cell.platform) for one in found} == {
        (python, platform) for python in MIRROR.pythons for platform in MIRROR.platforms
    }
    assert {one.requirements for one in found} == {("numpy",), ("numpy", "pillow")}


def test_a_runs_wheels_are_asked_for_their_own_python_and_platform(
    store: Store, outputs: RunOutputs, publish: Callable[..., FileRecord]
) -> None:
    publish(
        "torch", tag="cp312-cp312-linux_x86_64", fields=[("Requires-Dist", one) for one in ("sympy", "rocm")]
    )
    group = RunGroup(store=store, outputs=outputs, name="g")
    found = [one for one in needs(MIRROR, [group], [offered(group)]) if one.requirements == ("sympy",)]
    assert [one.cell for one in found] == [LINUX_312]
    assert found[0].of.startswith("torch-2.10.0")


def one_file(name: str, sha256: str, version: str = "1") -> Resolved:
    own = f"{name}-{version}-py3-none-any.whl"
    file = Offer(name=own, distribution=name, version=version, sha256=sha256)
    return Resolved(name=name, version=version, files=(file,))


@pytest.fixture(name="answers")
def answers_fixture(monkeypatch: pytest.MonkeyPatch) -> dict[str, Sequence[Resolved]]:
    """What the public index has: requirements, joined, to what they resolve to."""
    answers: dict[str, Sequence[Resolved]] = {}
    monkeypatch.setattr(dependencies, "configured", lambda: "the person's configuration")
    monkeypatch.setattr(dependencies, "resolve", lambda question: answers[" ".join(question.requirements)])
    return answers


def need(*requirements: str) -> Need:
    return Need(cell=LINUX_312, of="torch", requirements=requirements)


def test_one_name_for_two_files_is_refused(answers: dict[str, Sequence[Resolved]]) -> None:
    answers["a"], answers["b"] = [one_file("numpy", "a" * 64)], [one_file("numpy", "b" * 64)]
    with pytest.raises(StoreError, match=r"two files numpy-1-py3-none-any\.whl"):
        resolved(MIRROR, [need("a"), need("b")])


def test_each_question_is_asked_for_its_cell_with_wheels_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[Any] = []

    def resolve(question: Any) -> Sequence[Resolved]:
        asked.append(question)
        return ()

    monkeypatch.setattr(dependencies, "configured", lambda: "mine")
    monkeypatch.setattr(dependencies, "resolve", resolve)
    resolved(MIRROR, [Need(cell=Cell(python="3.11", platform="windows"), of="x", requirements=("numpy",))])
    (question,) = asked
    assert (question.python_version, question.platform) == ("3.11", "x86_64-pc-windows-msvc")
    assert (question.only_wheels, question.exact, question.sources) == (True, False, "mine")

    def refuse(_: object) -> None:
        raise EnvironmentSetupError("no wheel of it")

    monkeypatch.setattr(dependencies, "resolve", refuse)
    said = r"What torch requires, for Python 3\.12 on linux: no wheel"
    with pytest.raises(EnvironmentSetupError, match=said):
        resolved(MIRROR, [need("numpy")])


def source(name: str, version: str, python: str) -> Source:
    return Source(
        name=f"{name}-{version}-{python}.whl",
        distribution=name,
        version=version,
        sha256="a" * 64,
        cell=Cell(python=python, platform="linux"),
    )


@given(
    st.lists(
        st.builds(source, st.sampled_from("abc"), st.sampled_from("12"), st.sampled_from(["3.11", "3.12"])),
        unique_by=lambda one: one.name,
    )
)
def test_calls_of_pip_hold_each_file_once_one_cell_and_no_distribution_twice(sources: list[Source]) -> None:
    found = batches(sources)
    assert sorted(one.name for batch in found for one in batch) == sorted(one.name for one in sources)
    for batch in found:
        assert len({one.cell for one in batch}) == 1
        assert len({one.distribution for one in batch}) == len(batch) > 0


def test_pip_gives_files_by_digest_for_any_python(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[list[str]] = []
    monkeypatch.setattr(process, "run", lambda argv, **_: asked.append(argv))
    monkeypatch.setattr(dependencies, "configured", lambda: Sources(index_url="https://mine"))
    dependencies.download(MIRROR, [source("numpy", "1", "3.12")], tmp_path)
    words = " ".join(asked[0])
    assert "--require-hashes --only-binary :all:" in words
    assert "--python-version 3.12 --implementation cp --abi cp312" in words
    assert "--platform manylinux_2_28_x86_64 --index-url https://mine" in words
    assert Path(asked[0][-1]).read_text() == f"numpy==1 --hash=sha256:{'a' * 64}\n"


def test_a_misnamed_wheel_is_not_taken(store: Store, tmp_path: Path, make_wheel: Callable[..., Path]) -> None:
    path = make_wheel(tmp_path, "torch", "1")
    wanted = Source(
        name=path.name, distribution="numpy", version="1", sha256=files.sha256(path), cell=LINUX_312
    )
    with pytest.raises(DataError, match="calls itself torch"):
        publish(MIRROR, store, wanted, path)
    assert store.list("python-deps") == []


def test_names_of_ours_are_known_in_any_spelling() -> None:
    rocm = ("rocm", "rocm-sdk-core", "ROCm_SDK.devel", "rocm-sdk-libraries-gfx94x-dcgpu", "rocm-profiler")
    torch = ("torch", "Torch", "torchvision", "torchaudio", "triton", "pytorch_triton_rocm", "apex")
    assert all(map(is_ours, (*rocm, "rocm-bootstrap", *torch, *DISTRIBUTIONS.values())))
    others = ("numpy", "torchmetrics", "tritonclient", "rocrand", "torch-geometric")
    assert not any(map(is_ours, others))


def test_the_data_names_every_supported_python_and_platform_and_nothing_of_ours(tmp_path: Path) -> None:
    data = mirror()
    assert set(data.pythons) == {"3.10", "3.11", "3.12", "3.13", "3.14"}
    assert set(data.platforms) == {"linux", "windows"}
    known = {line for lines in data.requirements.values() for line in lines}
    assert {line for line in known if is_ours(line.partition(">")[0])} == set()
    assert data.index_key == "python-deps/simple/index.html"
    assert len({one.cell for one in needs(data, [], [])}) == 10
    path = tmp_path / "mirror.toml"
    path.write_text('prefix = "p"\npythons = []\n[platforms]\n[requirements]\ntorch = ["filelock", "=1"]\n')
    with pytest.raises(DataError, match=r"requirements\.torch\[1\]: '=1' is not a requirement"):
        load_toml(path, Mirror)
