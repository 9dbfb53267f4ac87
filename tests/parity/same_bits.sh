#!/usr/bin/env bash
# Trains small models for 20 steps in many layouts and prints a checksum of each: of all tensors that it saves, of the losses
# that it logs, and of what it evaluates and samples afterwards. A change that must not change results prints the same lines.
#
#   tests/parity/same_bits.sh build/release/shoal >before.txt     # 20 s on two cores
#   tests/parity/same_bits.sh build/release/shoal | diff before.txt -
set -euo pipefail
unset CDPATH  # cd would look there first, and print
shoal=$(realpath "${1:?usage: $0 PROGRAM}")
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
cd "$work"

# The same bits on every host: nothing follows its cores.
cat >base.toml <<END
run.seed = 7
data.dir = "data"
model = { n_layer = 3, n_head = 4, n_embd = 64, block_size = 48, dropout = 0.1 }
train = { global_batch = 12, micro_batch = 2, steps = 20, threads = 1 }
optim.lr = 2e-3
lr_schedule.warmup_steps = 4
eval = { interval = 10, sequences = 16 }
checkpoint.interval = 10
log = { interval = 1, tensorboard = false }
END
"$shoal" prepare synthetic --size 20000 --out data >prepare.log 2>&1

checksum() { sha256sum | cut -c 1-16; }

# check NAME RANKS SETTING...: trains, evaluates and samples.
check() {
  local name=$1 ranks=$2
  shift 2
  "$shoal" train base.toml --ranks "$ranks" "run.name=$name" "$@" >"$name.log" 2>&1 || { cat "$name.log" >&2 && exit 1; }
  local tensors losses use
  tensors=$(cd "runs/$name/checkpoints" && sha256sum step-*/*.safetensors | checksum)
  losses=$(grep -oE '"(loss|train_loss|val_loss|grad_norm|consensus_distance)":[^,}]*' "runs/$name/metrics.jsonl" | checksum)
  use=$({ "$shoal" eval --checkpoint "runs/$name" 2>/dev/null && "$shoal" sample --checkpoint "runs/$name" --max-tokens 60 2>/dev/null; } | checksum)
  echo "$name: tensors $tensors, losses $losses, use $use"
}

check float32 1
check bfloat16 1 train.dtype=bfloat16
check threads 1 train.threads=2 model.gelu=erf model.bias=false
check zero1 2 parallel.zero=1
check zero3 3 parallel.zero=3 train.dtype=bfloat16 parallel.reduce_dtype=bfloat16
check replicated 4 parallel.zero=2 parallel.replicate=2
check sequence 4 parallel.tensor=2 parallel.sequence=true
check pipeline 2 parallel.pipeline=2
check interleaved 4 parallel.pipeline=2 parallel.chunks=2 parallel.schedule=interleaved model.n_layer=4 parallel.zero=1
check gossip 4 parallel.engine=gossip gossip.topology=exp train.micro_batch=1
check gossip-buckets 4 parallel.engine=gossip gossip.topology=ring gossip.clip=bucket gossip.bucket_mib=0.1 \
  gossip.continue_from_average=true train.micro_batch=1
check accum_adamw 2 optim.name=accum_adamw optim.accum_steps=4
check recompute 1 train.recompute=block
check recompute-light 2 train.recompute=light train.dtype=bfloat16
check stream 2 train.dtype=bfloat16 train.residual_dtype=bfloat16 parallel.tensor=2
check offload 2 parallel.offload=disk parallel.zero=2
check layout 2 run.deterministic=layout
check layout-mesh 4 run.deterministic=layout parallel.pipeline=2 parallel.zero=1
check clip-spikes 1 train.spike_zscore=3 train.spike_window=8 optim.decay=no_embeddings
check resumed 2 train.steps=10
check resumed 1 init.from=resume parallel.zero=1
