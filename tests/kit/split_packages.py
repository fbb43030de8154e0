"""A run with split packages: libraries for all GPUs, and device code in packages of its own."""

from tests.kit.builds import ROCM_VERSION, LocalRun

# A GPU family of four targets.
FOUR_TARGETS = "gfx110X-all"
LIBRARIES = ("rocm-sdk-core", "rocm-sdk-libraries", "rocm-sdk-devel")
# How the names of device packages begin.
DEVICE_KINDS = ("rocm-sdk", "amd-torch", "amd-torchvision")


def publish_split_packages(run: LocalRun, *devices: str) -> None:
    """Put split packages of ROCm and a torch into the run, with device packages of these names."""
    run.put_lock()
    torch = run.built("torch", gpu_family=FOUR_TARGETS)

    torch_files = [torch]
    rocm_files = [run.publish(run.sdist("rocm", ROCM_VERSION), group=FOUR_TARGETS)]
    for name in (*LIBRARIES, *devices):
        if name.startswith("rocm"):
            path = run.wheel(name, ROCM_VERSION, "py3-none-linux_x86_64")
            rocm_files.append(run.publish(path, group=FOUR_TARGETS))
        else:
            path = run.wheel(name, torch.version)
            torch_files.append(run.publish(path, group=FOUR_TARGETS))

    run.record(
        "build_torch",
        *torch_files,
        group=FOUR_TARGETS,
        torch_ref="sample",
        python="cp312",
        gpu_family=FOUR_TARGETS,
    )
    run.record("build_rocm", *rocm_files, group=FOUR_TARGETS)
