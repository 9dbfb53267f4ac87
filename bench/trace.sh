#!/usr/bin/env bash
# What --trace costs: milliseconds per step with every step traced, beside none, in interleaved rounds.
#
#   [SHOAL=build/release/shoal] [CONFIG=configs/quickstart.toml] [RANKS=2] [STEPS=200] [ROUNDS=5] bench/trace.sh [section.key=value ...]
#
# The data is made in a temporary folder (synthetic, as configs/quickstart.toml has it). Nothing else may use the machine
# meanwhile. A step's time is the median over those of a run but for the first ten; the last line compares the medians of all rounds.
set -euo pipefail
unset CDPATH  # cd would look there first, and print
cd "$(dirname "$0")/.."

shoal=${SHOAL:-build/release/shoal} config=${CONFIG:-configs/quickstart.toml} ranks=${RANKS:-2}
steps=${STEPS:-200} rounds=${ROUNDS:-5}
[ -x "$shoal" ] || { echo "no $shoal: build it, or set SHOAL" >&2; exit 2; }

folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
"$shoal" prepare synthetic --out "$folder/data" >/dev/null 2>&1

# ms NAME OPTIONS...: the median step of a run
ms() {
  local name=$1
  shift
  "$shoal" train "$config" data.dir="$folder/data" run.dir="$folder" run.name="$name" --ranks "$ranks" \
    train.threads=1 train.steps="$steps" log.interval=1 eval.interval=-1 checkpoint.interval=0 "$@" >"$folder/log" 2>&1 ||
    { cat "$folder/log" >&2; exit 1; }
  python3 - "$folder/$name/metrics.jsonl" <<'PYTHON'
import json, statistics, sys
times = [step["ms_per_step"] for step in map(json.loads, open(sys.argv[1])) if "ms_per_step" in step]
print(f"{statistics.median(times[10:]):.3f}")
PYTHON
}

echo "round  plain ms/step  traced ms/step"
for ((round = 1; round <= rounds; ++round)); do
  if ((round % 2)); then
    plain=$(ms "plain-$round" "$@")
    traced=$(ms "traced-$round" --trace "$folder/trace.json" --trace-steps "$steps" "$@")
  else
    traced=$(ms "traced-$round" --trace "$folder/trace.json" --trace-steps "$steps" "$@")
    plain=$(ms "plain-$round" "$@")
  fi
  printf '%5d  %13s  %14s\n' "$round" "$plain" "$traced" | tee -a "$folder/table"
done
python3 - "$folder/table" "$folder/trace.json" "$steps" <<'PYTHON'
import json, os, statistics, sys
rows = [line.split() for line in open(sys.argv[1])]
plain, traced = (statistics.median(float(row[i]) for row in rows) for i in (1, 2))
events = len(json.load(open(sys.argv[2]))["traceEvents"]) / int(sys.argv[3])
print(f"median {plain:.3f} and {traced:.3f} ms/step: tracing costs {100 * (traced / plain - 1):+.2f} %, "
      f"{events:.0f} events a step of all ranks, {os.path.getsize(sys.argv[2]) / int(sys.argv[3]) / 1e3:.1f} kB")
PYTHON
