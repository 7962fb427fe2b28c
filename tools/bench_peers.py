#!/usr/bin/env python3
"""Halftone beside llama.cpp, PyTorch and OpenVINO GenAI on the same weights in one run; `make bench-peers` calls it.

usage: bench_peers.py [--source MODEL.gguf] [--rounds N] [--tokens N] [--prompt N]

The tools take turns, round by round, so that other work on the machine meets all alike; medians and ratios are printed.
llama.cpp decodes the source requantized by its own quantizer; Halftone quantizes the same source. A peer that is not
installed, or that refuses the file, is a line that says so."""
import argparse
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
THREADS = len(os.sched_getaffinity(0))

# name: (weights of the linears and the head, activations)
SCHEMES = {
    "bf16": ("bf16", None),
    "fp8_e4m3:channel": ("fp8_e4m3:channel", None),
    "fp8 w8a8": ("fp8_e4m3:channel", "fp8_e4m3:token"),
    "int8:g32:fp16": ("int8:g32:fp16", None),
    "int8 w8a8": ("int8:channel", "int8:token"),
    "int4:g32:fp16": ("int4:g32:fp16", None),
    "int4:g64": ("int4:g64", None),
    "mxfp4": ("mxfp4", None),
}
LLAMA_TYPES = {"F16": "LLAMA_FTYPE_MOSTLY_F16", "Q8_0": "LLAMA_FTYPE_MOSTLY_Q8_0", "Q4_0": "LLAMA_FTYPE_MOSTLY_Q4_0"}


def halftone(*arguments):
    result = subprocess.run([HALFTONE, *map(str, arguments)], capture_output=True, text=True)
    if result.returncode != 0:
        sys.exit(f"halftone {arguments[0]} failed: {result.stderr.strip()}")
    return result.stdout


class HalftoneModel:
    def __init__(self, name, source, folder):
        weights, activations = SCHEMES[name]
        self.path = folder / name.replace(":", "-").replace(" ", "-")
        recipe = folder / (self.path.name + ".json")
        recipe.write_text(json.dumps({"default": {"weights": weights, "activations": activations},
                                      "rules": [{"match": "embedding", "weights": weights, "activations": None}]}))
        halftone("quantize", source, "-o", self.path, "--recipe", recipe, "--no-quality", "--progress", "none")

    def measure(self, prompt, tokens):
        out = json.loads(halftone("bench", self.path, "-n", tokens, "-p", prompt, "-r", 1, "--json", "--progress", "none"))
        return out["prefill_tokens_per_s"], out["decode_tokens_per_s"], out["decode_bandwidth_fraction"]


class LlamaModel:
    def __init__(self, name, source, folder):
        import llama_cpp
        path = folder / f"{name}.gguf"
        params = llama_cpp.llama_model_quantize_default_params()
        params.ftype = getattr(llama_cpp, LLAMA_TYPES[name])
        params.allow_requantize = True
        if llama_cpp.llama_model_quantize(str(source).encode(), str(path).encode(), ctypes.byref(params)) != 0:
            raise RuntimeError("llama.cpp could not quantize the file")
        self.llama = llama_cpp.Llama(str(path), n_ctx=1024, n_batch=512, n_threads=THREADS, n_threads_batch=THREADS, verbose=False)

    def measure(self, prompt, tokens):
        self.llama.reset()
        start = time.perf_counter()
        self.llama.eval([2 + i % 1000 for i in range(prompt)])
        prefill = prompt / (time.perf_counter() - start)
        start = time.perf_counter()
        for i in range(tokens):
            self.llama.eval([2 + i])
        return prefill, tokens / (time.perf_counter() - start), None


class OpenVinoModel:
    def __init__(self, _name, source, _folder):
        import openvino_genai
        self.genai = openvino_genai
        self.pipe = openvino_genai.LLMPipeline(str(source), "CPU", {"INFERENCE_NUM_THREADS": THREADS})

    def measure(self, _prompt, tokens):
        config = self.genai.GenerationConfig(max_new_tokens=tokens, ignore_eos=True, do_sample=False, apply_chat_template=False)
        metrics = self.pipe.generate(["The"], config).perf_metrics
        return None, 1000.0 / metrics.get_tpot().mean, None


def torch_products(rounds):
    """The FP8, INT8 and FP32 linear of 512 x 4096 x 4096 in PyTorch, GFLOP/s."""
    import torch
    torch.set_num_threads(THREADS)
    m, k, n = 512, 4096, 4096
    x, w = torch.randn(m, k), torch.randn(n, k)
    x8, w8 = x.to(torch.float8_e4m3fn), w.to(torch.float8_e4m3fn)
    xi, wi = torch.randint(-127, 128, (m, k), dtype=torch.int8), torch.randint(-127, 128, (n, k), dtype=torch.int8)
    one = torch.tensor(1.0)
    calls = {"fp32": lambda: torch.nn.functional.linear(x, w),
             "fp8_e4m3:channel/fp8_e4m3:token": lambda: torch._scaled_mm(x8, w8.t(), one, one, out_dtype=torch.bfloat16),
             "int8:channel/int8:token": lambda: torch._int_mm(xi, wi.t())}
    ours = ",".join(calls)
    rates = {name: ([], []) for name in calls}
    for _ in range(rounds):
        ops = json.loads(halftone("bench", "--ops", "--schemes", ours, "--outputs", n, "--inputs", k, "-p", m, "--json", "--progress", "none"))["ops"]
        for op in ops:
            rates[op["scheme"]][0].append(op["gflop_s"])
        for name, call in calls.items():
            try:
                start = time.perf_counter()
                call()
                rates[name][1].append(2e-9 * m * n * k / (time.perf_counter() - start))
            except RuntimeError as error:
                rates[name][1].append(float("nan"))
                print(f"PyTorch {name}: {str(error).splitlines()[0]}")
    print(f"\n{'linear 512 x 4096 x 4096, GFLOP/s':36}{'Halftone':>10}{'PyTorch':>10}{'ratio':>8}")
    for name, (mine, theirs) in rates.items():
        a, b = statistics.median(mine), statistics.median(theirs)
        print(f"{name:36}{a:10.1f}{b:10.1f}{a / b:8.2f}")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--source", help="a GGUF in BF16, F16 or F32; default: smollm2-135m, as its authors' 4-bit file has it")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--tokens", type=int, default=64)
    parser.add_argument("--prompt", type=int, default=256)
    arguments = parser.parse_args()
    source = pathlib.Path(arguments.source or halftone("get", "smollm2-135m").strip())
    with tempfile.TemporaryDirectory() as temporary:
        folder = pathlib.Path(temporary)
        models = {}
        wanted = [(f"Halftone {n}", HalftoneModel, n) for n in SCHEMES]
        wanted += [(f"llama.cpp {n}", LlamaModel, n) for n in LLAMA_TYPES] + [("OpenVINO GenAI", OpenVinoModel, "")]
        for label, kind, name in wanted:
            try:
                models[label] = kind(name, source, folder)
            except Exception as error:  # a peer that cannot take part is reported, not hidden
                print(f"{label}: SKIPPED: {str(error).splitlines()[0] if str(error) else type(error).__name__}")
        results = {label: [] for label in models}
        for _ in range(arguments.rounds):
            for label, model in models.items():
                results[label].append(model.measure(arguments.prompt, arguments.tokens))

        def median(label, column):
            values = [r[column] for r in results[label] if r[column] is not None]
            return statistics.median(values) if values else None

        base = {name: median(f"llama.cpp {name}", 1) for name in LLAMA_TYPES if f"llama.cpp {name}" in results}
        heads = "".join(f"{'x ' + name:>9}" for name in base)
        print(f"\n{source.name}, {THREADS} threads, medians of {arguments.rounds}, prompt {arguments.prompt}")
        print(f"{'':28}{'prefill/s':>10}{'decode/s':>10}{'of read':>9}{heads}")
        for label in results:
            prefill, decode, share = (median(label, i) for i in range(3))
            print(f"{label:28}{'' if prefill is None else f'{prefill:.1f}':>10}{decode:10.1f}"
                  f"{'' if share is None else f'{100 * share:.0f} %':>9}" + "".join(f"{decode / b:9.2f}" for b in base.values()))
    try:
        torch_products(arguments.rounds)
    except ImportError as error:
        print(f"PyTorch: SKIPPED: {error}")


if __name__ == "__main__":
    main()
