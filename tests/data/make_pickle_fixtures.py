#!/usr/bin/env python3
"""Writes fixtures/nanogpt/meta-N.pkl: the vocabulary of nanoGPT's data/shakespeare_char/prepare.py for a small text,
pickled in protocol N."""
import os
import pickle

characters = sorted(set("\n !aboé€😀\\"))
meta = {
    "vocab_size": len(characters),
    "itos": {i: c for i, c in enumerate(characters)},
    "stoi": {c: i for i, c in enumerate(characters)},
}
folder = os.path.join(os.path.dirname(__file__), "fixtures", "nanogpt")
for protocol in range(6):
    with open(os.path.join(folder, f"meta-{protocol}.pkl"), "wb") as file:
        pickle.dump(meta, file, protocol)
