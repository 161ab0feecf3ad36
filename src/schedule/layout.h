// How materialised values lie in memory: a permutation of dims each.
//
// The graph's border fixes inputs and outputs. Convolutions and attention give the layout their
// kernels like best (channels last; heads inside rows), everything after them follows: pointwise
// results take the order of the operand that has one, movement prims carry it along. What becomes
// new contents of an input lies as that input does. All other values are row-major. It stands
// before placement, which asks whether a view of a value has strides. Cost: one walk.
#pragma once
#include <vector>

#include "ir/graph.h"

namespace ingot::sched {

/// On a GPU: channels of an image from which on its convolutions are channels last, however it is
/// given.
inline constexpr std::int64_t kFewestChannels = 16;

/// The memory of the graph's values. `graph` is legalized: outputs are distinct values.
class Layouts {
  public:
    /// `gpu`: the vendor's convolutions also want their filters channels last.
    /// `copies`: values that shall have memory even where they only rearrange elements.
    /// `turned`: matrices that shall lie column by column.
    explicit Layouts(const Graph& graph, bool gpu = false, const std::vector<ValueId>& copies = {},
                     const std::vector<ValueId>& turned = {});
    /// In elements, for the value's own buffer (should it get one).
    const Sizes& strides(ValueId v) const { return strides_[v]; }
    /// Which graph output the value is, or -1.
    std::int32_t output(ValueId v) const { return output_[v]; }
    /// Whether the value has memory that its readers shall look into: an output or such a copy.
    bool keeps(ValueId v) const { return output_[v] >= 0 || copy_[v]; }
    /// The input that the value is written into, or kNone.
    ValueId written_input(ValueId v) const { return written_[v]; }

  private:
    std::vector<Sizes> strides_;
    std::vector<std::int32_t> output_;
    std::vector<ValueId> written_;
    std::vector<bool> copy_;
};

}  // namespace ingot::sched
