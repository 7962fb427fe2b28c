"""--max-memory is a contract: a synthetic 4 GB checkpoint with one 1 GB table, peak resident memory under the limit, and
the same bytes as without a limit. Disk full and read-only targets end in one sentence, without a partial output."""
import hashlib
import json
import os
import pathlib
import random
import shutil
import struct
import subprocess

import support


def write_sparse_model(folder, table_rows, matrices):
    """Mostly zeros (a sparse file), with a random megabyte in each tensor."""
    folder.mkdir()
    config = support.tiny_llama_config(architectures=["FooForCausalLM"], model_type="foo")
    (folder / "config.json").write_text(json.dumps(config))
    shapes = {"model.embed_tokens.weight": (table_rows, 2048)}
    for i in range(matrices):
        shapes[f"model.layers.{i}.mlp.up_proj.weight"] = (8192, 4096)
    header, offset = {}, 0
    for name, (rows, cols) in shapes.items():
        header[name] = {"dtype": "BF16", "shape": [rows, cols], "data_offsets": [offset, offset + 2 * rows * cols]}
        offset += 2 * rows * cols
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    rng = random.Random(5)
    block = support.bf16([rng.gauss(0, 0.02) for _ in range(1 << 18)])
    with open(folder / "model.safetensors", "wb") as file:
        file.write(struct.pack("<Q", len(text)) + text)
        start = file.tell()
        for name in shapes:
            file.seek(start + header[name]["data_offsets"][0] + (1 << 20))
            file.write(block)
        file.truncate(start + offset)
    return offset


def peak_of(arguments):
    """(exit code, peak resident bytes as the kernel counted them, stderr)"""
    process = subprocess.Popen([support.HALFTONE, *map(str, arguments)], stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)
    err = process.stderr.read().decode()
    _, status, usage = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    return process.returncode, usage.ru_maxrss * 1024, err


def hashes(folder):
    result = {}
    for path in sorted(folder.iterdir()):
        if path.name == "report.html":
            continue  # shows the command as it was typed, with the folder's own name in it
        digest = hashlib.sha256()
        with open(path, "rb") as file:
            while chunk := file.read(1 << 22):
                digest.update(chunk)
        result[path.name] = digest.hexdigest()
    return result


class MemoryLimit(support.Case):
    def test_four_gigabytes_under_a_quarter(self):
        if shutil.disk_usage(self.folder).free < 9 << 30:
            self.skipTest("SKIPPED: less than 9 GB of free disk")
        model = self.folder / "m"
        total = write_sparse_model(model, 262144, 48)
        self.assertGreater(total, 4_000_000_000)
        recipe = self.folder / "recipe.json"
        recipe.write_text('{"default": "int4:g64", "rules": [{"match": "embedding", "weights": "int4:g64"}]}')
        limit = 256 << 20
        arguments = ["quantize", model, "-o", self.folder / "o", "--recipe", recipe, "--max-memory", "256M", "--progress", "none"]
        code, peak, err = peak_of(arguments)
        self.assertEqual(code, 0, err)
        print(f"peak {peak / 2**20:.0f} MiB of 256 MiB allowed, {total / 1e9:.2f} GB input")
        self.assertLess(peak, limit)

    def test_bytes_do_not_depend_on_the_limit(self):
        model = self.folder / "m"
        write_sparse_model(model, 16384, 3)
        for out, more in (("tight", ["--max-memory", "160M"]), ("free", [])):
            code, peak, err = peak_of(["quantize", model, "-o", self.folder / out, "--to", "fp8_e4m3:128x128", *more])
            self.assertEqual(code, 0, err)
            if more:
                self.assertLess(peak, 160 << 20)
        self.assertEqual(hashes(self.folder / "tight"), hashes(self.folder / "free"))

    def test_impossible_limit_is_refused_with_both_numbers(self):
        model = support.write_model(self.folder / "m")
        err = self.expect_failure(5, "quantize", model, "-o", self.folder / "o", "--to", "fp8", "--max-memory", "1M")
        self.assertFalse((self.folder / "o").exists(), err)


class Disk(support.Case):
    def test_full_disk(self):
        mount = self.folder / "small"
        mount.mkdir()
        if subprocess.run(["mount", "-t", "tmpfs", "-o", "size=2m", "tmpfs", str(mount)], capture_output=True).returncode != 0:
            self.skipTest("SKIPPED: cannot mount a small tmpfs (not root)")
        try:
            config = support.tiny_llama_config(hidden_size=512, intermediate_size=2048, num_attention_heads=8)
            tensors = {f"model.layers.{i}.mlp.up_proj.weight": ("BF16", (2048, 512), support.bf16([0.5] * (2048 * 512))) for i in range(4)}
            model = support.write_model(self.folder / "m", config, tensors)
            before = support.folder_bytes(model)
            err = self.expect_failure(5, "quantize", model, "-o", mount / "o", "--to", "int8:channel", "--no-quality")
            self.assertRegex(err, r"\d")
            self.assertFalse((mount / "o").exists())
            self.assertEqual(support.folder_bytes(model), before)
        finally:
            subprocess.run(["umount", str(mount)], check=True)

    def test_read_only_target(self):
        mount = self.folder / "readonly"
        mount.mkdir()
        if subprocess.run(["mount", "-t", "tmpfs", "-o", "ro", "tmpfs", str(mount)], capture_output=True).returncode != 0:
            self.skipTest("SKIPPED: cannot mount a read-only tmpfs (not root)")
        try:
            model = support.write_model(self.folder / "m")
            self.expect_failure(5, "quantize", model, "-o", mount / "o", "--to", "fp8", "--no-quality", contains=["readonly"])
        finally:
            subprocess.run(["umount", str(mount)], check=True)


support.main()
