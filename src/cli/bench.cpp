#include "bench/bench.h"

#include "cli/commands.h"

namespace inlay::cli {

void add_bench(Program& program) {
  CLI::App* command = program.app.add_subcommand("bench", "Run one benchmark on this machine");
  command->require_subcommand(1);
  for (const bench::Benchmark& benchmark : bench::benchmarks()) {
    CLI::App* one = command->add_subcommand(benchmark.name, benchmark.meaning);
    auto as_json = std::make_shared<bool>(false);
    one->add_flag("--json", *as_json, "Print one JSON object on one line");
    auto run = benchmark.declare(*one);
    one->callback([&program, run, as_json, several = benchmark.several_processes] {
      program.several_processes = several;
      program.action = [run, as_json] {
        const bench::Report report = run();
        if (!report.empty()) std::puts(report.dump(*as_json ? -1 : 2).c_str());
        return 0;
      };
    });
  }
}

}  // namespace inlay::cli
