// The fuzzer: random graphs through a part of the compiler, against the reference evaluator.
//   ingot_fuzz [--through passes|plan|code|kernels] [--seed N] [--seconds S] [--nodes N]
// Prints the first graph that differs with its seed, and exits with 1; with 0 when the time is up.
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <map>

#include "fuzz/differential.h"

using namespace ingot;

int main(int argc, char** argv) {
    std::map<std::string, std::string> options = {
        {"--through", "plan"}, {"--seed", "1"}, {"--seconds", "60"}, {"--nodes", "24"}};
    for (int i = 1; i < argc; i += 2) {
        if (!options.count(argv[i]) || i + 1 == argc) {
            std::fprintf(stderr, "ingot_fuzz: unknown option or missing value: %s\n", argv[i]);
            return 2;
        }
        options[argv[i]] = argv[i + 1];
    }
    const std::map<std::string, fuzz::Executor> executors = {{"passes", fuzz::through_passes},
                                                             {"plan", fuzz::through_plan},
                                                             {"code", fuzz::through_code},
                                                             {"kernels", fuzz::through_kernels}};
    auto executor = executors.find(options["--through"]);
    if (executor == executors.end()) {
        std::fprintf(stderr, "ingot_fuzz: --through takes");
        for (auto& [name, run] : executors) std::fprintf(stderr, " %s", name.c_str());
        std::fprintf(stderr, "\n");
        return 2;
    }
    fuzz::Limits limits;
    limits.nodes = std::atoi(options["--nodes"].c_str());
    std::uint64_t seed = std::strtoull(options["--seed"].c_str(), nullptr, 10);
    const auto start = std::chrono::steady_clock::now();
    const std::chrono::duration<double> allowed(std::atof(options["--seconds"].c_str()));
    std::uint64_t count = 0;
    for (; std::chrono::steady_clock::now() - start < allowed; ++seed, ++count)
        if (auto difference = fuzz::differs(seed, limits, executor->second)) {
            std::printf("%s\nafter %llu graphs\n", difference->c_str(),
                        static_cast<unsigned long long>(count));
            return 1;
        }
    std::printf("%llu graphs agree\n", static_cast<unsigned long long>(count));
    return 0;
}
