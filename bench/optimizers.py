#!/usr/bin/env python3
"""What Muon is worth beside AdamW: both tuned on one grid of learning rates, then the best of each with three seeds.

    bench/optimizers.py SHOAL FOLDER TEXT... [--steps 800] [--jobs 2] [--seeds 3]

Trains a model of 2 M parameters on the texts (a byte-level BPE of 1024 tokens, learnt from them; every tenth of them is held
out), each run on one thread, `jobs` at a time, in FOLDER, where runs that are complete are not repeated. Prints two tables: the
validation loss of each learning rate, and of the best ones over seeds, with the steps that Muon takes to AdamW's last loss: on
its own curve, and by runs whose schedule ends earlier.
"""
import argparse
import concurrent.futures
import json
import pathlib
import statistics
import subprocess
import sys

CONFIG = """
[data]
dir = "data"
[model]
n_layer = 4
n_head = 4
n_embd = 192
block_size = 128
dropout = 0.0
[train]
global_batch = 16
micro_batch = 16
threads = 1
[optim]
weight_decay = 0.1
[lr_schedule]
warmup_steps = 40
[eval]
interval = 40
sequences = 256
[checkpoint]
interval = 0
best = false
[log]
tensorboard = false
peak_tflops = 0.1
"""
RATES = [1e-3, 2e-3, 4e-3, 8e-3, 16e-3]
SHORTER = [0.6, 0.7]


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("shoal", type=pathlib.Path)
    parser.add_argument("folder", type=pathlib.Path)
    parser.add_argument("texts", nargs="+", type=pathlib.Path)
    parser.add_argument("--steps", type=int, default=800)
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--seeds", type=int, default=3)
    arguments = parser.parse_args()
    shoal, folder, steps = arguments.shoal.resolve(), arguments.folder, arguments.steps
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "run.toml").write_text(CONFIG)
    if not (folder / "data").exists():
        subprocess.run([shoal, "prepare", "text", *[t.resolve() for t in arguments.texts], "--tokenizer", "bpe:1024", "--out",
                        "data"], cwd=folder, check=True, stdout=sys.stderr)

    def losses(job):
        """Validation losses by step."""
        optimizer, rate, seed, length = job
        name = f"{optimizer}-{rate:g}-{seed}-{length}"
        metrics = folder / "runs" / name / "metrics.jsonl"
        found = {}
        if metrics.exists():
            for line in metrics.read_text().splitlines():
                record = json.loads(line)
                if "val_loss" in record:
                    found[record["step"]] = record["val_loss"]
        if length not in found:
            subprocess.run([shoal, "train", "run.toml", f"run.name={name}", f"run.seed={seed}", f"optim.name={optimizer}",
                            f"optim.lr={rate}", f"lr_schedule.min_lr={rate / 10}", f"train.steps={length}",
                            "init.from=auto"], cwd=folder, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
            print("done:", name, file=sys.stderr)
            return losses(job)
        return found

    pool = concurrent.futures.ThreadPoolExecutor(arguments.jobs)
    optimizers = ["adamw", "muon"]
    grid = [(o, rate, 1, steps) for rate in RATES for o in optimizers]
    of_grid = dict(zip(grid, pool.map(losses, grid)))
    print(f"| peak learning rate, {steps} steps | AdamW | Muon |\n|---|---|---|")
    for rate in RATES:
        print(f"| {rate:g} | " + " | ".join(f"{of_grid[o, rate, 1, steps][steps]:.4f}" for o in optimizers) + " |")
    best = {o: min(RATES, key=lambda rate: of_grid[o, rate, 1, steps][steps]) for o in optimizers}
    print(f"\nBest: {best}\n")

    seeds = range(1, arguments.seeds + 1)
    lengths = [round(share * steps) for share in SHORTER]
    jobs = [(o, best[o], seed, steps) for seed in seeds for o in optimizers]
    jobs += [("muon", best["muon"], seed, length) for seed in seeds for length in lengths]
    of_seeds = dict(zip(jobs, pool.map(losses, jobs)))
    print("| seed | AdamW | Muon | steps of Muon's curve to AdamW's last loss | " +
          " | ".join(f"Muon, {length} steps" for length in lengths) + " |")
    print("|---|" + "---|" * (3 + len(lengths)))
    rows = []
    for seed in seeds:
        adamw, muon = (of_seeds[o, best[o], seed, steps] for o in optimizers)
        reached = min((step for step, loss in muon.items() if loss <= adamw[steps]), default=float("inf"))
        shorter = [of_seeds["muon", best["muon"], seed, length][length] for length in lengths]
        rows.append([adamw[steps], muon[steps], reached / steps, *shorter])
        print(f"| {seed} | {adamw[steps]:.4f} | {muon[steps]:.4f} | {reached} ({reached / steps:.2f}) | " +
              " | ".join(f"{loss:.4f}" for loss in shorter) + " |")
    middle = [statistics.median(column) for column in zip(*rows)]
    print(f"| median | {middle[0]:.4f} | {middle[1]:.4f} | {middle[2]:.2f} | " +
          " | ".join(f"{loss:.4f}" for loss in middle[3:]) + " |")


if __name__ == "__main__":
    main()
