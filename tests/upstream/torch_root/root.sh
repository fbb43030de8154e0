#!/bin/sh
# Put into a Debian root what PyTorch is built with, and into its /srv/torch what is built:
#   root.sh ROOT
# ROOT is a root of trixie with /proc, /dev and apt. A second call finds all of it there.
set -eu
root=$1
in_root() { chroot "$root" env -i HOME=/root PATH=/usr/sbin:/usr/bin LC_ALL=C DEBIAN_FRONTEND=noninteractive "$@"; }

sed 's/^deb /deb-src /' "$root/etc/apt/sources.list" >"$root/etc/apt/sources.list.d/source.list"
in_root apt-get -qq update
in_root apt-get -qq -y --no-install-recommends build-dep pytorch
in_root apt-get -qq -y --no-install-recommends install git ninja-build ccache clang-19 lld-19 libomp-19-dev patchelf python3-venv python3-dev
mkdir -p "$root/srv/torch"
in_root sh -c 'cd /srv/torch && apt-get -qq -oAPT::Sandbox::User=root source --download-only pytorch'
in_root sh -c 'cd /srv/torch && apt-get -qq -oAPT::Sandbox::User=root download libtorch2.6 python3-torch'
