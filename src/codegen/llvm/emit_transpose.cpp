// Transposed reads in registers; see emit_transpose.h.
#include "codegen/llvm/emit_transpose.h"

#include <llvm/IR/Intrinsics.h>

#include "ir/error.h"

namespace ingot::codegen {

namespace {

/// Whether the load runs along `along` and jumps along `vector`.
bool runs_along(const Inst& inst, Expr along, Expr vector) {
    const auto own = linear_in(inst.offset, along), other = linear_in(inst.offset, vector);
    if (!own || !own->stride.is(1) || !other || !other->stride.is_constant()) return false;
    const std::int64_t jump = other->stride.constant();
    return jump > 4 || jump < -1;
}

/// Whether the offset needs an index that another instruction computes: a tile is loaded before any
/// of them.
bool needs_bound_index(const Inst& inst, const Phase& phase) {
    for (const Inst& other : phase.insts)
        if (other.kind == InstKind::Bind && contains(inst.offset, other.offset)) return true;
    return false;
}

}  // namespace

TilePlan plan_tile(const Kernel& kernel, const Nest& nest) {
    TilePlan plan;
    if (nest.loops.size() < 2 || nest.loops.back().kind != LoopKind::Vector) return plan;
    if (nest.phases.size() != 1) return plan;
    const Phase& phase = nest.phases[0];
    if (!phase.loops.empty() || !phase.reductions.empty()) return plan;
    const Expr vector = nest.loops.back().var;
    for (const Store& s : phase.stores) {
        const auto form = linear_in(s.offset, vector);
        if (!form || !form->stride.is(1) || s.mode != StoreMode::Write) return plan;
    }
    for (const KernelBuffer& b : kernel.buffers)  // a tile reads ahead of what it writes
        if (b.read && b.written) return plan;
    for (std::size_t l = nest.loops.size() - 1; l-- > 0 && plan.loads.empty();) {
        plan.loop = l;
        if (!nest.loops[l].extent.is_constant() || nest.loops[l].extent.constant() < 4) continue;
        for (InstId i = 0; i < phase.insts.size(); ++i) {
            const Inst& inst = phase.insts[i];
            if (inst.kind == InstKind::Load && inst.mask == kNone && inst.dtype != DType::Bool &&
                !needs_bound_index(inst, phase) && runs_along(inst, nest.loops[l].var, vector))
                plan.loads.push_back(i);
        }
    }
    return plan;
}

namespace {

// The same value, whose making LLVM does not look into. Without such limits it tries to join each
// shuffle with all those before it and finds nothing: half of the time that a kernel takes to
// compile.
IrValue fenced(llvm::IRBuilder<>& b, IrValue v) {
    llvm::Type* type = v->getType();
    const unsigned bits = type->getPrimitiveSizeInBits().getFixedValue();
    if (bits % 32 != 0) return v;
    llvm::Type* floats = llvm::FixedVectorType::get(b.getFloatTy(), bits / 32);
    IrValue same = b.CreateIntrinsic(llvm::Intrinsic::arithmetic_fence, {floats},
                                     {b.CreateBitCast(v, floats)});
    return b.CreateBitCast(same, type);
}

}  // namespace

std::vector<IrValue> emit_transpose(llvm::IRBuilder<>& b, std::vector<IrValue> rows) {
    const auto n = static_cast<unsigned>(rows.size());
    check(n == lanes_of(rows[0]), "a tile that is not square");
    // Each step exchanges the off-diagonal blocks of size `block` between rows that far apart.
    for (unsigned block = n / 2; block > 0; block /= 2) {
        std::vector<int> upper, lower;
        for (unsigned lane = 0; lane < n; ++lane) {
            const bool second = (lane & block) != 0;
            upper.push_back(static_cast<int>(second ? n + lane - block : lane));
            lower.push_back(static_cast<int>(second ? n + lane : lane + block));
        }
        for (unsigned i = 0; i < n; ++i) {
            if (i & block) continue;
            IrValue x = rows[i], y = rows[i + block];
            rows[i] = b.CreateShuffleVector(x, y, upper);
            rows[i + block] = b.CreateShuffleVector(x, y, lower);
        }
        if (block > 1)
            for (IrValue& row : rows) row = fenced(b, row);
    }
    return rows;
}

}  // namespace ingot::codegen
