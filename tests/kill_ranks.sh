#!/usr/bin/env bash
# kill_ranks.sh SHOAL-BINARY [KILLS [SEED]]: a run on four MPI ranks that saves after every step loses a rank to kill -9
# at a random moment, again and again, under `shoal launch --max-restarts`. Each time every checkpoint there is must be
# whole, and each run must end with the bytes and the losses of an undisturbed one. 50 kills take two minutes or so.
set -euo pipefail
unset CDPATH  # cd would look there first, and print
shoal=$(realpath "${1:?usage: $0 SHOAL-BINARY [KILLS [SEED]]}")
wanted=${2:-50}
RANDOM=${3:-1}
config=$(realpath "$(dirname "$0")/deploy/tiny.toml")

command -v mpirun.openmpi >/dev/null || { echo "SKIPPED: this machine has no Open MPI"; exit 77; }

folder=$(mktemp -d /tmp/shoal-kill-XXXXXX)
launch=
clean_up() {
  [ -z "$launch" ] || kill -9 "$launch" 2>/dev/null || true  # its ranks end with it
  rm -rf "$folder"
}
trap clean_up EXIT
cd "$folder"
die() { echo "FAILED: $*" >&2; cat runs.log >&2; exit 1; }

"$shoal" prepare synthetic --out data --size 20000 >runs.log 2>&1 || die "prepare"
settings=(run.name=killed train.steps=30 eval.interval=15 checkpoint.interval=1 checkpoint.keep=1000)
"$shoal" train "$config" "${settings[@]}" run.name=undisturbed checkpoint.interval=15 2>runs.log || die "undisturbed"

start() {
  rm -rf runs/killed verified
  mkdir verified
  "$shoal" launch -n 4 --mpirun mpirun.openmpi --max-restarts 1000 -- train "$config" "${settings[@]}" 2>runs.log &
  launch=$!
}

# The ranks are the children of mpirun, which is launch's.
ranks() { pgrep -P "$(pgrep -P "$launch" -d ,)" 2>/dev/null || true; }

# Every checkpoint that was not there before.
verify() {
  local checkpoint
  for checkpoint in runs/killed/checkpoints/step-*; do
    local name=${checkpoint##*/}
    [ -d "$checkpoint" ] && [ ! -e "verified/$name" ] || continue
    "$shoal" checkpoint verify "$checkpoint" >verify.log 2>&1 || die "$(cat verify.log)"
    touch "verified/$name"
  done
}

losses() { sed 's/,"tokens_per_s".*//' "runs/$1/metrics.jsonl"; }

finish() {
  wait "$launch" || die "the run ended with code $?"
  launch=
  verify
  "$shoal" checkpoint compare runs/killed runs/undisturbed >compare.log 2>&1 || die "$(cat compare.log)"
  cmp <(losses killed) <(losses undisturbed) || die "the losses differ"
  runs=$((runs + 1))
}

# Any moment: of the start, of a step, of the end; or one shortly after the next checkpoint, when another is on its way.
wait_a_while() {
  sleep "$(printf '0.%03d' $((RANDOM % 1000)))"
  [ $((RANDOM % 2)) -eq 0 ] || return 0
  local before
  before=$(readlink runs/killed/checkpoints/latest || true)
  while kill -0 "$launch" 2>/dev/null && [ "$(readlink runs/killed/checkpoints/latest || true)" = "$before" ]; do
    sleep 0.005
  done
  sleep "$(printf '0.%03d' $((RANDOM % 20)))"
}

kills=0 runs=0 saving=0
start
while [ "$kills" -lt "$wanted" ]; do
  wait_a_while
  if ! kill -0 "$launch" 2>/dev/null; then
    finish
    start
    continue
  fi
  mapfile -t there < <(ranks)
  [ ${#there[@]} -eq 4 ] || continue  # between two attempts
  victim=${there[RANDOM % 4]}
  kill -9 "$victim" 2>/dev/null || continue
  kills=$((kills + 1))
  # What is being saved stands beside its place, under another name.
  [ -z "$(find runs/killed/checkpoints -mindepth 1 -maxdepth 1 -name ".step-*.partial" 2>/dev/null)" ] ||
    saving=$((saving + 1))
  verify
done
finish
echo "ok: $kills kills in $runs runs, $saving of them while a checkpoint was being saved"
