#!/usr/bin/env python3
"""recovery.py SHOAL [--ranks N] [--kills K]: seconds from the death of a rank to the next finished step.

Kills a random rank of a run under `shoal launch --max-restarts` with SIGKILL, again and again, and reads from the run's log when
the restarted ranks finish their first step. The model is the one of tests/deploy/tiny.toml. Needs Open MPI.
"""
import argparse
import os
import pathlib
import random
import re
import signal
import statistics
import subprocess
import tempfile
import time

parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
parser.add_argument("shoal")
parser.add_argument("--ranks", type=int, default=2)
parser.add_argument("--kills", type=int, default=10)
arguments = parser.parse_args()
shoal = str(pathlib.Path(arguments.shoal).resolve())
config = (pathlib.Path(__file__).parent.parent / "tests/deploy/tiny.toml").resolve()
random.seed(1)


def ranks_in(folder):
    found = []
    for process in pathlib.Path("/proc").glob("[0-9]*"):
        try:
            words = (process / "cmdline").read_bytes()
            here = os.readlink(process / "cwd") == folder
            if here and b"shoal\0train" in words and b"OMPI_COMM_WORLD_RANK=" in (process / "environ").read_bytes():
                found.append(int(process.name))
        except OSError:
            pass
    return found


with tempfile.TemporaryDirectory() as folder:
    folder = os.path.realpath(folder)
    subprocess.run([shoal, "prepare", "synthetic", "--out", "data", "--size", "20000"], cwd=folder, check=True,
                   capture_output=True)
    run = subprocess.Popen(
        [shoal, "launch", "-n", str(arguments.ranks), "--mpirun", "mpirun.openmpi", "--max-restarts", "1000", "--",
         "train", str(config), "train.steps=1000000", "eval.interval=0", "checkpoint.interval=0", "checkpoint.best=false",
         "checkpoint.memory=true"], cwd=folder, stderr=subprocess.PIPE, stdout=subprocess.DEVNULL, text=True)
    seconds, lost, killed_at, last, resumed, steps_since = [], [], None, 0, None, 0
    for line in run.stderr:
        if match := re.search(r"the state after step (\d+) was in the memory", line):
            resumed = int(match[1])
            lost.append(last - resumed)
        match = re.search(r"INFO\] step +(\d+)/", line)
        if not match:
            continue
        step = int(match[1])
        if killed_at is not None and resumed is None:
            last = max(last, step)  # the line of a step that was finished before the kill
            continue
        last = step
        if resumed is not None:
            seconds.append(time.monotonic() - killed_at)
            killed_at = resumed = None
            steps_since = 0
        steps_since += 1
        if len(seconds) == arguments.kills:
            break
        if steps_since == 50:
            os.kill(random.choice(ranks_in(folder)), signal.SIGKILL)
            killed_at = time.monotonic()
    run.send_signal(signal.SIGINT)
    run.communicate()
print(f"{arguments.ranks} ranks, {len(seconds)} kills; seconds to the next finished step: "
      f"{' '.join(f'{s:.2f}' for s in seconds)}; median {statistics.median(seconds):.2f}, longest {max(seconds):.2f}")
print(f"finished steps that were lost: {' '.join(map(str, lost))}")
