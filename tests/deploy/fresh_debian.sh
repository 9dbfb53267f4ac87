#!/usr/bin/env bash
# Runs a command in a checkout of HEAD on a fresh minimal Debian, as root, and exits with the command's status.
#
#   tests/deploy/fresh_debian.sh trixie 'scripts/quickstart.sh'
#   tests/deploy/fresh_debian.sh --beside ../shared bookworm 'scripts/test.sh'
#   tests/deploy/fresh_debian.sh --keep /var/tmp/trixie trixie 'bash'     # look around; the next run goes on from there
#
# The first run of a suite (bookworm = 12, trixie = 13) makes its base with debootstrap, of which later runs see a copy, so
# every run starts with nothing installed. The base lies in $SHOAL_FRESH_CACHE (/var/cache/shoal-fresh), 250 MB each.
# Packages come from the host's mirror, through the host's apt settings and proxy variables. Needs root and the package
# debootstrap; ends every process it started and removes all mounts, however it ends, since they are in namespaces of its own.
set -euo pipefail
unset CDPATH  # cd would look there first, and print

usage() {
  cat >&2 <<END
usage: $0 [OPTION ...] SUITE COMMAND
  --mirror URL     Debian's packages (default: where this host has them from, else http://deb.debian.org/debian)
  --beside FOLDER  show a folder, read-only, beside the checkout; may be given more than once
  --keep FOLDER    keep the system in FOLDER, and go on with the one that is there, at the repository's present HEAD
END
  exit 2
}
die() { echo "fresh_debian: $*" >&2; exit 1; }

mirror='' keep='' beside=()
while [ $# -gt 0 ]; do
  case $1 in
    --mirror) mirror=${2:?} && shift 2 ;;
    --beside) beside+=("$(realpath "${2:?}")") && shift 2 ;;
    --keep) mkdir -p "${2:?}" && keep=$(realpath "$2") && shift 2 ;;
    -*) usage ;;
    *) break ;;
  esac
done
[ $# -eq 2 ] || usage
suite=$1 command=$2
repository=$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)
cache=${SHOAL_FRESH_CACHE:-/var/cache/shoal-fresh}
[ "$(id -u)" -eq 0 ] || die "only root can make a system"

# Where the host has Debian's packages from.
host_mirror() {
  apt-get indextargets --format '$(REPO_URI)' 'Created-By: Packages' 'Origin: Debian' 'Label: Debian' 2>/dev/null | head -n 1
}

make_base() {
  command -v debootstrap >/dev/null || die "there is no debootstrap; apt-get install debootstrap"
  [ -n "$mirror" ] || mirror=$(host_mirror)
  mirror=${mirror:-http://deb.debian.org/debian}
  local new=$cache/$suite.new include=()
  [[ $mirror != https:* ]] || include=(--include=ca-certificates)
  echo "fresh_debian: making $cache/$suite from $mirror" >&2
  rm -rf "$new"
  mkdir -p "$cache"
  debootstrap --variant=minbase "${include[@]}" "$suite" "$new" "$mirror" >"$cache/$suite.log" 2>&1 ||
    die "debootstrap failed: $(tail -n 5 "$cache/$suite.log")"
  echo force-unsafe-io >"$new/etc/dpkg/dpkg.cfg.d/force-unsafe-io"  # as in Debian's container images: no fsync per file
  rm -rf "$new"/var/cache/apt/*.bin "$new"/var/cache/apt/archives/*.deb "$new"/var/lib/apt/lists/*
  mv "$new" "$cache/$suite"
}

# The rest runs in namespaces of its own: processes and mounts go with them.
if [ -z "${FRESH_DEBIAN_FOLDER:-}" ]; then
  [ -d "$cache/$suite" ] || make_base
  FRESH_DEBIAN_FOLDER=${keep:-$(mktemp -d /var/tmp/fresh-debian-XXXXXX)}
  export FRESH_DEBIAN_FOLDER
  # Taken by the system, and released when its last process has gone: a folder must not be mounted twice.
  exec 9>"$FRESH_DEBIAN_FOLDER/lock"
  flock --nonblock 9 || die "$FRESH_DEBIAN_FOLDER is in use"
  arguments=()
  for folder in "${beside[@]}"; do arguments+=(--beside "$folder"); done
  unshare --mount --pid --fork --kill-child "$0" "${arguments[@]}" "$suite" "$command" <&0 &
  system=$!
  exec 9>&-
  end() {
    kill -KILL "$system" 2>/dev/null || true
    flock "$FRESH_DEBIAN_FOLDER/lock" true
    [ -n "$keep" ] || rm -rf "$FRESH_DEBIAN_FOLDER"
  }
  trap end EXIT
  trap 'exit 130' INT HUP TERM
  code=0
  wait "$system" || code=$?
  exit "$code"
fi

root=$FRESH_DEBIAN_FOLDER/root home=$FRESH_DEBIAN_FOLDER/root/root
mkdir -p "$root" "$FRESH_DEBIAN_FOLDER"/{changes,work}
mount -t overlay overlay "$root" \
  -o "lowerdir=$cache/$suite,upperdir=$FRESH_DEBIAN_FOLDER/changes,workdir=$FRESH_DEBIAN_FOLDER/work"
mount -t proc proc "$root/proc"
mount --rbind /sys "$root/sys"
mount --rbind /dev "$root/dev"
mount -t tmpfs -o mode=1777 tmpfs "$root/dev/shm"

# How the host reaches the network and its packages: names, proxies, what it accepts of a mirror.
cp -L /etc/resolv.conf /etc/hosts "$root/etc/"
apt-config dump --format '%F "%v";%n' 2>/dev/null |
  grep -iE '^Acquire::[^ ]*(proxy|check-|verify-|retries|timeout)[^ ]* "[^"]' >"$root/etc/apt/apt.conf.d/90host" || true
environment=(HOME=/root PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin "TERM=${TERM:-dumb}")
for name in http_proxy https_proxy no_proxy HTTP_PROXY HTTPS_PROXY NO_PROXY; do
  [ -z "${!name:-}" ] || environment+=("$name=${!name}")
done

if [ -d "$home/shoal" ]; then
  git -C "$home/shoal" fetch --quiet --depth 1 "file://$repository" HEAD
  git -C "$home/shoal" reset --quiet --hard FETCH_HEAD
else
  git clone --quiet --depth 1 "file://$repository" "$home/shoal"
fi
for folder in "${beside[@]}"; do
  mkdir -p "$home/$(basename "$folder")"
  mount --bind -o ro "$folder" "$home/$(basename "$folder")"
done

code=0
TIMEFORMAT="%R s (processors: %U s, system %S s)"
in_checkout="cd ~/shoal && $command"
{
  time chroot "$root" /usr/bin/env -i --default-signal=INT,QUIT "${environment[@]}" bash -c "$in_checkout" 2>&3 || code=$?
} 3>&2 2>"$FRESH_DEBIAN_FOLDER/time"
echo "fresh_debian: $suite, exit status $code after $(tail -n 1 "$FRESH_DEBIAN_FOLDER/time"): ${command%%$'\n'*}" >&2
exit "$code"
