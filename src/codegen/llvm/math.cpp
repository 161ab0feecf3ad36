// Which form of a function is used, and the scalar calls for those without one. The forms
// themselves: math_f32.cpp, math_via_f64.cpp.
#include "codegen/llvm/math.h"

#include <llvm/IR/Module.h>

#include <array>
#include <string>

#include "codegen/llvm/math_ops.h"
#include "ir/error.h"

namespace ingot::codegen {

namespace {

constexpr std::array<std::string_view, kMathFnCount> kNames = {
    "sqrt",    "rsqrt", "cbrt",  "exp",   "exp2", "expm1",    "log",    "log2",    "log10",
    "log1p",   "sin",   "cos",   "tan",   "asin", "acos",     "atan",   "sinh",    "cosh",
    "tanh",    "asinh", "acosh", "atanh", "erf",  "erfc",     "erfinv", "sigmoid", "lgamma",
    "digamma", "pow",   "atan2", "hypot", "fmod", "remainder"};

/// f64 functions, and those of either type, that are a formula over others; null if `fn` is none of
/// them.
Value emit_formula(MathContext& context, MathFn fn, std::span<const Value> x) {
    MathOps m(context, x[0]->getType());
    switch (fn) {
        case MathFn::Sqrt:
            return m.sqrt(x[0]);
        case MathFn::Rsqrt:  // eager rounds twice
            return m.div(m.c(1), m.sqrt(x[0]));
        case MathFn::Sigmoid: {
            const Value negated = m.neg(x[0]);
            return m.div(m.c(1), m.add(m.c(1), emit_math(context, MathFn::Exp, {&negated, 1})));
        }
        case MathFn::Remainder: {
            // Python's modulo from C's: a nonzero rest of the wrong sign moves by one divisor.
            Value rest = emit_math(context, MathFn::Fmod, x);
            const Value nonzero = m.b.CreateFCmpUNE(rest, m.c(0));
            const Value differs =
                m.b.CreateICmpSLT(m.b.CreateXor(m.to_bits(rest), m.to_bits(x[1])), m.i(0));
            return m.select(m.b.CreateAnd(nonzero, differs), m.add(rest, x[1]), rest);
        }
        default:
            return nullptr;
    }
}

bool is_formula(MathFn fn) {
    return fn == MathFn::Sqrt || fn == MathFn::Rsqrt || fn == MathFn::Sigmoid ||
           fn == MathFn::Remainder;
}

/// f32 values through f64 code, in parts as wide as the target's f64 vectors.
Value emit_widened(MathContext& context, MathFn fn, std::span<const Value> x) {
    return MathOps::in_parts(
        context.b, x, context.target.lanes(8), [&](std::span<const Value> part) {
            const auto* vector = llvm::dyn_cast<llvm::FixedVectorType>(part[0]->getType());
            llvm::Type* wide = context.b.getDoubleTy();
            if (vector) wide = llvm::FixedVectorType::get(wide, vector->getNumElements());
            llvm::SmallVector<Value, 2> widened;
            for (Value v : part) widened.push_back(context.b.CreateFPExt(v, wide));
            Value y = emit_via_f64(context, fn, {widened.data(), widened.size()});
            return context.b.CreateFPTrunc(y, part[0]->getType());
        });
}

llvm::FunctionCallee scalar_function(llvm::Module& module, const std::string& symbol,
                                     llvm::Type* element, std::size_t operands) {
    const llvm::SmallVector<llvm::Type*, 2> parameters(operands, element);
    llvm::FunctionCallee callee = module.getOrInsertFunction(
        symbol, llvm::FunctionType::get(element, parameters, /*isVarArg=*/false));
    if (auto* f = llvm::dyn_cast<llvm::Function>(callee.getCallee())) {
        f->setDoesNotThrow();
        f->setDoesNotAccessMemory();
        f->setWillReturn();
    }
    return callee;
}

/// The internal function that applies `symbol` to every lane of a vector, in a loop over a copy on
/// the stack: it keeps the kernel's own loops small, and a call costs more than the copy.
llvm::Function* lane_loop(llvm::Module& module, const std::string& symbol,
                          llvm::FixedVectorType* type, std::size_t operands) {
    llvm::Type* element = type->getElementType();
    const std::string name = "each." + symbol + "." + std::to_string(type->getNumElements());
    if (llvm::Function* existing = module.getFunction(name)) return existing;
    llvm::LLVMContext& context = module.getContext();
    const llvm::SmallVector<llvm::Type*, 2> parameters(operands, type);
    auto* f = llvm::Function::Create(llvm::FunctionType::get(type, parameters, false),
                                     llvm::GlobalValue::InternalLinkage, name, module);
    f->addFnAttr(llvm::Attribute::NoInline);
    f->setDoesNotThrow();
    auto* entry = llvm::BasicBlock::Create(context, "entry", f);
    auto* loop = llvm::BasicBlock::Create(context, "loop", f);
    auto* exit = llvm::BasicBlock::Create(context, "exit", f);
    llvm::IRBuilder<> b(entry);
    llvm::SmallVector<llvm::AllocaInst*, 2> copies;
    for (std::size_t k = 0; k < operands; ++k) copies.push_back(b.CreateAlloca(type));
    for (std::size_t k = 0; k < operands; ++k) b.CreateStore(f->getArg(k), copies[k]);
    b.CreateBr(loop);
    b.SetInsertPoint(loop);
    llvm::PHINode* lane = b.CreatePHI(b.getInt64Ty(), 2);
    lane->addIncoming(b.getInt64(0), entry);
    llvm::SmallVector<Value, 2> values;
    for (llvm::AllocaInst* copy : copies)
        values.push_back(b.CreateLoad(element, b.CreateGEP(element, copy, lane)));
    Value y = b.CreateCall(scalar_function(module, symbol, element, operands), values);
    b.CreateStore(y, b.CreateGEP(element, copies[0], lane));
    Value next = b.CreateAdd(lane, b.getInt64(1));
    lane->addIncoming(next, loop);
    b.CreateCondBr(b.CreateICmpEQ(next, b.getInt64(type->getNumElements())), exit, loop);
    b.SetInsertPoint(exit);
    b.CreateRet(b.CreateLoad(type, copies[0]));
    return f;
}

}  // namespace

std::string_view name(MathFn fn) { return kNames[static_cast<std::size_t>(fn)]; }

int operand_count(MathFn fn) { return fn >= MathFn::Pow ? 2 : 1; }

bool math_supported(MathFn fn, const llvm::Type* element_type, const TargetInfo& target) {
    if (!target.is_gpu()) return true;
    if (fn == MathFn::Remainder) fn = MathFn::Fmod;
    if (fn == MathFn::Sigmoid) fn = MathFn::Exp;
    if (is_formula(fn)) return true;
    return element_type->isFloatTy() && (has_f32(fn) || has_via_f64(fn));
}

Value emit_scalar_calls(MathContext& context, std::string_view symbol,
                        std::span<const Value> operands) {
    llvm::Module& module = *context.b.GetInsertBlock()->getModule();
    const std::string callee(symbol);
    auto* type = llvm::dyn_cast<llvm::FixedVectorType>(operands[0]->getType());
    const llvm::ArrayRef<Value> arguments(operands.data(), operands.size());
    if (!type)
        return context.b.CreateCall(
            scalar_function(module, callee, operands[0]->getType(), operands.size()), arguments);
    return context.b.CreateCall(lane_loop(module, callee, type, operands.size()), arguments);
}

Value emit_math(MathContext& context, MathFn fn, std::span<const Value> operands) {
    check(static_cast<int>(operands.size()) == operand_count(fn), "emit_math: operand count");
    llvm::Type* element = operands[0]->getType()->getScalarType();
    check(element->isFloatTy() || element->isDoubleTy(), "emit_math: neither f32 nor f64");
    const unsigned part_lanes = context.target.lanes(element->isFloatTy() ? 4 : 8);
    return MathOps::in_parts(context.b, operands, part_lanes, [&](std::span<const Value> x) {
        const llvm::IRBuilder<>::FastMathFlagGuard guard(context.b);
        context.b.clearFastMathFlags();
        if (Value y = emit_formula(context, fn, x)) return y;
        if (element->isFloatTy()) {
            if (Value y = emit_f32(context, fn, x)) return y;
            if (has_via_f64(fn)) return emit_widened(context, fn, x);
        }
        if (!math_supported(fn, element, context.target))
            throw NotSupported("no " + std::string(name(fn)) + " for " + context.target.cpu);
        std::string symbol = "ingot_" + std::string(name(fn));
        if (element->isFloatTy()) symbol += 'f';
        return emit_scalar_calls(context, symbol, x);
    });
}

}  // namespace ingot::codegen
