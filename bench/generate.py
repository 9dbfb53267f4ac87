#!/usr/bin/env python3
"""Tokens per second of a GPT-2 124M that writes text: Shoal and transformers, in turn.

    bench/generate.py SHOAL [ROUNDS]       # needs torch, transformers, and GPT-2's vocabulary in $SHOAL_DATA_DIR/gpt2

A random model of 256 positions continues a prompt of 5 tokens by 100, alone and eight texts together. What memory allows is the
read bandwidth that `shoal doctor` measures, over the bytes of the weights that a token needs. Prints a table in Markdown.
"""
import os
import re
import shutil
import statistics
import subprocess
import sys
import tempfile
import time

import torch
import transformers

TOKENS = 100
SHOAL, ROUNDS = os.path.abspath(sys.argv[1]), int(sys.argv[2]) if len(sys.argv) > 2 else 3
THREADS = len(os.sched_getaffinity(0))
torch.set_num_threads(THREADS)
transformers.logging.set_verbosity_error()
transformers.logging.disable_progress_bar()
folder = os.path.join(tempfile.mkdtemp(), "model")
torch.manual_seed(1)
model = transformers.GPT2LMHeadModel(transformers.GPT2Config(n_positions=256, use_cache=True)).eval()
model.save_pretrained(folder)
for name, theirs in [("vocab.json", "encoder.json"), ("merges.txt", "vocab.bpe")]:
    vocabulary = os.path.join(os.environ["SHOAL_DATA_DIR"], "gpt2")
    found = [file for file in (name, theirs) if os.path.exists(os.path.join(vocabulary, file))]
    shutil.copy(os.path.join(vocabulary, found[0]), os.path.join(folder, name))


def run(*arguments):
    done = subprocess.run([SHOAL, *arguments], capture_output=True, text=True)
    if done.returncode != 0:
        sys.exit(f"{' '.join(arguments)}\n{done.stdout}{done.stderr}")
    return done.stdout + done.stderr


def shoal(dtype, texts):
    said = run("sample", "--checkpoint", f"hf:{folder}", "--prompt", "The king of the sea", "--samples", str(texts),
               "--max-tokens", str(TOKENS), f"train.dtype={dtype}")
    return float(re.search(r"([\d.,]+) tokens/s", said)[1].replace(",", ""))


def transformers_rate(dtype, texts):
    its = model.to(getattr(torch, dtype))
    ids = torch.randint(0, 50257, (1, 5)).repeat(texts, 1)
    begin = time.perf_counter()
    with torch.no_grad():
        its.generate(ids, attention_mask=torch.ones_like(ids), max_new_tokens=TOKENS, min_new_tokens=TOKENS, do_sample=True, top_k=200,
                     temperature=0.8, pad_token_id=0)
    return texts * TOKENS / (time.perf_counter() - begin)


bandwidth = max(float(found) for found in re.search(r"memory read, GB/s(.*)", run("doctor"))[1].split())
weights = sum(p.numel() for name, p in model.named_parameters() if "wpe" not in name)
print(f"{THREADS} cores, {bandwidth:.1f} GB/s, torch {torch.__version__}, transformers {transformers.__version__}, {ROUNDS} rounds\n")
print("| type | texts | Shoal, tokens/s | of what memory allows | transformers | ratio |\n|---|---|---|---|---|---|")
for dtype, size in [("float32", 4), ("bfloat16", 2)]:
    for texts in (1, 8):
        rates = [(shoal(dtype, texts), transformers_rate(dtype, texts)) for _ in range(ROUNDS)]
        ours, theirs = (statistics.median(values) for values in zip(*rates))
        share = f"{100 * ours / (bandwidth * 1e9 / (weights * size)):.0f} %" if texts == 1 else ""
        print(f"| {dtype} | {texts} | {ours:.1f} | {share} | {theirs:.1f} | {ours / theirs:.2f} |", flush=True)
