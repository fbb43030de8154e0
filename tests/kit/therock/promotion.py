"""Promotion: what becomes of the packages of a ROCm release candidate, by TheRock's script and by ours."""

import gzip
import io
import shutil
import tarfile
import tempfile
import zipfile
from collections.abc import Collection, Mapping, Sequence
from functools import partial
from pathlib import Path

from packaging.utils import canonicalize_name

from ci.promote.edits import MemberEdits
from ci.promote.version_change import RocmChange, plan_set
from core.wheel.editor import edit_sdist, edit_wheel
from pytorch_build.components.torch import rocm_init_text
from tests.kit.therock.checkout import TheRock
from tests.kit.therock.comparison import Comparison, Facts, Rule
from tests.kit.therock.packages import VERSION, upstream_packages
from tests.kit.wheels import write_wheel

RELEASE = "7.99.0"
KEPT_TARGETS = ("gfx1100", "gfx942")
TAG = "cp312-cp312-linux_x86_64"

# Texts of packages that say versions or list targets. RECORD holds digests, WHEEL what packed it.
COMPARED = ("METADATA", "PKG-INFO", "requires.txt", ".py", ".json")


def write_pytorch_wheels(folder: Path) -> None:
    """Write wheels of PyTorch's as TheRock's builds make them of a release candidate."""
    local = f"+rocm{VERSION}"
    devices = ("gfx942", "gfx1100", "gfx1101")
    torch_requirements = [
        f"rocm[libraries]=={VERSION}",
        "rocm-bootstrap",
        f'triton==3.6.0{local}; platform_system == "Linux"',
    ]
    extras = [("Provides-Extra", "device-all")]
    for target in devices:
        extras.append(("Provides-Extra", f"device-{target}"))
        requirement = f"amd-torch-device-{target}==2.14.0{local}"
        torch_requirements += [
            f'{requirement}; extra == "device-all"',
            f'{requirement}; extra == "device-{target}"',
        ]

    write = partial(write_wheel, folder, tag=TAG)
    write(
        name="torch",
        version=f"2.14.0{local}",
        requires=torch_requirements,
        metadata_fields=extras,
        files={
            "torch/version.py": f"__version__ = '2.14.0{local}'\ndebug = False\n",
            "torch/_rocm_init.py": rocm_init_text(("amdhip64",), rocm_version=VERSION),
        },
    )
    for name, version in (("torchaudio", "2.11.0"), ("torchvision", "0.29.0")):
        write(
            name=name,
            version=f"{version}{local}",
            requires=[f"torch==2.14.0{local}"],
            files={f"{name}/version.py": f"__version__ = '{version}{local}'\n"},
        )
    write(
        name="apex",
        version=f"1.14.0{local}",
        files={"apex/git_version_info_installed.py": f"version='1.14.0{local}'\n"},
    )
    write(name="triton", version=f"3.6.0{local}", files={"triton/__init__.py": "__version__ = '3.6.0'\n"})
    for target in devices:
        write(
            name=f"amd-torch-device-{target}",
            version=f"2.14.0{local}",
            requires=[f"torch==2.14.0{local}", f"rocm-sdk-device-{target}=={VERSION}"],
            files={f"torch/.kpack/torch_{target}.kpack": b"\0"},
        )


def write_candidates(therock: TheRock) -> Path:
    """Return a folder of a release candidate's packages."""
    folder = Path(tempfile.mkdtemp(dir=therock.scratch))
    for path in upstream_packages(therock).iterdir():
        shutil.copy2(path, folder)
    write_pytorch_wheels(folder)
    return folder


def promote(folder: Path, targets: Sequence[str]) -> Path:
    """Return a folder of what we make of a release candidate's packages."""
    change = RocmChange(old=VERSION, new=RELEASE, targets=tuple(targets))
    names = [path.name for path in folder.iterdir() if change.keeps_package(distribution_of(path))]
    output = folder.with_name(f"{folder.name}-promoted")
    output.mkdir()
    for plan in plan_set(names, change):
        edit_package = edit_wheel if plan.source.endswith(".whl") else edit_sdist
        edits = MemberEdits(plan, change)
        edited = edit_package(folder / plan.source, output, version=plan.new, edit=edits)
        edits.require_done(edited.members)
    return output


def distribution_of(path: Path) -> str:
    """Return the normalized name of a package by its file's name."""
    return canonicalize_name(path.name.partition("-")[0])


def texts_of(folder: Path) -> Facts:
    """Return the names of a folder's packages, and the lines of their texts by member."""
    lines: dict[str, Collection[str]] = {}
    names: set[str] = set()
    for path in folder.iterdir():
        names.add(path.name)
        for member, content in members_of(path).items():
            if member.endswith(COMPARED):
                text = content.decode().replace("\r\n", "\n")
                lines[f"{path.name}: {member}"] = [line for line in text.split("\n") if line.strip()]
    return {**lines, "files": names}


def members_of(path: Path) -> Mapping[str, bytes]:
    """Return the files of a wheel or an sdist."""
    if path.suffix == ".whl":
        with zipfile.ZipFile(path) as wheel:
            return {name: wheel.read(name) for name in wheel.namelist()}

    members: dict[str, bytes] = {}
    with tarfile.open(fileobj=io.BytesIO(gzip.decompress(path.read_bytes()))) as sdist:
        for member in sdist:
            content = sdist.extractfile(member)
            if content is not None:
                members[member.name] = content.read()
    return members


def compare_promotion(therock: TheRock, targets: Sequence[str] = ()) -> Comparison:
    """Compare the packages of a release, made of those of its candidate."""
    candidates = write_candidates(therock)
    promoted = promote(candidates, targets)
    therock.ask("promote", folder=candidates, targets=targets)
    return Comparison(upstream=texts_of(candidates), downstream=texts_of(promoted))


RULES = (
    Rule(
        name="promotion",
        upstream="build_tools/packaging/promote_packages.py",
        downstream="ci/promote",
        compare=compare_promotion,
    ),
    Rule(
        name="promotion of some targets",
        upstream="build_tools/packaging/promote_packages.py",
        downstream="ci/promote",
        compare=partial(compare_promotion, targets=KEPT_TARGETS),
    ),
)
