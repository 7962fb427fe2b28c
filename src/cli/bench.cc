#include <algorithm>

#include "base/bandwidth.h"
#include "base/cpu.h"
#include "base/error.h"
#include "cli/bench_ops.h"
#include "cli/common.h"
#include "cli/timing.h"

namespace halftone::cli {
void add_bench(CLI::App& app, Common& common) {
  struct Options {
    std::string model, kv = "bf16",
                       schemes =
                           "fp32,bf16,fp16,fp8_e4m3:channel,fp8_e5m2:channel,int8:channel,int8:g32:fp16,int4:g32:fp16,"
                           "int4:g64,int4:g64:asym,nf4:g64,mxfp8,mxfp6,mxfp4,nvfp4,q8_0,q4_0,q6_k,int8:channel/"
                           "int8:token,int4:g64/int8:token";
    bool ops = false;
    std::int64_t outputs = 8192, inputs = 2048;
    std::int64_t prompt = 256, generate = 64, repeats = 3;
  };
  auto options = std::make_shared<Options>();
  CLI::App* command =
      app.add_subcommand("bench", "Prefill and decode rate, bandwidth reached against bandwidth measured");
  command->add_option("MODEL,-m,--model", options->model, "A checkpoint");
  command->add_option("-p,--n-prompt", options->prompt, "Tokens of the prompt")->capture_default_str();
  command->add_option("-n,--n-gen", options->generate, "Tokens to decode")->capture_default_str();
  command->add_option("-r,--repetitions", options->repeats, "Runs; the median counts")
      ->capture_default_str()
      ->check(CLI::Range(1, 100));
  command->add_option("--kv", options->kv, "Format of the KV cache")->capture_default_str();
  command->add_flag("--ops", options->ops,
                    "Instead of a model: products of every scheme against memory bandwidth and FP32 peak");
  command->add_option("--schemes", options->schemes, "With --ops: schemes, weights[/activations], comma-separated");
  command->add_option("--outputs", options->outputs, "With --ops: rows of the weight matrix")
      ->capture_default_str()
      ->check(CLI::Range(1, 1 << 20));
  command->add_option("--inputs", options->inputs, "With --ops: columns of the weight matrix")
      ->capture_default_str()
      ->check(CLI::Range(1, 1 << 20));
  add_common(*command, common);
  command->callback([options, &common] {
    apply(common);
    if (options->ops)
      return bench_ops({options->schemes, options->outputs, options->inputs, options->prompt, options->repeats},
                       common);
    if (options->model.empty()) fail(ErrorKind::usage, "bench needs a MODEL, or --ops to measure single products");
    if (options->prompt < 1 || options->generate < 1) fail(ErrorKind::usage, "--n-prompt and --n-gen must be positive");
    const auto progress = make_progress(common);
    const Checkpoint checkpoint = open_checkpoint(options->model);
    const ModelConfig& config = runnable_config(checkpoint);
    ThreadPool& pool = default_pool();
    const Model model(config, *checkpoint.weights, pool, *progress);
    KvCache cache(config, kv_format_or_fail(options->kv), options->prompt + options->generate);
    std::vector<std::int32_t> prompt(static_cast<std::size_t>(options->prompt));
    CounterRng rng(1);
    for (std::int32_t& id : prompt)
      id = static_cast<std::int32_t>(rng.next_uniform64() * static_cast<double>(config.vocabulary));
    std::vector<float> hidden, logits(static_cast<std::size_t>(config.vocabulary));
    std::vector<double> prefill, decode, bandwidth;
    progress->begin("bench", static_cast<std::uint64_t>(options->repeats), "runs");
    for (std::int64_t run = 0; run < options->repeats; ++run) {
      throw_if_interrupted();
      bandwidth.push_back(measure_read_bandwidth(pool));
      cache.truncate(0);
      const auto width = static_cast<std::size_t>(config.hidden);
      prefill.push_back(seconds_of([&] {
        model.forward(prompt, cache, hidden, pool);
        model.logits(std::span(hidden).last(width), 1, logits, pool);
      }));
      decode.push_back(seconds_of([&] {
        for (std::int64_t i = 0; i < options->generate; ++i) {
          const auto token = static_cast<std::int32_t>(std::max_element(logits.begin(), logits.end()) - logits.begin());
          model.forward(std::span(&token, 1), cache, hidden, pool);
          model.logits(hidden, 1, logits, pool);
        }
      }));
      progress->advance(1, "");
    }
    progress->end();
    const double prefill_rate = static_cast<double>(options->prompt) / median(prefill);
    const double decode_rate = static_cast<double>(options->generate) / median(decode);
    const double limit = median(bandwidth);
    const auto bytes = static_cast<double>(model.weight_bytes_per_token());
    if (common.json) {
      return print_json({{"prefill_tokens_per_s", prefill_rate},
                         {"decode_tokens_per_s", decode_rate},
                         {"read_bandwidth_gb_s", limit / 1e9},
                         {"decode_bandwidth_fraction", decode_rate * bytes / limit},
                         {"weight_bytes_per_token", model.weight_bytes_per_token()},
                         {"threads", pool.size()},
                         {"isa", isa_name(active_isa().isa)},
                         {"kv_format", options->kv},
                         {"n_prompt", options->prompt},
                         {"n_gen", options->generate},
                         {"repetitions", options->repeats}});
    }
    print(fmt::format(
        "prefill   {:.1f} tokens/s ({} tokens)\ndecode    {:.1f} tokens/s ({} tokens, {} of weights a token)\n"
        "bandwidth {:.1f} GB/s reached of {:.1f} GB/s measured ({:.0f} %)\nthreads   {}, {}\n",
        prefill_rate, options->prompt, decode_rate, options->generate, format_bytes(bytes), decode_rate * bytes / 1e9,
        limit / 1e9, 100 * decode_rate * bytes / limit, pool.size(), isa_name(active_isa().isa)));
  });
}

}  // namespace halftone::cli
