// Operators that fail by their data though nobody reads their results; see unread_failures.cpp.
#pragma once
#include <cstddef>

#include "trace/sym_node.h"

namespace ingot::trace {

/// Lets those among the first `count` nodes of a recording's graph fail as in eager. To be called
/// when all outputs are there.
void keep_failures(Graph& graph, SymbolicSizes& symbols, std::size_t count);

}  // namespace ingot::trace
