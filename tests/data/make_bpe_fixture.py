#!/usr/bin/env python3
"""Writes tests/data/fixtures/bpe: a tokenizer that Hugging Face's tokenizers learns from fixtures/gpt2_tokens.jsonl, taken as
one text, and what it makes of a sentence. Run with tokenizers 0.23: python3 tests/data/make_bpe_fixture.py"""
import json
import pathlib

from tokenizers import Tokenizer, models, pre_tokenizers, trainers

folder = pathlib.Path(__file__).parent / "fixtures"
text = (folder / "gpt2_tokens.jsonl").read_text(encoding="utf-8")

tokenizer = Tokenizer(models.BPE())
tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
trainer = trainers.BpeTrainer(
    vocab_size=600, min_frequency=2, show_progress=False, special_tokens=["<|endoftext|>"],
    initial_alphabet=pre_tokenizers.ByteLevel.alphabet())
tokenizer.train_from_iterator([text], trainer)
(folder / "bpe").mkdir(exist_ok=True)
tokenizer.model.save(str(folder / "bpe"))

sentence = "The tokens of a text: {\"ids\": [1, 2]}, naïve “quotes”\n\n  and 雪."
ids = {"text": sentence, "ids": tokenizer.encode(sentence).ids}
(folder / "bpe" / "ids.json").write_text(json.dumps(ids) + "\n", encoding="utf-8")
