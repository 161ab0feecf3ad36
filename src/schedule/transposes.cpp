// See transposes.h.
#include "schedule/transposes.h"

#include <algorithm>
#include <cstdlib>

namespace ingot::sched {

namespace {

constexpr std::int64_t kShortest = 16;        // of the two loops
constexpr std::int64_t kFewPoints = 1 << 16;  // which caches hold
constexpr std::size_t kMostCrossing = 4;      // tiles at once

std::optional<std::int64_t> stride(Expr offset, Expr var) {
    if (!contains(offset, var)) return 0;
    const auto linear = linear_in(offset, var);
    if (!linear || !linear->stride.is_constant()) return std::nullopt;
    return linear->stride.constant();
}

}  // namespace

std::optional<Transpose> find_transpose(const Nest& nest, std::span<const KernelBuffer> buffers) {
    if (nest.loops.size() < 2 || nest.phases.size() != 1) return std::nullopt;
    const Phase& phase = nest.phases[0];
    if (!phase.loops.empty() || !phase.reductions.empty() || phase.stores.empty())
        return std::nullopt;
    std::int64_t points = 1;
    for (const Loop& l : nest.loops) {
        if (!l.extent.is_constant() || l.kind == LoopKind::Run) return std::nullopt;
        points *= l.extent.constant();
    }
    if (points < kFewPoints) return std::nullopt;
    for (const KernelBuffer& b : buffers)
        if (b.scope == BufferScope::Scratch) return std::nullopt;
    const auto is_long = [](const Loop& l) { return l.extent.constant() >= kShortest; };
    for (const Inst& i : phase.insts)
        if (i.kind == InstKind::Bind) return std::nullopt;

    Transpose found;
    const auto writes_along = [&](const Loop& l) {
        return is_long(l) && std::ranges::all_of(phase.stores, [&](const Store& s) {
                   return s.mask == kNone && s.mode == StoreMode::Write &&
                          stride(s.offset, l.var) == 1;
               });
    };
    const auto across = std::ranges::find_if(nest.loops, writes_along);
    if (across == nest.loops.end()) return std::nullopt;
    found.across = static_cast<std::size_t>(across - nest.loops.begin());
    for (std::size_t u = 0; u < nest.loops.size() && found.crossing.empty(); ++u) {
        if (u == found.across || !is_long(nest.loops[u])) continue;
        for (InstId id = 0; id < phase.insts.size(); ++id) {
            const Inst& i = phase.insts[id];
            if (i.kind != InstKind::Load || i.mask != kNone) continue;
            const auto far = stride(i.offset, across->var);
            if (!far || std::abs(*far) < 2 || stride(i.offset, nest.loops[u].var) != 1) continue;
            const DType type = buffers[static_cast<std::size_t>(i.buffer)].dtype;
            if (is_complex(type)) return std::nullopt;
            found.crossing.push_back(id);
            found.bytes = std::max<std::int64_t>(found.bytes, bytes(type));
        }
        found.along = u;
    }
    if (found.crossing.empty() || found.crossing.size() > kMostCrossing) return std::nullopt;
    return found;
}

}  // namespace ingot::sched
