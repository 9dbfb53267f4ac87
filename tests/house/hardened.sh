#!/usr/bin/env bash
# Whether a built program and its modules are hardened: tests/house/hardened.sh PROGRAM [MODULE...] (CMakeLists.txt says with what).
set -euo pipefail
command -v readelf >/dev/null || { echo "SKIPPED: this machine has no readelf (binutils)"; exit 77; }

code=0
# require FILE WHAT PATTERN READELF-OPTION
require() {
  readelf -W "$4" "$1" | grep -E -- "$3" >/dev/null || { echo "FAILED: $1 $2"; code=1; }
}
require "${1:?usage: $0 PROGRAM [MODULE...]}" "has a fixed place in memory" 'FLAGS_1.* PIE' -d
for file; do
  require "$file" "leaves the linker's tables writable" GNU_RELRO -l
  require "$file" "resolves functions when they are called first" 'FLAGS_1.* NOW' -d
  require "$file" "does not check the stack" __stack_chk_fail --dyn-syms
done
require "$1" "does not check the bounds of buffers" '__(memcpy|memmove|memset|read|pread|snprintf)_chk' --dyn-syms
exit $code
