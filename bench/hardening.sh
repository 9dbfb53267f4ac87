#!/usr/bin/env bash
# Training steps of two builds in turn, e.g. without and with hardening: bench/hardening.sh OLD-BUILD NEW-BUILD [ROUNDS]. ROWS=REGEX
# chooses rows. Takes about ten minutes on two cores, which nothing else may use meanwhile.
set -euo pipefail
old=${1:?usage: $0 OLD-BUILD NEW-BUILD [ROUNDS]} new=${2:?usage: $0 OLD-BUILD NEW-BUILD [ROUNDS]} rounds=${3:-3}

# name; arguments of bench_train_step
table='char-4x128-fp32;4 4 128 65 12 64 0 float32 200 2
char-6x384-fp32;6 6 384 65 8 256 0.2 float32 24 2
gpt2-124m-fp32;12 12 768 50257 4 256 0 float32 5 2'

while IFS=';' read -r -u 3 name arguments; do
  grep -Eq "${ROWS:-.}" <<<"$name" || continue
  for ((round = 1; round <= rounds; ++round)); do
    for build in old new; do
      # shellcheck disable=SC2086
      line=$("${!build}/bench/bench_train_step" $arguments 2>/dev/null | tail -n 1) || { echo "$build: $name failed" >&2; exit 1; }
      echo "$name $build $line"
    done
  done
done 3<<<"$table"
