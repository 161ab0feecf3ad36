// The scheduler's one function: a graph becomes kernels, steps and planned memory.
//
// Flow: legalize (composite prims become simpler ones) -> fuse (which values live in memory, which
// nodes share a kernel) -> build (index arithmetic, phases, loops) -> order and memory. It stands
// after the passes, which have chosen layouts and packed weights, and before code generation.
// Cost: near-linear in the number of nodes.
#pragma once
#include <functional>

#include "ir/graph.h"
#include "schedule/contraction_model.h"
#include "schedule/plan.h"

namespace ingot {

/// What the scheduler must know about the machine and the stages behind it.
struct ScheduleOptions {
    bool gpu = false;    // for a GPU; `cores` then counts its multiprocessors
    bool batch = false;  // one launch where several do the same; only what becomes PTX can
    int cores = 2;
    int vector_bytes = 32;               // of the widest vectors code generation uses
    std::int64_t cache_bytes = 1 << 20;  // private cache of one core
    /// The vendor's matrix products are faster than all its convolutions with a kernel of one tap,
    /// which are the same: they are asked to write into planned memory, for which they take a
    /// product. Where this does not hold some gradients are still asked.
    bool single_taps_as_products = false;
    bool matrix_units = false;                        // see LegalizeOptions
    std::function<bool(const FilterSizes&)> filters;  // see there too
    /// Whether a contraction (given as a kernel without epilogue) shall be generated rather than
    /// left to the vendor's library. Empty: never.
    std::function<bool(const Kernel&)> generate_contraction;
    /// Only those that something costly follows (passes/epilogues.h).
    bool generate_with_epilogue_only = false;
};

/// The cost model's choice, for `generate_contraction`: what the template can do and what it does
/// in no more time than the vendor's library.
std::function<bool(const Kernel&)> choose_by_cost(const VectorTarget& target);

/// Schedules `graph`. Prims without a loop form become extern steps. Throws NotSupported, naming
/// the prim, for what neither road can carry out.
Plan schedule(const Graph& graph, const ScheduleOptions& options = {});

}  // namespace ingot
