// Scalars of loop nests in Triton's language: types, numbers and one expression for each pointwise
// prim. Shared by what prints kernels as Triton; below it stands triton_prelude.h.
#pragma once
#include <span>
#include <string>

#include "schedule/nest.h"

namespace ingot {

/// `tl.float32`. Throws NotSupported for complex numbers.
std::string triton_type(DType t);
/// The type in which values of `t` are computed.
std::string triton_value_type(DType t);
/// `*fp32`, as signatures name a pointer to elements of `t`.
std::string triton_pointer(DType t);
std::string triton_literal(const Scalar& s, DType t);
/// `v` rounded to `t` and back to fp32.
std::string triton_rounded(const std::string& v, DType t);
/// The prim of an inst whose operands, of type `from`, have these names. Throws NotSupported where
/// there is no such text.
std::string triton_prim(const Inst& inst, DType from, std::span<const std::string> operands);

}  // namespace ingot
