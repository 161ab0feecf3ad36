// The parts of MathOps that are more than one instruction.
#include "codegen/llvm/math_ops.h"

#include <llvm/IR/InlineAsm.h>
#include <llvm/IR/IntrinsicsNVPTX.h>
#include <llvm/IR/IntrinsicsX86.h>

namespace ingot::codegen {

namespace {

/// The AVX-512 instruction of this shape, or not_intrinsic.
llvm::Intrinsic::ID scalef_intrinsic(const MathOps& ops) {
    if (!ops.target.avx512f) return llvm::Intrinsic::not_intrinsic;
    switch (ops.lanes() ? ops.bits() : 0) {
        case 512:
            return ops.is_f32() ? llvm::Intrinsic::x86_avx512_mask_scalef_ps_512
                                : llvm::Intrinsic::x86_avx512_mask_scalef_pd_512;
        case 256:
            return ops.is_f32() ? llvm::Intrinsic::x86_avx512_mask_scalef_ps_256
                                : llvm::Intrinsic::x86_avx512_mask_scalef_pd_256;
        case 128:
            return ops.is_f32() ? llvm::Intrinsic::x86_avx512_mask_scalef_ps_128
                                : llvm::Intrinsic::x86_avx512_mask_scalef_pd_128;
        default:
            return llvm::Intrinsic::not_intrinsic;
    }
}

/// `f` of each lane of the operands.
template <class F, class... Values>
Value lane_by_lane(MathOps& m, const F& f, Values... operands) {
    if (m.lanes() == 0) return f(operands...);
    Value result = llvm::PoisonValue::get(m.type());
    for (unsigned k = 0; k < m.lanes(); ++k)
        result = m.b.CreateInsertElement(result, f(m.b.CreateExtractElement(operands, k)...), k);
    return result;
}

}  // namespace

Value MathOps::quick_div(Value x, Value y) {
    if (!target.is_gpu() || !is_f32()) return div(x, y);
    auto* type = llvm::FunctionType::get(element(), {element(), element()}, false);
    auto* code = llvm::InlineAsm::get(type, "div.full.f32 $0, $1, $2;", "=f,f,f", false);
    return lane_by_lane(
        *this, [&](Value a, Value c) -> Value { return b.CreateCall(type, code, {a, c}); }, x, y);
}

Value MathOps::exp2_of_gpu(Value x) {
    return lane_by_lane(
        *this,
        [&](Value a) -> Value {
            return b.CreateIntrinsic(llvm::Intrinsic::nvvm_ex2_approx_ftz_f, {}, {a});
        },
        x);
}

Value MathOps::reciprocal_of_gpu(Value x) {
    return lane_by_lane(
        *this,
        [&](Value a) -> Value {
            return b.CreateIntrinsic(llvm::Intrinsic::nvvm_rcp_approx_ftz_f, {}, {a});
        },
        x);
}

Value MathOps::scale(Value y, Value n) {
    const llvm::Intrinsic::ID scalef = scalef_intrinsic(*this);
    if (scalef != llvm::Intrinsic::not_intrinsic) {
        const unsigned mask_bits = lanes() < 8 ? 8 : lanes();
        llvm::SmallVector<Value, 5> arguments{
            y, n, llvm::PoisonValue::get(type_),
            b.getIntN(mask_bits, ~std::uint64_t{0} >> (64 - mask_bits))};
        if (bits() == 512) arguments.push_back(b.getInt32(4));  // the current rounding mode
        return b.CreateIntrinsic(scalef, {}, arguments);
    }
    // Two factors, because 2^n itself may overflow or be subnormal where y * 2^n does not.
    const int fraction = is_f32() ? 23 : 52;
    const int bias = is_f32() ? 127 : 1023;
    const double magic = is_f32() ? 0x1.8p23 : 0x1.8p52;
    Value k = b.CreateSub(to_bits(add(n, c(magic))), to_bits(c(magic)));
    Value half = b.CreateAShr(k, i(1));
    Value rest = b.CreateSub(k, half);
    const auto power = [&](Value e) {
        return from_bits(b.CreateShl(b.CreateAdd(e, i(bias)), i(fraction)));
    };
    return mul(mul(y, power(half)), power(rest));
}

Value MathOps::in_parts(llvm::IRBuilder<>& b, std::span<const Value> operands, unsigned part_lanes,
                        llvm::function_ref<Value(std::span<const Value>)> compute) {
    const auto* type = llvm::dyn_cast<llvm::FixedVectorType>(operands[0]->getType());
    const unsigned lanes = type ? type->getNumElements() : 1;
    if (!type || lanes <= part_lanes || lanes % part_lanes != 0) return compute(operands);
    llvm::SmallVector<Value, 8> parts;
    for (unsigned first = 0; first < lanes; first += part_lanes) {
        llvm::SmallVector<int, 64> picks(part_lanes);
        for (unsigned k = 0; k < part_lanes; ++k) picks[k] = static_cast<int>(first + k);
        llvm::SmallVector<Value, 2> piece;
        for (Value operand : operands) piece.push_back(b.CreateShuffleVector(operand, picks));
        parts.push_back(compute({piece.data(), piece.size()}));
    }
    Value joined = parts[0];
    for (unsigned p = 1; p < parts.size(); ++p) {
        // Both shuffle operands must have one width: the new part is padded first.
        const unsigned have = p * part_lanes;
        llvm::SmallVector<int, 64> pad(have, -1);
        for (unsigned k = 0; k < part_lanes; ++k) pad[k] = static_cast<int>(k);
        Value padded = have == part_lanes ? parts[p] : b.CreateShuffleVector(parts[p], pad);
        llvm::SmallVector<int, 64> both(have + part_lanes);
        for (unsigned k = 0; k < have + part_lanes; ++k) both[k] = static_cast<int>(k);
        joined = b.CreateShuffleVector(joined, padded, both);
    }
    return joined;
}

}  // namespace ingot::codegen
