#!/usr/bin/env bash
# Builds for arm64 on a fresh minimal Debian 12 of this processor, then runs the tests of ops and a first training run under
# qemu's emulation: tests/deploy/arm64.sh [--keep FOLDER]. Needs root and debootstrap (fresh_debian.sh).
set -euo pipefail
unset CDPATH  # cd would look there first, and print
exec "$(dirname "${BASH_SOURCE[0]}")/fresh_debian.sh" "$@" bookworm '
  set -e -o pipefail
  scripts/install-deps.sh arm64
  cmake --preset arm64 >/dev/null
  cmake --build --preset arm64 --target shoal test_ops | tail -n 1
  cd build/arm64
  echo "== the tests of ops"
  qemu-aarch64-static tests/test_ops --gtest_brief=1
  echo "== a first run"
  shoal() { qemu-aarch64-static ./shoal "$@"; }
  shoal --version
  shoal prepare synthetic --size 200000 --out data/synthetic
  for type in float32 bfloat16; do
    shoal train ../../configs/quickstart.toml run.name=$type train.dtype=$type train.global_batch=4 train.steps=5 eval.batches=1
  done
  shoal sample --checkpoint runs/float32 --max-tokens 20'
