// The scheduler's own preparation of a graph: prims that are loops over simpler prims become those
// (var, norm2, max pooling), large reductions to few elements get two stages so that all cores
// take part, and every output becomes a value of its own, so that no two outputs share memory and
// none is an input's. Convolutions and their gradients: see legalize_convolution.h. Dead nodes go.
//
// It stands first in the scheduler: what it makes is never seen by the passes. Linear.
#pragma once
#include <functional>

#include "ir/graph.h"
#include "schedule/contraction_model.h"

namespace ingot::sched {

struct Legalized {
    Graph graph;
    std::vector<ValueId> in_memory;  // rearranged copies that pay
};

/// What the result's form depends on.
struct LegalizeOptions {
    int cores = 2;
    bool gpu = false;  // few columns of results are made of many partial ones
    /// Products on matrix units outdo the library's convolutions and their gradients by more than
    /// bringing weights into order costs.
    bool matrix_units = false;
    /// Whether generated code does such a convolution with fewer products than there are taps.
    /// Empty: never.
    std::function<bool(const FilterSizes&)> filters;
};

Legalized legalize(const Graph& graph, const LegalizeOptions& options);

}  // namespace ingot::sched
