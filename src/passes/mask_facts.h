// What a mask of attention lets through, where the graph itself says so.
//
// Models make their masks anew at every call: positions compared with positions, spread over rows
// and heads, combined with what says that nothing is padded. Such a mask depends on no input, and
// attention without it (or with the kernel's own order of rows and columns) skips what it hides and
// need not read it.
//
// Numbers are followed as a constant and a step for each dim, truths as numbers that must not be
// negative; whatever is not of that form is unknown. Linear in the nodes behind the mask.
#pragma once
#include "ir/graph.h"

namespace ingot {

enum class MaskKind : std::uint8_t {
    Unknown,
    All,     // every element is true
    Causal,  // true where column <= row, of as many columns as rows
};

/// What the boolean `mask` is for certain; its last two dims are rows and columns.
MaskKind kind_of_mask(const Graph& g, ValueId mask);

}  // namespace ingot
