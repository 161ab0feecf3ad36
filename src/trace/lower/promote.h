// Operands of pointwise operators: promotion, broadcasting and the strides of the result, by
// TensorIterator's rules.
#pragma once
#include <functional>

#include "trace/lower/call.h"

namespace ingot::trace {

/// The type results of several operands have in eager (wrapped numbers and 0-dim tensors count
/// less).
c10::ScalarType common_type(std::span<const at::Tensor> operands);
/// `scalar` as the wrapped number that eager would make of it; of a float that is known only when
/// the program runs its promise.
at::Tensor wrapped(const c10::Scalar& scalar);
/// `scalar` in the type of `like`, broadcast to its sizes.
ValueId spread_number(Call& call, const c10::Scalar& scalar, ValueId like);
/// Argument `name` as a tensor; a number becomes a wrapped number.
at::Tensor operand(const Call& call, std::string_view name);
bool is_wrapped(const at::Tensor& tensor);
Layout layout_of(const at::Tensor& tensor);
/// The layout TensorIterator sees of an operand that it computes as `type`: on processors an
/// operand of another type is converted first, to a tensor that preserves the strides if they are
/// dense.
Layout layout_as(const at::Tensor& tensor, c10::ScalarType type);
/// The contents in `dtype`; wrapped numbers and 0-dim tensors go there from full precision.
ValueId value_as(Call& call, const at::Tensor& tensor, DType dtype);
/// Throws UserError where eager refuses to make `number` one of `type`: one of its kernels' types
/// that is too small for it.
void check_fits(const c10::Scalar& number, c10::ScalarType type);
/// Throws UserError where eager refuses `alpha` beside operands of `type`.
void check_alpha(const c10::Scalar& alpha, c10::ScalarType type);
/// Throws UserError unless the mask is of truth values.
void check_mask(const at::Tensor& mask);
/// float for integers and bool, otherwise the type itself.
c10::ScalarType float_type(c10::ScalarType type);

/// Broadcast operands and where the result goes.
struct Operands {
    std::vector<at::Tensor> tensors;
    SymInts shape;
    SymInts strides;  // of the result
    c10::Device device = c10::kCPU;
};
/// `type`: what they are promoted to.
Operands gather_operands(std::vector<at::Tensor> tensors, c10::ScalarType type);

inline constexpr std::size_t kNoOperand = static_cast<std::size_t>(-1);

/// Values of the operands, converted to `common` and then to `compute` (equal, or f32 for reduced
/// floats), broadcast to the result's shape. Operand `exact` goes to `compute` from full precision
/// where it is one number.
std::vector<ValueId> operand_values(Call& call, const Operands& operands, DType common,
                                    DType compute, std::size_t exact = kNoOperand);

using Formula = std::function<ValueId(Emitter&, std::span<const ValueId>)>;
struct PointwiseOptions {
    bool int_to_float = false;  // integers are computed as the default float type
    bool wide = true;           // reduced floats: the formula is computed in f32, rounded once
    bool boolean = false;       // the result is bool, no rounding
    // Numbers among the operands take no part in the result's strides: eager hands them to the
    // kernel aside. (Otherwise they are 0-dim operands, which matters where a dim has size one.)
    bool numbers_aside = false;
    // Processors round a number beside reduced floats to their type, as any other operand, before
    // they compute: bf16(0.1) == 0.1 is true. The kernels of products and quotients alone take
    // their second operand, where it is one number, in f32. Which do is a test over the installed
    // PyTorch: tests/trust/test_numbers.py. (GPUs get all numbers in f32.)
    std::size_t exact = kNoOperand;
};
/// The whole of a pointwise lowering: promote, broadcast, compute, round, give.
void lower_pointwise(Call& call, std::vector<at::Tensor> tensors, const PointwiseOptions& options,
                     const Formula& formula);

}  // namespace ingot::trace
