#!/usr/bin/env python3
"""The main job on a real model: fetch SmolLM2-135M-Instruct, quantize it three ways, compare each with the original
on a text that the original wrote itself, and answer a prompt with the FP8 model. Everything printed is measured here."""
import json
import os
import pathlib
import subprocess
import sys
import time

ROOT = pathlib.Path(__file__).resolve().parent.parent
HALFTONE = os.environ.get("HALFTONE", str(ROOT / "build/release/halftone"))
OUT = ROOT / "build/demo"
SCHEMES = [("fp8", "fp8"), ("w8a8", "w8a8"), ("int4:g64:asym, 8-bit head", "int4")]
PROMPT = "What is the capital of France, and what is it known for?"


def halftone(*arguments):
    done = subprocess.run([HALFTONE, *map(str, arguments)], stdout=subprocess.PIPE, text=True)
    if done.returncode != 0:
        sys.exit(done.returncode)
    return done.stdout


def halftone_json(*arguments):
    return json.loads(halftone(*arguments, "--json"))


def main():
    start = time.time()
    model = halftone("get", "smollm2-135m").strip()
    OUT.mkdir(parents=True, exist_ok=True)
    before = halftone_json("inspect", model)
    speed = halftone_json("bench", model)
    rows = [("scheme", "bits/weight", "MB", "perplexity ratio", "mean KL", "top-1", "decode tokens/s"),
            ("original (Q4_1 file)", f"{before['bits_per_weight']:.2f}", f"{before['weight_bytes'] / 1e6:.1f}", "1", "0",
             "100 %", f"{speed['decode_tokens_per_s']:.1f}")]
    for label, scheme in SCHEMES:
        folder = OUT / scheme
        print(f"\n== halftone quantize {pathlib.Path(model).name} -o {folder.relative_to(ROOT)} --to {scheme}", flush=True)
        report = halftone_json("quantize", model, "-o", folder, "--to", scheme, "--force")
        after, speed = halftone_json("inspect", folder), halftone_json("bench", folder)
        quality = report["quality"]
        rows.append((label, f"{after['bits_per_weight']:.2f}", f"{after['weight_bytes'] / 1e6:.1f}",
                     f"{quality['perplexity_ratio']:.4f}", f"{quality['kl_mean']:.5f}",
                     f"{100 * quality['top1_agreement']:.1f} %", f"{speed['decode_tokens_per_s']:.1f}"))
        print(f"   {quality['tokens']} tokens compared, text: {quality['text']}", flush=True)
    widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))]
    print()
    for row in rows:
        print("  ".join(cell.ljust(width) if i == 0 else cell.rjust(width) for i, (cell, width) in enumerate(zip(row, widths))))
    print(f"\n== halftone run build/demo/fp8 --chat -p \"{PROMPT}\"", flush=True)
    print(halftone("run", OUT / "fp8", "--chat", "-p", PROMPT, "-n", 80), end="")
    print(f"\n{time.time() - start:.0f} seconds after the build")


main()
