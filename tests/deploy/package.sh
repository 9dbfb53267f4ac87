#!/usr/bin/env bash
# Builds the Debian packages on a fresh minimal Debian, installs them on another, where nothing was built, and makes the first
# run there with the installed program: tests/deploy/package.sh bookworm|trixie. Needs root and debootstrap (fresh_debian.sh).
set -euo pipefail
suite=${1:?usage: $0 bookworm|trixie}
fresh=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)/fresh_debian.sh
folder=$(mktemp -d /var/tmp/shoal-package-XXXXXX)
trap 'rm -rf "$folder"' EXIT

"$fresh" --keep "$folder/build" "$suite" '
  set -e
  scripts/install-deps.sh package
  cmake --preset package >/dev/null
  cmake --build --preset package | tail -n 1
  cpack --preset package >/dev/null' || exit 1
cp -r "$folder/build/changes/root/shoal/build/package/packages" "$folder/packages"

"$fresh" --beside "$folder/packages" "$suite" '
  set -e
  cd ~/packages
  for package in *.deb; do
    echo "== $package, $(stat -c %s "$package") bytes"
    dpkg-deb --field "$package" Package Version Maintainer Installed-Size Depends Recommends Section
  done
  apt-get update -qq
  DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends ./shoal_*.deb >/tmp/apt.log 2>&1 || { tail /tmp/apt.log; exit 1; }
  mkdir ~/first && cd ~/first
  echo "== shoal doctor"
  shoal doctor
  echo "== the first run"
  shoal prepare synthetic --out data/synthetic
  shoal train /usr/share/shoal/configs/quickstart.toml
  shoal eval --checkpoint runs/quickstart
  shoal sample --checkpoint runs/quickstart --max-tokens 60
  shoal plot runs/quickstart -o curves.svg
  echo "== ranks as processes"
  for mpi in openmpi mpich; do
    DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends ~/packages/shoal-${mpi}_*.deb >/tmp/apt.log 2>&1 ||
      { tail /tmp/apt.log; exit 1; }
  done
  shoal doctor | grep -A 4 "^ranks"
  export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1
  for mpi in openmpi mpich; do
    mpirun.$mpi -n 2 shoal train /usr/share/shoal/configs/quickstart.toml run.name=$mpi train.steps=20 2>&1 | tail -n 1
  done
  dpkg --verify shoal shoal-openmpi shoal-mpich && echo "all files are those of the packages"'
