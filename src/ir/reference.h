// The reference evaluator: every prim computed plainly, the oracle of the core's tests and what
// folds small constants.
//
// Numbers. Integers wrap exactly. Floats are computed in double (complex numbers in
// complex<double>) and every prim's result is rounded once to the compute type (f32 for f32, f16,
// bf16 and f8) and then to its element type. For + - * / sqrt that is exactly IEEE arithmetic on
// the compute type; for other functions it is within half a unit of the true value; reductions and
// contractions accumulate in double, so a comparison needs a tolerance that grows with their
// length. `no rounding` graphs are evaluated with rounding: it is a permission, not a duty.
#pragma once
#include <functional>
#include <span>
#include <vector>

#include "ir/graph.h"
#include "ir/tensor.h"

namespace ingot {

/// The number of a symbol.
using SymbolValues = std::function<std::int64_t(Expr symbol)>;

/// The graph's outputs, dense. Inputs are dense too: strides are the border's business. Symbols
/// that are a size of an input by themselves need no entry in `symbols`. Throws NotSupported for
/// prims the host carries out, InternalError for inputs that do not fit.
std::vector<Tensor> evaluate(const Graph& graph, std::span<const Tensor> inputs,
                             const SymbolValues& symbols = {});

/// One prim. `results` are its result types.
std::vector<Tensor> evaluate(Prim prim, std::span<const Tensor> operands, const Attrs& attrs,
                             std::span<const Type> results, const SymbolValues& symbols = {});

/// Whether `prim` is a division of integers and `divisor` is zero. The evaluator gives 0 for it;
/// eager raises an error, and so do programs, which therefore keep such a division to run time.
bool divides_by_zero(Prim prim, DType dtype, Num divisor);

/// A pointwise prim at one point. `dtype` is the operands' (select: of operands 1 and 2), `imm` the
/// attribute `decimals` or `order`. Without `round`, reduced floats are only rounded to f32.
Num evaluate_pointwise(Prim prim, DType dtype, DType result, std::span<const Num> x,
                       std::int64_t imm = 0, bool round = true);

/// Prims the evaluator leaves to the host program: random numbers (eager's generator), linear
/// algebra, resampling, communication and extern calls.
bool carried_out_by_host(Prim prim);

}  // namespace ingot
