#!/usr/bin/env bash
# Training on slow networks: all-reduce, ZeRO 1 and every topology of gossip among 4 and 8 hosts, beside what
# `shoal gossip simulate` predicts of them.
#
#   [BUILD=build/release] [QUICK=1] [ONLY=REGEX] [NETWORK=relay|netem] [OUT=bench/results/slow_networks.md]
#   [PICTURE=docs/slow-networks.svg] [SETTINGS=LINES] [SCHEMES=WORDS] [KEEP=FOLDER] [OUTER=1] bench/slow_networks.sh
#
# Hosts are network namespaces with two ranks each, started by mpirun, whose traffic goes over TCP through links of a
# bandwidth and a delay: netem's where the kernel has it, else those of bench/network_relay.cpp. The ranks' computing is
# a timed sleep (bench/slow_network.cpp). Needs root and Open MPI, and about 36 minutes; QUICK=1 takes two settings and
# 4 minutes, ONLY those whose line below matches, SETTINGS others, SCHEMES other exchanges. What is measured of the
# network itself is in the output, too; KEEP gets everything. OUTER=1 takes outer optimizers
# (bench/results/slow_outer.md, about 30 minutes).
#
#   ninja -C build/release shoal shoal_mpi_openmpi bench_slow_network bench_network_relay
set -euo pipefail
unset CDPATH  # cd would look there first, and print
here=$(cd "$(dirname "$0")/.." && pwd)
BASH_ARGV0=$(realpath "$0")  # sets $0, which enter_namespaces starts again from another folder
cd "$here"
BUILD=$(realpath "${BUILD:-build/release}")
OUT=$(realpath -m "${OUT:-bench/results/slow_$([ -n "${OUTER:-}" ] && echo outer || echo networks).md}") PICTURE=$(realpath -m "${PICTURE:-docs/slow-networks.svg}")
KEEP=${KEEP:+$(realpath -m "$KEEP")}
export BUILD OUT PICTURE KEEP
[ -z "$KEEP" ] || mkdir -p "$KEEP"
set -- "$BUILD/shoal"
. tests/deploy/lib.sh
for program in shoal bench/bench_slow_network bench/bench_network_relay; do
  [ -x "$BUILD/$program" ] || die "no $BUILD/$program: ninja -C $BUILD shoal shoal_mpi_openmpi bench_slow_network bench_network_relay"
done
need mpirun.openmpi tc python3
enter_namespaces
. "$here/bench/networks.sh"

ranks_per_host=2
schemes=(all-reduce zero-1 complete ring exp alternating-exp-ring)
# hosts, Mbit/s, that of the slow host h1, delay and time to compute (distributions), steps, and those of the first three
# schemes, whose period is one. The first four are not measured; the others are a multiple of every period.
settings() {
  local hosts
  for hosts in 4 8; do
    cat <<END
$hosts 1000 - 0.1ms 400 16 16
$hosts 100 - 0.1ms 400 16 16
$hosts 10 - 0.1ms 400 16 8
$hosts 100 - 10ms 400 16 16
$hosts 100 - 50ms 400 16 16
$hosts 10 - 50ms 400 16 8
$hosts 100 - 10ms+exp(10ms) lognormal(400,0.3) 28 28
$hosts 100 10 10ms at(0:600,400) 16 8
END
  done
}
warm_up=4
if [ -n "${OUTER:-}" ]; then
  outer=complete,interval=30
  schemes=(all-reduce $outer $outer,compress={bfloat16,int4,topk:0.02} $outer,fragments=5,overlap=5{,',compress='{bfloat16,int4}}
    {exp,alternating-exp-ring},interval=30)
  # Whole intervals are measured.
  settings() {
    local hosts
    for hosts in 4 8; do
      printf '%s\n' "$hosts 100 - 50ms 400 64 12" "$hosts 10 - 0.1ms 400 64 8" "$hosts 10 - 50ms 400 64 8"
    done
  }
fi

read -r -a schemes <<<"${SCHEMES:-${schemes[*]}}"

steps_of() { case $1 in all-reduce | zero-1 | complete) echo "$few" ;; *) echo "$steps" ;; esac; }

train() {
  mpirun_on_hosts $ranks_per_host \
    "$BUILD/bench/bench_slow_network" "$compute" "$steps" "$warm_up" $ranks_per_host \
    $(for scheme in "${schemes[@]}"; do echo "$scheme,steps=$(steps_of "$scheme")"; done)
}
# What the simulator says of the schemes, a file each.
predict() {
  local folder=$1 scheme topology bytes buckets settings
  number() { sed -n "s/.*\"$1\": \([0-9]*\).*/\1/p" "$folder/measured"; }
  buckets=$(number buckets)
  for scheme in "${schemes[@]}"; do
    bytes=$(number bytes_gossip) topology=${scheme%%,*}
    settings=(${scheme//[,=]/ })
    case $scheme in all-reduce | zero-1) bytes=$(number bytes_together) topology=complete ;; esac
    "$BUILD/shoal" gossip simulate --workers $((hosts * ranks_per_host)) --local-size $ranks_per_host \
      --topology "$topology" --step-ms "$compute" --link "$bandwidth,$delay" --mtu $mtu --bytes "$bytes" \
      --steps "$(steps_of "$scheme")" --warm-up $warm_up $([ ${#settings[@]} = 1 ] || printf -- '--%s %s ' "${settings[@]:1}") \
      --bucket-mib "$(awk "BEGIN { print $bytes / ($buckets - 0.5) / 1048576 }")" --json >"$folder/predicted-$scheme"
  done
}

make_hosts $(seq -f 'h%g' 8)
number=0
settings | grep -E -- "${ONLY:-.}" >settings
[ -z "${QUICK:-}" ] || { sed -n '1p;3p' settings >quick; mv quick settings; }
[ -z "${SETTINGS:-}" ] || echo "$SETTINGS" >settings
while read -r hosts mbit slow delay compute steps few <&3; do
  number=$((number + 1))
  folder=$(printf 'setting-%02d' $number)
  mkdir "$folder"
  bandwidth=$([ "$slow" = - ] && echo "${mbit}mbit" || echo "at(0:${slow}mbit,${mbit}mbit)")
  mtu=$((mbit > 10 ? 9000 : 1500))  # two cores cannot carry smaller ones for all
  printf '{"hosts": %s, "mbit": %s, "bandwidth": "%s", "delay": "%s", "compute": "%s", "mtu": %s}\n' \
    "$hosts" "$mbit" "$bandwidth" "$delay" "$compute" $mtu | tee "$folder/setting"
  network_up
  python3 "$here/bench/slow_networks_check.py" "$hosts" | tee "$folder/check"
  train | tee "$folder/measured" | cut -c -150
  network_down >"$folder/network"
  cat "$folder/network"
  predict "$folder"
  [ -z "$KEEP" ] || cp -r "$folder" "$KEEP"
done 3<settings
{
  echo "command: ${OUTER:+OUTER=1 }${QUICK:+QUICK=1 }${ONLY:+ONLY='$ONLY' }${SCHEMES:+SCHEMES='$SCHEMES' }bench/slow_networks.sh"
  echo "commit: $(git -C "$here" rev-parse --short HEAD)$(git -C "$here" diff --quiet HEAD -- src bench || echo ' and changes')"
  echo "date: $(date -u +%F), $((SECONDS / 60)) minutes"
  echo "processor: $(sed -n 's/^model name[^:]*: //p' /proc/cpuinfo | head -1), $(nproc) cores; $(uname -sr)"
  echo "network: $NETWORK; $(mpirun.openmpi --version 2>&1 | head -1); TCP $(ip netns exec h1 sysctl -n net.ipv4.tcp_congestion_control)"
} | sed 's/$/  /' | python3 "$here/bench/slow_networks_table.py" . "$OUT" "$PICTURE"
