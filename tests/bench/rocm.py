"""ROCm's packages, made of the artifacts of a real ROCm; expanding them; fetching artifacts."""

import os
import sys
import zipfile
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

from core import console, files, process
from core.cli.options import ROOT, environment
from core.env import installer
from rocm_packaging.artifacts import build_info, families_of, scan
from tests.bench import programs
from tests.bench.measuring import Figure, Words, Work, in_turn, program, removing, scratch
from tests.bench.wheels import ours, size_of
from tests.kit.artifact_archives import pack_all

MANY_FILES = 6000
ZLIB = """
import pathlib, sys, zlib
size = 0
for path in filter(pathlib.Path.is_file, pathlib.Path(sys.argv[1]).rglob("*")):
    compressor = zlib.compressobj(6)
    with path.open("rb") as stream:
        while data := stream.read(1 << 20):
            size += len(compressor.compress(data))
    size += len(compressor.flush())
print(size)
"""


def call(artifacts: Path, place: Path) -> Words:
    """Package artifacts for all of their families; a part of ROCm will do."""
    found = scan(artifacts)
    what = ("--artifact-dir", artifacts, "--version", build_info(found).version, "--without", "*")
    where = ("--store", place / "out", "--output-dir", place / "packages")
    families = ("--gpu-family", ";".join(families_of(found)))
    return [sys.executable, "-m", "rocm_packaging", "build", *what, *families, *where]


def packaging(rocms: Sequence[Path], therock: Path | None, runs: int) -> Iterator[Figure]:
    """Compare making packages, in a clone, with deflating their contents, and with TheRock's builder."""
    for given in rocms:
        with scratch() as place:
            process.capture(["git", "clone", "--quiet", ROOT, place / "clone"])
            process.capture(["cp", "-a", f"{given}/.", place / "artifacts"])
            yield from packaged(place, therock, runs)


def packaged(place: Path, therock: Path | None, runs: int) -> Iterator[Figure]:
    clone, artifacts, packages = place / "clone", place / "artifacts", place / "packages"
    info, forget = build_info(scan(artifacts)), removing(clone / ".cache", place / "out", packages)
    build = call(artifacts, place)
    process.capture(build, cwd=clone)
    for wheel in packages.glob("*.whl"):
        with zipfile.ZipFile(wheel) as archive:
            archive.extractall(place / "contents" / wheel.name)
    payload = console.size(size_of(filter(Path.is_file, (place / "contents").rglob("*"))))
    title = f"ROCm {info.version}{', split' if info.split else ''}, {payload}"
    libraries = [one for one in artifacts.rglob("*.so*") if one.is_file() and not one.is_symlink()]
    libraries.sort(key=lambda path: (path.stat().st_size, path))

    def change() -> None:
        for path in libraries[len(libraries) // 2 :][:2]:
            path.write_bytes(path.read_bytes() + b"!")

    deflate: Words = [sys.executable, "-c", ZLIB, place / "contents"]
    works = [
        Work(title, build, cwd=clone, before=forget, note="≤ 400 MiB"),
        Work("the same again, two libraries changed", build, cwd=clone, before=change),
        Work("zlib, level 6, on one core", deflate, note="≤ 0.35 by CPU"),
        *([theirs(therock, artifacts, info.version, place / "therock")] if therock else []),
    ]
    first, again, *baselines = in_turn(works, runs=runs, warm=False)
    sizes = {
        "zlib's": int(process.capture(deflate).stdout),
        "TheRock's": size_of((place / "therock" / "dist").rglob("*.whl")),
    }
    size = size_of(packages.glob("*.whl"))
    note = ", ".join(f"{size / other:.3f} of {whose} size" for whose, other in sizes.items() if other)
    yield Figure(first, baselines, note)
    yield Figure(again, [replace(first, name="the first time", note="≤ 0.3")])


def theirs(therock: Path, artifacts: Path, version: str, made: Path) -> Work:
    """Run TheRock's own builder, which needs Python 3.12, and of others' programs patchelf."""
    python = program("python", "3.12")
    script = therock.resolve() / "build_tools" / "build_python_packages.py"
    words = ("--artifact-dir", artifacts, "--dest-dir", made, "--version", version)
    env = {"PATH": f"{python.parent}{os.pathsep}{environment()['PATH']}"}
    title = "TheRock's `build_python_packages.py`"
    return Work(title, [python, script, *words], env=env, before=removing(made), note="≤ 0.12")


def expanding(artifacts: Path, runs: int) -> Iterator[Figure]:
    """Compare the first `rocm-sdk init` with hard-linking its tree, with as many files as today's."""
    with scratch() as place:
        grown, root, copy = place / "grown", place / "venv", place / "copy"
        process.capture(["cp", "-a", f"{artifacts}/.", grown])
        version, family = build_info(scan(grown)).version, families_of(scan(grown))[0]
        for component, folder in (("lib", "lib/many"), ("dev", "include/many")):
            stage = next(grown.glob(f"*_{component}_{family}/**/stage"))
            for number in range(MANY_FILES):
                path = stage / folder / f"{number // 100}" / f"{number}.txt"
                files.write_text(path, f"{component} {number}\n")
        process.capture(call(grown, place), cwd=ROOT)
        env = process.inherited(ROCM_SDK_TARGET_FAMILY=family, UV_PYTHON=str(root / "bin" / "python"))
        # uv would give packages of this version out of its cache, such as an earlier bench's
        source = ("--no-cache", "--no-index", "--no-build-isolation", "--find-links", place / "packages")

        def uv(*words: str | Path) -> None:
            process.capture([installer.uv_program(), *words], env=env)

        uv("venv", "--quiet", "--python", sys.executable, root)
        uv("pip", "install", "setuptools")
        uv("pip", "install", *source, f"rocm[libraries,devel]=={version}")
        tree = next((root / "lib").glob("python*")) / "site-packages" / "_rocm_sdk_devel"

        def packed() -> None:
            removing(copy)()
            uv("pip", "uninstall", "rocm-sdk-devel")
            uv("pip", "install", *source, f"rocm-sdk-devel=={version}")

        works = [
            Work("rocm-sdk init", [root / "bin" / "rocm-sdk", "init", "--quiet"], before=packed),
            Work("`cp -al` of the tree", ["cp", "-al", tree, copy], note="≤ 1.5"),
        ]
        subject, baseline = in_turn(works, runs=runs)
        yield Figure(subject, [baseline], f"{sum(not path.is_dir() for path in tree.rglob('*')):,} files")


def fetching(artifacts: Path, runs: int) -> Iterator[Figure]:
    """Compare fetching and extracting a run's artifacts with `zstd -d | tar x` of the same archives."""
    with scratch() as place:
        run, output = place / "store" / "1-linux", place / "ours" / families_of(scan(artifacts))[0]
        run.mkdir(parents=True)
        pack_all(artifacts, run)
        archives = list(run.glob("*.zst"))
        title = f"fetch {len(archives)} artifacts from a folder, {console.size(size_of(archives))} packed"
        script = "for f in *.zst; do mkdir -p $0/$f; zstd -dcq $f | tar x -C $0/$f; done"
        unpack: Words = ["sh", "-euc", script, place / "theirs"]
        fetched = ours(title, programs.fetch, place / "store", output)
        works = [
            replace(fetched, before=removing(output.parent, place / "theirs")),
            Work("`zstd -d | tar x`, no digests", unpack, cwd=run, note="≤ 1.3"),
        ]
        subject, baseline = in_turn(works, runs=runs)
        yield Figure(subject, [baseline])
