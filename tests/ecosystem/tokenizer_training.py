#!/usr/bin/env python3
"""Learns tokenizers by `shoal prepare text --tokenizer bpe:SIZE` and by Hugging Face's tokenizers, and compares them:

    tests/ecosystem/tokenizer_training.py SHOAL DATA [ROUNDS]

DATA has tinyshakespeare.txt and wikitext-2/valid.txt. For each text and size it checks, and fails otherwise, that
* merges, and ids of bytes and merges, are equal (tokenizers is told of no special token, and of one token less);
* tokenizers reads vocab.json and merges.txt, and encodes the text to the ids of train.bin;
* shoal reads the files that tokenizers saves, with <|endoftext|> first, and writes the ids that tokenizers finds.

Then both are timed in ROUNDS (7) interleaved rounds, best of each. Shoal's time is that of the whole command, with the start of
the program, the validation text, tokenizing and writing; tokenizers' is that of training alone, in a warm process.
tokenizers gets a list of pieces of 64 KiB, which it works on in parallel, cut where that changes no word; and is timed with a
list of lines, too, which is a little faster, though words differ at line breaks then. The faster one counts.
"""
import array
import json
import pathlib
import re
import subprocess
import sys
import tempfile
import time

import tokenizers
from tokenizers import Tokenizer, models, pre_tokenizers, trainers

END = "<|endoftext|>"
CUT = re.compile(r"[^\W_](?= [^\W_])")  # between two words


def pieces(text, size=1 << 16):
    result, begin = [], 0
    while begin < len(text):
        found = CUT.search(text, begin + size)
        end = found.end() if found else len(text)
        result.append(text[begin:end])
        begin = end
    return result


def learn(parts, size, special):
    """Returns the tokenizer, and the seconds that training took."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    trainer = trainers.BpeTrainer(vocab_size=size, min_frequency=2, show_progress=False, special_tokens=special,
                                  initial_alphabet=pre_tokenizers.ByteLevel.alphabet())
    start = time.perf_counter()
    tokenizer.train_from_iterator(parts, trainer)
    return tokenizer, time.perf_counter() - start


def encode(tokenizer, text):
    return [token for part in tokenizer.encode_batch(pieces(text)) for token in part.ids]


def ids_of(folder):
    ids = array.array("H")
    ids.frombytes((folder / "train.bin").read_bytes())
    return list(ids)


def prepare(shoal, text, val, tokenizer, out):
    start = time.perf_counter()
    subprocess.run([shoal, "prepare", "text", text, "--val", val, "--tokenizer", tokenizer, "--out", out, "--force"],
                   check=True, capture_output=True)
    return time.perf_counter() - start


def check(name, ok):
    if not ok:
        sys.exit(f"tokenizer_training.py: {name}: not equal")


def compare(shoal, work, path, size):
    text = path.read_bytes().decode()
    val, out = work / "val.txt", work / "out"
    prepare(shoal, path, val, f"bpe:{size}", out)
    ours = json.loads((out / "vocab.json").read_text(encoding="utf-8"))
    theirs, _ = learn(pieces(text), size - 1, [])
    theirs.model.save(str(work))
    check("merges", (out / "merges.txt").read_bytes() == (work / "merges.txt").read_bytes())
    check("ids of tokens", ours == {**theirs.get_vocab(), END: len(ours) - 1})

    read = Tokenizer(models.BPE.from_file(str(out / "vocab.json"), str(out / "merges.txt")))
    read.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    ids = ids_of(out)
    check("ids of the text", encode(read, text) + [len(ours) - 1] == ids)

    first, _ = learn(pieces(text), size, [END])
    (work / "first").mkdir(exist_ok=True)
    first.model.save(str(work / "first"))
    check("<|endoftext|> is first", first.token_to_id(END) == 0)
    prepare(shoal, path, val, work / "first", out)
    check("ids with the tokenizer of tokenizers", encode(first, text) + [0] == ids_of(out))
    return len(ours), len(ids)


def measure(shoal, work, path, size, rounds):
    text = path.read_bytes().decode()
    lists = [pieces(text), text.splitlines(keepends=True)]
    ours, theirs = [], []
    for _ in range(rounds):
        ours.append(prepare(shoal, path, work / "val.txt", f"bpe:{size}", work / "out"))
        theirs += [learn(parts, size, [END])[1] for parts in lists]
    return min(ours), min(theirs)


def main():
    if len(sys.argv) not in (3, 4):
        sys.exit(__doc__)
    shoal, data = pathlib.Path(sys.argv[1]).resolve(), pathlib.Path(sys.argv[2])
    rounds = int(sys.argv[3]) if len(sys.argv) > 3 else 7
    version = subprocess.run([shoal, "--version"], check=True, capture_output=True, text=True).stdout.strip()
    print(f"{version} and tokenizers {tokenizers.__version__}\n")
    print(f"{'text':<34}{'MB':>7}{'asked':>8}{'tokens':>8}{'train.bin':>12}{'equal':>8}{'shoal s':>10}"
          f"{'tokenizers s':>14}{'ratio':>8}")
    with tempfile.TemporaryDirectory() as name:
        work = pathlib.Path(name)
        (work / "val.txt").write_text("a few words\n")
        texts = {"TinyShakespeare": data / "tinyshakespeare.txt", "WikiText-2, valid": data / "wikitext-2/valid.txt"}
        both = work / "both.txt"
        both.write_bytes(b"".join(path.read_bytes() for path in texts.values()) * 10)
        texts["both, 10 times"] = both
        for title, path in texts.items():
            for size in (1024, 8192) if path != both else (8192,):
                tokens, length = compare(shoal, work, path, size)
                ours, theirs = measure(shoal, work, path, size, rounds)
                print(f"{title:<34}{path.stat().st_size / 1e6:>7.1f}{size:>8}{tokens:>8}{length:>12,}{'yes':>8}{ours:>10.3f}"
                      f"{theirs:>14.3f}{theirs / ours:>8.1f}", flush=True)


if __name__ == "__main__":
    main()
