"""Kill -9 at random moments of quantize, run again: byte-identical output. Nothing under the final name before it is
complete; a changed job refuses the old journal."""
import pathlib
import random
import signal
import subprocess
import time

import support

ARGUMENTS = ["--to", "int4:g64:asym", "--no-quality", "--progress", "none"]


def synthetic_tensors(seed):
    """About 100 MB: many matrices, one larger table."""
    rng = random.Random(seed)
    block = support.bf16([rng.gauss(0, 0.02) for _ in range(1 << 16)])  # 128 KiB, repeated with shifts

    def matrix(rows, cols):
        size, start = rows * cols * 2, 2 * rng.randrange(1 << 15)
        return ("BF16", (rows, cols), (block[start:] + block * (size // len(block) + 1))[:size])

    tensors = {"model.embed_tokens.weight": matrix(8192, 1024)}
    for layer in range(10):
        for part, rows, cols in (("self_attn.q_proj", 1024, 1024), ("self_attn.o_proj", 1024, 1024),
                                 ("mlp.up_proj", 1536, 1024), ("mlp.down_proj", 1024, 1536)):
            tensors[f"model.layers.{layer}.{part}.weight"] = matrix(rows, cols)
    return tensors


def output_bytes(folder):
    """All but report.html, which shows the command as it was typed, with the folder's own name in it."""
    return support.folder_bytes(folder, without=("report.html",))


class KillAndResume(support.Case):
    def setUp(self):
        super().setUp()
        config = support.tiny_llama_config(architectures=["FooForCausalLM"], model_type="foo")
        self.model = support.write_model(self.folder / "m", config, synthetic_tensors(1))

    def quantize(self, out, *more):
        return support.run("quantize", self.model, "-o", out, *ARGUMENTS, *more)

    def start(self, out):
        return subprocess.Popen([support.HALFTONE, "quantize", str(self.model), "-o", str(out), *ARGUMENTS],
                                stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)

    def test_ten_kills(self):
        start = time.time()
        straight = self.folder / "straight"
        self.assertEqual(self.quantize(straight)[0], 0)
        seconds = time.time() - start
        wanted = output_bytes(straight)
        self.assertIn("report.json", wanted)
        seed = random.randrange(1 << 30)
        print(f"seed {seed}, a straight run takes {seconds:.2f} s")
        rng = random.Random(seed)
        killed = 0
        for attempt in range(10):
            out = self.folder / f"o{attempt}"
            process = self.start(out)
            time.sleep(rng.uniform(0.02, 0.95) * seconds)
            process.send_signal(signal.SIGKILL)
            if process.wait() == -signal.SIGKILL:
                killed += 1
                self.assertFalse(out.exists(), "something under the final name after a kill")
            code, _, err = self.quantize(out)
            self.assertEqual(code, 0, err)
            self.assertEqual(output_bytes(out), wanted)
            self.assertTrue((out / "report.html").exists())
            self.assertFalse(list(self.folder.glob(f"o{attempt}.partial*")), "left-overs")
        self.assertGreater(killed, 4, "too few runs were killed in time: the test proves nothing")

    def test_one_run_killed_again_and_again(self):
        straight, out = self.folder / "straight", self.folder / "o"
        self.assertEqual(self.quantize(straight)[0], 0)
        for attempt in range(6):
            process = self.start(out)
            time.sleep(0.15 + 0.1 * attempt)
            process.send_signal(signal.SIGKILL)
            process.wait()
        self.assertEqual(self.quantize(out)[0], 0)
        self.assertEqual(output_bytes(out), output_bytes(straight))

    def test_interrupt_is_resumable(self):
        out = self.folder / "o"
        process = self.start(out)
        time.sleep(0.3)
        process.send_signal(signal.SIGINT)
        code = process.wait()
        if code != 0:  # it may have been quicker
            self.assertEqual(code, 130)
            self.assertFalse(out.exists())
        self.assertEqual(self.quantize(out)[0], 0)

    def test_changed_job_refuses_the_old_journal(self):
        out = self.folder / "o"
        process = self.start(out)
        time.sleep(0.3)
        process.send_signal(signal.SIGKILL)
        process.wait()
        if out.exists():
            self.skipTest("SKIPPED: the run ended before the kill")
        code, _, err = support.run("quantize", self.model, "-o", out, "--to", "int8:channel", "--no-quality")
        self.assertEqual(code, 2, err)
        self.assertIn("--force", err)
        code, _, err = support.run("quantize", self.model, "-o", out, "--to", "int8:channel", "--no-quality", "--force")
        self.assertEqual(code, 0, err)


support.main()
