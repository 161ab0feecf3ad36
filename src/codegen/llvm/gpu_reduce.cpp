// See gpu_reduce.h.
#include "codegen/llvm/gpu_reduce.h"

#include <llvm/IR/IntrinsicsNVPTX.h>

#include "codegen/llvm/emit_memory.h"

namespace ingot::codegen {

namespace {

constexpr unsigned kShared = 3;    // address space
constexpr unsigned kFewWarps = 4;  // whose results every thread combines by itself

}  // namespace

void emit_group_barrier(llvm::IRBuilder<>& b, const GpuMapping& map) {
    if (map.group == map.threads)
        b.CreateIntrinsic(llvm::Intrinsic::nvvm_barrier0, {}, {});
    else
        b.CreateIntrinsic(llvm::Intrinsic::nvvm_bar_warp_sync, {}, {b.getInt32(0xffffffffu)});
}

void GroupReduction::run(const Phase& phase, std::vector<Partial>& partials) {
    if (partials.empty()) return;
    for (std::size_t r = 0; r < partials.size(); ++r)
        partials[r] = butterfly(phase.reductions[r], partials[r]);
    const unsigned warps = map_.group / kWarp;
    if (warps == 1) return;
    std::vector<std::pair<llvm::GlobalVariable*, llvm::Type*>> slots;
    IrValue lane = b_.CreateURem(thread_, number(kWarp)),
            warp = b_.CreateUDiv(thread_, number(kWarp));
    for (Partial& p : partials)
        map_parts(p, [&](IrValue v) { return slots.push_back(slot(v)), v; });
    emit_if(b_, b_.CreateICmpEQ(lane, b_.getInt64(0)), [&] {
        std::size_t k = 0;
        for (Partial& p : partials)
            map_parts(p, [&](IrValue v) {
                if (v->getType()->isIntegerTy(1)) v = b_.CreateZExt(v, b_.getInt8Ty());
                b_.CreateStore(v, b_.CreateGEP(slots[k].second, slots[k].first, warp));
                ++k;
                return v;
            });
    });
    emit_group_barrier(b_, map_);
    std::size_t k = 0;
    for (std::size_t r = 0; r < partials.size(); ++r) {
        const std::size_t first = k;
        const Reduction& reduction = phase.reductions[r];
        const auto load = [&](IrValue which) {
            k = first;
            return map_parts(partials[r], [&](IrValue v) -> IrValue {
                auto [variable, type] = slots[k++];
                IrValue x = b_.CreateLoad(type, b_.CreateGEP(type, variable, which));
                return v->getType()->isIntegerTy(1) ? b_.CreateICmpNE(x, b_.getInt8(0)) : x;
            });
        };
        if (warps > kFewWarps) {
            // Lanes beyond the warps repeat none.
            IrValue real = b_.CreateICmpULT(lane, number(warps));
            Partial one = load(b_.CreateSelect(real, lane, b_.getInt64(0)));
            std::vector<IrValue> parts;
            map_parts(identity(c_, reduction, 1), [&](IrValue v) { return parts.emplace_back(v); });
            std::size_t n = 0;
            one = map_parts(one, [&](IrValue v) { return b_.CreateSelect(real, v, parts[n++]); });
            partials[r] = butterfly(reduction, one);
            continue;
        }
        Partial total = load(b_.getInt64(0));
        for (unsigned w = 1; w < warps; ++w) total = combine(c_, reduction, total, load(number(w)));
        partials[r] = total;
    }
}

Partial GroupReduction::butterfly(const Reduction& r, Partial p) {
    for (unsigned distance = kWarp / 2; distance > 0; distance /= 2)
        p = combine(c_, r, p, map_parts(p, [&](IrValue v) { return shuffle(v, distance); }));
    return p;
}

std::pair<llvm::GlobalVariable*, llvm::Type*> GroupReduction::slot(IrValue v) {
    llvm::Type* type = v->getType()->isIntegerTy(1) ? b_.getInt8Ty() : v->getType();
    auto* array = llvm::ArrayType::get(type, map_.group / kWarp);
    auto* variable = new llvm::GlobalVariable(
        module_, array, false, llvm::GlobalValue::InternalLinkage, llvm::UndefValue::get(array),
        "partial", nullptr, llvm::GlobalValue::NotThreadLocal, kShared);
    return {variable, type};
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
