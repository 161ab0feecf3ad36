// Which nests carry elements from one order in memory to another: some of what a point reads lies
// side by side along one loop, what it writes along another. On a GPU such nests go through tiles
// in shared memory (codegen/llvm/emit_tiles.h), so their loops are left as they are. Asked by
// loops.cpp and by code generation; linear in the nest's instructions.
#pragma once
#include <optional>
#include <span>
#include <vector>

#include "schedule/nest.h"

namespace ingot::sched {

struct Transpose {
    std::size_t along = 0;         // the loop (Nest::loops) that reads side by side
    std::size_t across = 0;        // the one that writes side by side
    std::vector<InstId> crossing;  // the loads that go through a tile
    std::int64_t bytes = 1;        // of the widest of their elements
};

/// Nothing for nests that cross no orders, or where that is too little to matter.
std::optional<Transpose> find_transpose(const Nest& nest, std::span<const KernelBuffer> buffers);

}  // namespace ingot::sched
