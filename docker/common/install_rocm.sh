#!/usr/bin/env bash
# Install ROCm: the nightly wheels with USE_THEROCK_NIGHTLY=1, else AMD's packages of ROCM_VERSION.
#
# Either way /etc/profile.d/rocm-sdk.sh says to shells where it is. DESTDIR goes before every path written.
#
#   USE_THEROCK_NIGHTLY        1 for the wheels
#   THEROCK_NIGHTLY_INDEX_URL  their index; or a flat page (*.html), or a folder
#   THEROCK_NIGHTLY_VERSION    their version; empty for the newest
#   ROCM_SDK_TARGET_FAMILY     GPU family, where the place has libraries of several; empty for the packages' own
#   PYTORCH_ROCM_ARCH          gfx targets whose device code is installed, where it is in packages of its own
#   ROCM_VERSION               version of AMD's packages, such as 6.4
set -euo pipefail

destdir="${DESTDIR:-}"

fail() {
  echo "install_rocm.sh: $*" >&2
  exit 1
}

# pip for the nightly wheels: it asks the place that is named and no other, whatever it is configured to ask
# besides, because the public index has packages of strangers under the same names
pip_rocm() {
  local place="$1" name value
  shift
  local from=(--index-url "$place")
  case "$place" in
    /* | file://* | *.html) from=(--no-index --find-links "$place") ;;
  esac
  # how this network is reached stays as it is configured
  for name in cert client-cert proxy; do
    if value="$(python3 -m pip config get "global.$name" 2>/dev/null)"; then from+=("--$name" "$value"); fi
  done
  env --unset=PIP_INDEX_URL --unset=PIP_EXTRA_INDEX_URL --unset=PIP_FIND_LINKS --unset=PIP_NO_INDEX \
    PIP_CONFIG_FILE=/dev/null \
    python3 -m pip "$@" --no-cache-dir --pre "${from[@]}"
}

install_nightly() {
  local place="${THEROCK_NIGHTLY_INDEX_URL:-}"
  [[ -n $place ]] || fail "USE_THEROCK_NIGHTLY=1 needs THEROCK_NIGHTLY_INDEX_URL."
  local version="${THEROCK_NIGHTLY_VERSION:+==$THEROCK_NIGHTLY_VERSION}" wanted target
  rm -rf "$destdir"/opt/rocm "$destdir"/opt/rocm-[0-9]*
  # what the rocm sdist is built with; the nightly index need not have it
  python3 -m pip install --no-cache-dir "setuptools>=70.2" wheel
  wanted=("rocm[libraries,devel]$version")
  if pip_rocm "$place" index versions rocm-sdk-libraries >/dev/null 2>&1; then
    # libraries for all GPUs: without these packages the first kernel fails, and a family means nothing to rocm
    unset ROCM_SDK_TARGET_FAMILY
    for target in ${PYTORCH_ROCM_ARCH//;/ }; do wanted+=("rocm-sdk-device-$target$version"); done
  fi
  # an empty family is none: rocm would take it for one
  [[ -n ${ROCM_SDK_TARGET_FAMILY:-} ]] || unset ROCM_SDK_TARGET_FAMILY
  pip_rocm "$place" install --no-build-isolation "${wanted[@]}"
  rocm-sdk init # the development tree is there from the start, not after the first compiler call
  write_profile "$(rocm-sdk version)" "$(rocm-sdk path --root)" "$(rocm-sdk path --cmake)"
}

# AMD has packages for Ubuntu; Debian takes those of the Ubuntu that is nearest to it.
apt_suite() {
  # shellcheck disable=SC1091 # every Debian and Ubuntu has it
  case "$(. "$destdir/etc/os-release" && echo "${VERSION_CODENAME:-}")" in
    jammy | bookworm) echo jammy ;;
    noble | trixie) echo noble ;;
    *) fail "AMD has no ROCm packages for this base. Use Ubuntu 22.04 or 24.04, or USE_THEROCK_NIGHTLY=1." ;;
  esac
}

install_traditional() {
  local version="${ROCM_VERSION:-}" suite key="/etc/apt/keyrings/rocm.gpg"
  [[ $version =~ ^[0-9]+\.[0-9]+(\.[0-9]+)?$ ]] || fail "ROCM_VERSION=$version is no version, such as 6.4."
  suite="$(apt_suite)"
  mkdir -p "$destdir"/etc/apt/{keyrings,sources.list.d,preferences.d}
  curl --fail --silent --show-error --location --retry 5 https://repo.radeon.com/rocm/rocm.gpg.key |
    gpg --dearmor --yes --output "$destdir$key"
  echo "deb [arch=amd64 signed-by=$key] https://repo.radeon.com/rocm/apt/$version $suite main" \
    >"$destdir/etc/apt/sources.list.d/rocm.list"
  # distributions have packages of the same names
  printf 'Package: *\nPin: release o=repo.radeon.com\nPin-Priority: 600\n' \
    >"$destdir/etc/apt/preferences.d/rocm-pin-600"
  export DEBIAN_FRONTEND=noninteractive
  apt-get update
  apt-get install --yes --no-install-recommends rocm-dev rocm-utils rocm-libs rccl-dev miopen-hip-dev \
    rocprofiler-dev roctracer-dev amd-smi-lib
  rm -rf "$destdir"/var/lib/apt/lists/*
  write_profile "$version" /opt/rocm /opt/rocm/lib/cmake
}

write_profile() {
  local version="$1" root="$2" cmake="$3"
  [[ $root == /* && $cmake == /* ]] || fail "ROCm does not say where it is: '$root', '$cmake'."
  mkdir -p "$destdir/etc/profile.d"
  cat >"$destdir/etc/profile.d/rocm-sdk.sh" <<PROFILE
# ROCm $version of this image. Written by install_rocm.sh.
export ROCM_SDK_VERSION='$version'
export ROCM_PATH='$root'
export ROCM_HOME='$root'
export HIP_DEVICE_LIB_PATH='$root/lib/llvm/amdgcn/bitcode'
case ":\${PATH}:" in
  *':$root/bin:'*) ;;
  *) export PATH='$root/bin':"\${PATH}" ;;
esac
case ":\${CMAKE_PREFIX_PATH:-}:" in
  *':$cmake:'*) ;;
  *) export CMAKE_PREFIX_PATH='$cmake'"\${CMAKE_PREFIX_PATH:+:\${CMAKE_PREFIX_PATH}}" ;;
esac
PROFILE
  echo "ROCm $version is in $root"
}

case "${USE_THEROCK_NIGHTLY:-0}" in
  1) install_nightly ;;
  0) install_traditional ;;
  *) fail "USE_THEROCK_NIGHTLY=$USE_THEROCK_NIGHTLY is neither 0 nor 1." ;;
esac
