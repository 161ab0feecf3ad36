// An arena in pieces, for callers that lend a program memory value by value. What shares memory at
// one time, as a result that takes over its operand's does, is one piece; each is wanted from the
// first step that touches it to the last. Costs a comparison for each two values alive together.
#pragma once
#include <cstddef>
#include <cstdint>
#include <span>
#include <utility>
#include <vector>

namespace ingot::runtime {

/// A value's place in the arena and the steps that touch it.
struct ArenaUse {
    std::int32_t buffer = -1;
    std::int64_t offset = 0, bytes = 0;
    std::size_t first = 0, last = 0;
};

struct ArenaPiece {
    std::int64_t bytes = 0;
    std::size_t first = 0, last = 0;
    std::vector<std::pair<std::int32_t, std::int64_t>> buffers;  // and where in it they begin
};

/// In the order of their first steps.
std::vector<ArenaPiece> arena_pieces(std::vector<ArenaUse> uses);

}  // namespace ingot::runtime
