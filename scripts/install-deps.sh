#!/usr/bin/env bash
# Installs what Shoal is built with, from Debian 12's own packages: scripts/install-deps.sh [tests]; with "tests" also MPI
# and what else the tests start. Needs root or sudo.
set -euo pipefail

packages=(
  make g++ cmake ninja-build ccache git ca-certificates
  libdnnl-dev               # matrix products on the CPU
  libfmt-dev libspdlog-dev  # formatting, logging
  libtomlplusplus-dev       # the config file
  libcli11-dev              # the command line
  nlohmann-json3-dev        # metadata and metrics
  libarchive-dev            # text out of .tar, .zip, .gz, .xz, .zst
  libcurl4-openssl-dev      # downloads
  libutf8proc-dev           # Unicode categories for the GPT-2 tokenizer
  libxxhash-dev             # checksums
  libprotobuf-dev protobuf-compiler  # TensorBoard events
  libgtest-dev libgmock-dev libbenchmark-dev
)
[ "${1:-}" != tests ] || packages+=(
  libopenmpi-dev openmpi-bin libmpich-dev mpich  # ranks as processes: a module for each
  xz-utils                                       # archives as the corpora have them
  slurm-wlm munge iproute2 openssh-client procps python3 python3-yaml  # tests of deploy/: a small Slurm, hosts, manifests
)

missing=()
for package in "${packages[@]}"; do
  dpkg-query -W -f='${Status}' "$package" 2>/dev/null | grep -q '^install ok installed' || missing+=("$package")
done
[ ${#missing[@]} -eq 0 ] && exit 0

sudo=()
[ "$(id -u)" -eq 0 ] || sudo=(sudo)
echo "installing ${missing[*]}"
export DEBIAN_FRONTEND=noninteractive
"${sudo[@]}" apt-get update -qq
"${sudo[@]}" apt-get install -y -qq --no-install-recommends "${missing[@]}"
