// The passes between tracing and scheduling: a table, and the one loop that runs it.
//
// A pass is a function from a graph to a graph; it stands in a file of its own. The loop owns what
// is common: timing, dumping, verifying. Each pass is linear or near-linear in the number of nodes.
// What a pass derives from frozen inputs (folded scales, packed weights) stays in the graph as
// ordinary nodes that depend on frozen inputs alone; the plan runs those once per version of the
// parameters.
#pragma once
#include <functional>
#include <optional>
#include <span>
#include <string_view>
#include <vector>

#include "ir/graph.h"

namespace ingot {

/// A contraction whose right side could be packed.
struct PackQuery {
    Expr m, n, k;  // rows (of all images for a convolution), columns, length of the sums
    DType dtype;
    bool convolution = false;
};

/// What passes must know about the machine and the caller's wishes.
struct PassContext {
    /// The width of the panels that a right side should be packed into, 0 to leave it as it is.
    /// Without a function nothing is packed.
    std::function<int(const PackQuery&)> panel_width;
    /// Frozen inputs may be folded into each other (batch norm into convolutions).
    bool fold_frozen = true;
    /// Matmuls that share their left side and have at most this many rows become one.
    std::int64_t merge_rows = 64;
    /// The vendor's product adds biases itself: such additions become part of it.
    bool vendor_epilogues = false;
    /// The vendor's products of 16-bit numbers give fp32 where that is wanted.
    bool vendor_widens = false;
    /// Products of m by k with k by n that generated code computes with what follows them; asked
    /// where that is costly (epilogues.h). Empty: none.
    std::function<bool(const PackQuery&)> generated_product;
    /// Products without anything behind them whose result has an odd number of columns, which
    /// generated code writes where the caller wants it. Empty: none.
    std::function<bool(const PackQuery&)> generated_odd_product;
    /// Constants of at most this many elements are computed now.
    std::int64_t constant_elements = 256;
    /// Set for a program that holds its own backward: what is cheap to compute is computed again
    /// there instead of being kept, and what is not, too, below 1 (see partition.h).
    std::optional<double> memory_budget;
};

struct Pass {
    std::string_view name;
    Graph (*run)(const Graph&, const PassContext&);
};

/// The pipeline in order; a pass may stand in it several times.
std::span<const Pass> pipeline();

struct PassReport {
    std::string_view name;
    double microseconds = 0;
    std::size_t nodes_before = 0, nodes_after = 0;
};

struct PipelineOptions {
    bool verify = false;
    /// Called with a pass's name and its result's text when it changed the graph.
    std::function<void(std::string_view pass, const std::string& text)> dump;
    std::vector<PassReport>* reports = nullptr;
};

/// Runs `passes` one after another.
Graph run_passes(Graph graph, const PassContext& context, const PipelineOptions& options = {},
                 std::span<const Pass> passes = pipeline());

}  // namespace ingot
