#!/usr/bin/env python3
"""Texts that Shoal and transformers generate without chance: generation.py PATH_TO_SHOAL

A tiny random GPT-2 with a tokenizer of its own continues prompts by beam search and by the most likely token. Every text of
transformers' generate() has to be the same token by token, and scores within the rounding of its float32 sums, on one rank and on two
that share the model. Needs torch and transformers; the lines of its output are bench/results/ecosystem_generation.txt.
"""
import collections
import json
import os
import random
import tempfile
import warnings

os.environ["HF_HUB_OFFLINE"] = "1"

import torch
import transformers
from comparison import check, end, make_model, shoal

warnings.filterwarnings("ignore")
transformers.logging.set_verbosity_error()
transformers.logging.disable_progress_bar()
PROMPTS = ["the ship", "of the storm and", "Élan über", "42"]


def texts(*settings):
    with open("prompts", "w") as file:
        file.write("\n".join(PROMPTS) + "\n")
    lines = shoal("sample", "--checkpoint", "hf:model", "--prompts", "prompts", "--json", *settings).splitlines()
    return [json.loads(line) for line in lines]


os.chdir(tempfile.mkdtemp())
print(f"torch {torch.__version__}, transformers {transformers.__version__}")
make_model(random.Random(5), 300)
torch.manual_seed(3)
model = transformers.GPT2LMHeadModel.from_pretrained("model").eval()
for parameter in model.parameters():  # far from uniform, so that texts differ and some end early
    parameter.data += 0.15 * torch.randn_like(parameter)
tokenizer = transformers.GPT2Tokenizer("model/vocab.json", "model/merges.txt")
end_of_text = tokenizer.convert_tokens_to_ids("<|endoftext|>")
LENGTH = 30


def generate(prompt, **options):
    ids = torch.tensor([tokenizer(prompt)["input_ids"]])
    with torch.no_grad():
        made = model.generate(ids, do_sample=False, max_new_tokens=LENGTH, eos_token_id=end_of_text, pad_token_id=-1,
                              attention_mask=torch.ones_like(ids), return_dict_in_generate=True, output_scores=True, **options)
    scores = made.sequences_scores.tolist() if options.get("num_beams", 1) > 1 else [None]
    return [([token for token in row[ids.shape[1]:].tolist() if token >= 0], score) for row, score in zip(made.sequences, scores)]


# The end is about as likely as a token that is frequent.
common = collections.Counter(token for prompt in PROMPTS for token in generate(prompt)[0][0]).most_common(2)[1][0]
with torch.no_grad():
    rows = model.transformer.wte.weight
    rows[end_of_text] = rows[common] + 0.05 * torch.randn_like(rows[common])
model.save_pretrained("model")

for ranks in (1, 2):
    where = [f"parallel.tensor={ranks}"]
    found = texts("--temperature", "0", "--max-tokens", str(LENGTH), *where)
    expected = [generate(prompt)[0][0] for prompt in PROMPTS]
    check(f"the most likely token, {ranks} tensor ranks", [text["tokens"] for text in found] == expected,
          f"{sum(len(tokens) for tokens in expected)} tokens of {len(expected)} texts")
    for beams, penalty in [(2, 1.0), (4, 1.0), (4, 0.0), (4, 2.0), (8, 1.0)]:
        found = texts("--beams", str(beams), "--samples", str(beams), "--length-penalty", str(penalty), "--max-tokens", str(LENGTH), *where)
        expected = [text for prompt in PROMPTS
                    for text in generate(prompt, num_beams=beams, num_return_sequences=beams, length_penalty=penalty)]
        same = sum(text["tokens"] == tokens for text, (tokens, _) in zip(found, expected))
        distance = max(abs(text["score"] - score) for text, (_, score) in zip(found, expected))
        ended = sum(tokens[-1] == end_of_text for tokens, _ in expected)
        # transformers adds logprobs below 16 in float32, to sums below 256.
        bound = LENGTH * (2**-21 + 2**-17) / min(len(tokens) for tokens, _ in expected) ** penalty
        check(f"{beams} beams, length penalty {penalty:g}, {ranks} tensor ranks", same == len(found) == len(expected) and distance < bound,
              f"{same} of {len(expected)} texts, of which {ended} ended, scores differ by {distance:.1e} at most")
end()
