// See gpu_reduce.h.
#include "codegen/llvm/gpu_reduce.h"

#include <llvm/IR/IntrinsicsNVPTX.h>

#include <algorithm>
#include <bit>

#include "codegen/llvm/emit_memory.h"

namespace ingot::codegen {

namespace {

constexpr unsigned kShared = 3;       // address space
constexpr unsigned kFewWarps = 4;     // whose results every thread combines by itself
constexpr std::size_t kTogether = 4;  // numbers of one access

}  // namespace

void emit_group_barrier(llvm::IRBuilder<>& b, const GpuMapping& map) {
    if (map.group == map.threads)
        b.CreateIntrinsic(llvm::Intrinsic::nvvm_barrier0, {}, {});
    else
        b.CreateIntrinsic(llvm::Intrinsic::nvvm_bar_warp_sync, {}, {b.getInt32(0xffffffffu)});
}

void GroupReduction::run(const Phase& phase, std::vector<Partial>& partials, IrValue turn) {
    if (partials.empty()) return;
    for (std::size_t r = 0; r < partials.size(); ++r)
        partials[r] =
            butterfly(phase.reductions[r], partials[r], std::min(map_.group, unsigned{kWarp}));
    const unsigned warps = map_.group / kWarp;
    if (warps <= 1) return;
    IrValue lane = b_.CreateURem(thread_, number(kWarp)),
            warp = b_.CreateUDiv(thread_, number(kWarp));
    const std::vector<IrValue> parts = numbers_of(partials);
    const Slots slots = place(parts, turn ? 2 * warps : warps);
    const auto of_warp = [&](IrValue w) -> IrValue {
        return turn ? b_.CreateAdd(w, b_.CreateMul(turn, number(warps))) : w;
    };
    emit_if(b_, b_.CreateICmpEQ(lane, b_.getInt64(0)), [&] { store(slots, parts, of_warp(warp)); });
    emit_group_barrier(b_, map_);
    const auto found_by = [&](IrValue w) { return load(slots, partials, of_warp(w)); };
    if (warps <= kFewWarps) {
        partials = total_of(phase, warps, [&](unsigned w) { return found_by(number(w)); });
        return;
    }
    // As many neighbouring lanes as there are warps; those beyond the last warp have none.
    const unsigned width = std::bit_ceil(warps);
    IrValue mine = b_.CreateAnd(lane, number(width - 1));
    IrValue real = width == warps ? nullptr : b_.CreateICmpULT(mine, number(warps));
    const std::vector<Partial> found =
        found_by(real ? b_.CreateSelect(real, mine, b_.getInt64(0)) : mine);
    for (std::size_t r = 0; r < partials.size(); ++r) {
        Partial one = found[r];
        if (real) {
            std::vector<IrValue> none;
            map_parts(identity(c_, phase.reductions[r], 1),
                      [&](IrValue v) { return none.emplace_back(v); });
            std::size_t n = 0;
            one = map_parts(one, [&](IrValue v) { return b_.CreateSelect(real, v, none[n++]); });
        }
        partials[r] = butterfly(phase.reductions[r], one, width);
    }
}

void GroupReduction::run_parts(const Phase& phase, std::vector<Partial>& partials) {
    const std::vector<IrValue> parts = numbers_of(partials);
    const Slots slots = place(parts, map_.threads);
    store(slots, parts, thread_);
    b_.CreateIntrinsic(llvm::Intrinsic::nvvm_barrier0, {}, {});
    IrValue own = b_.CreateURem(thread_, number(map_.groups()));
    partials = total_of(phase, map_.parts, [&](unsigned part) {
        IrValue at = b_.CreateAdd(own, number(std::uint64_t{part} * map_.groups()));
        return load(slots, partials, at);
    });
    // The next point overwrites it.
    b_.CreateIntrinsic(llvm::Intrinsic::nvvm_barrier0, {}, {});
}

std::vector<IrValue> GroupReduction::numbers_of(const std::vector<Partial>& partials) {
    std::vector<IrValue> numbers;
    for (const Partial& p : partials)
        map_parts(p, [&](IrValue v) { return numbers.emplace_back(v); });
    return numbers;
}

std::vector<Partial> GroupReduction::total_of(
    const Phase& phase, unsigned count, const std::function<std::vector<Partial>(unsigned)>& nth) {
    std::vector<Partial> total = nth(0);
    for (unsigned n = 1; n < count; ++n) {
        const std::vector<Partial> next = nth(n);
        for (std::size_t r = 0; r < total.size(); ++r)
            total[r] = combine(c_, phase.reductions[r], total[r], next[r]);
    }
    return total;
}

Partial GroupReduction::butterfly(const Reduction& r, Partial p, unsigned width) {
    for (unsigned distance = width / 2; distance > 0; distance /= 2)
        p = combine(c_, r, p, map_parts(p, [&](IrValue v) { return shuffle(v, distance); }));
    return p;
}

GroupReduction::Slots GroupReduction::place(const std::vector<IrValue>& parts, unsigned count) {
    Slots slots;
    slots.together =
        parts.size() > 1 && parts.size() <= kTogether &&
        std::ranges::all_of(parts, [](IrValue v) { return v->getType()->isFloatTy(); });
    if (slots.together) {
        const auto lanes = static_cast<unsigned>(std::bit_ceil(parts.size()));
        llvm::Type* all = llvm::FixedVectorType::get(b_.getFloatTy(), lanes);
        slots.variables.emplace_back(shared_array(all, count), all);
        return slots;
    }
    for (IrValue v : parts) {
        llvm::Type* type = v->getType()->isIntegerTy(1) ? b_.getInt8Ty() : v->getType();
        slots.variables.emplace_back(shared_array(type, count), type);
    }
    return slots;
}

void GroupReduction::store(const Slots& slots, const std::vector<IrValue>& parts, IrValue at) {
    if (slots.together) {
        const auto [variable, type] = slots.variables[0];
        IrValue all = llvm::PoisonValue::get(type);
        for (std::size_t k = 0; k < parts.size(); ++k)
            all = b_.CreateInsertElement(all, parts[k], k);
        b_.CreateStore(all, b_.CreateGEP(type, variable, at));
        return;
    }
    for (std::size_t k = 0; k < parts.size(); ++k) {
        const auto [variable, type] = slots.variables[k];
        IrValue v = parts[k];
        if (v->getType()->isIntegerTy(1)) v = b_.CreateZExt(v, type);
        b_.CreateStore(v, b_.CreateGEP(type, variable, at));
    }
}

std::vector<Partial> GroupReduction::load(const Slots& slots, const std::vector<Partial>& like,
                                          IrValue at) {
    IrValue all = nullptr;
    if (slots.together) {
        const auto [variable, type] = slots.variables[0];
        all = b_.CreateLoad(type, b_.CreateGEP(type, variable, at));
    }
    std::size_t k = 0;
    const auto next = [&](IrValue v) -> IrValue {
        if (all) return b_.CreateExtractElement(all, k++);
        const auto [variable, type] = slots.variables[k++];
        IrValue x = b_.CreateLoad(type, b_.CreateGEP(type, variable, at));
        return v->getType()->isIntegerTy(1) ? b_.CreateICmpNE(x, b_.getInt8(0)) : x;
    };
    std::vector<Partial> found;
    for (const Partial& p : like) found.push_back(map_parts(p, next));
    return found;
}

llvm::GlobalVariable* GroupReduction::shared_array(llvm::Type* type, unsigned count) {
    auto* array = llvm::ArrayType::get(type, count);
    return new llvm::GlobalVariable(module_, array, false, llvm::GlobalValue::InternalLinkage,
                                    llvm::UndefValue::get(array), "partial", nullptr,
                                    llvm::GlobalValue::NotThreadLocal, kShared);
}

IrValue GroupReduction::shuffle(IrValue v, unsigned distance) {
    llvm::Type* type = v->getType();
    const unsigned bits = type->getScalarSizeInBits();
    IrValue raw = type->isIntegerTy() ? v : b_.CreateBitCast(v, b_.getIntNTy(bits));
    auto move = [&](IrValue word) -> IrValue {
        return b_.CreateIntrinsic(
            llvm::Intrinsic::nvvm_shfl_sync_bfly_i32, {},
            {b_.getInt32(0xffffffffu), word, b_.getInt32(distance), b_.getInt32(31)});
    };
    if (bits <= 32) {
        raw = b_.CreateTrunc(move(b_.CreateZExt(raw, b_.getInt32Ty())), b_.getIntNTy(bits));
    } else {
        IrValue low = move(b_.CreateTrunc(raw, b_.getInt32Ty()));
        IrValue high = move(b_.CreateTrunc(b_.CreateLShr(raw, 32), b_.getInt32Ty()));
        llvm::Type* wide = b_.getInt64Ty();
        raw = b_.CreateOr(b_.CreateZExt(low, wide), b_.CreateShl(b_.CreateZExt(high, wide), 32));
    }
    return type->isIntegerTy() ? raw : b_.CreateBitCast(raw, type);
}

}  // namespace ingot::codegen
