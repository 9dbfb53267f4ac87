#!/usr/bin/env bash
# Trains some steps on emulated processors, older and newer than this one, and compares every bit with this processor's steps at
# their level, if it has that; for AVX-512 the tests of ops run first. other_processors.sh BUILD-FOLDER. Needs qemu-user.
set -euo pipefail
unset CDPATH  # cd would look there first, and print
build=$(realpath "${1:?usage: $0 BUILD-FOLDER}")
config=$(realpath "$(dirname "${BASH_SOURCE[0]}")/../../configs/quickstart.toml")
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cmake --build "$build" --target shoal test_ops_avx512 shoal_avx512 | tail -n 1
cd "$folder"
"$build/shoal" prepare synthetic --size 200000 --out data/synthetic >/dev/null

# train NAME TYPE [VARIABLE=VALUE] COMMAND...
train() {
  local name=$1 type=$2
  shift 2
  # The peak is given, since measuring that of an emulated processor takes minutes.
  env "$@" train "$config" run.name="$name" train.dtype="$type" train.steps=3 train.global_batch=2 lr_schedule.warmup_steps=1 \
    eval.interval=-1 log.peak_tflops=1 2>"$name.log" || { cat "$name.log"; exit 1; }
}
# same WHAT RUN RUN: all bits of the two are the same.
same() {
  local said
  said=$("$build/shoal" checkpoint compare "runs/$2" "runs/$3") || { echo "$1: $said"; exit 1; }
  echo "$1: $said"
}
# compare LEVEL COMMAND...: this processor's steps and those of the command, where it emulates a processor of the level.
compare() {
  local level=$1 type
  shift
  for type in float32 bfloat16; do
    rm -rf runs
    train emulated "$type" "$@"
    if SHOAL_ISA=$level "$build/shoal" size "$config" >/dev/null 2>&1; then
      train here "$type" SHOAL_ISA="$level" "$build/shoal"
      same "$level, $type" here emulated
    else
      train one-thread "$type" taskset -c 0 env "$@"
      same "$level, which this processor lacks, on one core and on all, $type" one-thread emulated
    fi
  done
}

compare x86-64-v2 qemu-x86_64 -cpu Nehalem "$build/shoal"
compare avx2 qemu-x86_64 -cpu Haswell "$build/shoal"
for level in avx512 avx512_bf16 amx; do
  SHOAL_ISA=$level "$build/tests/test_ops_avx512" --gtest_brief=1
  compare $level SHOAL_ISA=$level "$build/tests/shoal_avx512"
done
