// Products whose results go through something costly that no library's product does by itself, such
// as a GELU by erf: what a kernel of our own, which does both, saves is a pass over memory and a
// launch. Asked by the pass that hands biases to the library and by the scheduler, which must
// agree.
#pragma once
#include <vector>

#include "ir/graph.h"

namespace ingot {

class Epilogues {
  public:
    /// Finds who reads each value; linear. `graph` must outlive it.
    explicit Epilogues(const Graph& graph);

    /// Whether pointwise prims that follow `product` point by point hold an exponential or its kin.
    /// Not where the graph hands out what stands before them (what training saves): then a kernel
    /// of our own writes as much as two.
    bool costly(NodeId product) const;

    /// Whether the product's result becomes one of the graph, perhaps in another shape, and serves
    /// nothing else.
    bool only_handed_out(NodeId product) const;

    /// The product's right side if it is a copy of a frozen weight that nobody else reads, as
    /// autocast makes one in 16 bits: how that lies is ours to choose, so that its rows may run
    /// along the sum whichever way the weight does. Else kNone.
    ValueId own_copy(NodeId product) const;

  private:
    bool hands_out(ValueId v) const;

    const Graph& graph_;
    std::vector<bool> frozen_;                  // by value
    std::vector<bool> is_output_;               // by value
    std::vector<std::vector<NodeId>> readers_;  // by value
};

}  // namespace ingot
