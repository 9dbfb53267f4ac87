# What the deployment tests share: namespaces that play hosts, skipping, and a small run. To be sourced.
#
# A test runs in namespaces of its own (processes, mounts, network, host names). When it ends, in whatever way, the
# system ends every process in them and takes links, addresses and mounts away: nothing can be left behind.

set -euo pipefail
unset CDPATH  # cd would look there first, and print
tests=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
shoal=$(realpath "${1:?usage: $0 SHOAL-BINARY}")
shoal_pattern=$(sed 's/[][\.*^$+?(){}|]/\\&/g' <<<"$shoal")  # for pgrep

skip() { echo "SKIPPED: $*"; exit 77; }
die() { echo "FAILED: $*" >&2; exit 1; }

need() {
  local program
  for program in "$@"; do
    command -v "$program" >/dev/null || skip "this machine has no $program (scripts/install-deps.sh installs it)"
  done
}

# Starts the test again inside, with these further arguments; the second time it goes on, in an empty folder.
enter_namespaces() {
  if [ -z "${SHOAL_TEST_FOLDER:-}" ]; then
    [ "$(id -u)" -eq 0 ] || skip "only root can make network namespaces"
    need ip unshare nsenter
    unshare --mount --net true 2>/dev/null || skip "this system does not let root make network namespaces"
    SHOAL_TEST_FOLDER=$(mktemp -d /tmp/shoal-deploy-XXXXXX)
    export SHOAL_TEST_FOLDER
    # Taken by all inside, and released when the last of them has gone.
    exec 9<"$SHOAL_TEST_FOLDER"
    flock 9
    # In the background, since only a shell that waits acts on a signal at once; Ctrl-C is ignored there otherwise.
    unshare --mount --net --uts --ipc --pid --fork --kill-child --mount-proc \
      env --default-signal=INT,QUIT "$0" "$shoal" "$@" <&0 &
    system=$!
    exec 9<&-
    end() {
      kill -KILL "$system" 2>/dev/null || true
      flock "$SHOAL_TEST_FOLDER" true
      rm -rf "$SHOAL_TEST_FOLDER"
    }
    trap end EXIT
    trap 'exit 130' INT HUP TERM
    local code=0
    wait "$system" || code=$?
    exit "$code"
  fi
  cd "$SHOAL_TEST_FOLDER"
  mount -t tmpfs tmpfs /dev/shm
  mkdir tmp
  export TMPDIR=$PWD/tmp
  # Launchers split its path at spaces, which that of the checkout may have.
  ln -s "$tests/remote_shell.sh" remote_shell
}

# make_hosts a b ...: hosts of these names with the addresses 10.99.0.1, .2, ... on one network, called lan.
make_hosts() {
  mkdir -p /run/netns cgroup
  mount --rbind /sys/fs/cgroup cgroup
  mount -t tmpfs tmpfs /run/netns
  ip link set lo up
  ip link add lan type bridge
  ip link set lan up
  echo "127.0.0.1 localhost" >hosts
  local number=0 host
  for host in "$@"; do
    number=$((number + 1))
    ip netns add "$host"
    ip link add "to-$host" type veth peer name lan netns "$host"
    ip link set "to-$host" master lan up
    ip -n "$host" link set lo up
    ip -n "$host" address add "10.99.0.$number/24" dev lan
    ip -n "$host" link set lan up
    echo "10.99.0.$number $host" >>hosts
  done
  mount --bind hosts /etc/hosts
}

# on HOST COMMAND...: runs a command on a host, with its network and its name.
on() {
  local host=$1
  shift
  "$SHOAL_TEST_FOLDER/remote_shell" "$host" "$(printf '%q ' "$@")"
}

# Bytes that a host has received over the network.
received() { ip netns exec "$1" cat /sys/class/net/lan/statistics/rx_bytes; }

# A config of layout-exact training, two small units wide, and its data, in the current folder.
make_run() {
  "$shoal" prepare synthetic --out data --size 20000 >prepare.log 2>&1 || die "prepare: $(cat prepare.log)"
  cp "$tests/tiny.toml" .
}

# open.toml is tiny.toml for a run that goes on until something happens to it. `end_in RUN STEPS` then gives it an end, so
# many steps after its last one: ranks that are started again read the config again. With lr_schedule.name=constant, no
# step depends on where the end is.
make_endless() { sed "s/^steps = .*/steps = 1000000/" tiny.toml >open.toml; }
end_in() { sed -i "s/^steps = .*/steps = $(($(last_step "$1") + $2))/" open.toml; }

# last_step RUN: the last step that its metrics hold; nothing where it has made none.
last_step() { sed -n 's/.*"step":\([0-9]*\),.*/\1/p' "runs/$1/metrics.jsonl" 2>/dev/null | tail -n 1; }

# same_result RUN RUN: the last checkpoints hold the same bytes, and the same losses were measured on the way.
same_result() {
  "$shoal" checkpoint compare "runs/$1" "runs/$2" >compare.log 2>&1 || die "$1 and $2 differ: $(cat compare.log)"
  local run
  for run in "$1" "$2"; do sed 's/,"tokens_per_s".*//' "runs/$run/metrics.jsonl" >"$run.losses"; done
  cmp "$1.losses" "$2.losses" || die "the losses of $1 and $2 differ"
  [ -s "$1.losses" ] || die "$1 has measured nothing"
}
