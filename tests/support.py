"""What the script tests share: where things are, running the tool, making checkpoints by hand, skipping loudly."""
import json
import os
import pathlib
import struct
import subprocess
import sys
import tempfile
import unittest

ROOT = pathlib.Path(__file__).resolve().parent.parent
HALFTONE = os.environ.get("HALFTONE", str(ROOT / "build/release/halftone"))
BUILD = pathlib.Path(os.environ.get("HALFTONE_BUILD", str(ROOT / "build/release")))
SHARED = pathlib.Path(os.environ.get("HALFTONE_SHARED", str(ROOT.parent / "shared")))
REFERENCE_PYTHON = ROOT / "build/reference/bin/python3"


def skip(why):
    print(f"SKIPPED: {why}")
    sys.exit(77)


def need_shared():
    if not (SHARED / "golden/README.md").exists():
        skip(f"{SHARED} with the reference data is not there (set HALFTONE_SHARED)")


def run(*arguments, env=None, stdin=None, timeout=900, cwd=None):
    """The tool with these arguments: (exit code, standard output, standard error)."""
    done = subprocess.run([HALFTONE, *map(str, arguments)], capture_output=True, timeout=timeout, input=stdin, cwd=cwd,
                          env={**os.environ, **(env or {})})
    return done.returncode, done.stdout.decode("utf-8", "replace"), done.stderr.decode("utf-8", "replace")


def run_json(*arguments, **keywords):
    code, out, err = run(*arguments, "--json", **keywords)
    if code != 0:
        raise AssertionError(f"halftone {' '.join(map(str, arguments))} exited with {code}: {err}")
    return json.loads(out)


def get_model(name):
    code, out, err = run("get", name)
    if code == 5:
        skip(f"halftone get {name}: {err.strip()}")
    if code != 0:
        raise AssertionError(f"halftone get {name} exited with {code}: {err}")
    return pathlib.Path(out.strip())


def reexec_with_reference_packages():
    """Runs this script again with the reference environment's Python; skips if there is none."""
    if pathlib.Path(sys.prefix).resolve() == (ROOT / "build/reference").resolve():
        return
    if not (ROOT / "build/reference/complete-1").exists():
        skip("build/reference is not there: run 'make reference' (needs the network)")
    os.execv(REFERENCE_PYTHON, [str(REFERENCE_PYTHON), *sys.argv])


def safetensors_bytes(tensors, metadata=None):
    """tensors: {name: (dtype, shape, bytes)} in file order."""
    header, offset = {}, 0
    if metadata is not None:
        header["__metadata__"] = metadata
    for name, (dtype, shape, data) in tensors.items():
        header[name] = {"dtype": dtype, "shape": list(shape), "data_offsets": [offset, offset + len(data)]}
        offset += len(data)
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    return struct.pack("<Q", len(text)) + text + b"".join(data for _, _, data in tensors.values())


def bf16(values):
    """FP32 values rounded to BF16 (nearest even), as bytes."""
    out = bytearray()
    for value in values:
        bits = struct.unpack("<I", struct.pack("<f", value))[0]
        out += struct.pack("<H", ((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16) & 0xFFFF)
    return bytes(out)


def tiny_llama_config(**changes):
    config = {"architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": 64, "intermediate_size": 128,
              "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2, "vocab_size": 256,
              "max_position_embeddings": 128, "rms_norm_eps": 1e-5, "rope_theta": 10000.0, "hidden_act": "silu",
              "tie_word_embeddings": True, "torch_dtype": "bfloat16"}
    config.update(changes)
    return config


def tiny_llama_tensors(config, seed=1):
    """Random BF16 weights for a Llama config, by name, in a fixed order."""
    import random
    rng = random.Random(seed)
    hidden, ffn, vocabulary = config["hidden_size"], config["intermediate_size"], config["vocab_size"]
    heads, kv_heads = config["num_attention_heads"], config["num_key_value_heads"]
    head_dim = config.get("head_dim", hidden // heads)

    def matrix(rows, cols):
        return ("BF16", (rows, cols), bf16([rng.gauss(0, 0.05) for _ in range(rows * cols)]))

    def ones(n):
        return ("BF16", (n,), bf16([1.0] * n))

    tensors = {"model.embed_tokens.weight": matrix(vocabulary, hidden)}
    for layer in range(config["num_hidden_layers"]):
        p = f"model.layers.{layer}."
        tensors[p + "input_layernorm.weight"] = ones(hidden)
        tensors[p + "self_attn.q_proj.weight"] = matrix(heads * head_dim, hidden)
        tensors[p + "self_attn.k_proj.weight"] = matrix(kv_heads * head_dim, hidden)
        tensors[p + "self_attn.v_proj.weight"] = matrix(kv_heads * head_dim, hidden)
        tensors[p + "self_attn.o_proj.weight"] = matrix(hidden, heads * head_dim)
        tensors[p + "post_attention_layernorm.weight"] = ones(hidden)
        tensors[p + "mlp.gate_proj.weight"] = matrix(ffn, hidden)
        tensors[p + "mlp.up_proj.weight"] = matrix(ffn, hidden)
        tensors[p + "mlp.down_proj.weight"] = matrix(hidden, ffn)
    tensors["model.norm.weight"] = ones(hidden)
    if not config["tie_word_embeddings"]:
        tensors["lm_head.weight"] = matrix(vocabulary, hidden)
    return tensors


def write_model(folder, config=None, tensors=None):
    folder = pathlib.Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    config = config or tiny_llama_config()
    tensors = tensors if tensors is not None else tiny_llama_tensors(config)
    (folder / "config.json").write_text(json.dumps(config, indent=2))
    (folder / "model.safetensors").write_bytes(safetensors_bytes(tensors, {"format": "pt"}))
    return folder


def folder_bytes(folder, without=()):
    """{relative name: bytes} of a folder, to compare two outputs."""
    folder = pathlib.Path(folder)
    return {str(p.relative_to(folder)): p.read_bytes() for p in sorted(folder.rglob("*"))
            if p.is_file() and p.name not in without}


class Case(unittest.TestCase):
    def setUp(self):
        self._temporary = tempfile.TemporaryDirectory(prefix="halftone-test-")
        self.folder = pathlib.Path(self._temporary.name)

    def tearDown(self):
        self._temporary.cleanup()

    def expect_failure(self, code, *arguments, contains=(), **keywords):
        """The tool must end with this code, one line on standard error that holds all of `contains`."""
        got, out, err = run(*arguments, **keywords)
        what = f"halftone {' '.join(map(str, arguments))}: exit {got}, stderr: {err}"
        self.assertEqual(got, code, what)
        lines = [line for line in err.splitlines() if line.strip()]
        self.assertTrue(lines, what)
        self.assertLess(len(lines[-1]), 1000, what)
        for text in contains:
            self.assertIn(text, err, what)
        return err


def main():
    unittest.main(verbosity=2)
