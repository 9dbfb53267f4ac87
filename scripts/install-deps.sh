#!/usr/bin/env bash
# Installs what Shoal is built with: scripts/install-deps.sh [mpi] [package] [tests] | arm64. Without arguments enough to build
# and run the program; with "mpi" also Open MPI and MPICH, for ranks as processes; with "package" both and what Debian packages
# are made with; with "tests" both and what the tests need; with "arm64" what builds for that processor on another, and qemu.
# Tried on Debian 12 and 13, which name these packages alike; Ubuntu 24.04 takes them from Debian, between the two, and renamed
# for its 64-bit time only packages of libraries without -dev. Installing takes root or sudo.
set -euo pipefail

packages=(
  make g++ cmake ninja-build pkgconf ccache ca-certificates
  libfmt-dev libspdlog-dev  # formatting, logging
  libtomlplusplus-dev       # the config file
  libcli11-dev              # the command line
  nlohmann-json3-dev        # metadata and metrics
  libarchive-dev            # text out of .tar, .zip, .bz2, .xz, .zst
  zlib1g-dev                # text out of .gz
  libcurl4-openssl-dev      # downloads
  libcpp-httplib-dev        # the server of shoal serve
  libssl-dev                # SHA-256 of downloads
  libutf8proc-dev           # Unicode categories for the GPT-2 tokenizer
  libxxhash-dev             # checksums
  libprotobuf-dev protobuf-compiler  # TensorBoard events
)
mpi=(libopenmpi-dev openmpi-bin libmpich-dev mpich)
package=(dpkg-dev file)  # cpack -G DEB: the libraries that a package depends on
tests=(
  libgtest-dev libgmock-dev
  xz-utils                                             # archives as the corpora have them
  slurm-wlm munge iproute2 openssh-client procps python3 python3-yaml  # tests of deploy/: a small Slurm, hosts, manifests
)
arm64=(g++-aarch64-linux-gnu qemu-user-static libgtest-dev libgmock-dev)
cross=false
for argument in "$@"; do
  case $argument in
    mpi) packages+=("${mpi[@]}") ;;
    package) packages+=("${mpi[@]}" "${package[@]}") ;;
    tests) packages+=("${mpi[@]}" "${tests[@]}") ;;
    arm64) packages+=("${arm64[@]}") cross=true ;;
    *) echo "usage: $0 [mpi] [package] [tests] | arm64" >&2; exit 2 ;;
  esac
done
if $cross; then  # libraries of that processor; libcli11-dev is headers for all
  for i in "${!packages[@]}"; do
    [[ ${packages[i]} != *lib*-dev || ${packages[i]} = libcli11-dev ]] || packages[i]+=:arm64
  done
fi

die() { printf 'install-deps: %s\n' "$@" >&2; exit 1; }

command -v dpkg-query >/dev/null && command -v apt-get >/dev/null || die \
  "this script knows apt-get only (Debian, Ubuntu). Install these, under this system's names: ${packages[*]}" \
  "Then build without it: cmake --preset release && cmake --build --preset release"

missing=()
for package in "${packages[@]}"; do
  dpkg-query -W -f='${Status}' "$package" 2>/dev/null | grep -q 'ok installed$' || missing+=("$package")
done
[ ${#missing[@]} -eq 0 ] && exit 0

sudo=()
if [ "$(id -u)" -ne 0 ]; then
  command -v sudo >/dev/null || die "not root, and there is no sudo; as root: apt-get install ${missing[*]}"
  sudo=(sudo)
fi
log=$(mktemp)
trap 'rm -f "$log"' EXIT
echo "installing ${missing[*]}"
! $cross || "${sudo[@]}" dpkg --add-architecture arm64
"${sudo[@]}" apt-get update -qq || die "apt-get update failed"

unknown=()
for package in "${missing[@]}"; do
  apt-cache show "$package" >/dev/null 2>&1 || unknown+=("$package")
done
[ ${#unknown[@]} -eq 0 ] || apt-cache show make >/dev/null 2>&1 || die "apt has no lists of packages: is there a network?"
[ ${#unknown[@]} -eq 0 ] || die "this system ($(. /etc/os-release && echo "$PRETTY_NAME")) has no package ${unknown[*]}" \
  "Tested with Debian 12 and 13. On Ubuntu they are in \"universe\": add-apt-repository universe"

"${sudo[@]}" env DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends "${missing[@]}" \
  >"$log" 2>&1 || { tail -n 30 "$log" >&2; die "apt-get install failed"; }
