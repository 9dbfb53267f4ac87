#!/usr/bin/env bash
# Collectives of two ranks beside copying and beside one call of MPI, interleaved, each run a process of its own:
# Shoal's threads, Shoal's MPI ranks, MPI_Allreduce.
#
#   [BUILD=build/release] [ROUNDS=11] [SIZES="0.004096 0.065536 1 10 100 498"] [MPI=openmpi] [OUT=FILE] bench/comm.sh
#
# SIZES in MB. Every round times every size in every program; the table has medians over the rounds, in
# microseconds. Takes a few minutes on two cores, which nothing else may use meanwhile.
set -euo pipefail
unset CDPATH  # cd would look there first, and print
cd "$(dirname "$0")/.."

build=${BUILD:-build/release} rounds=${ROUNDS:-11} sizes=${SIZES:-0.004096 0.065536 1 10 100 498}
mpi=${MPI:-openmpi} out=${OUT:-bench/results/comm.txt}
shoal=$build/bench/bench_comm
module=$build/libshoal_mpi_$mpi.so
[ -x "$shoal" ] && [ -e "$module" ] || { echo "no $shoal or $module: ninja -C $build bench_comm shoal_mpi_$mpi" >&2; exit 2; }
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
"mpicxx.$mpi" -O2 -std=c++20 bench/peers/mpi_allreduce.cpp -o "$folder/peer"
launch=("mpirun.$mpi" -n 2)
[ "$mpi" != openmpi ] || launch=(env OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1 "${launch[@]}")

# record WHO COMMAND...: keeps the lines of every size, with who said them
record() {
  local who=$1
  shift
  "$@" | sed -n "s/^ *\([0-9]* bytes\)/$who \1/p" | tee -a "$folder/raw"
}

for ((round = 1; round <= rounds; ++round)); do
  # shellcheck disable=SC2086
  {
    record threads "$shoal" 3 2 $sizes
    record mpi "${launch[@]}" env SHOAL_MPI_MODULE="$module" "$shoal" 3 0 $sizes
    record peer "${launch[@]}" "$folder/peer" 3 $sizes
  }
done

# median WHO BYTES NAME
median() {
  awk -v who="$1" -v bytes="$2" -v name="$3" \
    '$1 == who && $2 == bytes { for (i = 4; i < NF; ++i) if ($i == name) print $(i + 1) }' "$folder/raw" |
    sort -g | awk '{ x[NR] = $1 } END { printf "%.2f", x[int((NR + 1) / 2)] }'
}

mkdir -p "$(dirname "$out")"
{
  printf '%11s %12s | %12s %7s %14s %12s | %12s | %14s %7s\n' bytes copy all_reduce /copy reduce_scatter \
    all_gather 'mpi ranks' MPI_Allreduce /threads
  for bytes in $(awk '{ print $2 }' "$folder/raw" | sort -nu); do
    copy=$(median threads "$bytes" copy) sum=$(median threads "$bytes" all_reduce) one=$(median peer "$bytes" MPI_Allreduce)
    printf '%11s %12s | %12s %7.2f %14s %12s | %12s | %14s %7.2f\n' "$bytes" "$copy" "$sum" \
      "$(awk "BEGIN { print $sum / $copy }")" "$(median threads "$bytes" reduce_scatter)" \
      "$(median threads "$bytes" all_gather)" "$(median mpi "$bytes" all_reduce)" "$one" \
      "$(awk "BEGIN { print $one / $sum }")"
  done
  echo
  echo "command: ROUNDS=$rounds SIZES=\"$sizes\" MPI=$mpi bench/comm.sh"
  echo "commit: $(git rev-parse --short HEAD)$(git diff --quiet HEAD -- src bench || echo ' and changes')"
  echo "date: $(date -u +%F)"
  echo "processor: $(sed -n 's/^model name[^:]*: //p' /proc/cpuinfo | head -1), $(nproc) cores; $(uname -sr)"
  echo "compiler: $(c++ --version | head -1); $("mpirun.$mpi" --version 2>&1 | head -1)"
  echo
  cat "$folder/raw"
} >"$out.new"
mv "$out.new" "$out"
sed '/^$/q' "$out"
