"""Where outputs of runs lie, who writes them, and where releases are distributed from."""

from collections.abc import Mapping
from fnmatch import fnmatchcase
from typing import TypedDict

from packaging.utils import canonicalize_name

from ci.publish.buckets import access, buckets
from core.run import BUILD_MANIFEST, PLATFORMS, Platform, RunOutputs
from core.run.locations import Origin, is_own, location, run_buckets
from core.stores import headers_for
from rocm_packaging.origin import release_indexes
from tests.kit.therock.checkout import TheRock
from tests.kit.therock.comparison import Comparison, Facts, Rule

BUCKETS = "build_tools/_therock_utils/s3_buckets.py"
OUR_BUCKETS = "ci/buckets.toml"

GROUP = "gfx94X-dcgpu"
RUN_ID = "20260822123"
ARTIFACT = "blas_lib_gfx942.tar.zst"

# Product -> a file that it distributes.
RELEASED_FILES = {
    "rocm_sdk_device_gfx942-10.1.0rc2-py3-none-linux_x86_64.whl": "core",
    "rocm-10.1.0rc2.tar.gz": "core",
    "amd_torch_device_gfx942-2.14.0+rocm10.1.0rc2-cp312-cp312-linux_x86_64.whl": "pytorch",
}

UPLOADED_FILES = (
    "rocm-10.1.0.tar.gz",
    "blas_lib_gfx942.tar.zst",
    "blas_lib_gfx942.tar.xz",
    "torch-2.14.0-cp312-cp312-linux_x86_64.whl",
    "index.html",
    "build.log",
    "notes.md",
    "therock_manifest.json",
    "program",
)


class Case(TypedDict):
    """One run."""

    run_id: str
    platform: Platform
    repository: str
    fork: bool
    release_type: str
    group: str


def run_cases() -> dict[str, Case]:
    """Return runs of the main repository, of a fork of it and of another repository, by name."""
    cases: dict[str, Case] = {}
    origins = {
        "main repository": Origin(repository="ROCm/TheRock"),
        "fork": Origin(repository="ROCm/TheRock", fork=True),
        "other repository": Origin(repository="somebody/rocm-builds"),
    }
    for release_type in ("ci", "dev", "dev-bkc", "nightly", "nightly-bkc", "prerelease"):
        for name, origin in origins.items():
            platform = PLATFORMS[len(cases) % 2]
            cases[f"{release_type} of the {name} on {platform}"] = Case(
                run_id=RUN_ID,
                platform=platform,
                repository=origin.repository,
                fork=origin.fork,
                release_type=release_type,
                group=GROUP,
            )
    return cases


def origin_of(case: Case) -> Origin:
    """Return whose run it is."""
    return Origin(repository=case["repository"], fork=case["fork"])


def flatten(places: Mapping[str, Mapping[str, str]]) -> Facts:
    """Return facts with one key for each place of each run."""
    facts: dict[str, str] = {}
    for run, by_name in places.items():
        for name, place in by_name.items():
            facts[f"{name} of {run}"] = place
    return facts


def compare_run_outputs(therock: TheRock) -> Comparison:
    """Compare where runs leave what they make."""
    cases = run_cases()
    places: dict[str, Mapping[str, str]] = {}
    for name, case in cases.items():
        place = location(run_buckets(), origin_of(case), case["release_type"])
        bucket = place.store.removeprefix("s3://")
        outputs = RunOutputs(
            run_id=RUN_ID,
            platform=case["platform"],
            external_repo=place.external_repo,
            address=f"https://{bucket}.s3.amazonaws.com",
        )
        places[name] = {
            "run": f"{place.store}/{outputs.prefix}",
            "artifact": f"{place.store}/{outputs.prefix}/{ARTIFACT}",
            "logs": f"{place.store}/{outputs.logs_prefix(GROUP)}",
            "manifest": f"{place.store}/{outputs.manifests_prefix(GROUP)}/{BUILD_MANIFEST}",
            "packages": f"{place.store}/{outputs.python_prefix(GROUP)}",
            "address": outputs.url_of(outputs.python_prefix(GROUP)),
        }
    upstream = therock.ask("run_outputs", cases=cases, artifact=ARTIFACT)
    return Comparison(upstream=flatten(upstream), downstream=flatten(places))


def compare_roles(therock: TheRock) -> Comparison:
    """Compare who writes to which bucket."""
    cases = run_cases()
    rights: dict[str, Mapping[str, str]] = {}
    for name, case in cases.items():
        upload = access(buckets(), origin_of(case), case["release_type"])
        rights[name] = {"role": upload.role or "", "region": upload.region or ""}
    return Comparison(upstream=flatten(therock.ask("run_roles", cases=cases)), downstream=flatten(rights))


def compare_products(therock: TheRock) -> Comparison:
    """Compare where releases are distributed from."""
    data = buckets().products
    upstream = therock.ask("products", release_types=list(data.streams), packages=RELEASED_FILES)

    downstream: dict[str, str | list[str]] = {"products": [*data.distributions]}
    for release_type, stream in data.streams.items():
        downstream[f"index of {release_type}"] = data.index.format(stream=stream)
        for product in data.distributions:
            bucket = data.bucket.format(stream=stream, product=product)
            downstream[f"bucket of {product} in {release_type}"] = bucket
            downstream[f"role of {product} in {release_type}"] = data.role.format(
                stream=stream, product=product
            )
    for filename, product in RELEASED_FILES.items():
        distribution = canonicalize_name(filename.partition("-")[0])
        downstream[f"key of {filename}"] = f"{data.folder.format(product=product)}/{distribution}/{filename}"
    return Comparison(upstream=upstream, downstream=downstream)


def compare_owners(therock: TheRock) -> Comparison:
    """Compare which product distributes a package."""
    upstream = therock.ask("owners")
    downstream: dict[str, list[str]] = {}
    for package in upstream:
        downstream[package] = []
        for product, globs in buckets().products.distributions.items():
            if any(fnmatchcase(package, glob) for glob in globs):
                downstream[package].append(product)
    return Comparison(upstream=upstream, downstream=downstream)


def compare_indexes(therock: TheRock) -> Comparison:
    """Compare the addresses of indexes by name, and find those that users are told of."""
    indexes = release_indexes().indexes
    upstream = therock.ask("index_addresses")
    downstream = {name: indexes[name].url for name in upstream if name in indexes}

    documented = {*therock.find(r"--index-url[= ](https://\S+)", "RELEASES.md")}
    known = {index.url for index in indexes.values()}
    return Comparison(
        upstream={**upstream, "documented": sorted(documented)},
        downstream={**downstream, "documented": sorted(documented & known)},
    )


def compare_content_types(therock: TheRock) -> Comparison:
    """Compare the types that files are uploaded as."""
    downstream = {name: headers_for(name)["ContentType"].partition(";")[0] for name in UPLOADED_FILES}
    return Comparison(upstream=therock.ask("content_types", names=UPLOADED_FILES), downstream=downstream)


def compare_cache_access(therock: TheRock) -> Comparison:
    """Compare which repositories' builds share a compiler cache."""
    cases = run_cases()
    downstream: dict[str, str] = {}
    for name, case in cases.items():
        downstream[name] = "sccache" if is_own(run_buckets(), origin_of(case)) else "none"
    event = therock.scratch / "event.json"
    return Comparison(upstream=therock.ask("cache_types", cases=cases, event=event), downstream=downstream)


RULES = (
    Rule(
        name="outputs of runs",
        upstream="build_tools/_therock_utils/workflow_outputs.py",
        downstream="core/run",
        compare=compare_run_outputs,
    ),
    Rule(name="roles of runs", upstream=BUCKETS, downstream=OUR_BUCKETS, compare=compare_roles),
    Rule(name="products", upstream=BUCKETS, downstream=OUR_BUCKETS, compare=compare_products),
    Rule(
        name="owners of packages",
        upstream="build_tools/packaging/python/rocm_whl_next_ownership.yaml",
        downstream=OUR_BUCKETS,
        compare=compare_owners,
    ),
    Rule(
        name="indexes",
        upstream="build_tools/setup_venv.py, RELEASES.md",
        downstream="rocm_packaging/rocm_indexes.toml",
        compare=compare_indexes,
    ),
    Rule(
        name="types of files",
        upstream="build_tools/_therock_utils/storage_backend.py",
        downstream="core/stores",
        compare=compare_content_types,
    ),
    Rule(
        name="use of compiler caches",
        upstream="build_tools/github_actions/compute_pytorch_cache_type.py",
        downstream="core/run/locations.py",
        compare=compare_cache_access,
    ),
)
