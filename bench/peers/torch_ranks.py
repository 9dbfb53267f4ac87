#!/usr/bin/env python3
"""Times whole training steps of torch_gpt.py's GPT on several processes over gloo, as bench_train_step does with ranks:

  torch_ranks.py N_LAYER N_HEAD N_EMBD VOCAB BATCH POSITIONS DROPOUT float32|bfloat16 STEPS THREADS
                 [--ranks N] [--way ddp|fsdp2] [--compile] [--pad N]

BATCH is that of all ranks, which share it evenly. A step is forward, backward, clipping by the whole model's norm and
AdamW; bfloat16 is autocast with DDP, and parameters gathered in bfloat16 with fully_shard, whose unit is a block.
"""
import contextlib
import os
import statistics
import tempfile
import time

import torch
from torch import distributed, multiprocessing, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.nn.parallel import DistributedDataParallel

import torch_gpt


def parallel(model, args, low_precision):
    if args.way == "ddp":
        model = DistributedDataParallel(model, gradient_as_bucket_view=True, static_graph=True)
        return torch.compile(model, dynamic=False) if args.compile else model
    mesh = init_device_mesh("cpu", (args.ranks,))
    policy = MixedPrecisionPolicy(torch.bfloat16, torch.float32) if low_precision else MixedPrecisionPolicy()
    for block in model.blocks:
        if args.compile:
            block.compile(dynamic=False)
        fully_shard(block, mesh=mesh, mp_policy=policy)
    return fully_shard(model, mesh=mesh, mp_policy=policy)


def run(rank, args, meeting):
    distributed.init_process_group("gloo", init_method=f"file://{meeting}", rank=rank, world_size=args.ranks)
    torch.set_num_threads(args.threads)
    torch.set_flush_denormal(True)
    torch.manual_seed(1337)
    classes = -(-args.vocab // args.pad) * args.pad
    low_precision = args.dtype == "bfloat16"
    model = torch_gpt.Gpt(args.n_layer, args.n_head, args.n_embd, classes, args.positions, args.dropout)
    model = parallel(model, args, low_precision)
    parameters = list(model.parameters())
    optimizer = torch.optim.AdamW([{"params": [p for p in parameters if p.dim() >= 2], "weight_decay": 0.1},
                                   {"params": [p for p in parameters if p.dim() < 2], "weight_decay": 0.0}],
                                  lr=1e-4, betas=(0.9, 0.95), fused=True)
    mine = args.batch // args.ranks
    window = torch.randint(args.vocab, (args.batch, args.positions + 1))[rank * mine:(rank + 1) * mine]
    tokens, targets = window[:, :-1].contiguous(), window[:, 1:].contiguous()
    autocast = low_precision and args.way == "ddp"
    times, warm_up = [], 3
    for step in range(args.steps + warm_up):
        start = time.perf_counter()
        optimizer.zero_grad(set_to_none=True)
        with torch.autocast("cpu", torch.bfloat16) if autocast else contextlib.nullcontext():
            loss = model(tokens, targets)
        loss.backward()
        nn.utils.clip_grad_norm_(parameters, 1.0)
        optimizer.step()
        if step >= warm_up:
            times.append(time.perf_counter() - start)
    mean = loss.detach() / args.ranks
    distributed.all_reduce(mean)
    if rank == 0:
        median = statistics.median(times)
        way = f"{args.way} {'compile' if args.compile else 'eager'}"
        print(f"torch {torch.__version__} {way} {args.dtype} ms/step median {median * 1e3:.2f} "
              f"min {min(times) * 1e3:.2f}  tokens/s {args.batch * args.positions / median:.0f}  "
              f"loss {mean.item():.4f}", flush=True)
    distributed.destroy_process_group()


def main():
    parser = torch_gpt.parser()
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--way", choices=("ddp", "fsdp2"), default="ddp")
    args = parser.parse_args()
    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    with tempfile.TemporaryDirectory() as folder:
        multiprocessing.spawn(run, (args, os.path.join(folder, "meeting")), nprocs=args.ranks)


if __name__ == "__main__":
    main()
