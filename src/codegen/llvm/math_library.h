// Scalar functions that generated code calls where no vector form is worth its while: libm's, and
// two that libm lacks (digamma, the inverse error function). Used by the Jit, which resolves them.
#pragma once
#include <map>
#include <string>

namespace ingot::codegen {

/// Name in generated modules to address in this process: "ingot_sinf" and "ingot_sin" for scalars,
/// "ingot_sinf_lanes" (float* x, int64 count) and "ingot_powf_lanes" (float* x, const float* y,
/// int64 count) in place on arrays.
std::map<std::string, void*, std::less<>> math_symbols();

/// The logarithmic derivative of the gamma function; as PyTorch: -inf or inf at -0 and 0, NaN at
/// negative integers.
double digamma(double x);
/// The inverse of erf on (-1, 1); ±inf at ±1, NaN outside.
double erfinv(double y);

}  // namespace ingot::codegen
