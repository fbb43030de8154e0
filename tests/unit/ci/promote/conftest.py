"""A run whose wheels are tiny but real, tested, and ready to be staged."""

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from ci.plan.data import runners
from ci.promote import documents, promotion
from ci.promote.documents import Decision, PromotedFile
from ci.promote.facts import Facts
from ci.promote.policy import Rules, decide, gates
from ci.promote.version_change import RocmChange
from core.archive import Member
from core.errors import CheckError
from core.families import parents
from core.run import Platform, RunOutputs, records
from core.run.records import Cell, FileRecord, Record
from core.stores import Store
from core.stores.directory import DirectoryStore
from core.wheel import distributions
from core.wheel.writer import WheelSpec, metadata_text, write_sdist, write_wheel
from pytorch_build.lock.source_lock import LockedProject, SourceLock
from pytorch_build.split.parts import Wheels
from tests.kit.front_doors import run_ci

ROCM = "7.10.0a20251120"
REF = "mine"
ANY = "py3-none-linux_x86_64"
TARGETS = ("gfx942", "gfx1100", "gfx1101", "gfx1200", "gfx1201")
DATE = "2026-11-21T12:00:00+00:00"


def split_wheels(*targets: str, version: str = "2.10.0+rocm7.10.0rc2", rocm: str = "7.10.0rc2") -> Wheels:
    """Torch's wheels of a split."""
    groups = sorted({group for one in targets for group in parents(one)})
    return Wheels(distribution="torch", version=version, targets=targets, groups=tuple(groups), rocm=rocm)


def keeping(*targets: str) -> RocmChange:
    return RocmChange(old="7.10.0rc2", new="7.10.0", targets=targets)


@dataclass
class Runs:
    """Runs in a store: what builds and tests leave there.

    With `devices`, gfx targets, their packages are split, and made as TheRock makes them: the host wheel
    requires rocm-bootstrap.
    """

    store: Store
    folder: Path
    run_id: str = "17"
    platform: Platform = "linux"
    rocm: str = ROCM
    ref: str = REF
    devices: tuple[str, ...] = ()
    made: dict[str, FileRecord] = field(default_factory=dict)

    @property
    def outputs(self) -> RunOutputs:
        return RunOutputs(run_id=self.run_id, platform=self.platform)

    @property
    def torch(self) -> str:
        return f"2.10.0a0+rocm{self.rocm.replace('+', '.')}"

    @property
    def audio(self) -> str:
        return f"2.9.0a0+rocm{self.rocm.replace('+', '.')}"

    def whole(self, family: str, pythons: Sequence[str] = ("cp312",), *, tested: bool = True) -> None:
        """Build, and test, everything of a family."""
        self.lock()
        self.build_rocm(family)
        for python in pythons:
            self.build(family, python)
            if tested:
                self.smoke(family, python)
                self.upstream(family, python)
        if tested:
            self.test_rocm(family)

    def lock(self, commit: str = "a") -> None:
        local = self.torch.partition("+")[2]
        projects = {
            name: LockedProject(
                project=name,
                origin=f"https://invalid/{name}",
                ref="main",
                commit=commit * 40,
                base_version=base,
                versions={"rocm": f"{base}+{local}"},
            )
            for name, base in (("torch", "2.10.0a0"), ("audio", "2.9.0a0"))
        }
        said = {"torch_ref": self.ref, "release_type": "nightly", "rocm_version": self.rocm}
        lock = SourceLock(**said, projects=projects)
        self.store.put_bytes(self.outputs.source_lock_key(self.ref), lock.model_dump_json().encode())

    def build_rocm(self, family: str) -> None:
        listed = f"\nAVAILABLE_TARGET_FAMILIES = {list(self.devices)}\n" if self.devices else "\n"
        info, setup = f"__version__ = '{self.rocm}'{listed}", f"# {family}\n"
        members = {"setup.py": setup, "src/rocm_sdk/_dist_info.py": info}
        sdist = write_sdist(
            self.folder / family,
            "rocm",
            self.rocm,
            [Member(name=name, source=text.encode()) for name, text in members.items()],
            metadata=metadata_text([("Name", "rocm"), ("Version", self.rocm)]),
        )
        links = {gpu: f"_rocm_sdk_libraries/.devel_links/{gpu}.json" for gpu in self.devices}
        core = {"rocm_sdk_core/_dist_info.py": info, "rocm_sdk_core/__init__.py": setup}
        wheels = [
            self._wheel(family, "rocm-sdk-core", self.rocm, ANY, core),
            *(
                self._wheel(
                    family, f"rocm-sdk-device-{gpu}", self.rocm, ANY, {name: f"{{'v': '{self.rocm}'}}"}
                )
                for gpu, name in links.items()
            ),
        ]
        if self.devices:
            wheels.append(self._wheel(family, "rocm-bootstrap", "0.1.0", "py3-none-any", {"a/b.py": setup}))
        self._record("build_rocm", family, Cell(gpu_family=family), (sdist.path, *wheels))

    def build(self, family: str, python: str) -> None:
        tag = f"{python}-{python}-{'linux_x86_64' if self.platform == 'linux' else 'win_amd64'}"
        split = self.split if self.devices else None
        host = ["rocm-bootstrap", *split.host_lines()] if split else []
        for name, version, needs, modules in (
            ("torch", self.torch, (f"rocm[libraries]=={self.rocm}", *host), {"_rocm_init": self.rocm}),
            ("torchaudio", self.audio, (f"torch=={self.torch}",), {}),
        ):
            places = {"version": version, **modules}
            texts = {f"{name}/{module}.py": f"__version__ = '{one}'\n" for module, one in places.items()}
            wheels = [
                self._wheel(family, name, version, tag, {**texts, f"{name}/__init__.py": family}, *needs)
            ]
            for gpu in (*split.targets, *split.groups) if split and name == "torch" else ():
                own = f"amd-torch-device-{gpu}"
                needed = split.requirements(gpu) if split else ()
                wheels.append(self._wheel(family, own, version, tag, {f"torch/{gpu}": gpu}, *needed))
            cell = Cell(python=python, torch_ref=self.ref, gpu_family=family)
            self._record(f"build_{name.removeprefix('torch') or 'torch'}", family, cell, wheels)

    @property
    def split(self) -> Wheels:
        return split_wheels(*self.devices, version=self.torch, rocm=self.rocm)

    def _wheel(
        self, family: str, name: str, version: str, tag: str, texts: dict[str, str], *needs: str
    ) -> Path:
        """Write a wheel; what it needs are requirements, or whole fields."""
        fields = [("Name", name), ("Version", version), ("Requires-Python", ">=3.10")]
        for one in needs:
            key, colon, value = one.partition(": ")
            fields.append((key, value) if colon else ("Requires-Dist", one))
        spec = WheelSpec(
            distribution=name,
            version=version,
            tag=tag,
            metadata=metadata_text(fields),
            purelib=tag.startswith("py3"),
        )
        members = [Member(name=path, source=text.encode()) for path, text in texts.items()]
        return write_wheel(self.folder / family, spec, members).path

    def smoke(self, family: str, python: str, *, stage: str = "test_smoke", **facts: Any) -> None:
        cell = Cell(python=python, torch_ref=self.ref, gpu_family=family)
        inputs = {"files": self._names(family, python), "gpu": ["gfx942"]}
        totals = {"tests": {**counted(22), "skipped": 1}}
        self._tested(stage, family, cell, inputs, totals, **facts)

    def upstream(self, family: str, python: str, stage: str = "test_torch") -> None:
        """Leave the record of upstream's own tests of torch."""
        self.smoke(family, python, stage=stage, inputs={"config": "default"})

    def test_rocm(self, family: str, python: str = "cp312") -> None:
        totals = {"checks": {"passed": 9, "failed": 0, "skipped": 0}}
        cell = Cell(python=python, gpu_family=family)
        self._tested("test_rocm", family, cell, {"packages": self._names(family)}, totals)

    def failed(self, stage: str, family: str, python: str = "cp312", error: str = "It broke.") -> None:
        """Leave the record of a stage that failed."""
        cell = Cell(python=python, torch_ref=self.ref, gpu_family=family)
        self._leave(stage, family, cell, status="failed", exit_code=8, error=error)

    def _names(self, family: str, python: str = "no") -> dict[str, str]:
        """The digests of ROCm's packages, and of the wheels for a Python."""
        made = (one for one in self.made.values() if f"/{family}/" in one.key)
        return {one.name: one.sha256 for one in made if f"-{python}-" in one.name or one.name[:4] == "rocm"}

    def _tested(
        self,
        stage: str,
        family: str,
        cell: Cell,
        said: dict[str, Any],
        totals: dict[str, Any],
        *,
        inputs: dict[str, Any] | None = None,
        details: dict[str, Any] | None = None,
    ) -> None:
        key = f"{self.outputs.reports_prefix(family)}/{records.record_name(stage, cell)}.xml"
        content = f"<testsuites><testsuite tests='22'/><!-- {stage} {cell} --></testsuites>".encode()
        self.store.put_bytes(key, content)
        found = {**totals, "report": {"key": key, "sha256": hashlib.sha256(content).hexdigest()}}
        read = {"installed": True, **said, **(inputs or {})}
        self._leave(stage, family, cell, inputs=read, details={**found, **(details or {})})

    def _record(self, stage: str, family: str, cell: Cell, paths: Sequence[Path]) -> None:
        files = tuple(distributions.publish(self.store, self.outputs, family, path) for path in paths)
        self.made |= {one.key: one for one in files}
        self._leave(stage, family, cell, files=files)

    def _leave(self, stage: str, family: str, cell: Cell, **facts: Any) -> None:
        where = {"run_id": self.run_id, "platform": self.platform, "started": DATE, "seconds": 1.0}
        records.write(self.store, self.outputs, family, Record(stage=stage, cell=cell, **where, **facts))


@dataclass(kw_only=True)
class Desk:
    """The verbs at work: a run's store, the distribution bucket, that of releases, and what is printed."""

    runs: Runs
    bucket: Store
    releases: Store
    capsys: pytest.CaptureFixture[str]

    def stage(self, *words: str) -> int:
        stores = ("--store", self.runs.store.url, "--distribution-store", self.bucket.url)
        return run_ci("stage", "--run-id", self.runs.run_id, *stores, *words)

    def promote(self, *words: str, release_type: str = "nightly") -> int:
        """Promote what is staged as it is."""
        stores = ("--distribution-store", self.bucket.url, "--release-type", release_type)
        return run_ci("promote", *stores, "--by", "the release job", *words)

    def release(self, *words: str) -> int:
        """Make a release of a candidate."""
        stores = ("--from-store", self.bucket.url, "--distribution-store", self.releases.url)
        return run_ci("promote", *stores, "--release-type", "release", *words)

    def indexes(self, *words: str) -> int:
        return run_ci("check-indexes", "--store", self.bucket.url, *words)

    def said(self) -> str:
        return self.capsys.readouterr().err

    def staged(self, *families: str, **how: Any) -> None:
        for family in families:
            self.runs.whole(family, **how)
        assert self.stage() == 0

    def refused(self, *words: str) -> str:
        """Promote what must not be released."""
        self.said()
        assert self.promote(*words) == CheckError.exit_code
        return self.said().partition("error: ")[2]

    def released(self, family: str) -> list[str]:
        keys = [one.key for one in self.bucket.list(f"v2/{family}", recursive=False)]
        return [key.rpartition("/")[2] for key in keys if key.endswith(".whl")]

    def released_nothing(self) -> bool:
        return not any(map(self.bucket.list, ("v2", documents.DECISIONS, documents.INTENTS)))

    def decision(self) -> Decision:
        return decision_in(self.bucket)


def counted(tests: int, **more: int) -> dict[str, int]:
    """Return totals of tests that all ran."""
    counts = {"tests": tests, "existing": tests, "failures": 0, "errors": 0, "skipped": 0, "unexplained": 0}
    return {**counts, **more}


def decision_in(store: Store) -> Decision:
    (one,) = store.list(documents.DECISIONS)
    return documents.read(store, one.key, Decision)


def decided(facts: Facts, files: Sequence[PromotedFile], **more: Any) -> Decision:
    """Decide on a set that may be released."""
    verdict = decide(facts, Rules(runners=runners(), gates=gates()))
    assert verdict.reasons == ()
    return Decision(
        **{"set_name": facts.set_name, "release_type": "nightly", "by": "one", "decided": DATE, **more},
        identity=promotion.identity_of(files),
        staging=facts.staging,
        rulings=verdict.rulings,
        files=tuple(files),
    )


@pytest.fixture
def runs(tmp_path: Path) -> Runs:
    return Runs(store=DirectoryStore(tmp_path / "runs"), folder=tmp_path / "dist")


@pytest.fixture
def desk(runs: Runs, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Desk:
    bucket, releases = (DirectoryStore(tmp_path / name) for name in ("bucket", "releases"))
    return Desk(runs=runs, bucket=bucket, releases=releases, capsys=capsys)
