// Index propagation: which element of which operand an element of a movement prim's result is.
//
// The scheduler never carries out a movement prim; it asks here, at the point of use, where the
// element at some index comes from, and Expr's algebra makes the chain of answers one offset.
// Also here: the strides of a view chain, when its elements lie at a linear offset of its source.
// Cost: a few expressions a dim.
#pragma once
#include <optional>
#include <vector>

#include "ir/graph.h"

namespace ingot::sched {

/// low <= value < high.
struct Condition {
    Expr value;
    Expr low;
    Expr high;
};

/// One place where an element may come from: operand `operand` of the node at `index`, provided
/// that all of `valid` hold. Without conditions it always does.
struct Source {
    std::size_t operand = 0;
    Sizes index;
    std::vector<Condition> valid;
};

/// Where the element of movement node `node`'s result at `index` comes from: the first source
/// whose conditions hold; if none does (Pad), the attribute `value`. Conditions that hold for all
/// values of the symbols are left out, sources that never apply too. Nothing is returned when the
/// prim has no index form (an update_strided whose strides overlap).
std::optional<std::vector<Source>> sources(const Graph& graph, const Node& node,
                                           const Sizes& index);

/// Whether `node` only rearranges elements of operand 0 (one unconditional source).
bool is_plain_view(const Node& node);

/// The index of `sizes` at row-major position `flat`.
Sizes unflatten(Expr flat, const Sizes& sizes);
/// The row-major position of `index` in `sizes`.
Expr flatten(const Sizes& index, const Sizes& sizes);
/// sum(index[i] * strides[i]).
Expr offset_of(const Sizes& index, const Sizes& strides);

/// The loop variable for position `position` of a domain: named by position and extent, so that
/// equal shapes share expressions. `prefix` keeps kinds of variables apart.
Expr loop_variable(ExprPool& pool, const char* prefix, std::size_t position, Expr extent);
/// One variable a dim; 0 for dims of size 1.
Sizes domain_variables(ExprPool& pool, const char* prefix, const Sizes& sizes);

/// A value as strided memory of another value: element i is at sum(i * strides) + offset.
struct StridedView {
    ValueId source = kNone;
    Sizes strides;
    Expr offset;
};
/// Follows plain views from `value` up to the first value that is none (or for which `stop` holds),
/// laid out with the strides `layout` gives, and returns the strides `value` has in its memory;
/// nothing when the offset is not linear in the index. The first `free` dims need not be linear
/// (their strides are then meaningless).
std::optional<StridedView> strided_view(const Graph& graph, ValueId value,
                                        const std::function<bool(ValueId)>& stop,
                                        const std::function<Sizes(ValueId)>& layout,
                                        std::size_t free = 0);

}  // namespace ingot::sched
