#!/usr/bin/env python3
"""Tokens per second of processor time of tiktoken, on one thread: tiktoken_bench.py VOCABULARY_FOLDER FILE [REPEATS]

The same input and the same line of output as bench_tokenizer. Each way that tiktoken offers is timed: GPT-2's own
pattern and the faster one that tiktoken ships for it; the whole text at once into a list, into a numpy array, and line
by line (whose tokens differ where a line break could have joined its neighbour). The fastest is the one to beat.
"""
import pathlib
import sys
import time

import tiktoken
from tiktoken.load import data_gym_to_mergeable_bpe_ranks

PATTERNS = {
    "original": r"""'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+""",
    "shipped": r"""'(?:[sdmt]|ll|ve|re)| ?\p{L}++| ?\p{N}++| ?[^\s\p{L}\p{N}]++|\s++$|\s+(?!\S)|\s""",
}


def fnv(values):
    result = 0xCBF29CE484222325
    for value in values:
        result = (result ^ value) * 0x100000001B3 % 2**64
    return result


def main():
    folder, path = pathlib.Path(sys.argv[1]), pathlib.Path(sys.argv[2])
    repeats = int(sys.argv[3]) if len(sys.argv) > 3 else 21
    ranks = data_gym_to_mergeable_bpe_ranks(str(folder / "vocab.bpe"), str(folder / "encoder.json"))
    text = path.read_bytes().decode()
    lines = text.splitlines(keepends=True)
    for name, pattern in PATTERNS.items():
        encoding = tiktoken.Encoding("gpt2", pat_str=pattern, mergeable_ranks=ranks, special_tokens={})
        ways = {"list": lambda: encoding.encode_ordinary(text),
                "numpy": lambda: encoding.encode_to_numpy(text, disallowed_special=()),
                "lines": lambda: [token for line in lines for token in encoding.encode_ordinary(line)]}
        for way, encode in ways.items():
            times = []
            for _ in range(repeats):
                start = time.process_time()
                tokens = encode()
                times.append(time.process_time() - start)
            times.sort()
            print(f"tiktoken {name + ', ' + way:<19} {len(tokens)} tokens  fnv {fnv(map(int, tokens)):016x}  "
                  f"median {len(tokens) / times[len(times) // 2] / 1e6:6.2f} M tokens/s  "
                  f"best {len(tokens) / times[0] / 1e6:6.2f}", flush=True)


if __name__ == "__main__":
    main()
