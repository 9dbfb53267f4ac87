"""Lines of a comparison, and the program, for the scripts of this folder."""
import os
import random
import subprocess
import sys

SHOAL = os.path.abspath(sys.argv[1] if len(sys.argv) > 1 else "build/release/shoal")
WORDS = "the of Élan über sea ship storm wind old NEW broke sang harbour Łódź waves, night. don't 42".split()
failures = 0


def check(what, good, figure=""):
    """Prints whether two programs agree on something."""
    global failures
    failures += not good
    print(f"{'ok  ' if good else 'FAIL'}  {what}{': ' + figure if figure else ''}", flush=True)


def shoal(*arguments):
    """The program's standard output."""
    done = subprocess.run([SHOAL, *arguments], capture_output=True, text=True)
    if done.returncode != 0:
        sys.exit(f"{' '.join(arguments)}\n{done.stdout}{done.stderr}")
    return done.stdout


def words(draw, least, most):
    return " ".join(draw.choice(WORDS) for _ in range(draw.randint(least, most)))


def make_model(draw, classes):
    """A tiny GPT-2 with a byte-level BPE of so many tokens in the folder `model`, in Hugging Face's format."""
    with open("text.txt", "w") as file:
        file.write("\n".join(words(draw, 5, 30) for _ in range(2000)))
    shoal("prepare", "text", "--from", "text.txt", "--tokenizer", f"bpe:{classes}", "--out", "data")
    # The data's tokenizer comes out with an exported model.
    with open("tiny.toml", "w") as file:
        file.write('data.dir = "data"\nmodel = {n_layer = 2, n_head = 2, n_embd = 32, block_size = 64}\n'
                   'train = {global_batch = 4, steps = 1, threads = 1}\neval = {interval = 1, batches = 1}\n'
                   'log.tensorboard = false\nrun.name = "tiny"\n')
    shoal("train", "tiny.toml")
    shoal("export", "--checkpoint", "runs/tiny", "--out", "model")


def end():
    sys.exit(failures > 0)
