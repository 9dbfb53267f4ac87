#!/usr/bin/env bash
# The first run with an installed shoal, in a new folder: what the machine can do, a corpus, training, samples, a curve, and for
# each MPI whose module and mpirun are there two ranks as processes: first_run.sh [section.key=value ...]
set -euo pipefail
unset CDPATH  # cd would look there first, and print
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cd "$folder"
configs=$(dirname "$(command -v shoal)")/../share/shoal/configs

echo "== shoal doctor"
shoal doctor
echo "== the first run"
shoal prepare synthetic --out data/synthetic
shoal train "$configs/quickstart.toml" "$@"
shoal eval --checkpoint runs/quickstart
shoal sample --checkpoint runs/quickstart --max-tokens 60
shoal plot runs/quickstart -o curves.svg
export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1
for mpi in openmpi mpich; do
  [ -e "$configs/../../../lib/shoal/libshoal_mpi_$mpi.so" ] && command -v "mpirun.$mpi" >/dev/null || continue
  echo "== two ranks with mpirun.$mpi"
  run=("mpirun.$mpi" -n 2)
  [ "$mpi" != openmpi ] || run+=(--oversubscribe --bind-to none)
  "${run[@]}" shoal train "$configs/quickstart.toml" "run.name=$mpi" "$@" train.steps=20 >"$mpi.log" 2>&1 ||
    { cat "$mpi.log"; exit 1; }
  tail -n 1 "$mpi.log"
done
