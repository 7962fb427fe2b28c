"""The command line as a contract: exit codes, messages that say what would be right, JSON keys, no file touched."""
import json
import pathlib

import support
from support import run, run_json


TEXT = pathlib.Path(__file__)  # any text


class CommandLine(support.Case):
    def test_help_of_every_command(self):
        code, out, _ = run("--help")
        self.assertEqual(code, 0)
        for command in ("get", "inspect", "plan", "quantize", "convert", "eval", "run", "chat", "tokenize", "bench",
                        "formats", "memory", "doctor"):
            self.assertIn(command, out)
            self.assertEqual(run(command, "--help")[0], 0)

    def test_wrong_words_get_a_suggestion(self):
        self.expect_failure(2, "quantise", "x", contains=["did you mean 'halftone quantize'"])
        self.expect_failure(2, "quantize", "x", "--to", "fp8", "--outptu", "y", contains=["did you mean --output"])
        self.expect_failure(2, "get", "smollm", contains=["smollm2-135m"])
        self.expect_failure(2, contains=["halftone --help"])
        self.expect_failure(2, "formats", "fp8_e4m4", contains=["fp8_e4m3"])

    def test_wrong_scheme_names_the_part_and_the_right_ones(self):
        model = support.write_model(self.folder / "m")
        self.expect_failure(2, "plan", model, "--to", "int4:g64:asymm", contains=["asymm", "asym"])
        self.expect_failure(2, "plan", model, "--to", "int9:g64", contains=["int9"])
        self.expect_failure(2, "plan", model, "--to", "int4:g0", contains=["g0"])
        self.expect_failure(2, "plan", model, contains=["--to"])

    def test_missing_files_are_named(self):
        self.expect_failure(3, "inspect", self.folder / "none.gguf", contains=["none.gguf"])
        self.expect_failure(3, "eval", self.folder / "none", contains=["none"])
        model = support.write_model(self.folder / "m")
        self.expect_failure(3, "inspect", model / "config.json", contains=["config.json"])

    def test_wrong_isa_is_refused(self):
        self.expect_failure(2, "doctor", env={"HALFTONE_ISA": "sse9"}, contains=["sse9", "avx2"])
        self.assertEqual(run_json("doctor", env={"HALFTONE_ISA": "scalar"})["isa"], "scalar")

    def test_memory_of_175_billion_parameters(self):
        result = run_json("memory", "--params", "175B")
        gigabytes = {name: row["bytes"] / 1e9 for name, row in result["weights"].items()}
        self.assertEqual(gigabytes["fp32"], 700)
        self.assertEqual(gigabytes["fp16"], 350)
        self.assertAlmostEqual(gigabytes["fp8 (channel)"], 175, delta=0.2)
        self.expect_failure(2, "memory", "--params", "many", contains=["many"])
        self.expect_failure(2, "memory")

    def test_memory_of_a_checkpoint_adds_kv_cache_and_activations(self):
        model = support.write_model(self.folder / "m")
        one = run_json("memory", model, "--ctx", "128", "--kv", "bf16")
        self.assertEqual(one["kv_cache_bytes"], 2 * 128 * 2 * 2 * 16 * 2)  # K and V, tokens, layers, heads, dim, bytes
        two = run_json("memory", model, "--ctx", "128", "--kv", "bf16", "--batch", "2")
        self.assertEqual(two["kv_cache_bytes"], 2 * one["kv_cache_bytes"])
        self.assertGreater(one["activation_bytes"], 0)

    def test_formats(self):
        table = run_json("formats", "fp8_e4m3", "--table")
        self.assertEqual(table["max"], 448)
        self.assertEqual(table["table"][0x7E], 448)
        self.assertEqual(table["table"][1], 2.0 ** -9)
        names = [row["name"] for row in run_json("formats")["formats"]]
        for name in ("fp32", "bf16", "fp16", "fp8_e4m3", "fp8_e5m2", "fp6_e3m2", "fp6_e2m3", "fp4_e2m1", "int8", "int2", "nf4", "e8m0"):
            self.assertIn(name, names)
        self.assertEqual(run_json("formats", "e5m4")["bits"], 10)

    def test_plan_is_made_from_headers_and_writes_nothing(self):
        model = support.write_model(self.folder / "m")
        before = support.folder_bytes(self.folder)
        plan = run_json("plan", model, "--to", "fp8")
        self.assertEqual(support.folder_bytes(self.folder), before)
        for key in ("tensors", "output_bytes", "peak_memory_bytes", "substitutions", "dropped"):
            self.assertIn(key, plan)
        for tensor in plan["tensors"]:
            for key in ("name", "role", "scheme", "rule", "bytes"):
                self.assertIn(key, tensor)
        dry = run_json("quantize", model, "--to", "fp8", "--dry-run")
        self.assertEqual(dry["tensors"], plan["tensors"])

    def test_plan_says_the_output_size_to_the_byte(self):
        model = support.write_model(self.folder / "m")
        for scheme in ("fp8", "w8a8", "int4:g32", "int4:g48:asym", "mxfp4", "nvfp4", "int3:g64", "fp6_e2m3:channel", "nf4:g64"):
            plan = run_json("plan", model, "--to", scheme)
            out = self.folder / ("o-" + scheme.replace(":", "-"))
            run_json("quantize", model, "-o", out, "--to", scheme, "--no-quality")
            written = sum(p.stat().st_size for p in out.iterdir() if "safetensors" in p.name)
            self.assertEqual(plan["output_bytes"], written, scheme)

    def test_quantize_then_eval_inspect_run(self):
        model = support.write_model(self.folder / "m", support.tiny_llama_config())
        code, out, err = run("inspect", model)
        self.assertEqual(code, 0, err)
        self.assertIn("llama", out)
        report = run_json("inspect", model)
        self.assertAlmostEqual(report["bits_per_weight"], 16, delta=0.01)

    def test_unknown_architecture_is_quantized_but_not_run(self):
        config = support.tiny_llama_config(architectures=["FooForCausalLM"], model_type="foo")
        model = support.write_model(self.folder / "m", config)
        run_json("quantize", model, "-o", self.folder / "o", "--to", "int8:channel")
        self.assertTrue((self.folder / "o/report.json").exists())
        self.expect_failure(4, "run", model, "-p", "x", contains=["foo"])

    def test_output_is_never_the_input(self):
        model = support.write_model(self.folder / "m")
        before = support.folder_bytes(model)
        (self.folder / "link").symlink_to(model)
        for output in (model, self.folder / "link", model / "sub"):
            self.expect_failure(2, "quantize", model, "-o", output, "--to", "fp8", "--no-quality")
        self.assertEqual(support.folder_bytes(model), before)

    def test_existing_output_is_kept_without_force(self):
        model = support.write_model(self.folder / "m")
        out = self.folder / "o"
        out.mkdir()
        (out / "mine.txt").write_text("precious")
        self.expect_failure(2, "quantize", model, "-o", out, "--to", "fp8", "--no-quality", contains=["o"])
        self.assertEqual((out / "mine.txt").read_text(), "precious")

    def test_strict_turns_a_substitution_into_an_error(self):
        model = support.write_model(self.folder / "m")
        plan = run_json("plan", model, "--to", "q4_k")  # rows of 64 and 128 do not divide by 256
        self.assertTrue(plan["substitutions"])
        self.expect_failure(4, "quantize", model, "-o", self.folder / "o", "--to", "q4_k", "--strict", contains=["256"])
        self.assertFalse((self.folder / "o").exists())

    def test_senseless_values_of_gates_methods_and_searches(self):
        model = support.write_model(self.folder / "m", support.tiny_llama_config())
        out = self.folder / "o"
        for loss in ("", "%", "much", "-1%", "nan"):
            self.expect_failure(2, "eval", model, "--reference", model, f"--max-loss={loss}", contains=["--max-loss"])
            self.expect_failure(2, "quantize", model, "-o", out, "--to", "fp8", f"--max-loss={loss}", contains=["--max-loss"])
            self.expect_failure(2, "plan", model, f"--max-loss={loss}", contains=["--max-loss"])
        quantize = ("quantize", model, "-o", out, "--to", "int4:g32")
        self.expect_failure(2, *quantize, "--method", "gptqq", contains=["gptq", "pss"])
        self.expect_failure(2, *quantize, "--method", "gptq,gptaq", contains=["gptaq"])
        self.expect_failure(2, *quantize, "--method", "pss", contains=["rounds"])
        self.expect_failure(2, *quantize, "--calibration", TEXT, contains=["--calibration"])
        self.expect_failure(3, *quantize, "--method", "gptq", "--calibration", self.folder / "absent.txt", contains=["absent.txt"])
        self.expect_failure(2, "plan", model, "--target-bits", "4", "--to", "fp8", contains=["--target-bits"])
        self.expect_failure(2, "plan", model, "--target-bits", "4", "--max-bytes", "1M", contains=["one of"])
        self.expect_failure(2, "plan", model, "--to", "fp8", "--sensitivity", "x", contains=["search"])
        self.assertFalse(out.exists())

    def test_json_goes_to_standard_output_alone(self):
        model = support.write_model(self.folder / "m")
        code, out, _ = run("quantize", model, "-o", self.folder / "o", "--to", "w8a8", "--no-quality", "--json")
        self.assertEqual(code, 0)
        json.loads(out)


support.main()
