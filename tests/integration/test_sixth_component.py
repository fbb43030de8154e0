"""A sixth component: one module, its session, its name and a repository take it to a release."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.kit.clones import FAMILY, ROOT, TAG, Clone
from tests.kit.repos import commit_files, run_git

pytestmark = pytest.mark.nightly

MODULE = ROOT / "tests" / "kit" / "torchao.py"
AUDIO = ROOT / "pytorch_build" / "sample" / "templates" / "audio"
SESSION = '''

@nox.session
@cells
def build_torchao(session: nox.Session, **cell: str) -> None:
    """Build the torchao wheel, against the run's torch."""
    cell_front_door(session, "build", "torchao", cell=cell)
'''
# The sample's ref gets a table of the new component, and builds it.
REF = """
[refs.sample]
components = ["triton", "torch", "audio", "vision", "apex", "torchao"]
torchao = {{ origin = "{origin}", ref = "main" }}
"""


@pytest.fixture
def workshop(clone: Clone) -> Iterator[Clone]:
    """Return the clone in which the sample's pipeline ran; what is changed there is put back."""
    yield clone
    run_git(clone.path, "checkout", "--quiet", "--", ".")


def replace_text(path: Path, old: str, new: str) -> None:
    """Replace a text that a file has."""
    text = path.read_text(encoding="utf-8")
    assert old in text
    path.write_text(text.replace(old, new, 1), encoding="utf-8")


def add_component(clone: Clone) -> None:
    """Add torchao to a checkout, as a developer would."""
    components = clone.path / "pytorch_build" / "components"
    # The miniature is smaller than the real wheel.
    module = MODULE.read_text(encoding="utf-8").replace("minimum=500_000", "minimum=500")
    (components / "torchao.py").write_text(module, encoding="utf-8")
    replace_text(
        components / "__init__.py",
        "from pytorch_build.components.triton",
        "from pytorch_build.components.torchao import TORCHAO\nfrom pytorch_build.components.triton",
    )
    replace_text(components / "__init__.py", "VISION, APEX)", "VISION, APEX, TORCHAO)")
    replace_text(clone.path / "core" / "wheel" / "our_names.toml", '"apex",', '"apex", "torchao",')
    with (clone.path / "noxfile.py").open("a", encoding="utf-8") as noxfile:
        noxfile.write(SESSION)


def create_repository(folder: Path) -> Path:
    """Create a repository of a miniature torchao: the sample's audio under another name."""
    texts: dict[str, str] = {"version.txt": "0.9.0\n"}
    for path in sorted(AUDIO.rglob("*")):
        name = path.relative_to(AUDIO).as_posix().replace("torchaudio", "torchao")
        if path.is_file() and path.suffix in {".py", ".cpp"}:
            texts[name] = path.read_text(encoding="utf-8").replace("torchaudio", "torchao")
    texts[".gitignore"] = "torchao/version.py\nbuild/\ndist/\n*.egg-info/\n"
    commit_files(folder, texts)
    return folder


@pytest.fixture
def refs(workshop: Clone, tmp_path: Path) -> Path:
    """Add the component to the workshop, and return the refs that build it."""
    add_component(workshop)
    refs = tmp_path / "refs.toml"
    refs.write_text(REF.format(origin=create_repository(tmp_path / "torchao")), encoding="utf-8")
    return refs


def test_takes_a_sixth_component_to_a_tested_wheel(workshop: Clone, refs: Path) -> None:
    options = ("--torch-ref", "sample", "--config-file", refs)

    workshop.run_checked("nox", "-s", "build_torchao", "check_wheels", "upload", "test_smoke", "--", *options)

    (wheel,) = workshop.wheels().glob("torchao-*.whl")
    assert wheel.name.startswith("torchao-0.9.0+torch2.10.devrocm7.99.0.dev0.sample-")
    page = workshop.wheels() / "index.html"
    assert wheel.name.replace("+", "%2B") in page.read_text(encoding="utf-8")
    smoke = workshop.record(f"test_smoke-sample-{TAG}", FAMILY)
    assert wheel.name in smoke["inputs"]["files"]


def test_promotes_a_sixth_component(workshop: Clone, refs: Path) -> None:
    workshop.run_checked("invoke", "release", "--type", "rehearsal", "--config-file", refs)

    release = workshop.path / "out" / "rehearsal" / "v2" / "cpu"
    (wheel,) = release.glob("torchao-*.whl")
    assert wheel.name.startswith("torchao-0.9.0+torch2.10.cpu.sample-")
    page = release / "index.html"
    assert wheel.name.replace("+", "%2B") in page.read_text(encoding="utf-8")
