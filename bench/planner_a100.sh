#!/usr/bin/env bash
# Predicts the measured steps of others (docs/planner.md): all rows with configs/clusters/a100.toml, and each half of the
# workloads with blocks fitted to the other half only.
#
#   bench/planner_a100.sh build/release/shoal ../shared/data/planner
set -euo pipefail
shoal=$1 data=$2 here=$(dirname "$0")
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT
cluster=$here/../configs/clusters/a100.toml
echo "all rows"
"$shoal" plan --table "$data/a100-node.csv" --cluster "$cluster" | tail -n 1
for half in 0 1; do
  { sed '/^blocks = \[/q' "$cluster"; "$here/fit_a100.py" "$data/a100-node.csv" "$data/a100-allreduce.csv" --half $half; echo "]"; } >"$scratch/half.toml"
  "$here/fit_a100.py" "$data/a100-node.csv" "$data/a100-allreduce.csv" --rows $((1 - half)) >"$scratch/rest.csv"
  echo "half $((1 - half)), fitted on half $half"
  "$shoal" plan --table "$scratch/rest.csv" --cluster "$scratch/half.toml" | tail -n 1
done
