// The equalities of symbolic sizes that a prim's rule takes for granted.
//
// Whoever makes a graph from a program that nobody has checked asks before the prim is added, and
// guards them or refuses the program.
#pragma once
#include <span>
#include <utility>
#include <vector>

#include "ir/graph.h"

namespace ingot {

/// Pairs of sizes that must be equal for the prim to be right and are not known to be. Throws as
/// infer_types does.
std::vector<std::pair<Expr, Expr>> assumed_equalities(Prim prim, std::span<const Type> operands,
                                                      const Attrs& attrs);

}  // namespace ingot
