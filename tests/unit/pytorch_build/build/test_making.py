from __future__ import annotations

from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import pytest

from core import process
from core.env import installer
from core.env.installer import Sources
from core.errors import BuildError, CheckError, EnvironmentSetupError, ProcessError
from core.packages import sources
from core.packages.offers import Offer
from core.packages.sources import PackageSource
from core.process import Completed
from pytorch_build.build import compiler_cache_use, facts, making, preflight
from pytorch_build.build.build import Build
from pytorch_build.build.compiler_cache import CompilerCache
from pytorch_build.build.course import Course
from pytorch_build.build.dependencies import Dependency
from pytorch_build.build.options import BuildChoices
from pytorch_build.build.plans.types import BuildFacts, TreeFacts
from pytorch_build.check import Finding
from pytorch_build.rocm.options import RocmOptions
from pytorch_build.rocm.sdk import RocmSdk
from rocm_packaging.rocm_sources import RocmSource

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence
    from pathlib import Path

    from core.env.installer import Install
    from core.run.stage import Made
    from pytorch_build.build.plans.types import BuildRequest
    from pytorch_build.check import Expectation

VERSION = "2.10.0a0+devrocm7.99.0.dev0.sample"
FILE = Offer(name="rocm.tar.gz", distribution="rocm", version="7.1.0", sha256="aa", url="/rocm/rocm.tar.gz")
ROCM = RocmSource(version="7.1.0", packages=PackageSource(find_links=("/rocm",)), files=(FILE,))


@dataclass(frozen=True, kw_only=True)
class FakeTree:
    """A tree that lies there, ready."""

    path: Path
    version: str = VERSION
    inputs: Mapping[str, Any] = field(default_factory=lambda: {"commit": "1" * 40})

    @contextmanager
    def checked_out(self) -> Iterator[Path]:
        yield self.path


@dataclass
class Workshop:
    """What the parts around a build were asked for."""

    calls: Sequence[Install] = ()
    digest: str = ""
    options: Mapping[str, Any] = field(default_factory=dict)
    request: BuildRequest | None = None
    env: Mapping[str, str] = field(default_factory=dict)
    done: list[str] = field(default_factory=list)
    bare: list[bool] = field(default_factory=list)
    split: list[str] = field(default_factory=list)
    checked: list[str] = field(default_factory=list)
    findings: tuple[Finding, ...] = ()
    cache: Any = None


def make(build: Build, name: str) -> Made:
    return making.make(build, name, Course())


@pytest.fixture
def build(run: Any) -> Build:
    requirements = run.root / "requirements"
    requirements.mkdir()
    (requirements / "target-linux-3.12.txt").write_text("setuptools==80.0 \\\n    --hash=sha256:aa\n")
    tree = run.root / "src"
    tree.mkdir()
    (tree / "setup.py").touch()
    return Build(
        context=run.context(),
        choices=BuildChoices(rocm=RocmOptions(), own_trees={}, mirrors={}),
        target=run.target(),
        project="torch",
        tree=FakeTree(path=tree),
        rocm=ROCM,
        dependencies=(
            Dependency(project="triton", requirement="/run/triton.whl", version="3.6.0", digest="bb"),
        ),
        base_env={"PATH": "/usr/bin", "SOURCE_DATE_EPOCH": "17"},
    )


@pytest.fixture
def shop(run: Any, monkeypatch: pytest.MonkeyPatch) -> Workshop:
    shop = Workshop()

    @contextmanager
    def prepared(_target: Any, calls: Sequence[Install], *, digest: str, **options: Any) -> Iterator[None]:
        shop.calls, shop.digest, shop.options = calls, digest, options
        yield
        shop.done.append("left")

    def plan(asked: BuildRequest, *_: Any, **__: Any) -> Any:
        shop.request = asked
        return "the plan"

    def execute(
        *_: Any, base_env: Mapping[str, str], log: Path, course: Course, cache: Any, **__: Any
    ) -> Any:
        shop.env, shop.cache = base_env, cache
        log.parent.mkdir(parents=True, exist_ok=True)
        log.write_text("compiling\n")
        shop.done.append("built")
        course.details["ninja"] = [{"folder": "build"}]
        return run.wheel("torch", VERSION)

    def split(wheel: Path, _: Path, *, rocm_version: str) -> tuple[Path, ...]:
        shop.split.append(rocm_version)
        return wheel, run.wheel("amd_torch_device_gfx942", VERSION)

    def check(_: Path, promised: Expectation, **__: Any) -> tuple[Finding, ...]:
        shop.checked.append(promised.distribution)
        return shop.findings

    sdk = RocmSdk(
        version="7.1.0", layout="split", root=run.root, bin=run.root, cmake=run.root, targets=("gfx942",)
    )
    monkeypatch.setattr(installer, "prepared", prepared)
    monkeypatch.setattr(making, "ask", lambda *_, **__: sdk)
    monkeypatch.setattr(sources, "configured", lambda: Sources(index_url="https://mine"))
    monkeypatch.setattr(making, "plan_build", plan)
    monkeypatch.setattr(facts, "build_facts", lambda *_, **__: BuildFacts(tree=TreeFacts(files=frozenset())))
    monkeypatch.setattr(facts, "machine_facts", lambda *_, **__: None)
    monkeypatch.setattr(facts, "cores", lambda: 4)
    monkeypatch.setattr(facts, "memory_bytes", lambda: 64 << 30)
    monkeypatch.setattr(preflight, "check", lambda *_, **__: ())
    monkeypatch.setattr(making, "execute", execute)
    monkeypatch.setattr(making, "install_requirements", lambda *_, **__: shop.done.append("requirements"))
    monkeypatch.setattr(making, "check_import", lambda *_, **__: shop.done.append("imported"))
    monkeypatch.setattr(making, "check_bare_import", lambda *_, **how: shop.bare.append(how["preloads"]))
    monkeypatch.setattr(making, "check_wheel", check)
    monkeypatch.setattr(making, "split", split)
    answer = Completed(returncode=0, stdout="amdhip64\nhipblas\n", stderr="")
    monkeypatch.setattr(process, "capture", lambda *_, **__: answer)
    return shop


@pytest.mark.parametrize(
    "changes",
    [
        {"choices": BuildChoices(rocm=RocmOptions(), own_trees={}, mirrors={}, split=False)},
        {"rocm": replace(ROCM, layout="unsplit")},
    ],
    ids=["asked", "unsplit ROCm"],
)
def test_a_wheel_stays_fat(build: Build, shop: Workshop, changes: Mapping[str, Any]) -> None:
    assert len(make(replace(build, **changes), "build_torch").files) == 1
    assert shop.split == []


def log_of(run: Any) -> Path:
    found: Path = run.root / "out" / "local-linux" / "logs" / "gfx94X-dcgpu" / "build_torch.log"
    return found


def test_a_build_is_prepared_built_imported_and_checked(build: Build, run: Any, shop: Workshop) -> None:
    made = make(build, "build_torch")
    assert [path.name for path in made.files] == [
        *(f"torch-{VERSION}-cp312-cp312-linux_x86_64.whl",),
        *(f"amd_torch_device_gfx942-{VERSION}-cp312-cp312-linux_x86_64.whl",),
    ]
    assert shop.split == ["7.1.0"]
    assert shop.checked == ["torch", "amd-torch-device-gfx942"]
    assert made.details["source"] == {"commit": "1" * 40}
    assert made.details["ninja"] == [{"folder": "build"}]
    assert sum(files for files, _, _ in made.details["contents"][made.files[0].name].values()) > 2
    assert shop.done == ["requirements", "built", "imported", "left"]
    assert log_of(run).read_text() == "compiling\n"


def test_the_environment_gets_locked_requirements_rocm_and_triton(build: Build, shop: Workshop) -> None:
    make(build, "build_torch")
    locked, rocm_call, triton = shop.calls
    assert locked.hashed
    assert rocm_call.files[0].read_text() == "rocm==7.1.0 --hash=sha256:aa\n"
    assert rocm_call.sources is not None
    assert rocm_call.sources.no_index
    assert triton.requirements == ("/run/triton.whl",)
    # what it requires of ours is there already, and what of others is asked for by name
    assert not triton.dependencies
    assert triton.sources is None


def test_a_refs_requirements_replace_locked_ones(build: Build, shop: Workshop) -> None:
    ref = build.context.ref
    torch = replace(ref.projects["torch"], build_requirements=("setuptools<70",), env={"USE_X": "1"})
    ref = replace(ref, projects={**ref.projects, "torch": torch})
    make(replace(build, context=replace(build.context, ref=ref)), "build_torch")
    locked, wanted = shop.calls[:2]
    assert "setuptools" not in locked.files[0].read_text()
    assert wanted.requirements == ("setuptools<70",)
    assert shop.request is not None
    assert dict(shop.request.ref_env) == {"USE_X": "1"}


def test_family_cpu_installs_and_asks_no_rocm(
    build: Build, run: Any, shop: Workshop, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(making, "ask", lambda *_, **__: pytest.fail("there is none"))
    cpu = replace(build, context=run.context("cpu"), rocm=None, dependencies=())
    make(cpu, "build_torch")
    assert len(shop.calls) == 1
    assert shop.request is not None
    assert shop.request.rocm is None
    assert shop.request.gpu_targets == ()
    assert shop.bare == [], "there is no ROCm that could be left out"


def test_a_wheel_is_imported_without_preloads_unless_torch_was_built_elsewhere(
    build: Build, shop: Workshop
) -> None:
    make(build, "build_torch")
    for digest in ("cc", ""):
        torch = Dependency(project="torch", requirement="torch", digest=digest)
        make(replace(build, project="audio", dependencies=(torch,)), "build_audio")
    assert shop.bare == [False, False, True]


def test_the_plan_is_asked_for_what_was_locked_and_chosen(build: Build, run: Any, shop: Workshop) -> None:
    choices = replace(build.choices, clean=True, flash_attention=False, max_jobs="3", gpu_targets="gfx950")
    torch = Dependency(project="torch", requirement="/run/torch.whl", version="x", digest="cc")
    chosen = replace(build, project="audio", choices=choices, dependencies=(*build.dependencies, torch))
    make(chosen, "build_audio")
    request = shop.request
    assert request is not None
    assert (request.project, request.version, request.gpu_targets) == ("audio", VERSION, ("gfx950",))
    assert request.python == run.target().executable
    assert request.triton_version == "3.6.0"
    # what the installed torch says of itself, whatever was asked for
    assert request.torch_version == "amdhip64\nhipblas"
    assert (request.options.clean, request.options.flash_attention) == (True, False)
    assert request.options.max_jobs == 3


def test_max_jobs_of_the_environment_is_kept(build: Build, shop: Workshop) -> None:
    make(replace(build, base_env={**build.base_env, "MAX_JOBS": "2"}), "build_torch")
    assert shop.request is not None
    assert shop.request.options.max_jobs == 2


@pytest.mark.parametrize(
    "change",
    [
        lambda build: replace(build, rocm=replace(ROCM, files=(replace(FILE, sha256="bb"),))),
        lambda build: replace(build, dependencies=(replace(build.dependencies[0], digest="cc"),)),
        lambda build: (build.tree.path / "requirements.txt").write_text("numpy\n") and build,
    ],
)
def test_an_environment_is_known_by_all_that_it_is_made_from(
    build: Build, shop: Workshop, change: Any
) -> None:
    make(build, "build_torch")
    first = shop.digest
    make(build, "build_torch")
    assert shop.digest == first
    make(change(build), "build_torch")
    assert shop.digest != first


@dataclass(frozen=True)
class CacheInUse:
    cache: CompilerCache
    said: Any

    def details(self) -> Any:
        return self.said


@pytest.mark.parametrize("said", [{"kind": "sccache", "hits": 3}, None])
def test_a_build_goes_through_the_compiler_cache_and_records_what_it_did(
    build: Build, run: Any, shop: Workshop, monkeypatch: pytest.MonkeyPatch, said: Any
) -> None:
    asked: list[Any] = []

    @contextmanager
    def in_use(cache: CompilerCache, **how: Any) -> Iterator[CacheInUse]:
        asked.append((cache, how))
        yield CacheInUse(cache, said)
        shop.done.append("cache gone")

    monkeypatch.setattr(compiler_cache_use, "in_use", in_use)
    cache = CompilerCache(kind="sccache", program=run.root / "sccache")
    choices = replace(build.choices, compiler_cache=cache, compiler_cache_store="s3://mine")
    details = make(replace(build, choices=choices), "build_torch").details
    assert details.get("compiler_cache") == said
    ((used, how),) = asked
    assert str(used.storage) == "s3://mine/compiler-cache/ci/sccache"
    assert how["base_dirs"].tree == build.tree.path  # type: ignore[attr-defined]
    assert (how["base_dirs"].environment, how["base_dirs"].root) == (run.root / "env", run.root)
    assert shop.request is not None
    assert shop.request.options.compiler_cache == used
    assert shop.cache.cache == used
    assert shop.done[:3] == ["requirements", "built", "cache gone"]


def test_a_compiler_cache_that_cannot_be_had_is_none(
    build: Build, run: Any, shop: Workshop, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(compiler_cache_use, "in_use", lambda *_, **__: nullcontext())
    cache = CompilerCache(kind="sccache", program=run.root / "sccache")
    choices = replace(build.choices, compiler_cache=cache)
    details = make(replace(build, choices=choices), "build_torch").details
    assert "compiler_cache" not in details
    assert shop.request is not None
    assert shop.request.options.compiler_cache is None, "compilers would be started through it"
    assert shop.cache is None


def test_a_failing_build_leaves_its_log_among_the_outputs(
    build: Build, run: Any, shop: Workshop, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(*_: Any, log: Path, **__: Any) -> Any:
        log.parent.mkdir(parents=True, exist_ok=True)
        log.write_text("error: no such header\n")
        raise BuildError("no wheel")

    monkeypatch.setattr(making, "execute", fails)
    with pytest.raises(BuildError):
        make(build, "build_torch")
    assert "no such header" in log_of(run).read_text()
    assert shop.done == ["requirements"]


def test_a_log_is_of_one_build(build: Build, run: Any, shop: Workshop, monkeypatch: Any) -> None:
    make(build, "build_torch")
    assert shop.done

    def fails(*_: Any, **__: Any) -> Any:
        raise ProcessError("stopped before the first command")

    monkeypatch.setattr(making, "execute", fails)
    with pytest.raises(ProcessError):
        make(build, "build_torch")
    # the log of the last build that wrote one stays readable
    assert log_of(run).read_text() == "compiling\n"


def test_error_findings_keep_a_wheel_from_being_published(build: Build, shop: Workshop) -> None:
    shop.findings = (
        Finding(wheel="torch.whl", check="elf", severity="error", where="", message="needs libfoo.so"),
    )
    with pytest.raises(CheckError):
        make(build, "build_torch")
    shop.findings = (replace(shop.findings[0], severity="warning"),)
    assert make(build, "build_torch").files


def test_what_will_fail_later_is_said_first(build: Build, shop: Workshop, monkeypatch: Any) -> None:
    def refuses(_problems: Any) -> None:
        raise EnvironmentSetupError("There is no compiler.")

    monkeypatch.setattr(preflight, "require", refuses)
    with pytest.raises(EnvironmentSetupError, match="no compiler"):
        make(build, "build_torch")
    assert shop.calls == ()


def test_a_wheel_is_dated_by_a_person_or_by_its_commit(
    build: Build, shop: Workshop, monkeypatch: Any
) -> None:
    make(build, "build_torch")
    assert shop.env["SOURCE_DATE_EPOCH"] == "17"
    answer = Completed(returncode=0, stdout="1700000000\n", stderr="")
    monkeypatch.setattr(process, "capture", lambda *_, **__: answer)
    make(replace(build, base_env={"PATH": "/usr/bin"}), "build_torch")
    assert shop.env == {"PATH": "/usr/bin", "SOURCE_DATE_EPOCH": "1700000000"}
