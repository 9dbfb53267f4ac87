#!/usr/bin/env bash
# Installs what is needed, builds, and runs all tests, two more at a time than there are cores, since some mostly wait. Arguments go
# to ctest, e.g. -R 'ops\.'.
set -euo pipefail
cd "$(dirname "$0")/.."
scripts/install-deps.sh tests
scripts/build.sh
exec ctest --test-dir build/release --no-tests=error --output-on-failure -j $(($(nproc) + 2)) "$@"
