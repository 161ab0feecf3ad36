// Regions of a recorded program: stretches that keep nothing for the backward but what they are
// given, and are computed again there (`torch.utils.checkpoint`).
//
// The recorder marks the nodes of such a stretch with its number ("region"), in the order in which
// they ran. Passes copy the mark with a node; what they make anew has none, but lies within the
// region all the same if it stands between nodes that do: nothing outside can, as it ran before or
// behind. Read by partition.cpp, which takes the marks away. One walk in each direction.
#pragma once
#include <vector>

#include "ir/graph.h"

namespace ingot {

class Regions {
  public:
    /// Nodes with `later` results are not part of the forward.
    Regions(const Graph& graph, const std::vector<bool>& later);

    /// Whether the graph has any.
    bool any() const { return any_; }
    /// Whether the value was made within a region and no node outside reads it: it is not kept.
    bool hides(ValueId v) const { return any_ && region_[v] != 0 && !leaves_[v]; }
    /// Whether it was made within a region from something that was, and is read outside: it is kept
    /// rather than computed a second time for what reads it there.
    bool gives(ValueId v) const { return any_ && leaves_[v] && deep_[v]; }

  private:
    bool any_ = false;
    std::vector<std::int64_t> region_;  // by value; 0: none
    std::vector<bool> leaves_;          // its region
    std::vector<bool> deep_;            // has operands of its region
};

/// Whether a node is marked.
inline bool is_of_region(const Node& n) { return n.attrs.has("region"); }
/// A node's attributes without the mark.
Attrs without_region(const Attrs& attrs);

}  // namespace ingot
