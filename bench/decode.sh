#!/usr/bin/env bash
# A token of one text and of eight, by 124M in each type of weights, in turn:
#     bench/decode.sh [BUILD] [ROUNDS] [PROMPT]       # builds bench_decode; medians at the end
# Before each round, what `shoal doctor` reads of memory by one thread and by all, GB/s.
set -euo pipefail
unset CDPATH  # cd would look there first, and print
cd "$(dirname "$0")/.."
build=${1:-build/release} rounds=${2:-5} prompt=${3:-5}
cmake --build "$build" --target shoal bench_decode >/dev/null
for _ in $(seq "$rounds"); do
  echo "read $("$build/shoal" doctor | sed -n 's/.*memory read, GB\/s *//p')"
  for texts in 1 8; do
    for how in float32 bfloat16 "float32 --int8" "bfloat16 --int8"; do
      # shellcheck disable=SC2086  # of two words
      echo "$texts $how: $("$build/bench/bench_decode" 12 12 768 50257 "$prompt" "$texts" 100 $how)"
    done
  done
done | tee /dev/stderr | python3 -c '
import re, statistics, sys
reads, rates = [], {}
for line in sys.stdin:
    if line.startswith("read"):
        reads.append(max(map(float, line.split()[1:])))
    else:
        what, rate, speed = re.match(r"(.*?): .*tokens/s (\d+) +([\d.]+) GB/s", line).groups()
        rates.setdefault(what, []).append((float(rate), float(speed)))
print(f"memory {statistics.median(reads):.1f} GB/s")
for what, all in rates.items():
    rate, speed = (statistics.median(values) for values in zip(*all))
    print(f"{what:20} {rate:6.0f} tokens/s {speed:6.1f} GB/s")'
