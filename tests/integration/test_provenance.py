"""Provenance of a sample's run, from its builds to an S3 server and back: real builds, real nox."""

import json
from pathlib import Path
from urllib.parse import quote

import pytest

from tests.kit import sample
from tests.kit.clones import FAMILY, Clone, printed_by
from tests.kit.provenance_schemas import problems_of_bill, validate_statement
from tests.kit.s3_servers import S3Server
from tests.kit.sample import SampleRun
from tests.kit.servers import served

RUN = "local"
WHERE = ("--torch-ref=sample", f"--gpu-family={FAMILY}", f"--run-id={RUN}")


class Provenance(Clone):
    @property
    def files(self) -> Path:
        return self.path / "out" / f"{RUN}-linux"

    def content(self) -> dict[str, bytes]:
        files = [*self.files.glob("provenance/*/*.json"), self.files / "sbom.cdx.json"]
        return {path.relative_to(self.files).as_posix(): path.read_bytes() for path in files}


@pytest.fixture(scope="module", name="clone")
def clone_fixture(sample_run: SampleRun, tmp_path_factory: pytest.TempPathFactory) -> Provenance:
    folder = tmp_path_factory.mktemp("provenance") / "checkout"
    return Provenance(path=sample.copy_run(sample_run, folder))


def test_statements_and_bill_follow_their_schemas(clone: Provenance) -> None:
    content = clone.content()
    built = [path for path in (clone.files / "python" / FAMILY).iterdir() if path.suffix in {".whl", ".gz"}]
    assert len(built) == len(content) - 1 == 13
    for name, text in content.items():
        if name.endswith(".intoto.json"):
            validate_statement(text)
    assert problems_of_bill(content["sbom.cdx.json"]) == ""
    (statement,) = (json.loads(text) for name, text in content.items() if "/triton-" in name)
    source = statement["predicate"]["buildDefinition"]["resolvedDependencies"][0]
    assert source["digest"] == {"gitCommit": clone.locked_projects(RUN)["triton"]["commit"]}


def test_a_wheel_is_verified_on_disk_on_a_server_and_in_a_bucket(clone: Provenance, rclone: S3Server) -> None:
    (wheel,) = (clone.files / "python" / FAMILY).glob("triton-*.whl")
    commit = clone.locked_projects(RUN)["triton"]["commit"]
    bucket = rclone.make_bucket()
    words = ("upload", "provenance", "--", *WHERE, f"--store=s3://{bucket}")
    clone.run_checked("nox", "-s", *words, **rclone.variables)
    prefix = f"{RUN}-linux"
    for name, text in clone.content().items():
        stored = rclone.client().get_object(Bucket=bucket, Key=f"{prefix}/{name}")["Body"].read()
        assert stored == text, name
    key = f"{prefix}/python/{FAMILY}/{wheel.name}"
    with served(clone.path / "out") as address:
        places = (str(wheel), f"{address}/{quote(key)}", f"s3://{bucket}/{key}")
        done = clone.nox("-s", "verify", "--", *places, **rclone.variables)
    assert done.returncode == 0, printed_by(done)[-4000:]
    assert done.stdout.count(f"{wheel.name}: verified") == done.stdout.count(f"  {commit}\n") == 3
