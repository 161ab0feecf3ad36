// Dispatch of prims and what is the same for all types; see emit_prims.h.
#include "codegen/llvm/emit_prims.h"

#include <llvm/IR/Module.h>

#include "codegen/llvm/math.h"
#include "ir/error.h"

namespace ingot::codegen {

IrValue emit_extremum(llvm::IRBuilder<>& b, IrValue x, IrValue y, bool maximum, bool is_signed) {
    if (!x->getType()->isFPOrFPVectorTy()) {
        if (x->getType()->isIntOrIntVectorTy(1))
            return maximum ? b.CreateOr(x, y) : b.CreateAnd(x, y);
        const auto less = is_signed ? llvm::CmpInst::ICMP_SLT : llvm::CmpInst::ICMP_ULT;
        IrValue first = b.CreateICmp(less, x, y);
        return maximum ? b.CreateSelect(first, y, x) : b.CreateSelect(first, x, y);
    }
    // One max instruction (which returns x when the comparison fails) and a select for a NaN in y.
    IrValue better = maximum ? b.CreateFCmpOLT(x, y) : b.CreateFCmpOLT(y, x);
    IrValue r = b.CreateSelect(better, y, x);
    return b.CreateSelect(b.CreateFCmpUNO(y, y), y, r);
}

Lanes emit_array_call(EmitContext& c, std::string_view symbol, std::span<const IrValue> operands,
                      llvm::Type* result_element, unsigned parts) {
    llvm::IRBuilder<>& b = c.b;
    const unsigned lanes = std::max(1u, lanes_of(operands[0]));
    llvm::Function* function = b.GetInsertBlock()->getParent();
    llvm::IRBuilder<> entry(&function->getEntryBlock(), function->getEntryBlock().begin());
    llvm::Type* in_type = operands[0]->getType();
    llvm::Type* out_type = with_lanes(result_element, lanes);
    const auto count = static_cast<unsigned>(operands.size());
    IrValue in = entry.CreateAlloca(llvm::ArrayType::get(in_type, count));
    IrValue out = entry.CreateAlloca(llvm::ArrayType::get(out_type, parts));
    for (unsigned i = 0; i < count; ++i)
        b.CreateStore(operands[i], b.CreateConstInBoundsGEP1_64(in_type, in, i));
    auto* type =
        llvm::FunctionType::get(b.getVoidTy(), {b.getPtrTy(), b.getPtrTy(), b.getInt64Ty()}, false);
    llvm::FunctionCallee callee = function->getParent()->getOrInsertFunction(
        llvm::StringRef(symbol.data(), symbol.size()), type);
    if (auto* f = llvm::dyn_cast<llvm::Function>(callee.getCallee())) f->setDoesNotThrow();
    b.CreateCall(callee, {in, out, b.getInt64(lanes)});
    Lanes r;
    r.re = b.CreateLoad(out_type, out);
    if (parts == 2) r.im = b.CreateLoad(out_type, b.CreateConstInBoundsGEP1_64(out_type, out, 1));
    return r;
}

namespace {

Lanes logical(EmitContext& c, const PrimCall& call) {
    auto operand = [&](std::size_t i) { return truth(c, call.operand, call.operands[i]); };
    switch (call.prim) {
        case Prim::LogicalNot:
            return {c.b.CreateNot(operand(0))};
        case Prim::LogicalAnd:
            return {c.b.CreateAnd(operand(0), operand(1))};
        case Prim::LogicalOr:
            return {c.b.CreateOr(operand(0), operand(1))};
        case Prim::LogicalXor:
            return {c.b.CreateXor(operand(0), operand(1))};
        default:
            return {};
    }
}

Lanes select(EmitContext& c, const PrimCall& call) {
    const Lanes &x = call.operands[1], &y = call.operands[2];
    IrValue mask = call.operands[0].re;
    return {c.b.CreateSelect(mask, x.re, y.re),
            x.im ? c.b.CreateSelect(mask, x.im, y.im) : nullptr};
}

}  // namespace

Lanes emit_prim(EmitContext& c, const PrimCall& call) {
    switch (call.prim) {
        case Prim::Convert:
            return convert(c, call.operand, call.result, call.operands[0]);
        case Prim::Bitcast:
            return bitcast(c, call.operand, call.result, call.operands[0]);
        case Prim::Select:
            return select(c, call);
        case Prim::Complex:
            return {call.operands[0].re, call.operands[1].re};
        default:
            break;
    }
    if (Lanes r = logical(c, call); r.re) return r;
    Lanes r;
    if (is_complex(call.operand))
        r = emit_complex_prim(c, call);
    else if (is_float(call.operand))
        r = emit_float_prim(c, call);
    else
        r = emit_int_prim(c, call);
    if (!r.re)
        throw NotSupported("no code for " + std::string(name(call.prim)) + " of " +
                           std::string(name(call.operand)));
    return r;
}

int prim_cost(Prim prim, DType operand) {
    if (is_complex(operand)) return prim == Prim::Mul || prim == Prim::Div ? 8 : 4;
    switch (prim) {
        case Prim::Exp:
        case Prim::Exp2:
        case Prim::Sigmoid:
        case Prim::Log:
        case Prim::Log2:
        case Prim::Log10:
        case Prim::Cbrt:
        case Prim::Sqrt:
        case Prim::Rsqrt:
        case Prim::Hypot:
            return 14;
        case Prim::Sin:
        case Prim::Cos:
        case Prim::Tanh:
        case Prim::Erf:
        case Prim::Expm1:
        case Prim::Log1p:
        case Prim::Atan:
        case Prim::Asin:
        case Prim::Acos:
            return 24;
        case Prim::Tan:
        case Prim::Sinh:
        case Prim::Cosh:
        case Prim::Asinh:
        case Prim::Acosh:
        case Prim::Atanh:
        case Prim::Erfc:
        case Prim::Atan2:
        case Prim::Pow:
        case Prim::Xlogy:
        case Prim::Xlog1py:
        case Prim::Sinc:
        case Prim::Erfinv:
            return 40;
        case Prim::Fmod:
        case Prim::Remainder:
        case Prim::FloorDiv:
        case Prim::TruncDiv:
            return is_float(operand) ? 40 : 12;
        case Prim::Div:
        case Prim::Reciprocal:
            return 4;
        case Prim::Philox:
            return 40;
        case Prim::Digamma:
        case Prim::Lgamma:
        case Prim::Polygamma:
        case Prim::Zeta:
        case Prim::Igamma:
        case Prim::Igammac:
        case Prim::BesselI0:
        case Prim::BesselI1:
        case Prim::BesselI0e:
        case Prim::BesselI1e:
        case Prim::BesselJ0:
        case Prim::BesselJ1:
        case Prim::BesselY0:
        case Prim::BesselY1:
        case Prim::Erfcx:
        case Prim::Ndtri:
        case Prim::LogNdtr:
        case Prim::Gcd:
        case Prim::Lcm:
            return 200;
        default:
            return 1;
    }
}

}  // namespace ingot::codegen
