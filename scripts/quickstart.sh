#!/usr/bin/env bash
# The first run: installs what is needed, builds (2 to 5 minutes on two cores), writes a little corpus, trains for one to
# three minutes, evaluates, and leaves a loss curve and samples in out/quickstart. A run that is there already is resumed.
set -euo pipefail
unset CDPATH  # cd would look there first, and print
cd "$(dirname "$0")/.."
scripts/build.sh shoal

shoal=build/release/shoal
out=out/quickstart
mkdir -p "$out"
[ -e data/synthetic/meta.json ] || "$shoal" prepare synthetic --out data/synthetic
"$shoal" train configs/quickstart.toml init.from=auto
"$shoal" eval --checkpoint runs/quickstart
"$shoal" sample --checkpoint runs/quickstart --samples 3 --max-tokens 600 >"$out/samples.txt"
"$shoal" plot runs/quickstart -o "$out/curves.svg"

printf '\nWhat the model writes (%s):\n\n' "$out/samples.txt"
head -n 24 "$out/samples.txt"
printf '\n...\n\nThe loss curve is in %s. Next, a text of your own: configs/own-text.toml.\n' "$out/curves.svg"
