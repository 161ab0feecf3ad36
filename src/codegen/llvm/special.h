// Functions that generated code calls on arrays of lanes, where no vector code is worth its while:
// special functions (computed in f64), integer powers and divisors, complex transcendentals.
//
// All have one form: void f(const void* operands, void* results, int64 lanes). Operands and results
// are arrays of `lanes` elements one after another; a complex number takes two arrays, real parts
// first. The Jit resolves them by name.
#pragma once
#include <map>
#include <string>

namespace ingot::codegen {

/// Name in generated modules ("ingot_special_zeta_f32", "ingot_complex_exp", ...) to address.
std::map<std::string, void*, std::less<>> special_symbols();

}  // namespace ingot::codegen
