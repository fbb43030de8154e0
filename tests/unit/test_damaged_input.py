"""Bytes from outside are read, or refused with an error of ours that names their file."""

import gzip
import io
import json
import struct
import tarfile
import tempfile
import zipfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import pytest
import zstandard
from hypothesis import given, settings
from hypothesis import strategies as st

from ci.promote import documents
from ci.promote.documents import Decision, Refusal, ReleaseRecord, StagingRecord
from ci.publish import server
from ci.publish.index.names import read_name
from ci.publish.index.yanks import read_yanks
from core.binaries import elf, pe, rpath
from core.data import Model, json_object, load_toml, parse_json
from core.env.locks import parse_lock
from core.errors import FatalError
from core.packages.candidates import candidates_on_page, requirements_in
from core.packages.resolution import parse_pylock
from core.run import records
from core.run.plan import Plan
from core.wheel.distributions import describe
from core.wheel.editor import edit_sdist, edit_wheel
from pytorch_build.check.bundles import BundleError, code_objects, read_bundles
from pytorch_build.check.run import check_wheel
from pytorch_build.lock.source_lock import SourceLock
from pytorch_build.refs.torch_refs import UserRefsFile
from pytorch_build.split.library import SplitError
from pytorch_build.split.take_apart import open_library
from pytorch_build.test import skip_rules
from pytorch_build.test.junit.reader import read_junit
from rocm_packaging.artifacts import parse_stage_folders
from rocm_packaging.packages import kpack
from tests.kit import binaries, locks, plans, promotion_facts, tar_members, wheels
from tests.kit.damaged_input import corpus_of, damaged

WHEEL = "demo-1.0-py3-none-any.whl"
SDIST = "demo-1.0.tar.gz"
DIST_INFO = "demo-1.0.dist-info"
PAGE = "https://index/simple/demo/"
DIGEST = "0" * 64

Read = Callable[[bytes, Path], object]
Refusals = tuple[type[Exception], ...]
# There are many readers, and some are slow: each gets a third of the profile's examples.
EXAMPLES = settings().max_examples // 3


@dataclass(frozen=True, kw_only=True)
class Reader:
    """A part of the product that reads bytes from outside.

    Attributes:
        seeds: Bytes that are read without an error, to be damaged.
        read: Reads bytes; it also gets an empty folder.
        filename: What a refusal must name; None where callers name the file, or there is none.
        refusals: The errors by which it may refuse bytes.
    """

    seeds: Sequence[bytes]
    read: Read
    filename: str | None = None
    refusals: Refusals = (FatalError,)


# Wheels and sdists


def wheel_members() -> dict[str, bytes]:
    """Return the members of a wheel with compiled files, without its RECORD."""
    files = {
        "demo/__init__.py": b"VERSION = 1\n",
        "demo/lib.so": binaries.elf_file(needed=["libc.so.6"], soname="lib.so", runpath="$ORIGIN"),
        "demo/lib.dll": binaries.pe_file(needed=["kernel32.dll"], name="lib.dll"),
        f"{DIST_INFO}/entry_points.txt": b"[console_scripts]\ndemo = demo:main\n",
    }
    return wheels.wheel_members(
        name="demo",
        version="1.0",
        tag="py3-none-any",
        files=files,
        requires=["numpy>=1.2"],
    )


def write_file(folder: Path, filename: str, content: bytes) -> Path:
    path = folder / filename
    path.write_bytes(content)
    return path


def publish_and_check(path: Path) -> None:
    """Read a wheel as upload, index, promotion and check_wheels do."""
    assert check_wheel(path) is not None
    describe(path, key=path.name, sha256=DIGEST)
    edit_wheel(path, path.parent / "edited", version="2.0")


def read_wheel(content: bytes, folder: Path) -> None:
    publish_and_check(write_file(folder, WHEEL, content))


def reader_of_member(member: str) -> Reader:
    """Return the reader of one member of a wheel that is otherwise whole.

    RECORD has the digest of the damaged member, so that not every change is refused for its digest.
    """

    def read(content: bytes, folder: Path) -> None:
        members = wheels.add_record(wheel_members() | {member: content})
        # RECORD itself may be the damaged member.
        members[member] = content
        publish_and_check(wheels.write_members(folder / WHEEL, members))

    undamaged_members = wheels.add_record(wheel_members())
    return Reader(seeds=[undamaged_members[member]], read=read, filename=WHEEL)


def wheel_bytes() -> bytes:
    stream = io.BytesIO()
    with zipfile.ZipFile(stream, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in wheels.add_record(wheel_members()).items():
            archive.writestr(zipfile.ZipInfo(name), content)
    return stream.getvalue()


def sdist_tar() -> bytes:
    stream = io.BytesIO()
    with tarfile.open(fileobj=stream, mode="w", format=tarfile.PAX_FORMAT) as archive:
        contents = {
            "setup.py": b"setup()\n",
            "PKG-INFO": wheels.metadata_text(name="demo", version="1.0").encode(),
        }
        for name, content in contents.items():
            member = tarfile.TarInfo(f"demo-1.0/{name}")
            member.size = len(content)
            member.pax_headers = {"comment": "a comment"}
            archive.addfile(member, io.BytesIO(content))
    return stream.getvalue()


def read_sdist(content: bytes, folder: Path) -> None:
    path = write_file(folder, SDIST, content)
    describe(path, key=path.name, sha256=DIGEST)
    edit_sdist(path, folder / "edited", version="2.0", edit=lambda _path, text: text)


def read_sdist_tar(content: bytes, folder: Path) -> None:
    read_sdist(gzip.compress(content, 1), folder)


# Artifacts


def artifact_tar() -> bytes:
    return tar_members.tar(
        tar_members.folder("a/stage"),
        tar_members.file("a/stage/libx.so", b"content"),
        tar_members.symlink("a/stage/libx.so.1", "libx.so"),
        tar_members.extended_header(tar_members.pax_record(b"path=a/stage/long")),
        tar_members.file("short", b"content"),
    )


def read_artifact(content: bytes, folder: Path) -> None:
    tar_members.unpack_compressed(content, folder)


def read_artifact_tar(content: bytes, folder: Path) -> None:
    tar_members.unpack(content, folder)


# Compiled files


def read_elf(content: bytes, folder: Path) -> None:
    path = write_file(folder, "lib.so", content)
    elf.read(path)
    elf.read_all_facts(io.BytesIO(content), "lib.so")


def read_search_path(content: bytes, folder: Path) -> None:
    path = write_file(folder, "lib.so", content)
    if elf.read(path) is not None:
        rpath.edit_by_extending(path, "$ORIGIN/../a:$ORIGIN/../b")


def fat_elf() -> bytes:
    """Return a library whose wrapper holds the address of its device code."""
    library = elf_with_wrapper(address=0)
    # In these libraries the address of a section is its offset in the file.
    address = library.index(bundle())
    return elf_with_wrapper(address=address)


def elf_with_wrapper(*, address: int) -> bytes:
    """Return a library with device code, and a wrapper that holds an address."""
    wrapper = struct.pack("<4sIQQ", b"FPIH", 1, address, 0)
    return binaries.elf_file(sections={".hip_fatbin": bundle(), ".hipFatBinSegment": wrapper})


def fat_pe() -> bytes:
    """Return a DLL whose wrapper holds the address of its device code."""
    address = binaries.PE_ADDRESS + binaries.PE_SECTION_DISTANCE
    wrapper = struct.pack("<4sIQQ", b"FPIH", 1, address, 0)
    content = binaries.pe_file(sections={".hip_fat": bundle(), ".hipFatB": wrapper})

    # SectionAlignment and FileAlignment stand 32 bytes behind the start of the optional header.
    end_of_file_header = content.index(b"PE\0\0") + 24
    optional_header = content.index(struct.pack("<H", binaries.PE_MAGIC_64), end_of_file_header)
    alignments = optional_header + 32
    return content[:alignments] + struct.pack("<II", 0x1000, 0x200) + content[alignments + 8 :]


def split_library(content: bytes, folder: Path) -> None:
    library = open_library(write_file(folder, "library", content))
    library.reference()
    code = library.device_code()
    if code is not None:
        indexes: dict[int, int] = {}
        for index, wrapper in enumerate(code.wrappers):
            indexes[code.bundle_offset_of(wrapper)] = index
        library.without_device_code(code, indexes, kpack_reference())


def bundle() -> bytes:
    return binaries.offload_bundle("gfx942", "gfx1100", code=b"\x7fELF-code" * 20)


def read_bundle(content: bytes, _folder: Path) -> None:
    for parsed_bundle in read_bundles(content):
        # Each code object is inflated when it is asked for, and none is kept.
        for _entry, _code in code_objects(content, parsed_bundle):
            pass


def kpack_archive() -> bytes:
    frame = zstandard.compress(b"code" * 10)
    stream = io.BytesIO()
    kernel = kpack.Kernel(binary="lib/libx.so#0", target="gfx942", size=40)
    kpack.write(stream, "torch", "gfx942", [frame], [(kernel, len(frame))])
    return stream.getvalue()


def read_kpack(content: bytes, _folder: Path) -> None:
    stream = io.BytesIO(content)
    archive = kpack.read(stream)
    for kernel in archive.kernels:
        archive.content(stream, kernel)


def kpack_reference() -> bytes:
    return kpack.reference("torch", "lib/libx.so#0").packed()


# Documents


def read_rules(content: bytes, folder: Path) -> None:
    skip_rules.load_rules([write_file(folder, "rules.toml", content)])


def read_refs(content: bytes, folder: Path) -> None:
    load_toml(write_file(folder, "refs.toml", content), UserRefsFile)


def read_page(content: bytes, _folder: Path) -> None:
    list(candidates_on_page(content.decode("utf-8", "replace"), PAGE))


def read_yanked_files(content: bytes, _folder: Path) -> None:
    """Ask of yanks what an index asks."""
    yanks = read_yanks(content, location="yanked.json")
    yanks.reason(WHEEL, read_name(WHEEL))
    yanks.text_of_project("demo")
    yanks.unlisted({WHEEL})


def promotion_reader(document: Model, model: type[Model]) -> Reader:
    """Return the reader of a document that a distribution bucket keeps."""

    def read(content: bytes, _folder: Path) -> object:
        return documents.parse(content, model, where="document.json")

    return Reader(
        seeds=[documents.serialized(document)],
        read=read,
        filename="document.json",
    )


def text_reader(
    parse: Callable[[str], object],
    *seeds: str,
    filename: str | None = None,
    refusals: Refusals = (FatalError,),
) -> Reader:
    """Return the reader of a text that its caller has decoded."""

    def read(content: bytes, _folder: Path) -> object:
        return parse(content.decode("utf-8", "replace"))

    return Reader(seeds=[seed.encode() for seed in seeds], read=read, filename=filename, refusals=refusals)


RECORD = {
    "schema_version": 1,
    "stage": "build_torch",
    "run_id": "7",
    "platform": "linux",
    "cell": {"python": "cp312", "gpu_family": "gfx942"},
    "started": "2026-01-01T00:00:00Z",
    "seconds": 1.5,
    "inputs": {"torch": "abc"},
    "files": [
        {
            "name": WHEEL,
            "key": WHEEL,
            "size": 7,
            "sha256": DIGEST,
            "distribution": "demo",
            "version": "1.0",
        }
    ],
    "details": {"tests": {"total": 3}},
}
PYLOCK = f"""lock-version = "1.0"
[[packages]]
name = "Torch"
version = "2.10.0+rocm7.1"
wheels = [{{ url = "http://one/{WHEEL}", hashes = {{ sha256 = "{DIGEST}" }} }}]
[[packages]]
name = "rocm"
version = "7.1"
sdist = {{ path = "../rocm-7.1.tar.gz", hashes = {{ sha256 = "{DIGEST}" }} }}
"""
RULES = """[rules.one]
tests = ["test_nn.py::TestNN::test_a"]
reason = "it hangs on this GPU"
gpu = ["gfx942"]
"""
REFS = """[refs.mine]
extends = "nightly"
[refs.mine.torch]
origin = "https://github.com/pytorch/pytorch"
ref = "main"
"""
LOCK = f"numpy==1.2 ; python_version > '3' \\\n    --hash=sha256:{DIGEST}\n    # via -r test.in\n"
FLAT_PAGE = f'<base href="../"><a href="{WHEEL}#sha256={DIGEST}" data-requires-python="&gt;=3">{WHEEL}</a>'
EVENT = {"Records": [{"eventSource": "aws:sqs", "messageId": "1", "body": '{"Records": []}'}]}
S3_EVENT = {"Records": [{"s3": {"bucket": {"name": "b"}, "object": {"key": "7-linux/python/g/a.whl"}}}]}
JUNIT = b"""<testsuites><testsuite name="s" tests="2" failures="1" time="1.5">
<properties><property name="a" value="b"/></properties><testcase classname="c" name="t" time="0.1"/>
<testcase classname="c" name="u"><failure message="m">text</failure></testcase></testsuite></testsuites>"""

READERS: Mapping[str, Reader] = {
    "wheel": Reader(seeds=[wheel_bytes()], read=read_wheel, filename=WHEEL),
    "RECORD": reader_of_member(f"{DIST_INFO}/RECORD"),
    "METADATA": reader_of_member(f"{DIST_INFO}/METADATA"),
    "WHEEL": reader_of_member(f"{DIST_INFO}/WHEEL"),
    "entry_points": reader_of_member(f"{DIST_INFO}/entry_points.txt"),
    "library in a wheel": reader_of_member("demo/lib.so"),
    "DLL in a wheel": reader_of_member("demo/lib.dll"),
    "sdist": Reader(seeds=[gzip.compress(sdist_tar(), 1, mtime=0)], read=read_sdist, filename=SDIST),
    "tar of an sdist": Reader(seeds=[sdist_tar()], read=read_sdist_tar, filename=SDIST),
    "artifact": Reader(
        seeds=[tar_members.compress(artifact_tar())],
        read=read_artifact,
        filename=tar_members.ZSTD_NAME.filename,
    ),
    "tar of an artifact": Reader(
        seeds=[artifact_tar()], read=read_artifact_tar, filename=tar_members.ZSTD_NAME.filename
    ),
    "ELF": Reader(
        seeds=[binaries.elf_file(needed=["libc.so.6"], runpath="$ORIGIN", glibc_versions=["GLIBC_2.34"])],
        read=read_elf,
        filename="lib.so",
    ),
    "search path": Reader(
        seeds=[binaries.elf_file(runpath="$ORIGIN")], read=read_search_path, filename="lib.so"
    ),
    "PE": Reader(
        seeds=[binaries.pe_file(needed=["a.dll"], delayed=["b.dll"], name="c.dll")],
        read=lambda content, _folder: pe.read_needs(io.BytesIO(content), "lib.dll"),
        filename="lib.dll",
    ),
    "fat library": Reader(seeds=[fat_elf()], read=split_library, refusals=(SplitError,)),
    "fat DLL": Reader(seeds=[fat_pe()], read=split_library, refusals=(SplitError,)),
    "bundle": Reader(
        seeds=[
            bundle(),
            binaries.compressed_bundle(bundle()),
            binaries.compressed_bundle(bundle(), version=2, is_zstd=False),
        ],
        read=read_bundle,
        refusals=(BundleError,),
    ),
    "kernel archive": Reader(seeds=[kpack_archive()], read=read_kpack, refusals=(kpack.KpackError,)),
    "kernel reference": Reader(
        seeds=[kpack_reference()],
        read=lambda content, _folder: kpack.read_reference(content),
        refusals=(kpack.KpackError,),
    ),
    "test report": Reader(seeds=[JUNIT], read=lambda content, _folder: read_junit(content)),
    "run record": Reader(
        seeds=[json.dumps(RECORD).encode()],
        read=lambda content, _folder: records.parse(content, where="record.json"),
        filename="record.json",
    ),
    "plan": text_reader(
        lambda text: parse_json(text, Plan, where="plan.json"),
        plans.make_plan(plans.pytorch_job()).model_dump_json(),
        filename="plan.json",
    ),
    "source lock": text_reader(
        lambda text: parse_json(text, SourceLock, where="lock.json"),
        locks.source_lock(locks.locked_project()).model_dump_json(),
        filename="lock.json",
    ),
    "staging record": promotion_reader(promotion_facts.staging_record(), StagingRecord),
    "decision": promotion_reader(promotion_facts.decision(), Decision),
    "release record": promotion_reader(promotion_facts.release_record(), ReleaseRecord),
    "refusal": promotion_reader(promotion_facts.refusal(), Refusal),
    "yanks": Reader(
        seeds=[json.dumps({WHEEL: "It is broken.", "demo==1.0": "It hangs."}).encode()],
        read=read_yanked_files,
        filename="yanked.json",
    ),
    "event": text_reader(
        lambda text: json_object(text, where="event.json"), json.dumps(S3_EVENT), filename="event.json"
    ),
    "message of a bucket": text_reader(
        lambda text: server.messages(json_object(text, where="event.json")),
        json.dumps(EVENT),
        json.dumps(S3_EVENT),
        refusals=(server.EventError, FatalError),
    ),
    "pylock": text_reader(parse_pylock, PYLOCK),
    "requirements lock": text_reader(parse_lock, LOCK),
    "skip rules": Reader(seeds=[RULES.encode()], read=read_rules, filename="rules.toml"),
    "torch refs": Reader(seeds=[REFS.encode()], read=read_refs, filename="refs.toml"),
    "artifact manifest": text_reader(
        lambda text: parse_stage_folders(text, "manifest.txt"),
        "a/stage\nb/stage\n",
        filename="manifest.txt",
    ),
    "page": Reader(seeds=[FLAT_PAGE.encode()], read=read_page),
    "metadata of a page": Reader(
        seeds=[
            wheels.metadata_text(name="demo", version="1.0", fields=[("Requires-Dist", "numpy")]).encode()
        ],
        read=lambda content, _folder: requirements_in(content),
    ),
}


def read_or_refuse(reader: Reader, content: bytes, folder: Path) -> None:
    """Let a reader read bytes; require that a refusal names the file."""
    try:
        reader.read(content, folder)
    except reader.refusals as refusal:
        message = str(refusal)
    else:
        return
    if reader.filename is not None:
        assert reader.filename in message


@pytest.mark.parametrize("name", READERS)
def test_reads_undamaged_bytes(name: str, tmp_path: Path) -> None:
    for number, seed in enumerate(READERS[name].seeds):
        folder = tmp_path / str(number)
        folder.mkdir()
        READERS[name].read(seed, folder)


@pytest.mark.parametrize("name", READERS)
@settings(max_examples=EXAMPLES)
@given(data=st.data())
def test_reads_or_refuses_damaged_bytes(name: str, data: st.DataObject) -> None:
    reader = READERS[name]
    seed = data.draw(st.sampled_from(reader.seeds))
    content = data.draw(damaged(seed))

    # Windows keeps a file that the traceback of a refusal still maps.
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        read_or_refuse(reader, content, Path(folder))


@pytest.mark.parametrize("name", READERS)
def test_reads_or_refuses_bytes_that_once_led_to_another_error(name: str, tmp_path: Path) -> None:
    for number, content in enumerate(corpus_of(name)):
        folder = tmp_path / str(number)
        folder.mkdir()
        read_or_refuse(READERS[name], content, folder)
