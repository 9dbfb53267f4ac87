#!/usr/bin/env bash
# Trains some steps on emulated older processors, and compares every bit with this processor's steps at their level:
# tests/deploy/older_processors.sh SHOAL. Needs qemu-user.
set -euo pipefail
shoal=$(realpath "${1:?usage: $0 SHOAL}")
config=$(realpath "$(dirname "${BASH_SOURCE[0]}")/../../configs/quickstart.toml")
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cd "$folder"
"$shoal" prepare synthetic --size 200000 --out data/synthetic >/dev/null

# train NAME TYPE COMMAND...
train() {
  local name=$1 type=$2
  shift 2
  "$@" train "$config" run.name="$name" train.dtype="$type" train.steps=3 lr_schedule.warmup_steps=1 eval.interval=-1 \
    2>"$name.log" || { cat "$name.log"; exit 1; }
}

for pair in Nehalem:x86-64-v2 Haswell:avx2; do
  processor=${pair%:*} level=${pair#*:}
  for type in float32 bfloat16; do
    train here "$type" env SHOAL_ISA="$level" "$shoal"
    train emulated "$type" qemu-x86_64 -cpu "$processor" "$shoal"
    said=$("$shoal" checkpoint compare runs/here runs/emulated) || { echo "$said"; exit 1; }
    echo "$processor, $type: $said"
    rm -r runs
  done
done
