#!/usr/bin/env bash
# configs/pretrain-openwebtext-gossip.toml beside its all-reduce twin, in a size for a small machine: a GPT of LAYERS layers
# and width WIDTH on the bytes of WikiText-2's validation part and TinyShakespeare, STEPS steps of 64 x 64 tokens. For each
# seed: all-reduce with AdamW, and gossip with AccumAdamW on 4 and on 8 workers. Writes a table of final losses and a
# picture of the curves.
#
#   [BUILD=build/release] [LAYERS=2] [WIDTH=32] [LR=3e-3] [STEPS=12000] [SEEDS="1 2 3"] [WORK=DIR] \
#     [OUT=bench/results/decentralised.md] [PICTURE=docs/decentralised.svg] bench/decentralised.sh [SETTING...]
#
# $SHOAL_DATA_DIR holds wikitext-2/valid.txt and tinyshakespeare.txt. OUT and PICTURE are written. WORK keeps the data and the
# runs: what is complete there is not run again, so take another WORK for other settings or another program. SETTINGs go
# to every run. CONTROL=1 adds all-reduce with AccumAdamW. OUTER=1 takes outer optimizers around AdamW in gossip's place, on 8 workers
# and on one, and writes bench/results/decentralised_outer.md and docs/decentralised-outer.svg. ONLY="streaming alone" trains these of
# them; the table has what is in WORK.
set -euo pipefail
unset CDPATH  # cd would look there first, and print
cd "$(dirname "$0")/.."

build=${BUILD:-build/release} steps=${STEPS:-12000} seeds=${SEEDS:-1 2 3}
out=${OUT:-bench/results/decentralised${OUTER:+_outer}.md} picture=${PICTURE:-docs/decentralised${OUTER:+-outer}.svg}
layers=${LAYERS:-2} width=${WIDTH:-32} lr=${LR:-3e-3} work=${WORK:-}
export SHOAL_DATA_DIR=${SHOAL_DATA_DIR:-$PWD/../shared/data}
shoal=$build/shoal
[ -x "$shoal" ] || { echo "no $shoal: ninja -C $build shoal" >&2; exit 2; }
if [ -z "$work" ]; then
  work=$(mktemp -d)
  trap 'rm -rf "$work"' EXIT
fi
mkdir -p "$work"

if [ ! -e "$work/data/meta.json" ]; then
  python3 - "$SHOAL_DATA_DIR" "$work/documents.jsonl" <<'PY'
import json, re, sys
shared, out = sys.argv[1:]
text = open(shared + "/wikitext-2/valid.txt", encoding="utf-8").read()
titles = [title.start() for title in re.finditer(r"^ = [^=\n]+ = $", text, re.MULTILINE)]
documents = [text[begin:end].strip() for begin, end in zip(titles, titles[1:] + [len(text)])]
speeches = open(shared + "/tinyshakespeare.txt", encoding="utf-8").read().split("\n\n")
documents += ["\n\n".join(speeches[i:i + 120]) for i in range(0, len(speeches), 120)]
with open(out, "w", encoding="utf-8") as file:
    for document in documents:
        print(json.dumps({"text": document}), file=file)
PY
  "$shoal" prepare text "$work/documents.jsonl" --tokenizer bytes --val-fraction 0.1 --out "$work/data"
fi

warmup=$((steps / 10))
common=(model.preset="" "model.n_layer=$layers" "model.n_head=$((width / 16))" "model.n_embd=$width" model.block_size=64
  "data.dir=$work/data" train.dtype=float32 train.global_batch=64 train.micro_batch=8 "train.steps=$steps"
  "optim.lr=$lr" "lr_schedule.min_lr=$(awk "BEGIN { print $lr / 10 }")"
  "lr_schedule.warmup_steps=$warmup" "lr_schedule.warmup_start=$(awk "BEGIN { print 1 / $warmup }")"
  "eval.interval=$((steps / 24))" eval.batches=0 checkpoint.interval=0 checkpoint.best=false
  log.tensorboard=false "run.dir=$work/runs" "$@")
# For the control: the optimizer of the gossip config.
accum=(optim.name=accum_adamw optim.accum_steps=8 optim.betas=0.9,0.98)

# Of the bytes of all-reduce these send a hundredth (half of the bits, once in 50 steps; in parts beside the steps), a 240th (an
# eighth of the bits, once in 30 steps, in parts), and a thousandth in three ways. Neighbours exchange models with one other worker,
# a 90th of the bytes. On one worker nothing is sent.
declare -A outer=(
  [outer]="outer.interval=50 outer.compress=bfloat16"
  [streaming]="outer.interval=50 outer.compress=bfloat16 outer.fragments=2 outer.overlap=1"
  [nibbles]="outer.interval=30 outer.compress=int4 outer.fragments=4 outer.overlap=3"
  [rare_nibbles]="outer.interval=126 outer.compress=int4"
  [thousandth]="outer.interval=500 outer.compress=bfloat16 outer.lr=1"
  [sparse]="outer.interval=80 outer.compress=topk:0.02 outer.momentum=0 outer.lr=1"
  [neighbours]="gossip.topology=exp outer.interval=50"
)
alone="outer.interval=10"

chosen=${ONLY:-${!outer[*]} alone}

# The settings of a run of these: all workers exchange at once where no topology is named.
gossip_settings() {
  local topology=" gossip.topology=complete"
  [[ ${outer[$1]} != *gossip.topology=* ]] || topology=
  echo "parallel.engine=gossip$topology ${outer[$1]}"
}

settings() {
  echo
  for name in "${!outer[@]}"; do echo "$name: AdamW, $(gossip_settings "$name")  "; done
  echo "alone: AdamW, $alone"
}

# Clipping by the whole gradient's norm, as with all-reduce, and no return to the average.
exchange=(gossip.clip=global gossip.continue_from_average=false gossip.bucket_mib=25)

# train NAME TWIN ARGUMENT...: a run by a config, unless it is there
train() {
  local name=$1 twin=$2
  shift 2
  grep -q "done: $steps steps" "$work/runs/$name/train.log" 2>/dev/null && return
  rm -rf "$work/runs/$name"
  echo "$name"
  "$shoal" train "configs/pretrain-openwebtext-$twin.toml" "run.name=$name" "${common[@]}" "$@" \
    >"$work/$name.txt" 2>&1 || { tail -5 "$work/$name.txt" >&2; echo "failed: $name" >&2; exit 1; }
  rm -rf "$work/runs/$name/checkpoints"
}

for seed in $seeds; do
  # With these sums the number of ranks does not matter, so one rank stands for 4 and 8.
  train "allreduce-$seed" allreduce "run.seed=$seed" run.deterministic=layout
  [ -z "${CONTROL:-}" ] || train "accum-$seed" allreduce "run.seed=$seed" run.deterministic=layout "${accum[@]}"
  if [ -n "${OUTER:-}" ]; then
    for name in $chosen; do
      exchanges=(run.deterministic=layout "$alone")
      # shellcheck disable=SC2207
      [ "$name" = alone ] || exchanges=(--ranks 8 $(gossip_settings "$name"))
      train "$name-$seed" allreduce "run.seed=$seed" "${exchanges[@]}"
    done
    continue
  fi
  for workers in 4 8; do
    train "gossip$workers-$seed" gossip "run.seed=$seed" --ranks $workers gossip.local_size=2 "${exchange[@]}"
  done
done
# Also of runs that were there.
took=$(sed -n 's/.*Total train time: \([0-9]*\).*/\1/p' "$work"/runs/*/train.log | sort -n | tail -1)
{
  cat <<EOF
# $([ -n "${OUTER:-}" ] && echo "Outer optimizers" || echo Gossip) beside all-reduce

configs/pretrain-openwebtext-gossip.toml and its all-reduce twin in small: a GPT of $layers layers and width $width on bytes,
$steps steps of 64 x 64 tokens for every run, the same batches for the same seed. Validation loss of the workers' average after
the last step, and how far it is from that of all-reduce with the same seed:

EOF
  # shellcheck disable=SC2086
  python3 bench/decentralised_table.py "$work/runs" "$picture" $seeds
  cat <<EOF

![curves]($(realpath -m --relative-to="$(dirname "$out")" "$picture"))

Betas, weight decay, clipping and accum_steps are those of the configs, the learning rate is $lr, falling to a tenth. The
warm-up is $warmup steps, a tenth of the run, where theirs is a three-hundredth. float32. Every two workers count as a node.
All-reduce is run with \`run.deterministic = "layout"\`, where the number of ranks changes nothing.
$([ -z "${OUTER:-}" ] || settings)

command: ${OUTER:+OUTER=1 }LAYERS=$layers WIDTH=$width LR=$lr STEPS=$steps SEEDS="$seeds" bench/decentralised.sh $*  
commit: $(git rev-parse --short HEAD)$(git diff --quiet HEAD -- src configs || echo ' and changes')  
date: $(date -u +%F), a run of up to $took s  
processor: $(sed -n 's/^model name[^:]*: //p' /proc/cpuinfo | head -1), $(nproc) cores; $(uname -sr)
EOF
} >"$work/report.md"
mv "$work/report.md" "$out"
cat "$out"
