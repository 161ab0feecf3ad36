// Mathematical functions as LLVM IR: straight-line polynomials for scalars and vectors of f32 and
// f64, at most 1 ulp from the true value for f32 (tests/codegen/math_test.cpp has each function's
// bound). Between 5 (sqrt) and 60 instructions a vector; functions without a vector form call
// scalar code once a lane. Used by the emitters of loop nests and epilogues.
#pragma once
#include <llvm/IR/IRBuilder.h>

#include <span>
#include <string_view>

#include "codegen/llvm/target.h"

namespace ingot::codegen {

enum class MathFn {
    // one operand
    Sqrt,
    Rsqrt,
    Cbrt,
    Exp,
    Exp2,
    Expm1,
    Log,
    Log2,
    Log10,
    Log1p,
    Sin,
    Cos,
    Tan,
    Asin,
    Acos,
    Atan,
    Sinh,
    Cosh,
    Tanh,
    Asinh,
    Acosh,
    Atanh,
    Erf,
    Erfc,
    Erfinv,
    Sigmoid,
    Lgamma,
    Digamma,
    // two operands
    Pow,
    Atan2,
    Hypot,
    Fmod,
    Remainder,
};
inline constexpr int kMathFnCount = static_cast<int>(MathFn::Remainder) + 1;

/// "exp", "atan2", ...
std::string_view name(MathFn fn);
/// 1 or 2.
int operand_count(MathFn fn);

struct MathContext {
    llvm::IRBuilder<>& b;
    const TargetInfo& target;
    /// On GPUs in fp32: exp, tanh, erf and sigmoid by the hardware's instructions, right to 1e-5
    /// of their value, for results that are rounded to 16 bits or fewer.
    bool quick = false;
};

/// Appends the computation of `fn` at the builder's insertion point and returns its value. Operands
/// are float, double, or fixed vectors of them, all of one type; vectors wider than the target's
/// are computed in parts. The module may gain declarations and internal helper functions. Sin, Cos
/// and Tan may append basic blocks (a rarely taken branch for huge arguments): afterwards the
/// builder stands in another block, so take GetInsertBlock() anew for phis. The builder's fast-math
/// flags are ignored and restored. Throws NotSupported where the target has no way to compute `fn`.
llvm::Value* emit_math(MathContext& context, MathFn fn, std::span<llvm::Value* const> operands);

/// exp(x) of an fp32 x <= 0 on a GPU, as a term of a sum that has a one among its terms, with half
/// the instructions of Exp: at most 2 ulp and 3e-9 |x| of the result, which is 0 below 2^-126 and
/// NaN for NaN. Positive numbers give anything.
llvm::Value* emit_exp_beside_one(MathContext& context, llvm::Value* x);

/// Whether emit_math has code for `fn` on elements of `element_type` (float or double) for this
/// target.
bool math_supported(MathFn fn, const llvm::Type* element_type, const TargetInfo& target);

/// Calls the scalar function `symbol` of math_library.h, for a vector its "_lanes" form on a copy
/// on the stack. The symbol table must know both for functions that are added to it.
llvm::Value* emit_scalar_calls(MathContext& context, std::string_view symbol,
                               std::span<llvm::Value* const> operands);

}  // namespace ingot::codegen
