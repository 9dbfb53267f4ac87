#!/usr/bin/env bash
# Whole training steps of Shoal beside PyTorch, eager and compiled, interleaved, each run a process of its own.
#
#   PYTHON=PATH [BUILD=build/release] [ROUNDS=5] [STEPS=8] [THREADS=2] [ROWS=REGEX] [ALLOCATORS="glibc jemalloc"] [ISA=avx2] \
#     [OUT=FILE] bench/train_step.sh
#
# PYTHON is one that has torch. With ISA=avx2 neither program uses more than AVX2. For every row the peers are first
# tuned: each way runs briefly under every allocator that is installed (glibc told to keep its memory; libjemalloc2,
# libtcmalloc-minimal4), with GPT-2's vocabulary as it is and rounded up to 64, and the fastest setting is kept for the
# rounds. The table and every raw line go to OUT. Takes about an hour on two cores, which nothing else may use meanwhile.
set -euo pipefail
unset CDPATH  # cd would look there first, and print
cd "$(dirname "$0")/.."

python=${PYTHON:-python3} build=${BUILD:-build/release} rounds=${ROUNDS:-5} steps=${STEPS:-8} threads=${THREADS:-2}
rows=${ROWS:-.} isa=${ISA:-} out=${OUT:-bench/results/train_step.txt}
shoal=$build/bench/bench_train_step
[ -x "$shoal" ] || { echo "no $shoal: ninja -C $build bench_train_step" >&2; exit 2; }
"$python" -c 'import torch' || { echo "PYTHON=$python has no torch" >&2; exit 2; }

# name; arguments but for dtype, steps and threads; dtype; how many times STEPS; the shares and ratios to reach
table='gpt2-124m-fp32;12 12 768 50257 4 256 0;float32;1;70;1.4
gpt2-124m-bf16;12 12 768 50257 4 256 0;bfloat16;1;60;1.5
char-6x384-fp32;6 6 384 65 64 256 0.2;float32;1;68;1.7
char-4x128-fp32;4 4 128 65 12 64 0;float32;20;55;2.5'

libraries=/usr/lib/$(uname -m)-linux-gnu
allocators=(glibc)
[ -e "$libraries/libjemalloc.so.2" ] && allocators+=(jemalloc)
[ -e "$libraries/libtcmalloc_minimal.so.4" ] && allocators+=(tcmalloc)
[ -z "${ALLOCATORS:-}" ] || read -ra allocators <<<"$ALLOCATORS"

case $isa in
  '') libraries_isa="-u MKL_ENABLE_INSTRUCTIONS" ;;
  avx2) libraries_isa="ATEN_CPU_CAPABILITY=avx2 ONEDNN_MAX_CPU_ISA=AVX2 MKL_ENABLE_INSTRUCTIONS=AVX2" ;;
  *) echo "ISA=$isa is not avx2" >&2; exit 2 ;;
esac

# The environment of a peer: large buffers are kept and not faulted in anew, the matrix library may use all that the
# processor, or ISA, has.
peer_environment() {
  echo "-u OPENBLAS_CORETYPE $libraries_isa OMP_NUM_THREADS=$threads"
  case $1 in
    glibc) echo "MALLOC_MMAP_THRESHOLD_=1073741824 MALLOC_TRIM_THRESHOLD_=68719476736 MALLOC_TOP_PAD_=268435456" ;;
    jemalloc)
      echo "LD_PRELOAD=$libraries/libjemalloc.so.2"
      echo "MALLOC_CONF=oversize_threshold:0,dirty_decay_ms:-1,muzzy_decay_ms:-1,thp:always"
      ;;
    tcmalloc) echo "LD_PRELOAD=$libraries/libtcmalloc_minimal.so.4" ;;
  esac
}

raw=$(mktemp)
errors=$(mktemp)
trap 'rm -f "$raw" "$errors"' EXIT

# record NAME VARIANT PHASE COMMAND...: runs it and keeps the line it prints
record() {
  local name=$1 variant=$2 phase=$3 line
  shift 3
  line=$("$@" 2>"$errors" | tail -1) || { cat "$errors" >&2; echo "failed: $*" >&2; exit 1; }
  printf '%s\t%s\t%s\t%s\n' "$name" "$variant" "$phase" "$line" | tee -a "$raw"
}

# peer NAME WAY ALLOCATOR/PAD PHASE STEPS
peer() {
  local flags=()
  [ "$2" = compile ] && flags=(--compile)
  flags+=(--pad "${3#*/}")
  # shellcheck disable=SC2046,SC2086
  record "$1" "$2" "$4 $3" env $(peer_environment "${3%/*}") \
    "$python" bench/peers/torch_gpt.py $arguments "$dtype" "$5" "$threads" "${flags[@]}"
}

# tune NAME WAY: prints the fastest setting, by the least disturbed step
tune() {
  local best='' fastest='' line ms setting allocator pads=(1)
  [[ $1 = gpt2-* ]] && pads+=(64)
  for allocator in "${allocators[@]}"; do
    for setting in "${pads[@]/#/$allocator/}"; do
      line=$(peer "$1" "$2" "$setting" tuning $((factor * (steps > 3 ? 3 : steps))))
      echo "$line" >&2
      ms=$(sed 's/.* min \([0-9.]*\).*/\1/' <<<"$line")
      if [ -z "$best" ] || awk "BEGIN { exit !($ms < $best) }"; then best=$ms fastest=$setting; fi
    done
  done
  echo "$fastest"
}

while IFS=';' read -r -u 3 name arguments dtype factor _ _; do
  grep -Eq "$rows" <<<"$name" || continue
  eager=$(tune "$name" eager)
  compile=$(tune "$name" compile)
  for ((round = 1; round <= rounds; ++round)); do
    # shellcheck disable=SC2086
    record "$name" shoal "round" env -u LD_PRELOAD SHOAL_ISA="$isa" "$shoal" $arguments "$dtype" $((factor * steps)) "$threads"
    peer "$name" eager "$eager" round $((factor * steps))
    peer "$name" compile "$compile" round $((factor * steps))
  done
done 3<<<"$table"

mkdir -p "$(dirname "$out")"
"$python" bench/train_step_table.py "$raw" <<<"$table" >"$out.new"
{
  echo
  echo "command: ROUNDS=$rounds STEPS=$steps THREADS=$threads ROWS=$rows ISA=$isa bench/train_step.sh"
  echo "commit: $(git rev-parse --short HEAD)$(git diff --quiet HEAD -- src bench || echo ' and changes')"
  echo "date: $(date -u +%F)"
  echo "processor: $(sed -n 's/^model name[^:]*: //p' /proc/cpuinfo | head -1), $(nproc) cores; $(uname -sr)"
  echo "compiler: $(c++ --version | head -1)"
  echo "python: $("$python" -c 'import sys, torch; print(sys.version.split()[0], "torch", torch.__version__)')"
  for allocator in "${allocators[@]}"; do echo "peer with $allocator: env $(peer_environment "$allocator" | xargs)"; done
  echo
  cat "$raw"
} >>"$out.new"
mv "$out.new" "$out"
sed '/^$/q' "$out"
