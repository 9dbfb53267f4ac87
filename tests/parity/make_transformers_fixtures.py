#!/usr/bin/env python3
"""Two tiny GPT-2s as transformers saves them, and their loss: make_transformers_fixtures.py [FOLDER]

Each folder has what save_pretrained writes, val.bin (uint16 tokens), and loss.txt: the mean loss over val.bin in
windows of n_positions tokens, computed in float64. Needs torch and transformers.
"""
import pathlib
import sys

import numpy
import torch
from transformers import GPT2Config, GPT2LMHeadModel

MODELS = {
    "gelu_new": (torch.float32, "gelu_new"),
    "gelu_half": (torch.float16, "gelu"),
}


def loss_of(model, tokens):
    window, total = model.config.n_positions, 0.0
    for first in range(0, len(tokens) - 1, window):
        last = min(first + window, len(tokens) - 1)
        logits = model(tokens[first:last][None]).logits[0]
        total += torch.nn.functional.cross_entropy(logits, tokens[first + 1:last + 1], reduction="sum").item()
    return total / (len(tokens) - 1)


def main():
    root = pathlib.Path(sys.argv[1] if len(sys.argv) > 1 else pathlib.Path(__file__).parent / "fixtures/transformers")
    torch.manual_seed(1)
    for name, (dtype, gelu) in MODELS.items():
        model = GPT2LMHeadModel(GPT2Config(vocab_size=23, n_positions=12, n_embd=8, n_layer=2, n_head=2,
                                           activation_function=gelu, bos_token_id=None, eos_token_id=None)).eval()
        with torch.no_grad():
            for parameter in model.parameters():  # biases and gains that count, activations that are not small
                parameter += 0.3 * torch.randn_like(parameter)
            model.to(dtype).save_pretrained(root / name)
            tokens = torch.randint(23, (100,))
            tokens.numpy().astype(numpy.uint16).tofile(root / name / "val.bin")
            (root / name / "loss.txt").write_text(f"{loss_of(model.double(), tokens):.9f}\n")


main()
