#!/usr/bin/env bash
# Layouts of four ranks on two hosts, over three slow links, beside their predictions: the table of bench/planner_here.py for
# jobs of MPI (docs/planner.md).
#
#   [BUILD=build/release] [NETWORK=relay|netem] [OUT=bench/results/planner_networks.csv] bench/planner_networks.sh
#
# Hosts are network namespaces with two ranks each. Needs root and Open MPI, and about ten minutes.
#
#   ninja -C build/release shoal shoal_mpi_openmpi bench_network_relay
set -euo pipefail
unset CDPATH  # cd would look there first, and print
here=$(cd "$(dirname "$0")/.." && pwd)
BASH_ARGV0=$(realpath "$0")  # sets $0, which enter_namespaces starts again from another folder
cd "$here"
BUILD=$(realpath "${BUILD:-build/release}")
OUT=$(realpath -m "${OUT:-bench/results/planner_networks.csv}")
export BUILD OUT
set -- "$BUILD/shoal"
. tests/deploy/lib.sh
for program in shoal bench/bench_network_relay; do
  [ -x "$BUILD/$program" ] || die "no $BUILD/$program: ninja -C $BUILD shoal shoal_mpi_openmpi bench_network_relay"
done
need mpirun.openmpi tc python3
enter_namespaces
. "$here/bench/networks.sh"

hosts=2 slow=- XDG_CACHE_HOME=$PWD/cache
export hosts
export -f mpirun_on_hosts on
mkdir cache
cat >launch <<'END'
#!/bin/bash
mpirun_on_hosts 2 -x XDG_CACHE_HOME "$@"
END
chmod +x launch
make_hosts h1 h2
rm -f "$OUT"
while read -r mbit delay <&3; do
  bandwidth=${mbit}mbit mtu=9000
  network_up
  python3 "$here/bench/planner_here.py" "$BUILD/shoal" "$OUT" --launch "$PWD/launch" --link "$mbit Mbit/s, $delay" --only "0.8M float32"
  network_down
done 3<<END
1000 0.1ms
100 0.1ms
100 10ms
END
