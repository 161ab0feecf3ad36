// The part of legalising that concerns sums along rows of distances: variances, and on GPUs sums of
// products of distances from a mean, which a norm's gradient is made of. Where values have 16 bits
// the distances are from a row's first element, so that one pass over the row gives all its sums.
//
// Chan, Golub, LeVeque, "Algorithms for computing the sample variance" (1983). Cost: linear.
#pragma once
#include <map>
#include <optional>
#include <set>
#include <utility>

#include "ir/graph.h"
#include "schedule/split_rows.h"

namespace ingot::sched {

/// Distances from each row's (or column's) first element.
struct Shifted {
    ValueId first = kNone;  // without the reduced dims
    ValueId away = kNone;
};

/// Values and the dims that make up their rows.
using RowsOfDistances = std::set<std::pair<ValueId, Ints>>;

/// Sums already there, so that a variance shares its mean's, and distances that several sums are
/// of.
struct Sums {
    SplitRows* split = nullptr;  // on GPUs: sums in stages
    std::map<std::pair<ValueId, Ints>, ValueId> all;
    std::map<std::pair<ValueId, Ints>, Shifted> shifted;
};

/// The sum of `x` over `dims`: one that is there already, or in stages where a GPU wants it.
ValueId sum_over(Graph& g, Sums& sums, ValueId x, const Ints& dims, bool gpu);

/// What the node `n`, a Var, is of `operand`. `one_pass`: other sums over the row are of one.
ValueId variance(Graph& g, Sums& sums, const Node& n, ValueId operand, bool gpu, bool one_pass);

/// On a GPU: the sum of a product that has a distance from a row's mean as a factor.
std::optional<ValueId> sum_of_distances(Graph& g, Sums& sums, ValueId product, const Ints& dims);

/// Rows of which such sums are, by value and reduced dims.
RowsOfDistances rows_of_distances(const Graph& g);

}  // namespace ingot::sched
