#!/usr/bin/env bash
# Installs what is needed, builds, and runs all tests. Arguments go to ctest, e.g. -R 'ops\.'. Some tests mostly wait, so one more runs than there
# are cores.
set -euo pipefail
cd "$(dirname "$0")/.."
scripts/install-deps.sh tests
scripts/build.sh
exec ctest --test-dir build/release --no-tests=error --output-on-failure -j $(($(nproc) + 1)) "$@"
