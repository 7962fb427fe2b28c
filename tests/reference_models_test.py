"""Against transformers and compressed-tensors: a native FP8 output loads there and says the same; plain rounding lands
where an independent emulation in PyTorch did (mean KL on reference.gguf, 8 windows of WikiText-2)."""
import pathlib
import subprocess
import sys

import support
from support import run_json

support.need_shared()
support.reexec_with_reference_packages()
SMOLLM2 = support.get_model("smollm2-135m")
TEXT = support.SHARED / "data/wiki.test.raw"
PROMPT = "The history of the printing press begins with"

# Scheme: mean KL of the emulation. Ours must be within 15 % (or better).
PLAIN_ROUNDING = {
    "fp8_e4m3:channel": 0.0109, "fp8": 0.0191, "int8:channel": 0.0019, "w8a8": 0.0184, "int4:g64:asym": 0.192,
    "int5:g64": 0.065, "nvfp4": 0.145, "mxfp4:ceil": 0.327,
}


def reference_model():
    path = support.BUILD.parent / "models/reference.gguf"
    if not path.exists():
        path.parent.mkdir(parents=True, exist_ok=True)
        partial = path.with_suffix(".partial")
        subprocess.run([sys.executable, support.SHARED / "data/make_reference.py", SMOLLM2,
                        support.SHARED / "data/smollm2-offgrid.safetensors", partial], check=True)
        partial.rename(path)
    return path


class AgainstReferences(support.Case):
    def test_native_fp8_loads_in_transformers_with_the_same_greedy_text(self):
        import torch
        from transformers import AutoModelForCausalLM, AutoTokenizer
        out = self.folder / "fp8"
        # FP32 scales: transformers expands the weights in the scales' dtype, and BF16 would round them. Activations in full
        # precision: under FP8 activations a last-bit difference of two programs' sums flips codes, and both texts are right.
        run_json("quantize", reference_model(), "-o", out, "--to", "fp8_e4m3:channel:fp32", "--no-quality")
        ours = run_json("run", out, "-p", PROMPT, "-n", "32", "--kv", "fp32", "--ignore-eos")
        tokenizer = AutoTokenizer.from_pretrained(out)
        ids = tokenizer(PROMPT)["input_ids"]
        self.assertEqual(ids, ours["prompt_ids"])
        model = AutoModelForCausalLM.from_pretrained(out, dtype=torch.float32)
        with torch.no_grad():
            theirs = model.generate(torch.tensor([ids]), max_new_tokens=32, min_new_tokens=32, do_sample=False)[0, len(ids):].tolist()
        print(tokenizer.decode(theirs))
        self.assertEqual(theirs, ours["tokens"])

    def test_perplexity_of_the_reference_model(self):
        result = run_json("eval", reference_model(), "--text", TEXT, "--chunks", "32")
        print(f"perplexity {result['perplexity']:.4f}, llama.cpp 21.727")
        self.assertAlmostEqual(result["perplexity"], 21.727, delta=0.03)

    def test_plain_rounding_lands_where_it_must(self):
        reference = reference_model()
        worse = []
        for scheme, wanted in PLAIN_ROUNDING.items():
            out = self.folder / "q"
            run_json("quantize", reference, "-o", out, "--to", scheme, "--no-quality", "--force")
            result = run_json("eval", out, "--reference", reference, "--text", TEXT, "--chunks", "8")
            print(f"{scheme:18} KL {result['kl_mean']:.4f} (emulation {wanted}), ratio {result['perplexity_ratio']:.4f}, "
                  f"top-1 {result['top1_agreement']:.4f}", flush=True)
            if result["kl_mean"] > 1.15 * wanted:
                worse.append((scheme, result["kl_mean"], wanted))
            self.assertGreater(result["kl_mean"], 0.3 * wanted, f"{scheme}: too good to be this scheme")
        self.assertFalse(worse)


support.main()
