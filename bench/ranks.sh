#!/usr/bin/env bash
# Parallel modes on one machine: GPT-2 124M in steps of 4, 8 and 16 sequences of 256 tokens. Two ranks of one thread
# (threads of a process, and MPI): data parallel, ZeRO 0 to 3, in the default order and in the one that no layout changes;
# tensor parallel; a pipeline of two stages over eight micro-batches. Beside one rank of two threads, and beside two
# processes of PyTorch (DDP and fully_shard over gloo). Interleaved in rounds, each run a process of its own.
#
#   PYTHON=PATH [BUILD=build/release] [ROUNDS=3] [STEPS=3] [ROWS=REGEX] [VARIANTS=REGEX] [MPI=openmpi] [OUT=FILE] bench/ranks.sh
#
# PYTHON is one that has torch 2; without it the peers are left out. ROWS: batch-4-float32, batch-8-float32,
# batch-4-bfloat16, batch-16-float32. VARIANTS match the first column of the table. Takes some two hours on two cores, which nothing else
# may use meanwhile; SIZE="2 4 128 512" shrinks the model, for a look at the script itself.
set -euo pipefail
unset CDPATH  # cd would look there first, and print
cd "$(dirname "$0")/.."

build=$(realpath -m "${BUILD:-build/release}")
python=${PYTHON:-} rounds=${ROUNDS:-3} steps=${STEPS:-3}
rows=${ROWS:-.} variants=${VARIANTS:-.} mpi=${MPI:-openmpi} size=${SIZE:-12 12 768 50257} out=${OUT:-bench/results/ranks.md}
shoal=$build/bench/bench_train_step
module=$build/libshoal_mpi_$mpi.so
[ -x "$shoal" ] && [ -e "$module" ] || { echo "no $shoal or $module: ninja -C $build bench_train_step shoal_mpi_$mpi" >&2; exit 2; }
[ -z "$python" ] || "$python" -c 'import torch' || { echo "PYTHON=$python has no torch" >&2; exit 2; }

launch=("mpirun.$mpi" -n 2)
[ "$mpi" != openmpi ] || launch=(env OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1 "${launch[@]}" --bind-to none)
launch=(env "SHOAL_MPI_MODULE=$module" "${launch[@]}")
# Large buffers are kept and not faulted in anew; the matrix library may use all the processor can.
peer=(env -u OPENBLAS_CORETYPE -u MKL_ENABLE_INSTRUCTIONS OMP_NUM_THREADS=1)
jemalloc=/usr/lib/$(uname -m)-linux-gnu/libjemalloc.so.2
if [ -e "$jemalloc" ]; then
  peer+=("LD_PRELOAD=$jemalloc" MALLOC_CONF=oversize_threshold:0,dirty_decay_ms:-1,muzzy_decay_ms:-1,thp:always)
else
  peer+=(MALLOC_MMAP_THRESHOLD_=1073741824 MALLOC_TRIM_THRESHOLD_=68719476736 MALLOC_TOP_PAD_=268435456)
fi

raw=$(mktemp)
errors=$(mktemp)
trap 'rm -f "$raw" "$errors"' EXIT

# record ROW VARIANT COMMAND...: runs it, if the variant is wanted, and keeps the line it prints
record() {
  local row=$1 variant=$2 line
  shift 2
  grep -Eq "$variants" <<<"$variant" || return 0
  line=$("$@" 2>"$errors" | grep 'ms/step') || { cat "$errors" >&2; echo "failed: $*" >&2; exit 1; }
  printf '%s\t%s\t%s\n' "$row" "$variant" "$line" | tee -a "$raw"
}

# one_round ROW BATCH DTYPE
one_round() {
  local row=$1 batch=$2 dtype=$3 zero order mode way compiled
  local model="$size $batch 256 0 $dtype $steps"
  # shellcheck disable=SC2086
  {
    record "$row" "1 rank" "$shoal" $model 2
    record "$row" "1 rank, layout" "$shoal" $model 2 --micro $((batch / 2)) --layout
    for zero in 0 1 2 3; do
      for order in "" --layout; do
        record "$row" "threads, ZeRO-$zero${order:+, layout}" "$shoal" $model 1 --ranks 2 --zero $zero $order
        record "$row" "MPI, ZeRO-$zero${order:+, layout}" "${launch[@]}" "$shoal" $model 1 --zero $zero $order
      done
    done
    for mode in "--tensor 2" "--tensor 2 --sequence"; do
      record "$row" "threads, ${mode//--/}" "$shoal" $model 1 --ranks 2 $mode
      record "$row" "MPI, ${mode//--/}" "${launch[@]}" "$shoal" $model 1 $mode
    done
    if [ "$batch" -ge 8 ]; then
      record "$row" "1 rank, 8 micro-batches" "$shoal" $model 2 --micro $((batch / 8))
      record "$row" "threads, pipeline 2, 8 micro-batches" "$shoal" $model 1 --ranks 2 --pipeline 2 --micro $((batch / 8))
      record "$row" "MPI, pipeline 2, 8 micro-batches" "${launch[@]}" "$shoal" $model 1 --pipeline 2 --micro $((batch / 8))
    fi
    [ -n "$python" ] || return 0
    for way in ddp fsdp2; do
      for compiled in "" --compile; do
        record "$row" "PyTorch $way${compiled:+, compiled}" "${peer[@]}" "$python" bench/peers/torch_ranks.py \
          $model 1 --ranks 2 --way $way $compiled --pad 64
      done
    done
  }
}

for ((round = 1; round <= rounds; ++round)); do
  for row in batch-4-float32 batch-8-float32 batch-4-bfloat16 batch-16-float32; do
    grep -Eq "$rows" <<<"$row" || continue
    IFS=- read -r _ batch dtype <<<"$row"
    one_round "$row" "$batch" "$dtype"
  done
done

mkdir -p "$(dirname "$out")"
python3 bench/ranks_table.py "$raw" >"$out.new"
{
  echo
  echo "    command: ROUNDS=$rounds STEPS=$steps SIZE=\"$size\" ROWS=$rows VARIANTS=$variants MPI=$mpi bench/ranks.sh"
  echo "    commit: $(git rev-parse --short HEAD)$(git diff --quiet HEAD -- src bench || echo ' and changes')"
  echo "    date: $(date -u +%F)"
  echo "    processor: $(sed -n 's/^model name[^:]*: //p' /proc/cpuinfo | head -1), $(nproc) cores; $(uname -sr)"
  echo "    compiler: $(c++ --version | head -1)"
  echo "    MPI: $("mpirun.$mpi" --version | head -1)"
  if [ -n "$python" ]; then
    echo "    python: $("$python" -c 'import sys, torch; print(sys.version.split()[0], "torch", torch.__version__)')"
    echo "    peers: ${peer[*]}"
  fi
  echo
  sed 's/^/    /' "$raw"
} >>"$out.new"
mv "$out.new" "$out"
sed '/^    command/q' "$out"
