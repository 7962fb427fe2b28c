"""Ids of real vocabularies: those that llama.cpp gives (recorded in golden_text/gguf_ids.json), and those that Hugging Face
gives with the tokenizer.json that Halftone writes. Files are read as bytes, line ends untouched."""
import hashlib
import json
import pathlib
import struct

import support
from support import run_json

support.need_shared()
GOLDEN = json.loads((support.ROOT / "tests/golden_text/gguf_ids.json").read_text())


def digest(ids):
    return {"count": len(ids), "sha256": hashlib.sha256(struct.pack(f"<{len(ids)}i", *ids)).hexdigest()}


class Tokenizers(support.Case):
    def texts(self):
        """The text files, and a file for each text of the nasty list."""
        test = (support.SHARED / "data/wiki.test.raw").read_bytes()
        texts = {"wiki.test.raw": test, "wiki.test.raw with CRLF": test.replace(b"\n", b"\r\n"),
                 "wiki.valid.txt": (support.SHARED / "data/wiki.valid.txt").read_bytes()}
        paths = []
        for i, text in enumerate([*texts.values(), *(t.encode() for t in GOLDEN["nasty"])]):
            paths.append(self.folder / f"{i}.txt")
            paths[-1].write_bytes(text)
        return list(texts), paths

    def ids(self, model, paths, *flags):
        arguments = [argument for path in paths for argument in ("-f", path)]
        return [result["ids"] for result in run_json("tokenize", model, *arguments, *flags)["results"]]

    def check_against_llama_cpp(self, name):
        model = support.get_model(name)
        names, paths = self.texts()
        for mode, flags in (("text", []), ("control", ["--parse-control"])):
            golden = GOLDEN["models"][name][mode]
            ids = self.ids(model, paths, "--no-bos", *flags)
            for file, got in zip(names, ids):
                self.assertEqual(digest(got), golden["files"][file], f"{name}, {mode}: {file}")
            for text, got, wanted in zip(GOLDEN["nasty"], ids[len(names):], golden["nasty"]):
                self.assertEqual(got, wanted, f"{name}, {mode}: {text!r}")

    def test_smollm2_as_llama_cpp(self):
        self.check_against_llama_cpp("smollm2-135m")

    def test_gemma3_as_llama_cpp(self):
        self.check_against_llama_cpp("gemma3-270m")

    def test_written_tokenizer_in_hugging_face_tools(self):
        """quantize makes tokenizer.json from GGUF metadata: transformers must read the same ids from it, ours too."""
        try:
            from transformers import AutoTokenizer
        except ImportError:
            self.skipTest("SKIPPED: transformers is not here (run 'make reference')")
        for name in ("smollm2-135m", "gemma3-270m"):
            model, out = support.get_model(name), self.folder / name
            run_json("quantize", model, "-o", out, "--to", "fp8", "--no-quality")
            theirs = AutoTokenizer.from_pretrained(out)
            names, paths = self.texts()
            ours = self.ids(model, paths, "--parse-control")
            self.assertEqual(self.ids(out, paths, "--parse-control"), ours, name)
            for path, wanted in zip(paths, ours):
                text = path.read_bytes().decode()
                self.assertEqual(theirs(text)["input_ids"], wanted, f"{name}: {text[:60]!r}")


if (support.ROOT / "build/reference/complete-1").exists():
    support.reexec_with_reference_packages()
support.main()
