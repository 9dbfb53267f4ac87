#!/usr/bin/env python3
"""Times whole training steps of a plain PyTorch GPT on random tokens, as bench_train_step does:

  torch_gpt.py N_LAYER N_HEAD N_EMBD VOCAB BATCH POSITIONS DROPOUT float32|bfloat16 STEPS THREADS [--compile] [--pad N]
               [--device cpu|cuda] [--tf32]

A step is forward, backward, clipping and AdamW; bfloat16 is autocast. It is as fast as its settings make it: fused
attention, fused AdamW, no denormals. What the environment decides (allocator, OpenMP) is set by
bench/train_step.sh. --pad rounds the vocabulary up, which can suit the matrix library better. On a GPU a step's time is that
of all steps over their number, since nothing in one has to wait, and the most memory that tensors had is told, too.
"""
import argparse
import contextlib
import math
import statistics
import time

import torch
from torch import nn
from torch.nn import functional as F


class Block(nn.Module):
    def __init__(self, width, heads, dropout):
        super().__init__()
        self.heads, self.dropout = heads, dropout
        self.ln_1, self.ln_2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.attention_out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.fc, self.mlp_out = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x):
        batch, positions, width = x.shape
        q, k, v = (part.view(batch, positions, self.heads, width // self.heads).transpose(1, 2)
                   for part in self.qkv(self.ln_1(x)).split(width, dim=2))
        y = F.scaled_dot_product_attention(q, k, v, dropout_p=self.dropout, is_causal=True)
        x = x + F.dropout(self.attention_out(y.transpose(1, 2).reshape(x.shape)), self.dropout)
        hidden = F.gelu(self.fc(self.ln_2(x)), approximate="tanh")
        return x + F.dropout(self.mlp_out(hidden), self.dropout)


class Gpt(nn.Module):
    def __init__(self, layers, heads, width, classes, positions, dropout):
        super().__init__()
        self.dropout = dropout
        self.wte, self.wpe = nn.Embedding(classes, width), nn.Embedding(positions, width)
        self.blocks = nn.ModuleList(Block(width, heads, dropout) for _ in range(layers))
        self.ln_f = nn.LayerNorm(width)
        self.register_buffer("places", torch.arange(positions), persistent=False)
        for name, parameter in self.named_parameters():
            if parameter.dim() < 2:
                continue
            nn.init.normal_(parameter, std=0.02 / math.sqrt(2 * layers) if "_out" in name else 0.02)
        for name, parameter in self.named_parameters():
            if name.endswith("bias"):
                nn.init.zeros_(parameter)

    def forward(self, tokens, targets):
        x = F.dropout(self.wte(tokens) + self.wpe(self.places), self.dropout)
        for block in self.blocks:
            x = block(x)
        logits = F.linear(self.ln_f(x), self.wte.weight)
        return F.cross_entropy(logits.flatten(0, 1), targets.flatten())


def parser():
    result = argparse.ArgumentParser()
    for name in ("n_layer", "n_head", "n_embd", "vocab", "batch", "positions"):
        result.add_argument(name, type=int)
    result.add_argument("dropout", type=float)
    result.add_argument("dtype", choices=("float32", "bfloat16"))
    result.add_argument("steps", type=int)
    result.add_argument("threads", type=int)
    result.add_argument("--compile", action="store_true")
    result.add_argument("--pad", type=int, default=1)
    result.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    result.add_argument("--tf32", action="store_true")
    return result


def main():
    args = parser().parse_args()
    torch.set_num_threads(args.threads)
    torch.set_flush_denormal(True)
    torch.manual_seed(1337)
    torch.set_float32_matmul_precision("high" if args.tf32 else "highest")
    on_gpu = args.device == "cuda"
    classes = -(-args.vocab // args.pad) * args.pad
    model = Gpt(args.n_layer, args.n_head, args.n_embd, classes, args.positions, args.dropout).to(args.device)
    parameters = list(model.parameters())
    optimizer = torch.optim.AdamW([{"params": [p for p in parameters if p.dim() >= 2], "weight_decay": 0.1},
                                   {"params": [p for p in parameters if p.dim() < 2], "weight_decay": 0.0}],
                                  lr=1e-4, betas=(0.9, 0.95), fused=True)
    forward = torch.compile(model, dynamic=False) if args.compile else model
    low_precision = args.dtype == "bfloat16"
    window = torch.randint(args.vocab, (args.batch, args.positions + 1)).to(args.device)
    tokens, targets = window[:, :-1].contiguous(), window[:, 1:].contiguous()
    times, warm_up = [], 5 if on_gpu else 3
    for step in range(args.steps + warm_up):
        if on_gpu and step == warm_up:
            torch.cuda.synchronize()
            begin = time.perf_counter()
        start = time.perf_counter()
        optimizer.zero_grad(set_to_none=True)
        with torch.autocast(args.device, torch.bfloat16) if low_precision else contextlib.nullcontext():
            loss = forward(tokens, targets)
        loss.backward()
        nn.utils.clip_grad_norm_(parameters, 1.0)
        optimizer.step()
        if step >= warm_up:
            times.append(time.perf_counter() - start)
    memory = ""
    if on_gpu:
        torch.cuda.synchronize()
        times = [(time.perf_counter() - begin) / args.steps]
        memory = f"  memory {torch.cuda.max_memory_allocated() / 2**20:.0f} MiB"
    median = statistics.median(times)
    way = "compile" if args.compile else "eager"
    print(f"torch {torch.__version__} {way} {args.dtype} ms/step median {median * 1e3:.2f} min {min(times) * 1e3:.2f}  "
          f"tokens/s {args.batch * args.positions / median:.0f}  loss {loss.item():.4f}{memory}", flush=True)


if __name__ == "__main__":
    main()
