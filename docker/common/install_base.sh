#!/usr/bin/env bash
# Install what building and testing PyTorch takes from a Debian or Ubuntu, and nothing of ROCm.
set -euo pipefail

export DEBIAN_FRONTEND=noninteractive
apt-get update
apt-get install --yes --no-install-recommends \
  build-essential ca-certificates ccache cmake curl git git-lfs gnupg libatomic1 libdrm2 \
  libelf1 libgomp1 libnuma1 ninja-build patchelf pkg-config python3 python3-dev python3-venv xz-utils
rm -rf /var/lib/apt/lists/*
# sources are mounted into containers, and belong to whoever checked them out
git config --system --add safe.directory '*'
