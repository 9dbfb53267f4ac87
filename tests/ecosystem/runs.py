"""Tiny runs of the program, for the scripts of this folder."""
import json
import math
import pathlib
import subprocess

CONFIG = """
[data]
dir = "data"
[model]
n_layer = 2
n_head = 2
n_embd = 32
block_size = 32
[train]
global_batch = 8
micro_batch = 4
steps = 200
threads = 1
[optim]
lr = 3e-3
[lr_schedule]
warmup_steps = 10
decay_steps = 1000
[eval]
interval = 20
batches = 2
[checkpoint]
interval = 50
[log]
interval = 2
"""


class Runs:
    """A folder with a little synthetic data, a config, and the runs that are trained in it."""

    def __init__(self, shoal, folder):
        self.shoal, self.folder = str(pathlib.Path(shoal).resolve()), pathlib.Path(folder)
        self.started = []
        (self.folder / "tiny.toml").write_text(CONFIG)
        self.run("prepare", "synthetic", "--out", "data", "--size", "50000")

    def run(self, *arguments):
        subprocess.run([self.shoal, *arguments], cwd=self.folder, check=True, capture_output=True)

    def start(self, *arguments):
        process = subprocess.Popen([self.shoal, *arguments], cwd=self.folder, stdout=subprocess.DEVNULL,
                                   stderr=subprocess.DEVNULL)
        self.started.append(process)
        return process

    def __enter__(self):
        return self

    def __exit__(self, *error):
        for process in self.started:
            process.kill()  # nothing where it has ended
            process.wait()

    def train(self, name, *settings):
        self.run("train", "tiny.toml", f"run.name={name}", *settings)
        return self.folder / "runs" / name

    def path(self, name):
        return self.folder / "runs" / name


def records_of(run):
    return [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]


def number(value):
    """A value of metrics.jsonl: null is one that is not finite."""
    return math.nan if value is None else value


def same(a, b, tolerance=0.0):
    return (math.isnan(a) and math.isnan(b)) or abs(a - b) <= tolerance * max(abs(a), abs(b))
