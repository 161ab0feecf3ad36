// Which form of a function is used, and the scalar calls for those without one. The forms
// themselves: math_direct.cpp, math_via_f64.cpp.
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

/// A vector on the stack and a call of the library's loop over its elements: the least code in the
/// module.
Value call_on_lanes(MathContext& context, const std::string& symbol, std::span<const Value> x) {
    llvm::IRBuilder<>& b = context.b;
    llvm::Function& f = *b.GetInsertBlock()->getParent();
    llvm::IRBuilder<> at_entry(&f.getEntryBlock(), f.getEntryBlock().begin());
    auto* type = llvm::cast<llvm::FixedVectorType>(x[0]->getType());
    llvm::SmallVector<Value, 3> arguments;
    for (Value v : x) {
        arguments.push_back(at_entry.CreateAlloca(type));
        b.CreateStore(v, arguments.back());
    }
    arguments.push_back(b.getInt64(type->getNumElements()));
    llvm::SmallVector<llvm::Type*, 3> parameters(x.size(), b.getPtrTy());
    parameters.push_back(b.getInt64Ty());
    llvm::FunctionCallee callee = f.getParent()->getOrInsertFunction(
        symbol + "_lanes", llvm::FunctionType::get(b.getVoidTy(), parameters, false));
    if (auto* function = llvm::dyn_cast<llvm::Function>(callee.getCallee())) {
        function->setDoesNotThrow();
        function->setOnlyAccessesArgMemory();
        function->setWillReturn();
    }
    b.CreateCall(callee, arguments);
    return b.CreateLoad(type, arguments[0]);
}

}  // namespace

std::string_view name(MathFn fn) { return kNames[static_cast<std::size_t>(fn)]; }

int operand_count(MathFn fn) { return fn >= MathFn::Pow ? 2 : 1; }

bool math_supported(MathFn fn, const llvm::Type* element_type, const TargetInfo& target) {
    if (!target.is_gpu()) return true;
    if (fn == MathFn::Remainder) fn = MathFn::Fmod;
    if (fn == MathFn::Sigmoid) fn = MathFn::Exp;
    if (is_formula(fn)) return true;
    return has_direct(fn, element_type, target) || (element_type->isFloatTy() && has_via_f64(fn));
}

Value emit_scalar_calls(MathContext& context, std::string_view symbol,
                        std::span<const Value> operands) {
    const std::string callee(symbol);
    if (llvm::isa<llvm::FixedVectorType>(operands[0]->getType()))
        return call_on_lanes(context, callee, operands);
    llvm::Module& module = *context.b.GetInsertBlock()->getModule();
    return context.b.CreateCall(
        scalar_function(module, callee, operands[0]->getType(), operands.size()),
        llvm::ArrayRef<Value>(operands.data(), operands.size()));
}

Value emit_math(MathContext& context, MathFn fn, std::span<const Value> operands) {
    check(static_cast<int>(operands.size()) == operand_count(fn), "emit_math: operand count");
    llvm::Type* element = operands[0]->getType()->getScalarType();
    check(element->isFloatTy() || element->isDoubleTy(), "emit_math: neither f32 nor f64");
    const bool direct = has_direct(fn, element, context.target);
    if (direct && is_trigonometric(fn)) {
        const llvm::IRBuilder<>::FastMathFlagGuard guard(context.b);
        return emit_trigonometric(context, fn, operands[0]);
    }
    const unsigned part_lanes = context.target.lanes(element->isFloatTy() ? 4 : 8);
    return MathOps::in_parts(context.b, operands, part_lanes, [&](std::span<const Value> x) {
        const llvm::IRBuilder<>::FastMathFlagGuard guard(context.b);
        context.b.clearFastMathFlags();
        if (Value y = emit_quick(context, fn, x[0])) return y;
        if (Value y = emit_formula(context, fn, x)) return y;
        if (direct) return emit_direct(context, fn, x[0]);
        if (element->isFloatTy() && has_via_f64(fn)) return emit_widened(context, fn, x);
        if (!math_supported(fn, element, context.target))
            throw NotSupported("no " + std::string(name(fn)) + " for " + context.target.cpu);
        std::string symbol = "ingot_" + std::string(name(fn));
        if (element->isFloatTy()) symbol += 'f';
        return emit_scalar_calls(context, symbol, x);
    });
}

}  // namespace ingot::codegen
