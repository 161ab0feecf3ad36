// The part of legalising that cuts long rows for a GPU: a reduction of few rows, or of rows that no
// block can keep, is one over pieces of them, which many blocks take side by side, and then one
// over the pieces' results. Variances and softmaxes of such rows find what they need of a piece
// while a block has it, so that their input is read from memory once for all statistics:
//
//     mean, variance   of pieces, combined (Chan, Golub, LeVeque 1983)
//     sum of exp(x - max)   of pieces relative to their own maxima, scaled when these are combined
//
// Layer norms over images, group and instance norms, norms of whole tensors, softmaxes over very
// long rows are such. Deterministic: pieces and their order follow from sizes alone. Cost: linear.
#pragma once
#include <map>
#include <optional>
#include <tuple>
#include <vector>

#include "ir/graph.h"
#include "schedule/layout.h"
#include "schedule/reduction_stages.h"

namespace ingot::sched {

class SplitRows {
  public:
    /// `layouts`: of `old`, the graph before legalising; null on processors, where nothing is cut.
    SplitRows(const Graph& old, const Layouts* layouts, int cores);

    /// The reduction of `x`, which is `was` in the old graph or that widened, over `dims`, in
    /// stages: a value of x's sizes without `dims`. `result`: of the old graph. Nothing where it
    /// stays one. Partial results are kept for the others to find.
    std::optional<ValueId> reduce(Graph& g, Prim prim, ValueId x, const Ints& dims, ValueId was,
                                  ValueId result);

    /// The same of columns: results side by side in memory, too few to keep a GPU busy.
    std::optional<ValueId> reduce_columns(Graph& g, Prim prim, ValueId x, const Ints& dims);

    /// The squares of the distances of x's elements from `mean`, which their rows have, summed,
    /// where the sums have been made in stages.
    std::optional<ValueId> squares(Graph& g, ValueId x, const Ints& dims, ValueId mean) const;

    /// sum(exp(x - max(x))), where the maximum has been made in stages.
    std::optional<ValueId> exponentials(Graph& g, ValueId x, const Ints& dims) const;

  private:
    struct Made {
        Stages stages;
        ValueId partial = kNone, whole = kNone;
    };
    ValueId make(Graph& g, Prim prim, ValueId x, const Ints& dims, const Stages& stages);
    // Long columns in memory whose dims are rows of the value.
    bool wants_columns(const Graph& g, ValueId x, const Ints& dims, const Ints& order,
                       ValueId result) const;
    bool wants(const Graph& g, ValueId x, const Ints& dims, ValueId result) const;
    // The dims of a value of the old graph, outermost in memory first.
    Ints memory_order(ValueId was) const;
    // In as many more stages as it takes.
    ValueId finish(Graph& g, Prim prim, ValueId partial, const Ints& dims) const;

    const Layouts* layouts_;
    std::int64_t cores_;
    std::vector<bool> spread_;  // by value of the old graph: its rows are read again with it
    std::map<std::tuple<Prim, ValueId, Ints>, Made> made_;
};

/// The x of which the node `n` is sum(exp(x - max(x))), over the same dims; kNone where it is not.
ValueId exponentials_of(const Graph& g, const Node& n);

}  // namespace ingot::sched
