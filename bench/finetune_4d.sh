#!/usr/bin/env bash
# configs/finetune-shakespeare-4d.toml in a size for a small machine. A GPT of 4 layers, 4 heads, width 128 and block 128 is
# trained a little on TinyShakespeare in GPT-2's tokens and exported in Hugging Face's format. From that folder it is
# fine-tuned by one rank, by meshes of four and by a pipeline, in float32 and bfloat16, with dropout 0.1 and sums in the
# default order. Writes the largest differences from one rank, and a picture of the curves.
#
#   [BUILD=build/release] [STEPS=200] [PRETRAIN=200] [WORK=DIR] [OUT=docs/finetune-4d] bench/finetune_4d.sh
#
# `shoal prepare` must find TinyShakespeare and GPT-2's vocabulary, in $SHOAL_DATA_DIR or on the network. OUT.md and OUT.svg
# are written. WORK keeps the runs. About ten minutes on two cores.
set -euo pipefail
unset CDPATH  # cd would look there first, and print
cd "$(dirname "$0")/.."

build=${BUILD:-build/release} steps=${STEPS:-200} pretrain=${PRETRAIN:-200} out=${OUT:-docs/finetune-4d}
work=${WORK:-}
shoal=$build/shoal
[ -x "$shoal" ] || { echo "no $shoal: ninja -C $build shoal" >&2; exit 2; }
if [ -z "$work" ]; then
  work=$(mktemp -d)
  trap 'rm -rf "$work"' EXIT
fi
mkdir -p "$work"
log=$work/output.txt
: >"$log"

model=(model.preset="" model.n_layer=4 model.n_head=4 model.n_embd=128 model.block_size=128 model.vocab_size=50257)
common=("data.dir=$work/data" "run.dir=$work/runs" train.global_batch=8 log.tensorboard=false)

# train NAME SETTING...: a run by the config
train() {
  local name=$1
  shift
  echo "$name"
  "$shoal" train configs/finetune-shakespeare-4d.toml "${model[@]}" "${common[@]}" "run.name=$name" "$@" >>"$log" 2>&1 ||
    { tail -5 "$log" >&2; echo "failed: $name $*" >&2; exit 1; }
}

rm -rf "$work/runs" "$work/weights"
[ -e "$work/data/meta.json" ] || "$shoal" prepare shakespeare --out "$work/data" >>"$log"
train pretrained init.from=scratch train.steps="$pretrain" optim.lr=2e-3 lr_schedule.warmup_steps="$((pretrain / 10))" \
  train.micro_batch=8 model.dropout=0 eval.interval=-1 parallel.data=1 parallel.tensor=1
"$shoal" export --checkpoint "$work/runs/pretrained" --out "$work/weights" --format hf >>"$log" 2>&1

start=$SECONDS
for dtype in float32 bfloat16; do
  tune=("init.from=hf:$work/weights" train.steps="$steps" train.micro_batch=1 train.dtype=$dtype
    "checkpoint.interval=0" "checkpoint.best=false" model.dropout=0.1 parallel.zero=1)
  train "$dtype-one" "${tune[@]}" parallel.data=1 parallel.tensor=1
  train "$dtype-1x4" "${tune[@]}" parallel.data=1 parallel.tensor=4
  train "$dtype-2x2" "${tune[@]}" parallel.data=2 parallel.tensor=2
  train "$dtype-4x1" "${tune[@]}" parallel.data=4 parallel.tensor=1
  train "$dtype-pipeline" "${tune[@]}" parallel.data=1 parallel.tensor=2 parallel.pipeline=2
done

python3 bench/finetune_4d_table.py "$work/runs" "$out"
{
  echo
  echo "    command: STEPS=$steps PRETRAIN=$pretrain bench/finetune_4d.sh"
  echo "    commit: $(git rev-parse --short HEAD)$(git diff --quiet HEAD -- src bench configs || echo ' and changes')"
  echo "    date: $(date -u +%F), fine-tuning took $((SECONDS - start)) s"
  echo "    processor: $(sed -n 's/^model name[^:]*: //p' /proc/cpuinfo | head -1), $(nproc) cores; $(uname -sr)"
} >>"$out.md"
cat "$out.md"
