#!/usr/bin/env bash
# Installs what is needed and builds into build/release: scripts/build.sh [TARGET ...]; without targets, everything.
set -euo pipefail
unset CDPATH  # cd would look there first, and print
cd "$(dirname "$0")/.."
scripts/install-deps.sh
log=$(mktemp)
trap 'rm -f "$log"' EXIT
cmake --preset release >"$log" 2>&1 || { cat "$log"; exit 1; }
cmake --build --preset release ${1:+--target "$@"}
