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
def clone_fixture(
    sample_run: SampleRun,
    tmp_path_factory: pytest.TempPathFactory,
) -> Provenance:
    folder = tmp_path_factory.mktemp("provenance") / "checkout"
    return Provenance(path=sample.copy_run(sample_run, folder))


def test_statements_and_bill_follow_their_schemas(clone: Provenance) -> None:
    content = clone.content()
    packages = (clone.files / "python" / FAMILY).iterdir()
    distributions = [path for path in packages if path.suffix in {".whl", ".gz"}]

    # A statement for each distribution, and the bill of the run.
    assert len(distributions) == 13
    assert len(content) == 13 + 1
    for name, text in content.items():
        if name.endswith(".intoto.json"):
            validate_statement(text)
    assert problems_of_bill(content["sbom.cdx.json"]) == ""


def test_a_statement_names_the_commit_of_its_source(clone: Provenance) -> None:
    (text,) = [text for name, text in clone.content().items() if "/triton-" in name]

    source = json.loads(text)["predicate"]["buildDefinition"]["resolvedDependencies"][0]

    assert source["digest"] == {"gitCommit": clone.locked_projects(RUN)["triton"]["commit"]}


@pytest.fixture
def bucket(clone: Provenance, rclone: S3Server) -> str:
    """Return a bucket that the run was uploaded to."""
    name = rclone.make_bucket()
    target = (*WHERE, f"--store=s3://{name}")
    clone.run_checked("nox", "-s", "upload", "provenance", "--", *target, **rclone.variables)
    return name


@pytest.mark.nightly
def test_a_wheel_is_verified_on_disk_on_a_server_and_in_a_bucket(
    clone: Provenance,
    rclone: S3Server,
    bucket: str,
) -> None:
    for name, text in clone.content().items():
        answer = rclone.client().get_object(Bucket=bucket, Key=f"{RUN}-linux/{name}")
        assert answer["Body"].read() == text, name

    (wheel,) = (clone.files / "python" / FAMILY).glob("triton-*.whl")
    key = f"{RUN}-linux/python/{FAMILY}/{wheel.name}"
    with served(clone.path / "out") as url:
        addresses = (str(wheel), f"{url}/{quote(key)}", f"s3://{bucket}/{key}")
        verified = clone.nox("-s", "verify", "--", *addresses, **rclone.variables)

    assert verified.returncode == 0, printed_by(verified)[-4000:]
    assert verified.stdout.count(f"{wheel.name}: verified") == 3
    assert verified.stdout.count(f"  {clone.locked_projects(RUN)['triton']['commit']}\n") == 3
