#include "base/bandwidth.h"
#include "base/cpu.h"
#include "base/file.h"
#include "cli/common.h"
#include "kernels/matmul/matmul.h"

namespace halftone::cli {

void add_doctor(CLI::App& app, Common& common) {
  CLI::App* command = app.add_subcommand("doctor", "Instruction set, threads and why, bandwidth, what runs fast here");
  add_common(*command, common);
  command->callback([&common] {
    apply(common);
    const CpuFeatures cpu = detect_cpu();
    const IsaChoice& choice = active_isa();
    const ThreadBudget budget = thread_budget();
    const double bandwidth = measure_read_bandwidth(default_pool());
    const std::filesystem::path cache = user_cache_folder();
    Json kernels = Json::array();
    for (const MatmulKernelInfo& kernel : matmul_kernels()) {
      const bool chosen = kernel.isa == choice.isa;
      kernels.push_back({{"name", kernel.name}, {"isa", isa_name(kernel.isa)}, {"covers", kernel.covers},
                         {"runs_here", kernel.runnable}, {"used", chosen && kernel.runnable},
                         {"why_not", kernel.runnable ? (chosen ? "" : "another instruction set was chosen")
                                                     : "this processor lacks the instruction set"}});
    }
    if (common.json) {
      return print_json({{"cpu", cpu.model}, {"isa", isa_name(choice.isa)}, {"isa_reason", choice.reason},
                         {"threads", default_pool().size()}, {"threads_reason", common.threads > 0 ? "-t" : budget.reason},
                         {"l1d_bytes", cpu.l1d_bytes}, {"l2_bytes", cpu.l2_bytes}, {"l3_bytes", cpu.l3_bytes},
                         {"read_bandwidth_gb_s", bandwidth / 1e9}, {"cache_folder", cache.string()},
                         {"cache_folder_free_bytes", free_disk_bytes(cache)}, {"kernels", kernels}});
    }
    std::string text = fmt::format("processor        {}\n", cpu.model);
    text += fmt::format("caches           L1d {}, L2 {}, L3 {}\n", format_bytes(static_cast<double>(cpu.l1d_bytes)),
                        format_bytes(static_cast<double>(cpu.l2_bytes)), format_bytes(static_cast<double>(cpu.l3_bytes)));
    text += fmt::format("instruction set  {} ({})\n", isa_name(choice.isa), choice.reason);
    text += fmt::format("threads          {} ({})\n", default_pool().size(), common.threads > 0 ? "-t" : budget.reason);
    text += fmt::format("read bandwidth   {}/s with these threads\n", format_bytes(bandwidth));
    text += fmt::format("model cache      {} ({} free)\n\n", cache.string(), format_bytes(static_cast<double>(free_disk_bytes(cache))));
    std::vector<std::vector<std::string>> rows{{"matrix kernel", "isa", "used", "covers"}};
    for (const Json& kernel : kernels) {
      const std::string why = kernel["why_not"];
      if (!kernel["used"].get<bool>() && !common.verbose) continue;
      rows.push_back({kernel["name"], kernel["isa"], kernel["used"].get<bool>() ? "yes" : "no: " + why, kernel["covers"]});
    }
    print(text + format_table(rows) + (common.verbose ? "" : "\n-v lists the kernels of the other instruction sets and why they are not used\n"));
  });
}

}  // namespace halftone::cli
