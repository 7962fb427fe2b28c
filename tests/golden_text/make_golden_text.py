#!/usr/bin/env python3
"""Makes the golden files of this folder: small tokenizers of every family, and the ids that the reference tools give.

  python3 make_golden_text.py                     tiny_*.json and expected.json (needs `tokenizers`)
  python3 make_golden_text.py NAME=MODEL.gguf...  adds gguf_ids.json: llama.cpp's ids for real vocabularies (needs
                                                  llama-cpp-python; texts from ../../../shared/data where they are)
"""
import hashlib
import json
import os
import struct
import sys

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers

HERE = os.path.dirname(os.path.abspath(__file__))
DATA = os.path.join(HERE, "..", "..", "..", "shared", "data")

NASTY = [
    "", " ", "  ", "   ", "\n", "\n\n", "\n\n\n", "\t", "\t\t", "\t \n \r\n\r\n x", "\r", "\r\n", "a\rb\r\nc\n",
    "Hello world", " Hello  world ", "   leading and trailing   ", "a" + " " * 40 + "b", " " * 100 + "\n" * 40 + "\t" * 40,
    "I'm you'LL he'd  they're WE'VE it'S don't", "it'\u017ft 'ſ ſ", "can’t café cafe\u0301 ﬁne",
    "3.14159 1234567 x86_64 0x1F 12,345 4 ½ 1½ ⅓ ² Ⅷ ١٢٣ १२३ ７８９", "4 \u00bd", "2024-12-01T00:00:00Z",
    "foo_bar->baz(){return 0;} // comment\n\tif (a<=b && c!=d) { x[i]++; }\n", "def f(x):\n    return x ** 2\n\n\nclass A:\n        pass\n",
    "!!!???...   \n\n\n", "$100 €5 £3 ¥7 #tag @user 50% ~ ^ ` | \\ \"q\" 'q' «q» „q“", "http://example.com/a?b=c&d=%20e#f",
    "\u00a0nbsp\u00a0\u00a0x\u3000wide\u2003em\u2009thin\u200bzwsp\u180emvs\u2028ls\u2029ps\u0085nel",
    "\ufeffBOM at start", "middle\ufeffBOM", "x\u0000y\u0001z\u007f", "\u0000",
    "😀😃 👨‍👩‍👧‍👦 👩🏽‍🚀 🇩🇪🇫🇷 ❤️ ☺︎ 1️⃣", "🏴󠁧󠁢󠁥󠁮󠁧󠁿 flags",
    "e\u0301\u0302\u0303 Z͑ͫ̓ͪ̂ͫ̽͏̴̙̤̞͉͚̯̞̠͍A̴̵̜̰͔ͫ͗͢L̠ͨͧͩ͘G̴̻͈͍͔̹̑͗̎̅͛́Ǫ̵̹̻̝̳͂̌̌͘!",
    "你好，世界！这是一个测试。", "日本語のテキスト、カタカナとひらがな。々〆", "한국어 텍스트 테스트 ㄱㄴㄷ", "𠮷野家 𡃁 㐂",
    "مرحبا بالعالم ١٢٣ السَّلَامُ", "שלום עולם", "नमस्ते दुनिया", "நி test தமிழ்", "ภาษาไทยไม่มีช่องว่าง", "Привет, мир! Ёлка", "Γειά σου Κόσμε", "Xin chào thế giới Việt",
    "İstanbul ıI ẞß ŒœÆæ Ǆǅǆ", "ﷺ ﬀ ℌ ① ㎏", "\u202eRTL override\u202c", "mixed日本English中文русский123",
    "<|im_start|>user\nHi<|im_end|>", "<|endoftext|>", "<|im_end|><|im_end|> <|im_start|>", "<bos><eos><pad><unk> <start_of_turn>user\nhi<end_of_turn>\n", "<s></s> [INST] <<SYS>> [/INST]",
    "<|begin_of_text|><|start_header_id|>user<|end_header_id|>\n\n<|eot_id|>", "<|im_start |> < |im_end|> <|im_end|", "<0x0A> <0xFF> <0x41>", "▁ ▁▁ a▁b ▁▁▁x", "Ġ Ċ ĠHello", "<unused5> <table><td> </td></table> [multimodal]",
    "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa", "the the the thethethe", "abcabcabcabcabcababab", "=" * 77 + "-" * 65 + "*" * 33,
    "Supercalifragilisticexpialidocious antidisestablishmentarianism pneumonoultramicroscopicsilicovolcanoconiosis",
    "\u0e01\u0e33\u0e49", "\U0010ffff \ue000 \ufffd \ufffe", "🫠🫨🩷", "no newline at end", "ends with spaces   ", "ends with newline\n",
]
# Bytes that are no text: our own rule (a byte is a byte), not a reference's; the tests check that they come back.
LONE_BYTES = [b"\xe6", b"\xe6\xad", b"a\xffb", b"\xc0\x80 \xed\xa0\x80", b"caf\xc3", b"\xf0\x9f\x98 x", b"\x80\x81\x82"]

# Without texts that look like control tokens: a vocabulary must not learn those as words.
TRAINING = [t for t in NASTY if not any(c in t for c in ("<|", "</s>", "<bos>"))] + [
    "The quick brown fox jumps over the lazy dog; the other dogs were not there, so they could not see it.",
    "In 1984 there were 365 days and 12 months, and some of them had 31 days: 31 + 28 + 31 + 30.",
    "Half of the tone is in the dots, the other half is in the paper. We're sure you'll like what they've done.",
    "for (int i = 0; i < 10; ++i) { sum += i; }\n    return sum;\n",
    "Der Zug nach München fährt um 12:30 Uhr. L'été dernier, nous étions à la mer. El niño comió una manzana.",
    "Привет, как дела? Всё хорошо. 今天天气很好，我们去公园吧。今日はいい天気ですね。",
] * 3

G = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
L3 = (r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*"
      r"|\s*[\r\n]+|\s+(?!\S)|\s+")
Q = L3.replace(r"\p{N}{1,3}", r"\p{N}")
D = [r"\p{N}{1,3}", "[\u4e00-\u9fa5\u3040-\u309f\u30a0-\u30ff]+",
     r"""[!"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+| ?[\p{P}\p{S}]+[\r\n]*"""
     r"""|\s*[\r\n]+|\s+(?!\S)|\s+"""]
CONTROL = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]


def byte_level(pre, special, normalizer=None, ignore_merges=False, bos=None, old_merges=False):
    t = Tokenizer(models.BPE(ignore_merges=ignore_merges))
    if normalizer:
        t.normalizer = normalizer
    t.pre_tokenizer = pre
    t.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(vocab_size=640, special_tokens=special, show_progress=False,
                                  initial_alphabet=pre_tokenizers.ByteLevel.alphabet())
    t.train_from_iterator(TRAINING, trainer)
    if bos:
        t.post_processor = processors.TemplateProcessing(single=f"{bos} $A", pair=f"{bos} $A {bos} $B",
                                                         special_tokens=[(bos, t.token_to_id(bos))])
    else:
        t.post_processor = processors.ByteLevel(trim_offsets=False)
    j = json.loads(t.to_str())
    if old_merges:
        j["model"]["merges"] = [" ".join(m) for m in j["model"]["merges"]]
    return j


def sentence_piece(special, normalizer, pre, decoder, bos, user_defined=()):
    byte_tokens = [f"<0x{b:02X}>" for b in range(256)]
    t = Tokenizer(models.BPE(unk_token=special[0]))
    t.normalizer = normalizers.Replace(" ", "\u2581")
    t.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="never")
    trainer = trainers.BpeTrainer(vocab_size=900, special_tokens=special + list(user_defined) + byte_tokens, limit_alphabet=150,
                                  show_progress=False)
    t.train_from_iterator(TRAINING, trainer)
    j = json.loads(t.to_str())
    j["added_tokens"] = [a for a in j["added_tokens"] if a["content"] not in byte_tokens]
    for a in j["added_tokens"]:
        a["special"], a["normalized"] = a["content"] in special, False
    vocab = j["model"]["vocab"]
    made = [a + b for a, b in j["model"]["merges"]]
    # As converters from SentencePiece do: every way to make a piece of two others, in the order of the scores.
    j["model"]["merges"] = [[p[:i], p[i:]] for p in dict.fromkeys(made) for i in range(1, len(p)) if p[:i] in vocab and p[i:] in vocab]
    j["model"].update(unk_token=special[0], byte_fallback=True, fuse_unk=True)
    j.update(normalizer=normalizer, pre_tokenizer=pre, decoder=decoder, post_processor={
        "type": "TemplateProcessing", "single": [{"SpecialToken": {"id": bos, "type_id": 0}}, {"Sequence": {"id": "A", "type_id": 0}}],
        "pair": [{"Sequence": {"id": "A", "type_id": 0}}, {"Sequence": {"id": "B", "type_id": 1}}],
        "special_tokens": {bos: {"id": bos, "ids": [vocab[bos]], "tokens": [bos]}}})
    return j


def with_flags():
    """Every flag of added tokens, and normalizers in a chain."""
    t = Tokenizer(models.BPE(unk_token="[UNK]", fuse_unk=True))
    t.normalizer = normalizers.Sequence([normalizers.NFKC(), normalizers.Lowercase(), normalizers.Replace(Regex("[\\-_]+"), "-")])
    t.pre_tokenizer = pre_tokenizers.Sequence([
        pre_tokenizers.Split(Regex(r"\s+"), "merged_with_next"), pre_tokenizers.Split("o", "merged_with_previous"),
        pre_tokenizers.Punctuation("contiguous"), pre_tokenizers.Digits(individual_digits=False),
        pre_tokenizers.Metaspace(prepend_scheme="always", split=True)])
    t.decoder = decoders.Metaspace()
    t.train_from_iterator(TRAINING, trainers.BpeTrainer(vocab_size=500, special_tokens=["[UNK]"], limit_alphabet=120, show_progress=False))
    t.add_special_tokens([AddedToken("<|im_end|>", lstrip=True, rstrip=True), AddedToken("<|im_start|>", rstrip=True)])
    t.add_tokens([AddedToken("the", single_word=True), AddedToken("WORLD", normalized=True), AddedToken("Hello", normalized=False),
                  AddedToken("中", lstrip=True, normalized=False), AddedToken("Hello wor", normalized=False)])
    t.post_processor = processors.TemplateProcessing(single="<|im_start|> $A <|im_end|>", special_tokens=[
        ("<|im_start|>", t.token_to_id("<|im_start|>")), ("<|im_end|>", t.token_to_id("<|im_end|>"))])
    return json.loads(t.to_str())


BL = lambda rx: pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=rx)
SP = "\u2581"
REPLACE = {"type": "Replace", "pattern": {"String": " "}, "content": SP}
UNDO = [{"type": "Replace", "pattern": {"String": SP}, "content": " "}, {"type": "ByteFallback"}, {"type": "Fuse"}]
STRIP = {"type": "Strip", "content": " ", "start": 1, "stop": 0}
META = {"type": "Metaspace", "replacement": SP, "prepend_scheme": "first", "split": False}
split = lambda rx: pre_tokenizers.Split(Regex(rx), "isolated")


def tiny():
    yield "gpt2", byte_level(BL(True), CONTROL[:1], old_merges=True)
    yield "smollm", byte_level(pre_tokenizers.Sequence([pre_tokenizers.Digits(individual_digits=True), BL(True)]), CONTROL)
    yield "llama3", byte_level(pre_tokenizers.Sequence([split(L3), BL(False)]),
                               ["<|begin_of_text|>", "<|eot_id|>", "<|start_header_id|>", "<|end_header_id|>"],
                               ignore_merges=True, bos="<|begin_of_text|>")
    yield "qwen2", byte_level(pre_tokenizers.Sequence([split(Q), BL(False)]), CONTROL, normalizer=normalizers.NFC())
    yield "deepseek3", byte_level(pre_tokenizers.Sequence([split(r) for r in D] + [BL(False)]), ["<\uff5cbegin\u2581of\u2581sentence\uff5c>"],
                                  bos="<\uff5cbegin\u2581of\u2581sentence\uff5c>")
    yield "llama2", sentence_piece(["<unk>", "<s>", "</s>"], {"type": "Sequence", "normalizers": [{"type": "Prepend", "prepend": SP}, REPLACE]},
                                   None, {"type": "Sequence", "decoders": UNDO + [STRIP]}, "<s>")
    yield "llama2_metaspace", sentence_piece(["<unk>", "<s>", "</s>"], None, META, {"type": "Sequence", "decoders": UNDO + [STRIP]}, "<s>")
    yield "gemma", sentence_piece(["<unk>", "<bos>", "<eos>", "<start_of_turn>", "<end_of_turn>"], REPLACE,
                                  {"type": "Split", "pattern": {"String": " "}, "behavior": "MergedWithPrevious", "invert": False},
                                  {"type": "Sequence", "decoders": UNDO}, "<bos>",
                                  ["\n" * n for n in range(1, 8)] + [" " * n for n in range(2, 8)] + ["<table>", "</table>"])
    yield "flags", with_flags()


def dump(name, value):
    with open(os.path.join(HERE, name), "w", encoding="utf-8", newline="\n") as f:
        json.dump(value, f, ensure_ascii=False, separators=(",", ":"))
        f.write("\n")


def make_tiny():
    expected = {"note": "ids by Hugging Face tokenizers: text stays text / control tokens parsed and special tokens added",
                "texts": NASTY, "lone_bytes_hex": [b.hex() for b in LONE_BYTES], "text": {}, "control": {}}
    for name, j in tiny():
        dump(f"tiny_{name}.json", j)
        t = Tokenizer.from_str(json.dumps(j))
        t.encode_special_tokens = True
        expected["text"][name] = [t.encode(s, add_special_tokens=False).ids for s in NASTY]
        t.encode_special_tokens = False
        expected["control"][name] = [t.encode(s, add_special_tokens=True).ids for s in NASTY]
    dump("expected.json", expected)


def digest(ids):
    return {"count": len(ids), "sha256": hashlib.sha256(struct.pack(f"<{len(ids)}i", *ids)).hexdigest()}


def make_gguf(models_):
    from llama_cpp import Llama
    test = open(os.path.join(DATA, "wiki.test.raw"), "rb").read()
    files = {"wiki.test.raw": test, "wiki.test.raw with CRLF": test.replace(b"\n", b"\r\n"),
             "wiki.valid.txt": open(os.path.join(DATA, "wiki.valid.txt"), "rb").read()}
    out = {"note": "ids by llama.cpp (vocab_only), no BOS added; text: parse_special off, control: on; sha256 of int32 little-endian",
           "nasty": NASTY, "models": {}}
    for model in models_:
        name, path = model.split("=", 1)
        m = Llama(model_path=path, vocab_only=True, verbose=False)
        run = lambda b, special: m.tokenize(b, add_bos=False, special=special)
        out["models"][name] = {mode: {"files": {k: digest(run(v, mode == "control")) for k, v in files.items()},
                                      "nasty": [run(s.encode(), mode == "control") for s in NASTY]} for mode in ("text", "control")}
    dump("gguf_ids.json", out)


if __name__ == "__main__":
    make_tiny()
    if len(sys.argv) > 1:
        make_gguf(sys.argv[1:])
