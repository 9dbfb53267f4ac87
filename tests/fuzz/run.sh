#!/usr/bin/env bash
# Fuzzes every reader of a foreign format, one after the other: tests/fuzz/run.sh [SECONDS [NAME...]], 30 each by default.
# Needs clang++ with libFuzzer (Debian: clang, libomp-dev). What is found is in build/fuzz/corpus/NAME, a crash in
# build/fuzz/crashes; `build/fuzz/tests/fuzz/fuzz_NAME FILE` repeats it.
set -euo pipefail
cd "$(dirname "$0")/../.."

seconds=${1:-30}
[ $# -gt 0 ] && shift
names=("$@")
[ ${#names[@]} -gt 0 ] || names=(safetensors torch llmc pickle hugging_face bpe dataset token_folder nanogpt_meta documents peft task completions)

cmake -S . -B build/fuzz -G Ninja -DCMAKE_CXX_COMPILER=clang++ -DCMAKE_BUILD_TYPE=RelWithDebInfo -DSHOAL_FUZZ=ON \
  -DSHOAL_TESTS=OFF -DSHOAL_BENCH=OFF -DSHOAL_CUDA=OFF -DSHOAL_MPI=OFF --log-level=WARNING
ninja -C build/fuzz fuzzers

mkdir -p build/fuzz/crashes
for name in "${names[@]}"; do
  mkdir -p "build/fuzz/corpus/$name"
  echo "== $name, $seconds s"
  # An input of 64 KiB may take 512 MiB at most.
  "build/fuzz/tests/fuzz/fuzz_$name" -max_total_time="$seconds" -max_len=65536 -rss_limit_mb=512 -timeout=5 -print_final_stats=1 \
    -artifact_prefix=build/fuzz/crashes/ "build/fuzz/corpus/$name" "tests/fuzz/corpus/$name" 2>&1 |
    grep -E 'ERROR|SUMMARY|Test unit|DONE|stat::(number|new|peak)'
done
