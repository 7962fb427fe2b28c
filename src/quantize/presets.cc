// The recipes of recipes/, so that the binary finds them without the source tree. recipe_test.cc compares them with the
// files: after a change there, change here.
#include "quantize/recipe.h"

namespace halftone {

std::vector<Preset> recipe_presets() {
  return {
      {"deepseek", R"json(// DeepSeek-V3's policy (its report, section 3.3): every linear layer in FP8 by 128x128 blocks, activations in groups of
// 128; the embedding, the head, the norms, the routers and the attention itself in high precision.
{
  "description": "FP8 blocks for all linear layers; embedding, head, norms, router and attention high",
  "default": {"weights": "fp8_e4m3:128x128", "activations": "fp8_e4m3:g128"},
  "rules": [
    {"match": "embedding", "keep": true},
    {"match": "head", "keep": true},
    {"match": "norm", "keep": true},
    {"match": "router", "keep": true}
  ],
  "kv_cache": "bf16"
}
)json"},
      {"fp8", R"json(// FP8 (E4M3) weights with a scale an output channel, FP8 activations with a scale a token. Loads in vLLM and transformers.
{
  "description": "FP8 weights per channel, FP8 activations per token",
  "default": {"weights": "fp8_e4m3:channel", "activations": "fp8_e4m3:token"}
}
)json"},
      {"fp8_block", R"json(// FP8 as DeepSeek-V3 uses it: weights in 128x128 tiles, activations in groups of 128 along the row.
{
  "description": "FP8 weights in 128x128 blocks, FP8 activations in groups of 128",
  "default": {"weights": "fp8_e4m3:128x128", "activations": "fp8_e4m3:g128"}
}
)json"},
      {"gptq_int4", R"json(// INT4 weights in groups of 128, codes chosen by GPTQ for the inputs that each layer gets. Give --calibration FILE; without
// one, the model is calibrated on text that it writes itself. Loads in vLLM and transformers.
{
  "description": "INT4 weights in groups of 128 by GPTQ",
  "default": {"weights": "int4:g128"},
  "methods": ["gptq"]
}
)json"},
      {"int4", R"json(// INT4 weights in groups of 64 with zero points; the embedding table and the head in 8 bits.
{
  "description": "INT4 weights in groups of 64 with zero points, 8-bit embedding and head",
  "default": {"weights": "int4:g64:asym"},
  "rules": [
    {"match": "head", "weights": "int8:channel"},
    {"match": "embedding", "weights": "int8:channel"}
  ]
}
)json"},
      {"int8_w8a8", R"json(// INT8 weights with a scale an output channel, INT8 activations with a scale a token: w8a8 by its long name.
{
  "description": "INT8 weights per channel, INT8 activations per token",
  "default": {"weights": "int8:channel", "activations": "int8:token"}
}
)json"},
      {"layer_sensitive", R"json(// By how much a layer forgives: queries and keys, which make the attention scores, stay BF16; the values, the attention's
// way out and the FFN take FP8; norms are FP32.
{
  "description": "BF16 queries and keys, FP8 values and FFN, FP32 norms",
  "default": {"weights": "fp8_e4m3:channel", "activations": "fp8_e4m3:token"},
  "rules": [
    {"match": "attention.q", "weights": "bf16", "activations": null},
    {"match": "attention.k", "weights": "bf16", "activations": null},
    {"match": "attention.qkv", "weights": "bf16", "activations": null},
    {"match": "norm", "weights": "fp32"}
  ]
}
)json"},
      {"mxfp4", R"json(// OCP MXFP4: FP4 (E2M1) weights in blocks of 32 with power-of-two scales.
{
  "description": "MXFP4 weights",
  "default": {"weights": "mxfp4"}
}
)json"},
      {"mxfp8", R"json(// OCP MXFP8: FP8 (E4M3) weights in blocks of 32 with power-of-two scales.
{
  "description": "MXFP8 weights",
  "default": {"weights": "fp8_e4m3:g32:e8m0"}
}
)json"},
      {"nvfp4", R"json(// NVFP4: FP4 (E2M1) weights in blocks of 16 with FP8 scales and one FP32 scale a matrix.
{
  "description": "NVFP4 weights",
  "default": {"weights": "nvfp4"}
}
)json"},
      {"q4_k_m", R"json(// GGUF's Q4_K_M mixture: Q4_K, with Q6_K for the values, the FFN's way down and the head.
{
  "description": "Q4_K weights, Q6_K for attention.v, ffn.down and the head",
  "default": {"weights": "q4_k"},
  "rules": [
    {"match": "head", "weights": "q6_k"},
    {"match": "embedding", "weights": "q4_k"},
    {"match": "attention.v", "weights": "q6_k"},
    {"match": "ffn.down", "weights": "q6_k"},
    {"match": "expert.down", "weights": "q6_k"}
  ]
}
)json"},
      {"w4a16", R"json(// INT4 weights in groups of 128, symmetric: what most servers read.
{
  "description": "INT4 weights in groups of 128",
  "default": {"weights": "int4:g128"}
}
)json"},
      {"w8a16", R"json(// INT8 weights, activations in full precision.
{
  "description": "INT8 weights per channel",
  "default": {"weights": "int8:channel"}
}
)json"},
      {"w8a8", R"json(// INT8 weights with a scale an output channel, INT8 activations with a scale a token.
{
  "description": "INT8 weights per channel, INT8 activations per token",
  "default": {"weights": "int8:channel", "activations": "int8:token"}
}
)json"},
  };
}

}  // namespace halftone
