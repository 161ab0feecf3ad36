// A joint graph of forward and backward becomes two programs and the values that cross between.
//
// The joint graph's first outputs are the forward's; the others, gradients, depend on inputs that
// only the backward is given (tangents). What the backward needs of the forward is either saved or
// computed again: a minimum cut over values, weighted by their bytes, chooses. Cheap prims
// (pointwise, movement, constants) may be computed again at any time; contractions, reductions,
// sorts and calls only under a memory budget below 1; random numbers and effects never.
//
// Cost: a maximum flow over two vertices a value (Dinic); some milliseconds for a transformer of
// twelve layers. Stands between the passes that clean the joint graph and the two compilations.
#pragma once
#include <functional>
#include <vector>

#include "ir/graph.h"

namespace ingot {

struct PartitionQuery {
    std::size_t forward_outputs = 0;         // the first outputs of the graph are the forward's
    std::vector<std::int32_t> tangents;      // positions of inputs that only the backward is given
    std::vector<bool> readable_in_backward;  // by input: whether the backward may read it
    /// 1: nothing expensive is computed twice. 0: as little memory as possible is needed at once;
    /// the forward is computed again in segments. Between: the fraction of the bytes saved at 1
    /// that may be saved, recomputing the cheapest first.
    double memory_budget = 1;
    /// What looks into memory is not saved beside it: calls read it through views.
    bool views_are_free = false;
    /// By input: whether it is a parameter. What the forward's calls and products read is in
    /// memory: it is saved rather than computed a second time, unless parameters alone make it.
    /// Empty: nothing is kept for that.
    std::vector<bool> parameters;
    /// Strides in which a saved value is kept; row-major without this function.
    std::function<Sizes(const Graph&, ValueId)> strides_of;
};

/// A value that the backward gets from the forward.
struct SavedValue {
    enum class From {
        Input,   // input `index` of the joint graph
        Output,  // output `index` of the forward graph
    };
    From from = From::Output;
    std::int32_t index = -1;
};

struct Partition {
    /// All inputs of the joint graph but the tangents, in order; its outputs are the joint's
    /// forward outputs and then the saved values that are neither inputs nor among them.
    Graph forward;
    /// Inputs: the saved values, then the tangents. Outputs: the joint graph's others.
    Graph backward;
    std::vector<SavedValue> saved;
    std::int64_t saved_bytes = 0;  // of values that live only for the backward
};

/// The joint graph must be free of dead code for the best result, but need not be. Throws
/// NotSupported when the backward needs an input that it may not read, or has effects of its own.
Partition partition(const Graph& joint, const PartitionQuery& query);

}  // namespace ingot
