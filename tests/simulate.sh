#!/usr/bin/env bash
# simulate.sh SHOAL-SIMULATE HOURS [FIRST-SEED]: simulated training runs among faults (docs/simulation.md), with other seeds each time
# unless the first one is given. Ends with an error at the first thousand in which one fails.
set -euo pipefail
simulate=$(realpath "${1:?usage: $0 SHOAL-SIMULATE HOURS [FIRST-SEED]}")
hours=${2:?usage: $0 SHOAL-SIMULATE HOURS [FIRST-SEED]}
first=${3:-$(date +%s)000}
end=$(awk -v now="$(date +%s)" -v hours="$hours" 'BEGIN { printf "%d", now + 3600 * hours }')
while [ "$(date +%s)" -lt "$end" ]; do
  echo "seeds from $first"
  "$simulate" --seeds "$first:$((first + 999))"
  first=$((first + 1000))
done
