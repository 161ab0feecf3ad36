// See triton_blocks.h.
#include "codegen/text/triton_blocks.h"

#include <algorithm>
#include <bit>

namespace ingot {
namespace {

constexpr std::int64_t kBlock = 1024;        // elements of a program where nothing asks for another
constexpr std::int64_t kLongestRow = 8192;   // that stays in registers
constexpr std::int64_t kLongBlock = 2048;    // of a loop over longer rows
constexpr std::int64_t kPrograms = 264;      // that keep a large GPU busy
constexpr std::int64_t kWarpElements = 256;  // of a warp

bool within_32_bits(Range r) { return r.lo > -(1LL << 30) && r.hi < (1LL << 30); }

/// Whether the expression and all that it is made of fit into 32 bits. A loop's variable may run
/// beyond its extent by less than a block, where masks hold: hence the margin.
bool narrow(Expr e) {
    if (!within_32_bits(e.range())) return false;
    return e.is_constant() || std::ranges::all_of(e.node()->args, narrow);
}

bool is_narrow(const Kernel& kernel, const Nest& nest) {
    const auto counted = [](const std::vector<Loop>& loops) { return narrow(points_of(loops)); };
    if (!kernel.sizes.empty() || !counted(nest.loops)) return false;
    for (const KernelBuffer& b : kernel.buffers)
        if (b.scope == BufferScope::Scratch && !narrow(b.elements * points_of(nest.loops)))
            return false;
    for (const Phase& p : nest.phases) {
        if (!counted(p.loops)) return false;
        for (const Inst& i : p.insts)
            if (!narrow(i.offset) || !narrow(i.extent)) return false;
        for (const Store& s : p.stores)
            if (!narrow(s.offset)) return false;
    }
    return true;
}

/// Whether the phases' loops step over what neighbouring outer points read side by side.
bool walks_columns(const Nest& nest) {
    const std::vector<Loop> loops = parallel_loops(nest);
    if (loops.empty()) return false;
    const auto steps_by_one = [](Expr offset, Expr var) {
        const auto form = linear_in(offset, var);
        return form && form->stride.is(1);
    };
    bool across = false;
    for (const Phase& p : nest.phases) {
        if (p.loops.empty()) continue;
        for (const Inst& i : p.insts) {
            if (i.kind != InstKind::Load) continue;
            if (steps_by_one(i.offset, p.loops.back().var)) return false;
            across = across || steps_by_one(i.offset, loops.back().var);
        }
    }
    return across;
}

std::int64_t power_of_two(std::int64_t n) {
    return static_cast<std::int64_t>(std::bit_ceil(static_cast<std::uint64_t>(n)));
}

}  // namespace

Expr points_of(const std::vector<Loop>& loops) {
    Expr n = 1;
    for (const Loop& l : loops) n = n * l.extent;
    return n;
}

TritonBlocks choose_blocks(const Kernel& kernel, const Nest& nest) {
    TritonBlocks b;
    b.wide = !is_narrow(kernel, nest);
    std::int64_t longest = 0, row = -1;
    bool known = true, equal = true;
    for (const Phase& p : nest.phases) {
        if (p.loops.empty()) continue;
        const Expr n = points_of(p.loops);
        known = known && n.is_constant();
        if (!known) break;
        equal = equal && p.loops.size() == 1 && (row < 0 || row == n.constant());
        row = n.constant();
        longest = std::max(longest, row);
    }
    const Expr points = points_of(parallel_loops(nest));
    if (!known) {
        b.r = kBlock;
    } else if (longest > 0 && walks_columns(nest)) {
        b.r = std::min<std::int64_t>(power_of_two(longest), 16);
        b.x = kBlock / b.r;
    } else if (longest > 0) {
        b.whole_rows = equal && longest <= kLongestRow;
        b.r = std::min(power_of_two(longest), b.whole_rows ? kLongestRow : kLongBlock);
        b.x = std::max<std::int64_t>(kBlock / b.r, 1);
    } else {
        b.x = kBlock;
    }
    // Fewer programs than that leave processors idle.
    if (points.is_constant())
        while (b.x > 1 && b.x * b.r > kWarpElements && points.constant() < kPrograms * b.x)
            b.x /= 2;
    b.warps = static_cast<int>(std::clamp<std::int64_t>(b.x * b.r / kWarpElements, 1, 16));
    return b;
}

}  // namespace ingot
