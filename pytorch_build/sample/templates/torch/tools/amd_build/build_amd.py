#!/usr/bin/env python3
# Keeps the contract of pytorch's tools/amd_build/build_amd.py: no arguments, rewrites this tree and its
# submodules from CUDA to HIP, leaves an already rewritten tree as it is.
import importlib.util
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
IN_PLACE = ("third_party/miniblas/cuda",)


def load_hipify():
    # By its path: torch itself cannot be imported before it is built.
    spec = importlib.util.spec_from_file_location("hipify", ROOT / "torch/utils/hipify/__init__.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def main():
    hipify = load_hipify()
    for source in sorted((ROOT / "aten").rglob("*.cu")):
        print(f"{source.relative_to(ROOT)} -> {hipify.copy(source).relative_to(ROOT)}")
    for folder in IN_PLACE:
        for source in sorted(path for path in (ROOT / folder).rglob("*") if path.suffix in hipify.SUFFIXES):
            changed = hipify.rewrite(source, source)
            print(f"{source.relative_to(ROOT)}: {'rewritten' if changed else 'unchanged'}")


if __name__ == "__main__":
    main()
