#!/usr/bin/env bash
# Fuzzes every reader of a foreign format, one on each core: tests/fuzz/run.sh [SECONDS [NAME...]], 30 each by default.
# Needs clang++ with libFuzzer (Debian: clang, libomp-dev). What is found is in build/fuzz/corpus/NAME, a crash in
# build/fuzz/crashes (and the script exits non-zero); `build/fuzz/tests/fuzz/fuzz_NAME FILE` repeats it.
set -euo pipefail
unset CDPATH  # cd would look there first, and print
cd "$(dirname "$0")/../.."

seconds=${1:-30}
[ $# -gt 0 ] && shift
names=("$@")
[ ${#names[@]} -gt 0 ] || names=(safetensors torch llmc pickle hugging_face bpe dataset token_folder nanogpt_meta documents peft task completions)

cmake -S . -B build/fuzz -G Ninja -DCMAKE_CXX_COMPILER=clang++ -DCMAKE_BUILD_TYPE=RelWithDebInfo -DSHOAL_FUZZ=ON \
  -DSHOAL_TESTS=OFF -DSHOAL_BENCH=OFF -DSHOAL_CUDA=OFF -DSHOAL_MPI=OFF --log-level=WARNING
ninja -C build/fuzz fuzzers

mkdir -p build/fuzz/crashes
fuzz() {
  mkdir -p "build/fuzz/corpus/$1"
  # An input of 64 KiB may take 512 MiB at most.
  "build/fuzz/tests/fuzz/fuzz_$1" -max_total_time="$2" -max_len=65536 -rss_limit_mb=512 -timeout=5 -print_final_stats=1 \
    -artifact_prefix="build/fuzz/crashes/$1-" "build/fuzz/corpus/$1" "tests/fuzz/corpus/$1" >"build/fuzz/$1.log" 2>&1 && status=0 || status=$?
  echo "== $1, $2 s"
  grep -E 'ERROR|SUMMARY|Test unit|DONE|stat::(number|new|peak)' "build/fuzz/$1.log"
  return $status
}
export -f fuzz
printf '%s\n' "${names[@]}" | xargs -P "$(nproc)" -I{} bash -c "fuzz {} $seconds"
