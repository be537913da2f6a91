#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# Installs the Debian packages that building and testing need; silent and quick when all are there.
# Exit status: 0 all present, 2 something is missing and this user cannot install it.
set -eu

packages="g++ cmake ninja-build ccache git python3 clang libclang-rt-dev clang-format clang-tidy
  nlohmann-json3-dev libcli11-dev libfmt-dev libgtest-dev libgmock-dev
  openmpi-bin libopenmpi-dev"

if ! command -v dpkg-query >/dev/null 2>&1; then
  echo "bootstrap: no dpkg-query here, so this is no Debian; install the equivalents of" $packages \
    "and build with: cmake --preset cpu && cmake --build --preset cpu" >&2
  exit 2
fi

missing=""
for package in $packages; do
  status=$(dpkg-query -W -f='${db:Status-Status}' "$package" 2>/dev/null || true)
  [ "$status" = installed ] || missing="$missing $package"
done
[ -n "$missing" ] || exit 0

if [ "$(id -u)" -ne 0 ]; then
  echo "bootstrap: packages are missing and this user cannot install them; run:" >&2
  echo "  sudo apt-get update && sudo apt-get install --no-install-recommends$missing" >&2
  exit 2
fi

install() {
  DEBIAN_FRONTEND=noninteractive apt-get install -y --no-install-recommends $missing
}
echo "bootstrap: installing$missing" >&2
# The package lists may be absent or stale: try what is here, refresh only when that fails.
install >&2 || { apt-get update >&2 && install >&2; }
