# Keeps the contract of pytorch's tools/generate_torch_version.py: PYTORCH_BUILD_VERSION, else version.txt+git<sha7>.
import argparse
import os
import subprocess
from pathlib import Path

UNKNOWN = "Unknown"
ROOT = Path(__file__).absolute().parent.parent


def get_sha(root=ROOT):
    if not (root / ".git").exists():
        return UNKNOWN
    try:
        return subprocess.check_output(["git", "rev-parse", "HEAD"], cwd=root, text=True).strip()
    except (OSError, subprocess.CalledProcessError):
        return UNKNOWN


def get_torch_version(sha=None):
    version = os.environ.get("PYTORCH_BUILD_VERSION")
    if version:
        number = int(os.environ["PYTORCH_BUILD_NUMBER"])
        return f"{version}.post{number}" if number > 1 else version
    version = (ROOT / "version.txt").read_text().strip()
    sha = get_sha() if sha is None else sha
    return version if sha == UNKNOWN else f"{version}+git{sha[:7]}"


def main():
    parser = argparse.ArgumentParser(description="Write torch/version.py.")
    parser.add_argument("--is-debug", choices=("True", "False"), required=True)
    for name in ("cuda", "hip", "rocm"):
        parser.add_argument(f"--{name}-version", default="")
    args = parser.parse_args()
    sha = get_sha()
    values = {
        "__version__": get_torch_version(sha),
        "debug": args.is_debug == "True",
        "cuda": args.cuda_version or None,
        "git_version": sha,
        "hip": args.hip_version or None,
        "rocm": args.rocm_version or None,
    }
    lines = [f"__all__ = {list(values)!r}", *(f"{name} = {value!r}" for name, value in values.items())]
    (ROOT / "torch" / "version.py").write_text("\n".join(lines) + "\n")


if __name__ == "__main__":
    main()
