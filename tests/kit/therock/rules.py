"""Every rule that this project copies from TheRock, and where it says otherwise on purpose."""

from collections.abc import Sequence

from tests.kit.therock import families, layout, packages, promotion, pytorch, versions
from tests.kit.therock.checkout import TheRock
from tests.kit.therock.comparison import Difference, Intended, Rule, differences_of

RULES: Sequence[Rule] = (
    *versions.RULES,
    *layout.RULES,
    *packages.RULES,
    *promotion.RULES,
    *families.RULES,
    *pytorch.RULES,
)

# Each is for the keys and values that it names: another value is a difference that nobody meant.
INTENDED: Sequence[Intended] = (
    Intended(
        rule="files of packages",
        key="rocm-sdk-core",
        downstream=["lib/libamd_smi.so"],
        reason="PyTorch and rocSHMEM open it by this name, which no wheel of upstream's has (TheRock #7010).",
    ),
    Intended(
        rule="files of packages",
        key="rocm-sdk-devel",
        upstream=["lib/libamd_smi.so"],
        reason="The development tree links the file of core, which has it already.",
    ),
    Intended(
        rule="post-releases",
        key="7.99.0rc2",
        upstream=["not linked"],
        downstream=["refused"],
        reason="`rocm-sdk` refuses packages of several versions, of which a tree would have dangling links.",
    ),
    Intended(
        rule="requirements of packages",
        key="rocm-*",
        downstream=[f"rocm-sdk-core=={packages.VERSION}"],
        reason="None of these packages works without core, of the same version.",
    ),
    Intended(
        rule="search paths of libraries",
        key="rocm-sdk-libraries",
        downstream=["_rocm_sdk_core/lib/llvm/lib/x86_64-unknown-linux-gnu"],
        reason="ROCm has libomp in a folder by the machine's triple since 10.1.0a20260829.",
    ),
    Intended(
        rule="names of libraries",
        key="hipsparselt on windows",
        downstream=["found"],
        reason="Torch is to load it first on Windows, too, where upstream's table has no name for it.",
    ),
    Intended(
        rule="promotion*",
        key="rocm_sdk_device_*.json",
        upstream=[f'*"version": "{packages.VERSION}",'],
        downstream=[f'*"version": "{promotion.RELEASE}",'],
        reason="`rocm-sdk` compares this version with its own before it links device code.",
    ),
    Intended(
        rule="promotion of some targets",
        key="*/_dist_info.py",
        upstream=["LINUX_TARGET_FAMILIES.append*", "WINDOWS_TARGET_FAMILIES.append*"],
        reason="A release lists the targets that it has, on each platform, too.",
    ),
    Intended(
        rule="machines",
        key="gfx94X-dcgpu on linux, sandbox",
        upstream=["linux-mi325-gpu-rocm-cpu-sandbox"],
        reason="Builds with a sanitizer are tested on the family's usual machines here.",
    ),
    Intended(
        rule="cells",
        key="refs in CI on *",
        upstream=["release/2.12", "release/2.13"],
        downstream=["nightly"],
        reason="CI builds the newest code, which breaks first; releases build every branch.",
    ),
    Intended(
        rule="cells",
        key="untested",
        upstream=["windows-nightly-3.14"],
        reason="Upstream's tests need a scikit-image there that cannot be built; ours are locked without it.",
    ),
    Intended(
        rule="test files",
        key="left out",
        upstream=[
            "dynamo/test_dynamic_shapes",
            "functorch/test_control_flow",
            "inductor/test_compiled_autograd",
            "inductor/test_max_autotune",
            "inductor/test_torchinductor_opinfo_properties",
            "nn/test_convolution",
        ],
        reason="Upstream leaves these out of a run of every file; configurations.toml names what runs.",
    ),
    Intended(
        rule="skipped tests",
        key="generic, windows: torch",
        upstream=["test_memory_format_operators_cudatest_grad_scale_will_not_overflow_cuda"],
        reason="Two names without a comma between them upstream; each of them has its rule here.",
    ),
    Intended(
        rule="tools on Windows",
        key="ninja",
        upstream=["1.13.1"],
        downstream=["1.13.2"],
        reason="1.13.2 has both of upstream's corrections, and is a package whose digest the lock has.",
    ),
)


def unintended_differences(rule: Rule, therock: TheRock) -> Sequence[Difference]:
    """Return where TheRock and this project differ in a rule, and nobody means it."""
    return [difference for difference in differences_of(rule, therock) if not is_intended(difference)]


def is_intended(difference: Difference) -> bool:
    """Return whether a difference has a reason."""
    return any(intended.covers(difference) for intended in INTENDED)
