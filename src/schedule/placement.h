// Which values get a place of their own. Every value is one of
//   inlined   computed wherever it is needed, by index propagation;
//   anchored  computed once, by a store or a reduction of a loop nest (whether it also needs
//             memory is known only after grouping: see fuse.h);
//   extern    made by a step outside the loop nests.
//
// Anchored are reductions, outputs, what a step outside needs in memory, values of several
// consumers that are not cheap to compute again, and computed values read at random or repeatedly.
// It stands between legalize and fuse. Cost: two walks over the nodes.
#pragma once
#include <functional>
#include <vector>

#include "ir/graph.h"

namespace ingot::sched {

enum class Home : std::uint8_t { Inlined, Anchored, Extern, Input };

/// Contractions that become generated kernels (and take their consumers as epilogues) rather than
/// extern steps; asked once a node.
using Generates = std::function<bool(NodeId)>;

struct Placement {
    std::vector<Home> home;          // by value
    std::vector<bool> needs_memory;  // by value: an output, or read by a step outside the nests
    std::vector<bool> frozen;        // by value: depends on frozen inputs and constants alone
    std::vector<bool> contracts;     // by node: a generated contraction
    std::vector<int> cost;           // by value: operations to compute it from anchors and memory
};

/// Whether the node is carried out by loop nests.
bool has_loop_form(const Graph& graph, const Node& node);

/// The strides (in elements) the buffer of `value` will have.
Sizes buffer_strides(const Graph& graph, ValueId value, const std::vector<std::int32_t>& output_of);

/// By value: which graph output it is, or -1. `graph` is legalized: outputs are distinct.
std::vector<std::int32_t> output_index(const Graph& graph);

Placement place(const Graph& graph, const std::vector<std::int32_t>& output_of,
                const Generates& generates);

}  // namespace ingot::sched
