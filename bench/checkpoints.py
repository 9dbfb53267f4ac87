#!/usr/bin/env python3
"""checkpoints.py SHOAL memory|disk [--seconds S] [--batch SEQUENCES]: the cost of checkpoints for a step of GPT-2 124M.

Trains on one rank and compares, in the same run, the steps that follow a checkpoint with those that do not: checkpoints come
every second step, so that both kinds of steps meet the same machine. The wait of the training
loop between two steps belongs to the second one. Takes about three minutes and 8 GiB of memory for each kind of checkpoint.
"""
import argparse
import json
import pathlib
import statistics
import subprocess
import tempfile
import time

parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
parser.add_argument("shoal")
parser.add_argument("kind", choices=["memory", "disk"])
parser.add_argument("--seconds", type=float, default=170, help="of training (170)")
parser.add_argument("--batch", type=int, default=8, help="sequences of 1024 tokens per step (8)")
parser.add_argument("--preset", default="gpt2")
arguments = parser.parse_args()
shoal = str(pathlib.Path(arguments.shoal).resolve())

SETTINGS = {
    "memory": ["checkpoint.memory=true", "checkpoint.memory_dir=memory", "checkpoint.memory_interval=2", "checkpoint.interval=0"],
    "disk": ["checkpoint.interval=2", "checkpoint.keep=1"],
}[arguments.kind]

# The run is killed, so its files in memory must go with the folder.
with tempfile.TemporaryDirectory() as folder, tempfile.TemporaryDirectory(dir="/dev/shm") as memory:
    pathlib.Path(folder, "memory").symlink_to(memory)
    subprocess.run([shoal, "prepare", "synthetic", "--out", "data", "--size", "200000"], cwd=folder, check=True,
                   capture_output=True)
    pathlib.Path(folder, "run.toml").write_text(f"""
[run]
name = "run"
[data]
dir = "data"
[model]
preset = "{arguments.preset}"
vocab_size = 50257
[train]
dtype = "bfloat16"
global_batch = {arguments.batch}
micro_batch = 4
steps = 1000
[eval]
interval = 0
at_start = false
[checkpoint]
best = false
[log]
interval = 1
tensorboard = false
peak_tflops = 1
""")
    run = subprocess.Popen([shoal, "train", "run.toml", *SETTINGS], cwd=folder, stderr=subprocess.PIPE, text=True)
    metrics = pathlib.Path(folder, "runs/run/metrics.jsonl")
    lines, arrivals, begin = [], [], time.monotonic()
    while run.poll() is None and time.monotonic() - begin < arguments.seconds:
        time.sleep(0.005)
        text = metrics.read_text().splitlines() if metrics.exists() else []
        now = time.monotonic()
        arrivals += [now] * (len(text) - len(arrivals))
        lines = text
    run.kill()
    error = run.communicate()[1]
    if len(lines) < 5:
        raise SystemExit(f"too few steps in {arguments.seconds:.0f} s:\n{error}")

# From one record to the next, by the clock of this script, so that waits between steps count. Step 1 warms up.
durations = {step: arrivals[step - 1] - arrivals[step - 2] for step in range(3, len(arrivals) + 1)}
with_copy = [seconds for step, seconds in durations.items() if step % 2 == 1]  # after the checkpoint of an even step
without = [seconds for step, seconds in durations.items() if step % 2 == 0]
for name, steps in (("without", without), ("after a checkpoint", with_copy)):
    print(f"{name:20s} {' '.join(f'{s:.3f}' for s in steps)}  median {statistics.median(steps):.3f} s")
cost = statistics.median(with_copy) - statistics.median(without)
step = statistics.median(without)
print(json.dumps({"kind": arguments.kind, "tokens": arguments.batch * 1024, "step_s": round(step, 3),
                  "cost_s": round(cost, 3), "percent_of_step": round(100 * cost / step, 2)}))
