// Random tensor graphs for differential tests: the same graph goes through the compiler and through
// the reference evaluator. Shared by the fuzzer and by the short fuzz tests.
#pragma once
#include <cstdint>
#include <random>
#include <string>
#include <vector>

#include "ir/graph.h"

namespace ingot::fuzz {

struct Limits {
    int nodes = 24;  // steps of growth; a step may add several nodes
    int inputs = 4;
    std::int64_t elements = 1 << 14;  // of any one value
    bool contractions = true;
    bool low_precision = true;
};

struct RandomGraph {
    Graph graph;
    /// Row-major bytes of each input. Index inputs are in range; floats are moderate, with a few
    /// zeros, infinities and NaNs where `specials` is set.
    std::vector<std::vector<std::uint8_t>> inputs;
    /// By output: 0 where every operation is exact (results must agree to the bit, NaN equal to
    /// NaN), else the error allowed relative to the largest finite magnitude of the output (at
    /// least 1).
    std::vector<double> tolerance;
};

/// The same seed gives the same graph with the same standard library.
RandomGraph make_random_graph(std::uint64_t seed, const Limits& limits = {});

}  // namespace ingot::fuzz
