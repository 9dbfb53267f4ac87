#!/usr/bin/env python3
"""Writes fixtures/gpt2_tokens.jsonl: texts and their GPT-2 token ids, by implementations that are not ours.

    pip install tiktoken regex
    python make_gpt2_fixture.py VOCABULARY_FOLDER > fixtures/gpt2_tokens.jsonl

Valid UTF-8 is encoded by tiktoken. For bytes that are not UTF-8, which it refuses, the definition is Python's: decode
with "surrogateescape", so that each invalid byte is one character (a lone surrogate, which GPT-2's pattern takes for
neither letter, number nor space), split with the pattern, encode the pieces back and merge their bytes. That definition
is written out below, plainly, and must agree with tiktoken on every valid text here.

Lines: {"text" or "hex", "ids"} for a text; {"repeat", "times"} or {"letters"} for a long one with {"count", "fnv"} of its
ids; {"kinds"} for how many code points are letters, numbers and spaces, with the hash of all code points' kinds.
"""
import itertools
import json
import pathlib
import random
import sys
import unicodedata

import regex
import tiktoken
from tiktoken.load import data_gym_to_mergeable_bpe_ranks

PATTERN = r"""'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"""

PROSE = r"""The quick brown fox jumps over the lazy dog.
I'm sure they'll say you've won; she'd better not, it's what we're told: don't!
Zwölf Boxkämpfer jagen Viktor quer über den großen Sylter Deich.
Voilà l'été où l'œuvre naïve du garçon s'achève à Noël…
El pingüino Wenceslao hizo kilómetros bajo exhaustiva lluvia, ¿y tú? ¡Olé!
Příliš žluťoučký kůň úpěl ďábelské ódy.
Pijamalı hasta yağız şoföre çabucak güvendi. İstanbul'da ılık.
Tôi có thể ăn thủy tinh mà không hại gì.
Съешь же ещё этих мягких французских булок, да выпей чаю.
Ξεσκεπάζω την ψυχοφθόρα βδελυγμία.
דג סקרן שט בים מאוכזב ולפתע מצא חברה
نص حكيم له سر قاطع وذو شأن عظيم
ऋषियों को सताने वाले दुष्ट राक्षसों के राजा रावण
யாமறிந்த மொழிகளிலே தமிழ்மொழி போல்
เป็นมนุษย์สุดประเสริฐเลิศคุณค่า
ການແປພາສາ ລາວ
ბგერა ზღვას ერთვის
Կրնամ ապակի ուտել
ሰው እንደቤቱ እንጂ
敏捷的棕色狐狸跳過了懶狗。汉字，标点！「引用」
いろはにほへと ちりぬるを。カタカナもー、漢字も。
다람쥐 헌 쳇바퀴에 타고파.
ᚠᛇᚻ᛫ᛒᛦᚦ᛫ᚠᚱᚩᚠᚢᚱ
𐌼𐌰𐌲 𐌲𐌻𐌴𐍃 𝕬𝖓𝖉 𝒎𝒂𝒕𝒉 𝟙𝟚𝟛 𐐀𐐨
def f(x):\n    return x ** 2 if x > 0 else -x  # comment\n\n\nclass A:\n\tpass
#include <vector>\nint main() { std::vector<int> v{1, 2, 3}; return v[0] != 0x1F; }
{"key": [1.5e-3, null, true], "url": "https://example.org/a?b=c&d=%20#e"}
<p class="x">&nbsp;</p> <!-- ... --> | a | b |\n|---|:-:|\n**bold** _it_ `code`
<|endoftext|> is text, and so is <|endoftext|><|endoftext|>, [PAD] or </s>.
@user_name #tag $12.50 £3 €4 ¥5 50% (c)©®™ «quoted» “curly” ‘single’ – — … • § ¶ † ½ × ÷ ≠ ∞ ∑ √ ← →
é ñ ộ Z͑ͫ̓ą́l̴g̵o̡ ক্ষ নি क्षि
👨‍👩‍👧‍👦 👩🏽‍🚀 🏳️‍🌈 🇩🇪🇫🇷 1️⃣ #️⃣ ❤️ ☺️ 😀😃 👍🏿 🧑‍🤝‍🧑 🏴󠁧󠁢󠁥󠁮󠁧󠁿
٠١٢٣ ०१२ ๐๑๒ ０１２ ⅣⅧⅻ ↀↁ ²³¹ ½¾ ①②⑳ ㊀㊁ 〇〡 ১২a৩ x² H₂O 10⁻⁶ 1,234,567.89 3rd 0xFFu 1e10""".split("\n")
PROSE = [line.replace(r"\n", "\n").replace(r"\t", "\t") for line in PROSE]

SPACES = [" ", "\t", "\n", "\r\n", "\r", "\v", "\f", "\x1c", "\x1f", "\x85", "\xa0", "\u1680", "\u2003", "\u2028",
          "\u2029", "\u202f", "\u205f", "\u3000"]
NOT_SPACES = ["\u200b", "\u200d", "\u2060", "\ufeff", "\u180e", "\x00", "\x1b", "\x7f", "\x80", "\xad"]
INVALID = [b"\x80", b"\xbf", b"\xc0\x80", b"\xc1\xbf", b"\xc3", b"\xe2\x82", b"\xe0\x80\x80", b"\xe0\x9f\xbf",
           b"\xed\xa0\x80", b"\xed\xbf\xbf", b"\xf0\x9f\x98", b"\xf0\x80\x80\x80", b"\xf0\x8f\xbf\xbf",
           b"\xf4\x90\x80\x80", b"\xf5\x80\x80\x80", b"\xf8\x88\x80\x80\x80", b"\xfe", b"\xff", b"\xff\xfe",
           b"\xc3\xc3\xa9", b"\xe2\x28\xa1", b"\xf0\x28\x8c\xbc", b"\xc2\x20", b"\xe3\x81\x20"]


def texts(rng):
    """Valid texts, of every kind that a split or a merge could get wrong."""
    yield from ("", "'", "''", "'s", " 's", "''s", " ", "  ", "\n", "a", " a", "  a", "a ", "a  ", " \n", "\n ")
    for line in PROSE:
        yield line
        yield line.upper()
        yield line.swapcase()
        yield "".join(line.split())
        yield unicodedata.normalize("NFD", line)
        for _ in range(4):
            a, b = sorted(rng.choices(range(len(line) + 1), k=2))
            yield line[a:b]
    for word, end, mark in itertools.product(("I", "we", "it", "", "1"), ("s", "t", "re", "ve", "m", "ll", "d"), "'’"):
        for end in (end, end.upper(), end + "x", end[0]):
            yield f"{word}{mark}{end} {mark}{end}"
    for space in SPACES + NOT_SPACES:
        yield from (f"a{space}b", f"a{space * 2}b", f"a {space}b", f"a{space} 1", f"{space * 3}", f"!{space}!{space}")
    for _ in range(150):
        runs = ("".join(rng.choices(SPACES[:5] + [" "] * 5, k=rng.randint(1, 6))) for _ in range(4))
        yield "".join(run + rng.choice(["a", "the", "7", "...", "é", "", "'ll"]) for run in runs)
    for i in range(0x20):
        yield f"a{chr(i)}b{chr(i)}"
    alphabets = ["abcdefghijklmnopqrstuvwxyz", "etaoinshrdlu", "ETAOINSHRDLU", "0123456789", " " * 8, "\n\t\r ", "'sdtm",
                 ".,;:!?-_()[]{}\"'", "éèüößñçøå", "абвгдежзиклмнопрст", "αβγδεζηθικλ", "日本語中文字的一是", "かなカナー",
                 "한국어말", "אבגד", "ابتث", "कखगिी्", "٠١٢०१Ⅷ²½①", "😀👍🏽\u200d❤\ufe0f", "\u0301\u0308\u0327", "“”‘’–—…",
                 "".join(SPACES), "".join(NOT_SPACES)]
    for _ in range(850):
        chosen = rng.choices(alphabets, k=rng.randint(1, 4))
        yield "".join(rng.choice(rng.choice(chosen)) for _ in range(rng.randint(1, 50)))
    # Python 3.11 knows Unicode 14; what it has assigned, every later version agrees on.
    assigned = [chr(c) for c in range(0x110000) if unicodedata.category(chr(c)) not in ("Cn", "Cs", "Co")]
    for _ in range(250):
        yield "".join(rng.choice([rng.choice(assigned), rng.choice("a 1'")]) for _ in range(rng.randint(1, 20)))
    # Pieces around the length where merging changes its method, and well past it.
    for length in [*range(15, 19), *range(60, 70), 127, 128, 200, 400]:
        for alphabet in ("a", "ab", "etaoinshrdlu", "абвгд", "-", "=-", " ", "1", "的一是"):
            yield "".join(rng.choice(alphabet) for _ in range(length)) + rng.choice(["", "!", "a"])


def invalid_texts(rng):
    for bad in INVALID:
        yield from (bad, b"a" + bad + b"b", b" " + bad + b" ", b"1" + bad + b"1", b"." + bad + b"'s", bad * 3)
    for _ in range(200):
        yield bytes(rng.randrange(256) for _ in range(rng.randint(1, 40)))
    for _ in range(150):
        text = bytearray(rng.choice(PROSE).encode())
        for _ in range(rng.randint(1, 5)):
            text[rng.randrange(len(text))] = rng.randrange(256)
        at = rng.randrange(len(text))
        yield bytes(text[at:at + 60])


class Plain:
    """The definition, as slow as it is short."""

    def __init__(self, folder, ranks):
        self.ranks = ranks
        visible = [b for b in range(256) if chr(b).isprintable() and b != 0x20 and b < 0x7F or 0xA1 <= b != 0xAD]
        spelled = visible + [b for b in range(256) if b not in visible]
        byte_of = {chr(b) if b in visible else chr(256 + i - len(visible)): b for i, b in enumerate(spelled)}
        lines = (folder / "vocab.bpe").read_text(encoding="utf-8").split("\n")[1:]
        merges = [tuple(bytes(byte_of[c] for c in half) for half in line.split(" ")) for line in lines if line]
        self.order = {pair: i for i, pair in enumerate(merges)}

    def encode(self, data):
        ids = []
        for piece in regex.findall(PATTERN, data.decode("utf-8", "surrogateescape")):
            parts = [bytes([b]) for b in piece.encode("utf-8", "surrogateescape")]
            while len(parts) > 1:
                pair = min(zip(parts, parts[1:]), key=lambda p: self.order.get(p, 1e9))
                if pair not in self.order:
                    break
                i = 0
                while i + 1 < len(parts):
                    if (parts[i], parts[i + 1]) == pair:
                        parts[i:i + 2] = [parts[i] + parts[i + 1]]
                    i += 1
            ids += [self.ranks[part] for part in parts]
        return ids


def fnv(values):
    """FNV-1a, 64 bits, over 32-bit words."""
    result = 0xCBF29CE484222325
    for value in values:
        result = (result ^ value) * 0x100000001B3 % 2**64
    return f"{result:016x}"


def letters(count):
    """Mixed letters by a rule that a test can repeat: a linear congruential generator's upper bits."""
    state, out = 1, []
    for _ in range(count):
        state = (state * 1664525 + 1013904223) % 2**32
        out.append("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ"[(state >> 16) % 52])
    return "".join(out)


def kinds():
    """0 for other, 1 letter, 2 number, 3 space, by code point, as tiktoken's regex engine has them."""
    points = [c for c in range(0x110000) if not 0xD800 <= c < 0xE000]
    every = "".join(map(chr, points))
    result = dict.fromkeys(points, 0)
    for kind, pattern in enumerate((r"\p{L}", r"\p{N}", r"\s"), 1):  # text that a pattern leaves out is not encoded
        encoding = tiktoken.Encoding("kind", pat_str=pattern, special_tokens={},
                                     mergeable_ranks={bytes([i]): i for i in range(256)})
        result.update(dict.fromkeys(map(ord, bytes(encoding.encode_ordinary(every)).decode()), kind))
    values = [result[c] for c in points]
    return {"kinds": [values.count(1), values.count(2), values.count(3)], "fnv": fnv(values)}


def main():
    folder = pathlib.Path(sys.argv[1])
    ranks = data_gym_to_mergeable_bpe_ranks(str(folder / "vocab.bpe"), str(folder / "encoder.json"))
    encoding = tiktoken.Encoding("gpt2", pat_str=PATTERN, mergeable_ranks=ranks, special_tokens={})
    plain = Plain(folder, ranks)
    rng = random.Random(2019)
    emit = lambda line: print(json.dumps(line, ensure_ascii=True, separators=(",", ":")))

    emit(kinds())
    for text in dict.fromkeys(texts(rng)):
        ids = encoding.encode_ordinary(text)
        assert ids == plain.encode(text.encode()), repr(text)
        emit({"text": text, "ids": ids})
    for data in dict.fromkeys(invalid_texts(rng)):
        emit({"hex": data.hex(), "ids": plain.encode(data)})
    long_texts = [({"repeat": unit, "times": times}, unit * times)
                  for unit, times in (("a", 200_000), ("ab", 50_000), ("日本語", 33_333), ("=", 100_000), (" ", 100_000))]
    for line, text in [*long_texts, ({"letters": 100_000}, letters(100_000))]:
        ids = encoding.encode_ordinary(text)
        emit({**line, "count": len(ids), "fnv": fnv(ids)})


if __name__ == "__main__":
    main()
