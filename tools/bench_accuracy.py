#!/usr/bin/env python3
"""What bits buy: Halftone's schemes, methods and searches beside llama.cpp's quantizer on one model, all evaluated by
Halftone against the original in one run; `make bench-accuracy` calls it.

usage: bench_accuracy.py [--model FILE] [--test FILE] [--calibration FILE] [--windows N] [--only WORD] [--json FILE]

Protocol: windows of 512 tokens of the test text, bits per weight of the whole file, the embedding and the head included;
calibration never sees the test text. Without a peer (llama-cpp-python in build/reference or build/peers) its rows say so."""
import argparse
import json
import os
import pathlib
import subprocess
import sys
import tempfile
import time

ROOT = pathlib.Path(__file__).resolve().parent.parent
HALFTONE = os.environ.get("HALFTONE", str(ROOT / "build/release/halftone"))
SHARED = pathlib.Path(os.environ.get("HALFTONE_SHARED", str(ROOT.parent / "shared")))


def recipe(weights, activations=None, head=None, methods=("gptq",)):
    rules = [{"match": "head", "weights": head, "activations": None}] if head else []
    return {"default": {"weights": weights, "activations": activations}, "rules": rules, "methods": list(methods)}


# name, at most so many bits a weight (None: not counted), bar and goal (perplexity ratio, mean KL), recipe or budget
ROWS = [
    ("FP8 (E4M3) W8A8", 8.1, (1.010, 0.014), (1.004, 0.008),
     recipe("fp8_e4m3:channel", "fp8_e4m3:token", "fp8_e4m3:channel", ("pss", "gptq"))),
    ("FP8 (E3M4) W8A8", 8.1, (1.010, 0.014), (1.004, 0.008),
     recipe("fp8_e3m4:channel", "fp8_e3m4:token", "fp8_e3m4:channel", ("gptq",))),
    ("INT8 W8A8", 8.1, (1.008, 0.008), (1.004, 0.004),
     recipe("int8:channel", "int8:token", "int8:channel", ("pss", "gptq"))),
    ("search, 6.27 bits", 6.27, (1.010, 0.012), (1.005, 0.006), 6.27),
    ("search, 5.25 bits", 5.25, (1.040, 0.045), (1.020, 0.022), 5.25),
    ("search, 4.50 bits", 4.50, (1.160, 0.150), (1.080, 0.070), 4.50),
    ("int4:g128, 8-bit head", None, (1.150, 0.150), (1.060, 0.070), recipe("int4:g128", None, "int8:channel")),
    ("NVFP4 W4A4, linears", None, (1.150, 0.130), (1.080, 0.080), recipe("nvfp4", "nvfp4")),
    ("search, 3.50 bits", 3.50, (1.500, 0.400), (1.200, 0.200), 3.50),
    ("int4:g64:asym, plain", None, None, None, recipe("int4:g64:asym", methods=("rtn",))),
    ("int4:g64:asym, gptq", None, None, None, recipe("int4:g64:asym")),
    ("int4:g64 throughout, gptq", None, None, None, recipe("int4:g64:asym", None, "int4:g64:asym")),
]
LLAMA_TYPES = ["Q8_0", "Q6_K", "Q5_K_M", "Q4_K_M", "Q3_K_M", "Q4_0", "Q2_K"]


def halftone(*arguments, accept=()):
    result = subprocess.run([HALFTONE, *map(str, arguments), "--progress", "none"], capture_output=True, text=True)
    if result.returncode != 0 and result.returncode not in accept:
        raise RuntimeError(f"halftone {arguments[0]}: {result.stderr.strip()}")
    return result.stdout


def reference_model():
    """The model that all figures are taken on: SmolLM2-135M off its 4-bit grid (../shared/data/README.md)."""
    path = ROOT / "build/models/reference.gguf"
    if not path.exists():
        path.parent.mkdir(parents=True, exist_ok=True)
        source = halftone("get", "smollm2-135m").strip()
        python = ROOT / "build/reference/bin/python3"
        subprocess.run([str(python) if python.exists() else sys.executable, SHARED / "data/make_reference.py", source,
                        SHARED / "data/smollm2-offgrid.safetensors", path], check=True)
    return path


def quantize_with_llama(python, source, target, kind):
    code = ("import ctypes, sys, llama_cpp as l; p = l.llama_model_quantize_default_params(); p.nthread = 2; "
            f"p.ftype = getattr(l, 'LLAMA_FTYPE_MOSTLY_{kind}'); "
            "sys.exit(l.llama_model_quantize(sys.argv[1].encode(), sys.argv[2].encode(), ctypes.byref(p)))")
    done = subprocess.run([python, "-c", code, source, target], capture_output=True, text=True)
    if done.returncode != 0:
        raise RuntimeError(f"llama.cpp did not make {kind}: {done.stderr.strip().splitlines()[-1:]}")


def verdict(result, bits, bar, goal):
    def holds(limit):
        return result["perplexity_ratio"] <= limit[0] and result["kl_mean"] <= limit[1]
    if bits is not None and result["bits_per_weight"] > bits + 0.005:
        return f"larger than {bits}"
    if bar is None:
        return ""
    return "goal" if holds(goal) else "bar" if holds(bar) else "not yet"


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--model")
    parser.add_argument("--test", default=SHARED / "data/wiki.test.raw")
    parser.add_argument("--calibration", default=SHARED / "data/wiki.valid.txt")
    parser.add_argument("--windows", type=int, default=32)
    parser.add_argument("--samples", type=int, default=48)
    parser.add_argument("--only", default="", help="rows whose name holds this")
    parser.add_argument("--json")
    options = parser.parse_args()
    model = options.model or reference_model()
    results = []
    print(f"{'':28}{'bits':>7}{'ratio':>9}{'KL':>9}{'top-1':>8}{'time':>8}   bar (ratio / KL)   verdict", flush=True)

    def show(name, path, bits, bar, goal, seconds):
        result = json.loads(halftone("eval", path, "--reference", model, "--text", options.test, "-c", 512, "--chunks",
                                     options.windows, "--json"))
        row = {"name": name, "seconds": seconds, **{k: result[k] for k in
               ("bits_per_weight", "perplexity_ratio", "kl_mean", "top1_agreement", "tokens")}}
        row["verdict"] = verdict(row, bits, bar, goal)
        results.append(row)
        limit = f"{bar[0]:.3f} / {bar[1]:.3f}" if bar else ""
        print(f"{name:28}{row['bits_per_weight']:7.3f}{row['perplexity_ratio']:9.4f}{row['kl_mean']:9.4f}"
              f"{100 * row['top1_agreement']:7.1f}%{seconds:7.0f}s   {limit:17}  {row['verdict']}", flush=True)

    with tempfile.TemporaryDirectory(dir=ROOT / "build") as scratch:
        folder = pathlib.Path(scratch)
        for name, bits, bar, goal, how in ROWS:
            if options.only not in name:
                continue
            out, file, start = folder / "model", folder / "recipe.json", time.time()
            calibration = ["--calibration", options.calibration, "--calibration-samples", options.samples]
            try:
                if isinstance(how, dict):
                    file.write_text(json.dumps(how))
                else:
                    halftone("plan", model, "--target-bits", how, *calibration, "-o", file, "--sensitivity",
                             folder / "sensitivity.json")
                halftone("quantize", model, "-o", out, "--recipe", file, "--force", "--no-quality",
                         *([] if isinstance(how, dict) and how["methods"] == ["rtn"] else calibration))
            except RuntimeError as error:
                print(f"{name:28}{error}", flush=True)
                continue
            show(name, out, bits, bar, goal, time.time() - start)
        pythons = [ROOT / f"build/{name}/bin/python3" for name in ("reference", "peers")]
        python = next((p for p in pythons if p.exists()), None)
        for kind in LLAMA_TYPES:
            name, file, start = f"llama.cpp {kind}", folder / f"{kind}.gguf", time.time()
            if options.only not in name:
                continue
            try:
                if python is None:
                    raise RuntimeError("llama-cpp-python is not installed (make reference)")
                quantize_with_llama(python, str(model), str(file), kind)
                show(name, file, None, None, None, time.time() - start)
            except RuntimeError as error:
                print(f"{name:28}{error}", flush=True)
    if options.json:
        pathlib.Path(options.json).write_text(json.dumps(results, indent=1))


if __name__ == "__main__":
    main()
