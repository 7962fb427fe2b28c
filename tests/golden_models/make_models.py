#!/usr/bin/env python3
"""Writes the tiny random models of this folder and what transformers says of them.

Each MODEL/ is a Hugging Face directory (config.json, model.safetensors) with expected.safetensors beside: `input_ids`
[tokens] and `logits` [tokens, vocabulary], computed in FP32 with eager attention from the weights as stored.
Needs torch, transformers and safetensors. Run: python3 make_models.py
"""
import pathlib
import shutil

import torch
from safetensors.torch import save_file
from transformers import (AutoModelForCausalLM, Gemma3ForCausalLM, Gemma3TextConfig, LlamaConfig, LlamaForCausalLM,
                          MistralConfig, MistralForCausalLM, Qwen2Config, Qwen2ForCausalLM, Qwen3Config,
                          Qwen3ForCausalLM)

HERE = pathlib.Path(__file__).parent
TOKENS = 48

# Wavelengths of the four frequencies are 6, 63, 628 and 6283, so that all three zones of llama3 scaling occur.
LLAMA3_ROPE = {"rope_type": "llama3", "rope_theta": 10000.0, "factor": 8.0, "low_freq_factor": 1.0,
               "high_freq_factor": 4.0, "original_max_position_embeddings": 128}

COMMON = {"vocab_size": 128, "bos_token_id": 1, "eos_token_id": 2, "pad_token_id": None}

MODELS = {
    "llama_tied": (LlamaForCausalLM, LlamaConfig(
        **COMMON, hidden_size=48, intermediate_size=80, num_hidden_layers=2, num_attention_heads=6,
        num_key_value_heads=2, max_position_embeddings=1024, rms_norm_eps=1e-5, tie_word_embeddings=True,
        rope_parameters=LLAMA3_ROPE), torch.float32),
    "llama_untied": (LlamaForCausalLM, LlamaConfig(
        **COMMON, hidden_size=40, intermediate_size=72, num_hidden_layers=3, num_attention_heads=4,
        num_key_value_heads=4, head_dim=16, max_position_embeddings=256, rms_norm_eps=1e-6, attention_bias=True,
        mlp_bias=True, tie_word_embeddings=False), torch.bfloat16),
    "mistral": (MistralForCausalLM, MistralConfig(
        **COMMON, hidden_size=48, intermediate_size=56, num_hidden_layers=3, num_attention_heads=4,
        num_key_value_heads=2, head_dim=16, max_position_embeddings=512, rms_norm_eps=1e-5, sliding_window=12,
        tie_word_embeddings=False), torch.float32),
    "gemma3": (Gemma3ForCausalLM, Gemma3TextConfig(
        **COMMON, hidden_size=32, intermediate_size=64, num_hidden_layers=7, num_attention_heads=4,
        num_key_value_heads=2, head_dim=16, max_position_embeddings=512, rms_norm_eps=1e-6, sliding_window=8,
        query_pre_attn_scalar=24, final_logit_softcapping=None, attn_logit_softcapping=None,
        rope_parameters={"full_attention": {"rope_type": "linear", "rope_theta": 1e6, "factor": 8.0},
                         "sliding_attention": {"rope_type": "default", "rope_theta": 1e4}}), torch.bfloat16),
    "qwen2": (Qwen2ForCausalLM, Qwen2Config(
        **COMMON, hidden_size=32, intermediate_size=64, num_hidden_layers=2, num_attention_heads=4,
        num_key_value_heads=2, max_position_embeddings=512, rms_norm_eps=1e-6, tie_word_embeddings=True,
        use_sliding_window=True, sliding_window=10, max_window_layers=1), torch.bfloat16),
    "qwen3": (Qwen3ForCausalLM, Qwen3Config(
        **COMMON, hidden_size=32, intermediate_size=64, num_hidden_layers=2, num_attention_heads=4,
        num_key_value_heads=2, head_dim=24, max_position_embeddings=512, rms_norm_eps=1e-6, tie_word_embeddings=False),
        torch.bfloat16),
}


def main():
    for seed, (name, (model_class, config, dtype)) in enumerate(MODELS.items()):
        torch.manual_seed(1000 + seed)
        model = model_class(config)
        with torch.no_grad():
            for parameter_name, parameter in model.named_parameters():
                if parameter_name.endswith("norm.weight"):  # Gemma stores w of 1 + w
                    parameter.normal_(0.0, 0.3).add_(0.0 if name == "gemma3" else 1.0)
                elif parameter.ndim == 1:
                    parameter.normal_(0.0, 0.5)
                else:  # large enough that every part of the network shows in the logits
                    parameter.normal_(0.0, 1.5 * parameter.shape[-1] ** -0.5)
        folder = HERE / name
        shutil.rmtree(folder, ignore_errors=True)
        model.to(dtype).save_pretrained(folder)
        (folder / "generation_config.json").unlink(missing_ok=True)

        model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32, attn_implementation="eager").eval()
        ids = torch.randint(3, config.vocab_size, (1, TOKENS))
        with torch.no_grad():
            logits = model(ids).logits[0]
        save_file({"input_ids": ids[0].to(torch.int32), "logits": logits.contiguous()}, folder / "expected.safetensors")
        size = sum(file.stat().st_size for file in folder.iterdir())
        print(f"{name}: {size} bytes, max |logit| {logits.abs().max():.3f}")


if __name__ == "__main__":
    main()
