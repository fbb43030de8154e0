#!/bin/sh
# Put into a root in which ROCm's programs run what PyTorch is configured and compiled with, and the tree's packages:
#   hip.sh ROOT FROM
# ROOT is a root of sid with /proc, /dev and apt; FROM is one that root.sh has prepared, whose tree is taken.
set -eu
root=$1 from=$2
in_root() { chroot "$root" env -i HOME=/root PATH=/usr/sbin:/usr/bin LC_ALL=C DEBIAN_FRONTEND=noninteractive "$@"; }

in_root apt-get -qq update
in_root apt-get -qq -y --no-install-recommends install python3.13-dev python3-venv g++ git ccache patch patchelf xz-utils
# in the places of third_party's
in_root apt-get -qq -y --no-install-recommends install flatbuffers-compiler libblas-dev libcpp-httplib-dev libcpuinfo-dev \
    libdrm-dev libeigen3-dev libelf-dev libflatbuffers-dev libfmt-dev libfp16-dev libfxdiv-dev liblapack-dev libnuma-dev \
    libonnx-dev libprotobuf-dev libpsimd-dev libpthreadpool-dev libsleef-dev nlohmann-json3-dev protobuf-compiler pybind11-dev
mkdir -p "$root/srv/torch"
cp -a "$from/srv/torch/." "$root/srv/torch"
