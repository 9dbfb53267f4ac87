#!/usr/bin/env python3
"""Tasks scored by Shoal and by lm-evaluation-harness: tasks.py PATH_TO_SHOAL

A tiny random GPT-2 with a tokenizer of its own scores made-up items in HellaSwag's and LAMBADA's formats. The harness' own functions
make the texts and score them; every choice has to be the same, and log-probabilities within 1e-4. Needs torch, transformers, datasets
and lm-eval; the lines of its output are bench/results/ecosystem_tasks.txt.
"""
import json
import os
import random
import tempfile
import warnings

os.environ["HF_HUB_OFFLINE"] = "1"

import datasets
import lm_eval
import torch
import transformers
from comparison import check, end, make_model, shoal, words
from lm_eval.api.instance import Instance
from lm_eval.models.huggingface import HFLM
from lm_eval.tasks.hellaswag.utils import process_docs

warnings.filterwarnings("ignore")
transformers.logging.set_verbosity_error()
transformers.logging.disable_progress_bar()
datasets.disable_progress_bars()

draw = random.Random(5)


def ending():
    text = words(draw, 1, 7)
    if draw.random() < 0.3:
        text = "[header] " + text + " [title] " + words(draw, 1, 3)
    return draw.choice(["", " "]) + text + draw.choice(["", "  " + words(draw, 1, 2), "."])


os.chdir(tempfile.mkdtemp())
print(f"torch {torch.__version__}, transformers {transformers.__version__}, lm-eval {lm_eval.__version__}")
make_model(draw, 400)
hellaswag = [{"ind": i, "activity_label": words(draw, 1, 3), "ctx_a": words(draw, 3, 20), "ctx_b": draw.choice(["", words(draw, 1, 4)]),
              "ctx": "", "endings": [ending() for _ in range(4)], "label": str(draw.randrange(4))} for i in range(200)]

torch.manual_seed(3)
model = transformers.GPT2LMHeadModel.from_pretrained("model")
for parameter in model.parameters():  # far from uniform, so that choices differ
    parameter.data += 0.2 * torch.randn_like(parameter)
model.save_pretrained("model")
tokenizer = transformers.GPT2Tokenizer("model/vocab.json", "model/merges.txt")


def likely_item():
    """A text whose last word is the one that the model takes to be likeliest, where that is a word."""
    while True:
        text = words(draw, 4, 12)
        ids = tokenizer(text)["input_ids"]
        with torch.no_grad():
            word = tokenizer.decode(model.eval()(torch.tensor([ids])).logits[0, -1].argmax().item())
        if word.startswith(" ") and word[1:].isalpha() and len(tokenizer(word)["input_ids"]) == 1:
            return {"text": text + word}


lambada = [{"text": words(draw, 4, 60)} for _ in range(150)] + [likely_item() for _ in range(50)]
for name, docs in [("hellaswag", hellaswag), ("lambada", lambada)]:
    with open(name + ".jsonl", "w") as file:
        file.writelines(json.dumps(doc) + "\n" for doc in docs)
# Without an end-of-text token: no item here has an empty context.
harness = HFLM(pretrained=model.eval(), tokenizer=tokenizer, batch_size=8, device="cpu", max_length=64, prefix_token_id=0)


def score(pairs):
    requests = [Instance(request_type="loglikelihood", doc={}, arguments=pair, idx=i) for i, pair in enumerate(pairs)]
    return harness.loglikelihood(requests, disable_tqdm=True)


def items(task, *settings):
    shoal("eval", "--checkpoint", "hf:model", "--task", task + ".jsonl", "--items", "items.jsonl", *settings)
    with open("items.jsonl") as file:
        return [json.loads(line) for line in file]


processed = list(process_docs(datasets.Dataset.from_list(hellaswag)))
found = score([(doc["query"], " " + choice) for doc in processed for choice in doc["choices"]])
for settings in [(), ("--ranks", "2", "parallel.tensor=2"), ("--ranks", "2", "parallel.pipeline=2")]:
    same = by_length = 0
    distance = 0.0
    for i, (doc, item) in enumerate(zip(processed, items("hellaswag", *settings))):
        expected = [logprob for logprob, _ in found[4 * i:4 * i + 4]]
        distance = max(distance, *(abs(a - b) for a, b in zip(expected, item["logprobs"])))
        same += max(range(4), key=lambda c: expected[c]) == item["choice"]
        by_length += max(range(4), key=lambda c: expected[c] / len(doc["choices"][c])) == item["choice_by_length"]
    check(f"HellaSwag's items, {' '.join(settings) or 'one rank'}", same == by_length == len(processed) and distance < 1e-4,
          f"{same} and {by_length} of {len(processed)} choices, log-probabilities differ by {distance:.1e} at most")
found = score([(" ".join(doc["text"].split(" ")[:-1]), " " + doc["text"].split(" ")[-1]) for doc in lambada])
same = 0
distance = 0.0
for (logprob, greedy), item in zip(found, items("lambada")):
    same += greedy == item["exact"]
    distance = max(distance, abs(logprob - item["logprobs"][0]))
check("LAMBADA's items", same == len(lambada) and sum(greedy for _, greedy in found) >= 50 and distance < 1e-4,
      f"{same} of {len(lambada)}, log-probabilities differ by {distance:.1e} at most, {sum(g for _, g in found)} right")
end()
