#!/usr/bin/env bash
# Installs what is needed, builds, and runs all tests, two more at a time than there are cores, since some mostly wait. Arguments go
# to ctest, e.g. -R 'ops\.'.
set -euo pipefail
unset CDPATH  # cd would look there first, and print
cd "$(dirname "$0")/.."
scripts/install-deps.sh tests
scripts/build.sh
code=0
ctest --test-dir build/release --no-tests=error --output-on-failure -j $(($(nproc) + 2)) "$@" || code=$?
# What failed tests said comes once more, where it is seen.
[ $code -eq 0 ] || awk '/^[0-9]+\/[0-9]+ Test: /{text = ""} {text = text $0 ORS} /^Test Failed/{printf "%s", text}' \
  build/release/Testing/Temporary/LastTest.log | tail -n 60
exit $code
