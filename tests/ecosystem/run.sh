#!/usr/bin/env bash
# Compares Shoal with the libraries of its users' present programs: tests/ecosystem/run.sh [NAME ...]
#
# Makes a Python environment in build/ecosystem (some 6 GB; pip's variables choose where from) and runs the scripts of this
# folder, or those that are named (report_page wants Debian's chromium, too). What each prints is left in
# build/ecosystem/NAME.txt; bench/results/ecosystem_NAME.txt is kept from such a run. $SHOAL is the program
# (build/release/shoal), $SHOAL_DATA_DIR has the texts that tokenizer_training learns from.
set -euo pipefail
unset CDPATH  # cd would look there first, and print
cd "$(dirname "$0")/../.."
shoal=$(realpath "${SHOAL:-build/release/shoal}")
[ -x "$shoal" ] || { echo "tests/ecosystem/run.sh: there is no $shoal; build it, or set SHOAL" >&2; exit 2; }
env=build/ecosystem
names=("$@")
[ $# -gt 0 ] || names=(adapters formats generation hub openai_client report_page tasks tensorboard_events tokenizer_training wandb_offline)
if [ ! -e $env/ready ]; then
  python3 -m venv $env
  $env/bin/pip install -q torch transformers peft lm-eval datasets tokenizers safetensors huggingface_hub openai tensorboard wandb playwright
  touch $env/ready
fi
failed=()
for name in "${names[@]}"; do
  echo "== $name"
  data=()
  if [ "$name" = tokenizer_training ]; then
    if [ ! -d "${SHOAL_DATA_DIR:-}" ]; then
      echo "left out: SHOAL_DATA_DIR has no texts"
      continue
    fi
    data=("$SHOAL_DATA_DIR" 1)
  fi
  $env/bin/python "tests/ecosystem/$name.py" "$shoal" "${data[@]}" 2>&1 | tee "$env/$name.txt" || failed+=("$name")
done
if [ ${#failed[@]} -gt 0 ]; then
  echo "failed: ${failed[*]}"
  exit 1
fi
echo "all agree"
