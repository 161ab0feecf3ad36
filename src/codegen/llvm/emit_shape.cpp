// How a nest becomes vector loops; see emit_shape.h.
#include "codegen/llvm/emit_shape.h"

#include <algorithm>
#include <bit>

#include "codegen/llvm/emit_prims.h"

namespace ingot::codegen {

namespace {

constexpr std::int64_t kChunkPoints = 4096;  // of a pointwise nest's work item
constexpr int kStreamingCost = 20;  // of a storing phase that waits for memory, not for arithmetic
constexpr std::int64_t kGrainCost = 400'000;  // simple operations worth a thread: about 10 us

struct BodySize {
    int narrowest = 8, widest = 1;  // bytes of a lane
    int insts = 0;
    int cost = 0;
    bool narrow_memory = false;  // elements of less than 4 bytes are loaded or stored
};

BodySize measure(const Kernel& kernel, const Nest& nest) {
    BodySize m;
    auto type = [&](DType t) {
        if (t == DType::Bool) return;
        const int size = bytes(real_type(compute_type(t)));
        m.narrowest = std::min(m.narrowest, size);
        m.widest = std::max(m.widest, size);
    };
    auto memory = [&](std::int32_t buffer) {
        const DType t = kernel.buffers[static_cast<std::size_t>(buffer)].dtype;
        m.narrow_memory = m.narrow_memory || bytes(real_type(t)) < 4;
        m.cost += 2;
    };
    for (const Phase& phase : nest.phases) {
        const std::vector<std::size_t> levels = inst_levels(phase);
        for (InstId i = 0; i < phase.insts.size(); ++i) {
            const Inst& inst = phase.insts[i];
            if (inst.kind == InstKind::Constant || inst.kind == InstKind::Reduced) continue;
            if (!phase.loops.empty() && levels[i] == 0) continue;  // once a point, outside the loop
            type(inst.dtype);
            if (is_complex(inst.dtype)) m.insts += 1;
            ++m.insts;
            if (inst.kind == InstKind::Load) memory(inst.buffer);
            if (inst.kind == InstKind::Prim)
                m.cost += prim_cost(inst.prim, phase.insts[inst.operands[0]].dtype);
        }
        for (const Reduction& r : phase.reductions) {
            type(r.dtype);
            if (r.index != kNone) type(DType::I64);
            m.insts += 2;
            m.cost += 2;
        }
        for (const Store& s : phase.stores) memory(s.buffer);
    }
    if (m.widest < m.narrowest) m.widest = m.narrowest = 1;
    return m;
}

/// A work item becomes a block of rows: as many as a register has lanes.
void use_tiles(NestShape& s, Expr extent, unsigned one_register) {
    Expr& rows = s.item_loops[s.tile.loop].extent;
    std::int64_t n = std::min<std::int64_t>(std::max(one_register, 4u), rows.constant());
    if (extent.is_constant()) n = std::min(n, extent.constant());
    s.lanes = std::bit_floor(static_cast<unsigned>(n));
    if (s.lanes < 4) {
        s.tile = TilePlan();
        const LoopLanes fitted = fit_lanes(extent, {one_register, one_register});
        s.lanes = fitted.main;
        s.rest_lanes = fitted.rest;
        return;
    }
    s.rest_lanes = std::min(s.rest_lanes, s.lanes);
    s.chunk = std::max<std::int64_t>(kChunkPoints / s.lanes, s.lanes);
    rows = ceil_div(rows, Expr(static_cast<std::int64_t>(s.lanes)));
}

LoopLanes lanes_for(const BodySize& m, const TargetInfo& target, const EmitOptions& options,
                    bool columns) {
    const auto narrow = target.lanes(static_cast<unsigned>(m.narrowest));
    const auto wide = target.lanes(static_cast<unsigned>(m.widest));
    const unsigned one_register = std::bit_floor(std::max(1u, std::min(narrow, 2 * wide)));
    const unsigned width = one_register / wide;  // registers of the widest type in one step
    // Independent chains hide latency; too many spill, and cost time to compile.
    unsigned registers = m.insts > 80 ? 1 : m.insts > 8 || m.cost > 30 ? 2 : 4;
    if (columns && m.insts <= 4) registers = 8;  // long runs of every row, for the prefetcher
    if (target.vector_registers() < 32) registers = std::max(1u, registers / 2);
    if (options.max_registers) registers = std::min(registers, options.max_registers);
    const unsigned factor = std::max(1u, registers / std::max(1u, width));
    LoopLanes lanes{one_register * std::bit_floor(factor), one_register};
    if (!target.avx512f && target.arch == Arch::X86_64 && m.narrow_memory) lanes.rest = 1;
    return lanes;
}

Nest alone(const Phase& phase) {
    Nest n;
    n.phases = {phase};
    return n;
}

Expr product_of(const std::vector<Loop>& loops) {
    Expr p(1);
    for (const Loop& l : loops) p *= l.extent;
    return p;
}

bool has_loops(const Nest& nest) {
    return std::any_of(nest.phases.begin(), nest.phases.end(),
                       [](const Phase& p) { return !p.loops.empty(); });
}

/// Cost of all phases at one outer point, as an expression of the sizes. An extent that depends on
/// outer loops counts as its upper bound.
Expr point_cost(const Kernel& kernel, const Nest& nest) {
    Expr total(0);
    for (const Phase& phase : nest.phases) {
        Expr points(1);
        for (const Loop& l : phase.loops) {
            const Range r = l.extent.range();
            points *= l.extent.is_constant() ? l.extent
                      : r.hi != Range::kMax  ? Expr(r.hi)
                                             : Expr(256);
        }
        total += points * Expr(std::max(1, measure(kernel, alone(phase)).cost));
    }
    return max(total, Expr(1));
}

}  // namespace

bool is_large_output(const KernelBuffer& buffer, const TargetInfo& target, std::size_t size) {
    return buffer.scope == BufferScope::Argument && buffer.written && !buffer.read &&
           buffer.elements.is_constant() && target.arch == Arch::X86_64 &&
           buffer.elements.constant() * bytes(buffer.dtype) >= static_cast<std::int64_t>(size);
}

// The rest's lanes never exceed the main loop's: it starts at a multiple of these.
LoopLanes fit_lanes(Expr extent, LoopLanes wanted) {
    const auto [lanes, rest_lanes] = wanted;
    if (!extent.is_constant()) return wanted;
    const auto e = static_cast<unsigned>(std::clamp<std::int64_t>(extent.constant(), 1, 1 << 16));
    if (rest_lanes == 1) return {std::min(lanes, std::bit_floor(e)), 1};
    if (e < rest_lanes) return {std::bit_ceil(e), std::bit_ceil(e)};
    return {std::min(lanes, std::bit_floor(e)), rest_lanes};
}

std::optional<std::size_t> vector_loop(const Phase& phase) {
    for (std::size_t i = phase.loops.size(); i-- > 0;)
        if (phase.loops[i].kind == LoopKind::Vector) return i;
    return std::nullopt;
}

std::vector<std::size_t> inst_levels(const Phase& phase) {
    std::vector<std::size_t> levels;
    std::vector<std::pair<Expr, std::size_t>> bound;  // symbols of Bind insts
    auto of_expr = [&](Expr e) {
        std::size_t level = 0;
        for (Expr s : symbols(e)) {
            for (std::size_t l = 0; l < phase.loops.size(); ++l)
                if (phase.loops[l].var == s) level = std::max(level, l + 1);
            for (const auto& [symbol, l] : bound)
                if (symbol == s) level = std::max(level, l);
        }
        return level;
    };
    for (const Inst& inst : phase.insts) {
        std::size_t level = 0;
        for (InstId o : inst.operands) level = std::max(level, levels[o]);
        if (inst.mask != kNone) level = std::max(level, levels[inst.mask]);
        if (inst.kind == InstKind::Load || inst.kind == InstKind::Index)
            level = std::max(level, of_expr(inst.offset));
        if (inst.kind == InstKind::Bind) {
            level = std::max(level, of_expr(inst.extent));
            bound.emplace_back(inst.offset, level);
        }
        levels.push_back(level);
    }
    return levels;
}

NestShape shape_of(const Kernel& kernel, const Nest& nest, const TargetInfo& target,
                   const EmitOptions& options) {
    NestShape s;
    s.item_loops = nest.loops;
    s.outer_vector = !nest.loops.empty() && nest.loops.back().kind == LoopKind::Vector;
    const BodySize body = measure(kernel, nest);
    const LoopLanes all = lanes_for(body, target, options, s.outer_vector && has_loops(nest));
    s.lanes = all.main;
    s.rest_lanes = all.rest;
    for (const Phase& phase : nest.phases)
        s.phase_lanes.push_back(lanes_for(measure(kernel, alone(phase)), target, options, false));
    for (const KernelBuffer& buffer : kernel.buffers)
        s.streamed.push_back(is_large_output(buffer, target, target.l3_bytes));
    for (const Phase& phase : nest.phases)
        for (const Store& store : phase.stores)
            if (measure(kernel, alone(phase)).cost > kStreamingCost)
                s.streamed[static_cast<std::size_t>(store.buffer)] = false;
    const Expr cost = point_cost(kernel, nest);
    if (!s.outer_vector) {
        s.work = product_of(s.item_loops);
        s.grain = max(Expr(1), floor_div(Expr(kGrainCost), max(Expr(1), cost)));
        return s;
    }
    const Expr extent = nest.loops.back().extent;
    const LoopLanes fitted = fit_lanes(extent, {s.lanes, s.rest_lanes});
    s.lanes = fitted.main;
    s.rest_lanes = fitted.rest;
    s.item_loops.pop_back();
    s.chunk = has_loops(nest) ? s.lanes : std::max<std::int64_t>(kChunkPoints, s.lanes);
    s.tile = plan_tile(kernel, nest);
    if (!s.tile.loads.empty()) use_tiles(s, extent, all.rest);
    s.chunks = ceil_div(extent, Expr(s.chunk));
    s.work = product_of(s.item_loops) * s.chunks;
    const Expr rows(s.tile.loads.empty() ? 1 : static_cast<std::int64_t>(s.lanes));
    const Expr points = rows * min(extent, Expr(s.chunk));  // of a work item
    s.grain = max(Expr(1), floor_div(Expr(kGrainCost), max(Expr(1), cost * points)));
    return s;
}

}  // namespace ingot::codegen
