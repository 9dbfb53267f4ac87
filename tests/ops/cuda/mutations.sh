#!/usr/bin/env bash
# Puts one fault at a time into a copy of the CUDA backend and looks whether the emulated GPU finds it:
# [ONLY=REGEX] tests/ops/cuda/mutations.sh [FOLDER]. Exits 0 when each, or each whose name matches, is found as it should be. It also says
# of each whether the tests find it in one order of threads and without a search for races. The copy and its build stay in FOLDER
# (build/cuda-mutations), for the next time. Needs nvcc.
set -euo pipefail
unset CDPATH  # cd would look there first, and print
root=$(realpath "$(dirname "${BASH_SOURCE[0]}")/../../..")
copy=$(realpath -m "${1:-$root/build/cuda-mutations}")

# NAME|FILE|a sed expression that changes it|what looks for it|words of what it says
mutations=(
  "no barrier before the warps' maxima are read|cross_entropy.cu|/maxima.warp. = of_warp;/{n;d}|orders|no barrier between"
  "blocks add to one sum|reductions.cu|s/if (blocks_of_piece == 1) {/if (blocks_of_piece >= 1) {/;s/^  if (of_piece == 1) return;/  return;/|orders|no barrier between"
  "no barrier after a tile is used|attention_tensor_backward.cu|/share_sum(begin + kTile, next_sum);/{n;d}|orders|no barrier between"
  "a row past the end|attention_plain.cu|s/first + r < at.T ?/first + r <= at.T ?/|orders|past the end of"
  "a load that is too wide|elementwise.cuh|s/if (i + kWidth <= n)/if (i < n)/|orders|past the end of"
  "a stream does not wait|cuda_backend.cpp|/check(cudaStreamWaitEvent/d|orders|EventsOrderThem"
  "memory that is zeroed too late|cuda_backend.cpp|/cudaMemsetAsync(memory.get()/{n;d}|orders|EventsOrderThem"
  "a key that another block appends|attention_cached.cu|s/if (j >= fresh) {/if (j == position) {/|orders|no barrier between"
  "no barrier before the sums of warps are added|few_rows.cu|/parts.warp..lane. = mine;/{n;d}|orders|no barrier between"
  "groups that do not take turns|hopper/gelu_product.cu|/wait(shared_address(&room.turns/d|orders|wait for each other for ever"
  "a panel that is written while it is stored|hopper/gelu_product.cu|s/if (threadIdx.x % kGroup == 0) wait_for_stores<0>();//|orders|ProductsOfOddSizes"
  "shared memory that is not asked for|launch.h|s/kUnasked = 40 << 10/kUnasked = 48 << 10/|resources|bytes of shared memory are not asked for"
)

mkdir -p "$copy"
cd "$copy"
git -C "$root" ls-files -co --exclude-standard | while read -r file; do # what has not changed keeps its age
  cmp -s "$root/$file" "source/$file" || install -D "$root/$file" "source/$file"
done
cmake -S source -B build -G Ninja -DCMAKE_BUILD_TYPE=Release -DSHOAL_CUDA=ON -DSHOAL_MPI=OFF -DSHOAL_BENCH=OFF \
  -DCMAKE_CUDA_ARCHITECTURES=90-real >configure.log
build() { ninja -C build ${JOBS:+-j "$JOBS"} "$@" >build.log 2>&1 || { grep -m 20 error build.log; exit 1; }; }
look() {
  source/tests/ops/cuda/emulated_run.py --module build/tests/libshoal_cuda_emulated.so --tests build/tests/test_ops_cuda --folder run \
    --library build/libshoal_cuda.so "$@" >"$1.log" 2>&1
}
build shoal_cuda shoal_cuda_emulated test_ops_cuda
look orders --races || { cat orders.log; exit 1; }
look resources || { cat resources.log; exit 1; }

missed=0
for mutation in "${mutations[@]}"; do
  IFS='|' read -r name file change what words <<<"$mutation"
  [[ $name =~ ${ONLY:-.} ]] || continue
  file=source/src/ops/cuda/$file
  cp -p "$file" kept
  sed -i "$change" "$file"
  ! cmp -s kept "$file" || { echo "$name: $file has no such place"; exit 1; }
  build shoal_cuda_emulated
  plain=hidden
  look plain || plain="also found without it"
  if [ "$what" = resources ]; then
    build shoal_cuda
    look orders || true
    look resources && found=no || found=yes
  else
    look orders --races && found=no || found=yes
  fi
  if [ $found = yes ] && grep -q "$words" "$what.log" run/order0.txt; then
    echo "$name: found by $what ($plain): $(grep -hom1 ".*$words.*" "$what.log" run/order0.txt | head -1 | cut -c1-200)"
  else
    echo "$name: NOT FOUND"
    missed=1
  fi
  cp kept "$file" # with a new age, so that it is compiled
done
exit $missed
