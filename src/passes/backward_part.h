// A backward for fewer gradients than it could take or give.
//
// A result that a loss does not use has no gradient: autograd knows none, which is less than zeros.
// A function whose derivative is infinite or NaN makes NaN of zeros, and nothing of what is not
// there: `(x * 2, (x * 0).sqrt())` with a loss of the first. So what depends on missing gradients
// alone is taken out of the program: a backward is linear in them, and a sum with such a term is
// the other term. What only gradients need that nobody wants goes with it, and so do the saved
// values that only these read: nobody minds if those have changed by then.
//
// Linear in the graph. Stands behind the partition (partition.h) and before a compilation; asked
// for when a backward first comes with such gradients.
#pragma once
#include <vector>

#include "ir/graph.h"

namespace ingot {

struct BackwardQuery {
    std::vector<bool> tangents;  // by input: the gradient of a result
    std::vector<bool> missing;   // by input: a tangent that is not there
    std::vector<bool> wanted;    // by output
    std::vector<bool> kept;      // by input: stays, whether it is read or not
};

struct BackwardPart {
    Graph graph;
    /// Which inputs and outputs of the whole backward are the graph's, in order.
    std::vector<std::int32_t> inputs, outputs;
};

BackwardPart backward_part(const Graph& backward, const BackwardQuery& query);

}  // namespace ingot
