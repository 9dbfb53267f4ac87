#!/usr/bin/env python3
"""The published preparation's work on one core: tiktoken_openwebtext.py VOCABULARY_FOLDER CORPUS.tar

Takes apart a tar of xz-compressed tars of texts, tidies, tokenizes with tiktoken, appends end-of-text, and writes uint16.
Prints the tokens, and tokens per second of processor time: of all of it and of tiktoken alone.
"""
import io
import pathlib
import re
import sys
import tarfile
import tempfile
import time

import numpy
import tiktoken
from tiktoken.load import data_gym_to_mergeable_bpe_ranks

from tiktoken_bench import PATTERNS


def main():
    folder = pathlib.Path(sys.argv[1])
    ranks = data_gym_to_mergeable_bpe_ranks(str(folder / "vocab.bpe"), str(folder / "encoder.json"))
    encoding = tiktoken.Encoding("gpt2", pat_str=PATTERNS["shipped"], mergeable_ranks=ranks, special_tokens={})
    tokens, tokenizing, start = 0, 0.0, time.process_time()
    with tarfile.open(sys.argv[2]) as outer, tempfile.TemporaryFile() as out:
        for subset in outer:
            if not subset.isfile():
                continue
            with tarfile.open(fileobj=io.BytesIO(outer.extractfile(subset).read())) as inner:
                for page in inner:
                    if not page.isfile():
                        continue
                    text = io.TextIOWrapper(inner.extractfile(page), encoding="utf-8").read()
                    text = re.sub("\n\n\n+", "\n\n", text).strip()
                    before = time.process_time()
                    ids = encoding.encode_ordinary(text)
                    tokenizing += time.process_time() - before
                    ids.append(50256)
                    tokens += len(ids)
                    out.write(numpy.array(ids, dtype=numpy.uint16).tobytes())
    total = time.process_time() - start
    print(f"tiktoken  {tokens} tokens  {tokens / total / 1e6:6.2f} M tokens/s of processor time, "
          f"{tokens / tokenizing / 1e6:6.2f} of tiktoken alone")


if __name__ == "__main__":
    main()
