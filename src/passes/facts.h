// What several passes ask of a graph: constants of one value, what depends on frozen inputs alone,
// which prims may be moved, merged or dropped.
#pragma once
#include <optional>
#include <vector>

#include "ir/graph.h"
#include "ir/tensor.h"

namespace ingot {

/// The value of every element, if `v` is made by `full`.
std::optional<Scalar> full_value(const Graph& g, ValueId v);
/// That value as a number of v's type.
std::optional<Num> full_number(const Graph& g, ValueId v);
/// A number as the scalar that gives it back exactly.
Scalar to_scalar(Num v, DType dtype);
/// A `full` of this type.
ValueId emit_full(Graph& g, const Type& type, Scalar value, std::string origin = {});

/// The same operands always give the same results and nothing else happens.
bool is_pure(const Node& n);
/// Must stay even when nobody uses it.
bool has_effect(const Node& n);

/// For every value: whether it depends on frozen inputs (and constants) alone. Constants by
/// themselves count.
std::vector<bool> frozen_values(const Graph& g);

/// How much memory the frozen right sides of matmuls take that could be packed into panels.
std::int64_t packable_matmul_bytes(const Graph& g);

/// Whether `a` and `b` are the same sizes for certain.
bool same_sizes(const Sizes& a, const Sizes& b);

}  // namespace ingot
