// The part of legalising that makes a reduction of several: one of many elements to few results
// keeps few cores, or multiprocessors, busy, so that partial results come first. Sums of the
// columns of rows are cut so that the kernel that walks the rows adds up its own.
//
// Cost: linear; the partial results are written and read.
#pragma once
#include <optional>
#include <vector>

#include "ir/graph.h"

namespace ingot::sched {

/// The reduction `n`, of `x` to `result`, of many elements to few: first to partial results over
/// the leading reduced dims (or chunks of the only one), then those. They are the parallel work.
std::optional<ValueId> two_stages(Graph& g, const Node& n, ValueId x, const Sizes& result,
                                  int cores);

/// A reduction in two stages: of `x`, a value maybe with a dim cut in two, over `rest`, then of the
/// partial results over `first` (dims of what the first stage leaves). `tail`: elements that are in
/// no piece of x, and their reduced dims.
struct Stages {
    ValueId x = kNone;
    Ints rest, first;
    ValueId tail = kNone;
    Ints tail_dims;
};

/// On a GPU: a reduction whose results lie side by side in memory, too few of them to keep the GPU
/// busy with a thread each. The leading reduced dims, or chunks of one, first give partial results.
std::optional<Stages> columns_in_stages(Graph& g, ValueId x, Ints dims);
std::optional<ValueId> over_columns(Graph& g, Prim prim, ValueId x, Ints dims);

/// Whether the prim of partial results is the prim of all.
bool splittable(Prim prim);

/// On a GPU: sums, in fp32, of the columns of rows that a kernel walks as rows, too (a norm's
/// gradient, of its input and of its weights). They are cut into runs of a few rows, over which
/// that kernel can add them up as it passes: see fuse.cpp.
std::optional<ValueId> in_runs(Graph& g, ValueId x, Ints dims);

/// Which values a reduction over their last dims reads, through computation element by element.
class WalkedRows {
  public:
    explicit WalkedRows(const Graph& g);

    /// Also where nothing of a row is added up, but a kernel computes the rows, element by element,
    /// for a product to read (the gradient of an activation, and of the bias before it).
    bool walked(ValueId x) const;

  private:
    // The value that `v` is another shape of.
    ValueId origin(ValueId v) const;
    // Values of x's size that x is computed from and that are not computed element by element.
    std::vector<ValueId> sources(ValueId x) const;

    static constexpr std::size_t kMostSeen = 64;
    const Graph& g_;
    std::vector<bool> rows_;
    std::vector<ValueId> operands_;  // what products read, in order
};

}  // namespace ingot::sched
