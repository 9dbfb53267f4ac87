#!/usr/bin/env bash
# Builds the Debian packages on a fresh minimal Debian, installs them on another, where nothing was built, and makes the first
# run there with the installed program: tests/deploy/package.sh bookworm|trixie. Needs root and debootstrap (fresh_debian.sh).
set -euo pipefail
unset CDPATH  # cd would look there first, and print
suite=${1:?usage: $0 bookworm|trixie}
fresh=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)/fresh_debian.sh
folder=$(mktemp -d /var/tmp/shoal-package-XXXXXX)
end() {
  jobs -pr | xargs -r kill || true
  wait
  rm -rf "$folder"
}
trap end EXIT
trap 'exit 130' INT HUP TERM
# In the background, since only a shell that waits acts on a signal at once.
on_fresh() { "$fresh" "$@" <&0 & wait $!; }

on_fresh --keep "$folder/build" "$suite" '
  set -e -o pipefail
  scripts/install-deps.sh package
  cmake --preset package >/dev/null
  cmake --build --preset package | tail -n 1
  cpack --preset package >/dev/null'
mkdir "$folder/packages"
cp "$folder"/build/changes/root/shoal/build/package/packages/*.deb "$folder/packages"

on_fresh --beside "$folder/packages" "$suite" '
  set -e
  for package in ~/packages/*.deb; do
    echo "== $(basename "$package"), $(stat -c %s "$package") bytes"
    dpkg-deb --field "$package" Package Version Maintainer Installed-Size Depends Recommends Section
  done
  apt-get update -qq
  for packages in shoal shoal-openmpi shoal-mpich; do
    DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends ~/packages/${packages}_*.deb >/tmp/apt.log 2>&1 ||
      { tail /tmp/apt.log; exit 1; }
  done
  tests/deploy/first_run.sh
  changed=$(dpkg --verify shoal shoal-openmpi shoal-mpich)  # which succeeds whatever it finds
  [ -z "$changed" ] || { echo "$changed"; exit 1; }
  echo "== all files are those of the packages"'
