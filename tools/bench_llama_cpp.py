#!/usr/bin/env python3
"""Decode rates of Halftone and llama.cpp on the same weights in one run, turn about, so that noise hits both alike.

usage: bench_llama_cpp.py SOURCE.gguf [ROUNDS]        (needs: pip install llama-cpp-python; a built halftone)

llama.cpp decodes SOURCE requantized to Q8_0 (by its own quantizer); Halftone decodes it with FP8 and INT8 weights, once as the
preset leaves it (BF16 head) and once with an 8-bit head as in Q8_0. Prints medians and ratios."""
import ctypes
import json
import os
import pathlib
import statistics
import subprocess
import sys
import tempfile
import time

ROOT = pathlib.Path(__file__).resolve().parent.parent
HALFTONE = os.environ.get("HALFTONE", str(ROOT / "build/release/halftone"))
RECIPES = {
    "fp8 weights, bf16 head": '{"default": {"weights": "fp8_e4m3:channel"}}',
    "fp8 weights, fp8 head": '{"default": {"weights": "fp8_e4m3:channel"}, "rules": [{"match": "embedding", "weights": "fp8_e4m3:channel", "activations": null}]}',
    "fp8 w8a8, fp8 head": '{"default": {"weights": "fp8_e4m3:channel", "activations": "fp8_e4m3:token"}, "rules": [{"match": "embedding", "weights": "fp8_e4m3:channel", "activations": null}]}',
    "int8 weights, int8 head": '{"default": {"weights": "int8:channel"}, "rules": [{"match": "embedding", "weights": "int8:channel", "activations": null}]}',
    "int8 w8a8, int8 head": '{"default": {"weights": "int8:channel", "activations": "int8:token"}, "rules": [{"match": "embedding", "weights": "int8:channel", "activations": null}]}',
}
TOKENS = 64


def llama_decode_rate(llama, threads):
    llama.reset()
    llama.eval([1])
    start = time.perf_counter()
    for i in range(TOKENS):
        llama.eval([2 + i])
    return TOKENS / (time.perf_counter() - start)


def main(source, rounds):
    import llama_cpp
    threads = len(os.sched_getaffinity(0))
    with tempfile.TemporaryDirectory() as folder:
        q8 = pathlib.Path(folder) / "q8_0.gguf"
        params = llama_cpp.llama_model_quantize_default_params()
        params.ftype = llama_cpp.LLAMA_FTYPE_MOSTLY_Q8_0
        params.allow_requantize = True
        if llama_cpp.llama_model_quantize(str(source).encode(), str(q8).encode(), ctypes.byref(params)) != 0:
            sys.exit("llama.cpp could not quantize the file")
        llama = llama_cpp.Llama(str(q8), n_ctx=512, n_threads=threads, n_threads_batch=threads, verbose=False)
        models = {}
        for i, (name, recipe) in enumerate(RECIPES.items()):
            file = pathlib.Path(folder) / f"r{i}.json"
            file.write_text(recipe)
            models[name] = pathlib.Path(folder) / f"m{i}"
            subprocess.run([HALFTONE, "quantize", source, "-o", models[name], "--recipe", file, "--no-quality", "--progress", "none"],
                           check=True, stdout=subprocess.DEVNULL)
        rates = {"llama.cpp Q8_0": []}
        shares = {}
        for _ in range(rounds):
            rates["llama.cpp Q8_0"].append(llama_decode_rate(llama, threads))
            for name, path in models.items():
                out = json.loads(subprocess.run([HALFTONE, "bench", path, "-n", str(TOKENS), "-p", "16", "-r", "1", "--json"],
                                                check=True, capture_output=True, text=True).stdout)
                rates.setdefault(name, []).append(out["decode_tokens_per_s"])
                shares.setdefault(name, []).append(out["decode_bandwidth_fraction"])
        base = statistics.median(rates["llama.cpp Q8_0"])
        for name, values in rates.items():
            share = f"  {100 * statistics.median(shares[name]):.0f} % of read bandwidth" if name in shares else ""
            print(f"{name:28} {statistics.median(values):7.1f} tokens/s  {statistics.median(values) / base:5.2f} x{share}")


if __name__ == "__main__":
    if len(sys.argv) < 2:
        sys.exit(__doc__)
    main(pathlib.Path(sys.argv[1]), int(sys.argv[2]) if len(sys.argv) > 2 else 5)
