// How large something is likely to be: what fusion, placement and order decide by where sizes are
// symbolic.
#pragma once
#include "ir/graph.h"

namespace ingot::sched {

/// The elements of a tensor of these sizes; 256 stands for a symbolic one.
inline double likely_count(const Sizes& sizes) {
    double n = 1;
    for (const Expr& e : sizes) n *= e.is_constant() ? static_cast<double>(e.constant()) : 256.0;
    return n;
}

/// The memory that a tensor of the type takes, in bytes.
inline double likely_bytes(const Type& type) {
    return likely_count(type.sizes) * bytes(type.dtype);
}

}  // namespace ingot::sched
