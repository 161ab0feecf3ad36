// Reduction of huge arguments of sine, cosine and tangent modulo pi/2 (M. Payne, R. Hanek, "Radian
// reduction for trigonometric functions", 1983), with 192 bits of 2/pi held in one wide integer.
// Rarely executed; scalar.
#include <llvm/ADT/APInt.h>
#include <llvm/IR/Module.h>

#include "codegen/llvm/math_ops.h"

namespace ingot::codegen {

namespace {

/// { i64 quadrant, double rest } reduce(double x), x an f32 value with |x| >= 2^15, infinite or
/// NaN.
llvm::Function* reduction_function(llvm::Module& module) {
    if (llvm::Function* existing = module.getFunction("reduce.huge")) return existing;
    llvm::LLVMContext& context = module.getContext();
    llvm::IRBuilder<> b(context);
    llvm::Type* result = llvm::StructType::get(b.getInt64Ty(), b.getDoubleTy());
    auto* f = llvm::Function::Create(llvm::FunctionType::get(result, {b.getDoubleTy()}, false),
                                     llvm::GlobalValue::InternalLinkage, "reduce.huge", module);
    f->addFnAttr(llvm::Attribute::NoInline);
    f->setDoesNotThrow();
    b.SetInsertPoint(llvm::BasicBlock::Create(context, "entry", f));
    Value bits = b.CreateBitCast(f->getArg(0), b.getInt64Ty());
    Value exponent = b.CreateAnd(b.CreateLShr(bits, b.getInt64(52)), b.getInt64(0x7ff));
    // |x| = mantissa * 2^(shift - 8), with the 24 bits an f32 has.
    Value mantissa =
        b.CreateOr(b.CreateAnd(b.CreateLShr(bits, b.getInt64(29)), b.getInt64(0x7fffff)),
                   b.getInt64(0x800000));
    Value shift = b.CreateAnd(b.CreateSub(exponent, b.getInt64(1023 + 23 - 8)), b.getInt64(127));
    llvm::IntegerType* wide = b.getIntNTy(256);
    const llvm::APInt two_over_pi(256, "a2f9836e4e441529fc2757d1f534ddc0db6295993c439041", 16);
    // |x| * 2/pi with 200 fractional bits; whole turns wrap around at the top.
    Value product = b.CreateShl(
        b.CreateMul(b.CreateZExt(mantissa, wide), llvm::ConstantInt::get(wide, two_over_pi)),
        b.CreateZExt(shift, wide));
    Value fraction = b.CreateTrunc(b.CreateLShr(product, 136), b.getInt64Ty());
    Value quadrant = b.CreateTrunc(b.CreateLShr(product, 200), b.getInt64Ty());
    // The nearest quadrant: a fraction of a half or more is a negative one of the next.
    quadrant = b.CreateAdd(quadrant, b.CreateLShr(fraction, 63));
    Value rest = b.CreateFMul(b.CreateSIToFP(fraction, b.getDoubleTy()),
                              llvm::ConstantFP::get(b.getDoubleTy(), 0x1.921fb54442d18p-64));
    Value negative = b.CreateICmpSLT(bits, b.getInt64(0));
    rest = b.CreateSelect(negative, b.CreateFNeg(rest), rest);
    quadrant = b.CreateSelect(negative, b.CreateNeg(quadrant), quadrant);
    Value finite = b.CreateICmpNE(exponent, b.getInt64(0x7ff));
    rest = b.CreateSelect(finite, rest, llvm::ConstantFP::getNaN(b.getDoubleTy()));
    Value pair = llvm::PoisonValue::get(result);
    b.CreateRet(b.CreateInsertValue(b.CreateInsertValue(pair, quadrant, 0), rest, 1));
    return f;
}

}  // namespace

TurnRest reduce_huge(MathContext& context, MathOps& m, Value x) {
    llvm::IRBuilder<>& b = context.b;
    llvm::Function* reduce = reduction_function(*b.GetInsertBlock()->getModule());
    if (!m.lanes()) {
        Value pair = b.CreateCall(reduce, {x});
        return {b.CreateExtractValue(pair, 0), b.CreateExtractValue(pair, 1)};
    }
    TurnRest turn{llvm::PoisonValue::get(m.int_type()), llvm::PoisonValue::get(m.type())};
    for (unsigned lane = 0; lane < m.lanes(); ++lane) {
        Value pair = b.CreateCall(reduce, {b.CreateExtractElement(x, lane)});
        turn.quadrant = b.CreateInsertElement(turn.quadrant, b.CreateExtractValue(pair, 0), lane);
        turn.rest = b.CreateInsertElement(turn.rest, b.CreateExtractValue(pair, 1), lane);
    }
    return turn;
}

}  // namespace ingot::codegen
