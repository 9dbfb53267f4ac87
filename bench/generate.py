#!/usr/bin/env python3
"""Tokens per second of a GPT-2 124M that writes text: Shoal and transformers, in turn.

    bench/generate.py SHOAL [ROUNDS]       # needs torch, transformers, and GPT-2's vocabulary in $SHOAL_DATA_DIR/gpt2

A random model of 1024 positions continues a prompt of 5 tokens by 100, alone and eight texts together. What memory allows is the
read bandwidth that `shoal doctor` measures, over the bytes of the weights that a token needs; int8 is `--int8` with bfloat16 beside it.
Then it reads prompts of 512 tokens, one at a time; the share is that of the peak that doctor measures, with attention's visible half
counted. Prints tables in Markdown.
"""
import json
import os
import random
import re
import shutil
import statistics
import subprocess
import sys
import tempfile
import time

import torch
import transformers

TOKENS, PROMPT, PROMPTS = 100, 512, 8
SHOAL, ROUNDS = os.path.abspath(sys.argv[1]), int(sys.argv[2]) if len(sys.argv) > 2 else 3
THREADS = len(os.sched_getaffinity(0))
torch.set_num_threads(THREADS)
transformers.logging.set_verbosity_error()
transformers.logging.disable_progress_bar()
temporary = tempfile.TemporaryDirectory()  # removed when the program ends
folder = os.path.join(temporary.name, "model")
torch.manual_seed(1)
model = transformers.GPT2LMHeadModel(transformers.GPT2Config(n_positions=1024, use_cache=True)).eval()
model.save_pretrained(folder)
for name, theirs in [("vocab.json", "encoder.json"), ("merges.txt", "vocab.bpe")]:
    vocabulary = os.path.join(os.environ["SHOAL_DATA_DIR"], "gpt2")
    found = [file for file in (name, theirs) if os.path.exists(os.path.join(vocabulary, file))]
    shutil.copy(os.path.join(vocabulary, found[0]), os.path.join(folder, name))


# Prompts of words that are one token each.
words = [word for word in json.load(open(os.path.join(folder, "vocab.json"))) if re.fullmatch("\u0120[a-z]{3,}", word)]
prompts = os.path.join(folder, "prompts.txt")
with open(prompts, "w") as file:
    for number in range(PROMPTS):
        file.write("".join(random.Random(number).choices(words, k=PROMPT)).replace("\u0120", " ") + "\n")


def run(*arguments):
    done = subprocess.run([SHOAL, *arguments], capture_output=True, text=True)
    if done.returncode != 0:
        sys.exit(f"{' '.join(arguments)}\n{done.stdout}{done.stderr}")
    return done.stdout + done.stderr


def shoal(dtype, texts, *how):
    said = run("sample", "--checkpoint", f"hf:{folder}", "--prompt", "The king of the sea", "--samples", str(texts),
               "--max-tokens", str(TOKENS), f"train.dtype={dtype}", *how)
    return float(re.search(r"([\d.,]+) tokens/s", said)[1].replace(",", ""))


def transformers_rate(dtype, texts):
    its = model.to(getattr(torch, dtype))
    ids = torch.randint(0, 50257, (1, 5)).repeat(texts, 1)
    begin = time.perf_counter()
    with torch.no_grad():
        its.generate(ids, attention_mask=torch.ones_like(ids), max_new_tokens=TOKENS, min_new_tokens=TOKENS, do_sample=True, top_k=200,
                     temperature=0.8, pad_token_id=0)
    return texts * TOKENS / (time.perf_counter() - begin)


def shoal_prompt(dtype):
    said = run("sample", "--checkpoint", f"hf:{folder}", "--prompts", prompts, "--batch", "1", "--max-tokens", "1", "--json",
               f"train.dtype={dtype}")
    took, unit = re.search(rf"{PROMPTS} tokens in ([\d.]+) (m?s):", said).groups()
    return PROMPT * PROMPTS / float(took) * (1000 if unit == "ms" else 1)


def transformers_prompt(dtype):
    its = model.to(getattr(torch, dtype))
    begin = time.perf_counter()
    with torch.no_grad():
        for _ in range(PROMPTS):
            ids = torch.randint(0, 50257, (1, PROMPT))
            its.generate(ids, attention_mask=torch.ones_like(ids), max_new_tokens=1, do_sample=True, top_k=200, temperature=0.8,
                         pad_token_id=0)
    return PROMPT * PROMPTS / (time.perf_counter() - begin)


def doctors(row):
    return max(float(found) for found in re.search(row + "(.*)", DOCTOR)[1].split())


def medians(ours, theirs):
    return (statistics.median(values) for values in zip(*[(ours(), theirs()) for _ in range(ROUNDS)]))


DOCTOR = run("doctor")
bandwidth = doctors("memory read, GB/s")
weights = sum(p.numel() for name, p in model.named_parameters() if "wpe" not in name)
print(f"{THREADS} cores, {bandwidth:.1f} GB/s, torch {torch.__version__}, transformers {transformers.__version__}, {ROUNDS} rounds\n")
print("| type | texts | Shoal, tokens/s | of what memory allows | transformers | ratio |\n|---|---|---|---|---|---|")
for dtype, size in [("float32", 4), ("bfloat16", 2)]:
    for texts in (1, 8):
        ours, theirs = medians(lambda: shoal(dtype, texts), lambda: transformers_rate(dtype, texts))
        share = f"{100 * ours / (bandwidth * 1e9 / (weights * size)):.0f} %" if texts == 1 else ""
        print(f"| {dtype} | {texts} | {ours:.1f} | {share} | {theirs:.1f} | {ours / theirs:.2f} |", flush=True)
for texts in (1, 8):
    ours = statistics.median(shoal("bfloat16", texts, "--int8") for _ in range(ROUNDS))
    share = f"{100 * ours / (bandwidth * 1e9 / weights):.0f} %" if texts == 1 else ""
    print(f"| int8 | {texts} | {ours:.1f} | {share} | | |", flush=True)

config = model.config
head = config.vocab_size * config.n_embd
flops = 2 * (weights - head) * PROMPT + 2 * head + 2 * config.n_layer * config.n_embd * PROMPT * (PROMPT + 1)
print(f"\n| type | prompt of {PROMPT}: Shoal, ms | of the peak | transformers, ms | ratio |\n|---|---|---|---|---|")
for dtype in ("float32", "bfloat16"):
    ours, theirs = medians(lambda: shoal_prompt(dtype), lambda: transformers_prompt(dtype))
    share = 100 * flops / PROMPT * ours / (doctors(f"{dtype}, GFLOP/s") * 1e9)
    print(f"| {dtype} | {1000 * PROMPT / ours:.0f} | {share:.0f} % | {1000 * PROMPT / theirs:.0f} | {ours / theirs:.2f} |", flush=True)
