#!/usr/bin/env bash
# Trains some steps with this build and with one of HEAD on a fresh Debian, whose compiler and C library are others, and
# compares every bit, at each level of instructions that this processor has:
#
#   tests/deploy/other_debian.sh build/release trixie
#
# Needs what fresh_debian.sh needs.
set -euo pipefail
unset CDPATH  # cd would look there first, and print
[ $# -eq 2 ] || { echo "usage: $0 BUILD-FOLDER SUITE" >&2; exit 2; }
shoal=$(realpath "$1")/shoal suite=$2
tests=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT

cat >"$folder/train.sh" <<'END'
set -euo pipefail
shoal=$1 config=$2
"$shoal" prepare synthetic --size 200000 --out data/synthetic >/dev/null
for level in x86-64-v2 avx2 avx512 avx512_bf16 amx; do
  SHOAL_ISA=$level "$shoal" size "$config" >/dev/null 2>&1 || continue
  for type in float32 bfloat16; do
    SHOAL_ISA=$level "$shoal" train "$config" run.name="$level-$type" train.dtype="$type" train.steps=20 train.global_batch=8 \
      model.dropout=0.1 lr_schedule.warmup_steps=1 eval.interval=-1 log.peak_tflops=1 >log 2>&1 || { cat log >&2; exit 1; }
  done
done
END
(cd "$folder" && bash train.sh "$shoal" "$tests/../../configs/quickstart.toml")

name=$(basename "$folder")
"$tests/fresh_debian.sh" --beside "$folder" "$suite" "
  scripts/build.sh shoal && mkdir ~/there && cd ~/there && bash ~/$name/train.sh ~/shoal/build/release/shoal ~/shoal/configs/quickstart.toml
  for run in ~/$name/runs/*; do
    printf '%s: ' \"\$(basename \"\$run\")\"
    ~/shoal/build/release/shoal checkpoint compare \"\$run\" ~/there/runs/\"\$(basename \"\$run\")\" || exit 1
  done"
