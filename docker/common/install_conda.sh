#!/usr/bin/env bash
# Make the Python environment /opt/conda/envs/py_$ANACONDA_PYTHON_VERSION.
#
# It comes from conda, by the installer at CONDA_INSTALLER_URL, whose SHA-256 is CONDA_INSTALLER_SHA256.
# An empty address is for networks without conda: the base's own Python, which must then be of that version.
set -euo pipefail

prefix="${DESTDIR:-}/opt/conda"
version="${ANACONDA_PYTHON_VERSION:?name a Python, such as 3.11}"
env="$prefix/envs/py_$version"

from_conda() {
  local installer
  installer="$(mktemp --suffix=.sh)"
  # the path is needed now: it is local to this function
  # shellcheck disable=SC2064
  trap "rm -f '$installer'" EXIT
  curl --fail --silent --show-error --location --retry 5 --output "$installer" "$CONDA_INSTALLER_URL"
  echo "${CONDA_INSTALLER_SHA256:?an installer from the network is run only by its digest}  $installer" |
    sha256sum --check --quiet
  bash "$installer" -b -p "$prefix"
  "$prefix/bin/conda" create --yes --quiet --prefix "$env" "python=$version" pip
  "$prefix/bin/conda" clean --all --yes --quiet
}

from_base() {
  local found
  found="$(python3 -c 'import sys; print("%d.%d" % sys.version_info[:2])')"
  if [[ $found != "$version" ]]; then
    echo "The base's Python is $found, not $version: give a CONDA_INSTALLER_URL, or another base." >&2
    exit 1
  fi
  python3 -m venv "$env"
}

if [[ -n ${CONDA_INSTALLER_URL:-} ]]; then from_conda; else from_base; fi

# a login shell's /etc/profile sets PATH anew
mkdir -p "${DESTDIR:-}/etc/profile.d"
cat >"${DESTDIR:-}/etc/profile.d/python-env.sh" <<PROFILE
case ":\${PATH}:" in
  *':/opt/conda/envs/py_$version/bin:'*) ;;
  *) export PATH='/opt/conda/envs/py_$version/bin:/opt/conda/bin':"\${PATH}" ;;
esac
PROFILE
