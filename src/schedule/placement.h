// Which values get a place of their own. Every value is one of
//   inlined   computed wherever it is needed, by index propagation;
//   anchored  computed once, by a store or a reduction of a loop nest (whether it also needs
//             memory is known only after grouping: see fuse.h);
//   extern    made by a step outside the loop nests, or a constant's bytes.
//
// Anchored are reductions, outputs, what a step outside needs in memory, values of several
// consumers that are not cheap to compute again, and computed values read at random or repeatedly.
// It stands between legalize and fuse. Cost: two walks over the nodes.
#pragma once
#include <functional>
#include <vector>

#include "ir/graph.h"
#include "schedule/layout.h"

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

/// `gpu`: what is computed of narrower values than itself is computed again by each reader.
/// `in_memory`: values that shall have memory even where they only rearrange elements.
Placement place(const Graph& graph, const Layouts& layouts, const std::vector<ValueId>& in_memory,
                const Generates& generates, bool gpu = false);

/// The value in whose memory a matrix product finds its operand `v`: `v`'s origin where `v` is a
/// strided view of it (of each matrix: `matrices`), else the value nearest to it of which it is a
/// matrix, so that a matrix and its transposed form share their memory.
ValueId product_operand(const Graph& graph, const Layouts& layouts, ValueId v, bool matrices);

}  // namespace ingot::sched
