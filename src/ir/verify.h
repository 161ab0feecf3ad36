// Checks a graph's invariants: operands before uses, attributes as the table lists them, types as
// the shape rules give them, outputs that fit, and only the prims that are legal at a level. Run
// after every pass in tests and under INGOT_DEBUG; costs about as much as building the graph.
#pragma once
#include <string_view>

#include "ir/graph.h"

namespace ingot {

/// How far a graph has come; each level forbids prims (the table is in verify.cpp).
enum class Level : std::uint8_t {
    Traced,  // as recorded, and while passes rewrite
    Packed,  // right sides and filters may be packed (passes/pack_contractions)
};

/// Throws InternalError that names the node and what is wrong with it.
void verify(const Graph& graph, Level level = Level::Packed);

/// Whether a prim may stand in a graph of this level.
bool is_legal(Prim prim, Level level);

}  // namespace ingot
