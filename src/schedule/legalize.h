// The scheduler's own preparation of a graph: prims that are loops over simpler prims become those
// (var, norm2, max pooling), large reductions to few elements get two stages so that all cores
// take part, and every output becomes a value of its own, so that no two outputs share memory and
// none is an input's. Convolutions and their gradients: see legalize_convolution.h. Dead nodes go.
//
// It stands first in the scheduler: what it makes is never seen by the passes. Linear.
#pragma once
#include "ir/graph.h"

namespace ingot::sched {

struct Legalized {
    Graph graph;
    std::vector<ValueId> in_memory;  // rearranged copies that pay
};

/// `gpu`: few columns of results are made of many partial ones.
Legalized legalize(const Graph& graph, int cores, bool gpu = false);

}  // namespace ingot::sched
