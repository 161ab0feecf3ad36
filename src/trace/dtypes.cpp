// Conversion tables; see dtypes.h.
#include "trace/dtypes.h"

namespace ingot::trace {

DType to_dtype(c10::ScalarType type) {
    switch (type) {
        case c10::kBool:
            return DType::Bool;
        case c10::kByte:
            return DType::U8;
        case c10::kUInt16:
            return DType::U16;
        case c10::kUInt32:
            return DType::U32;
        case c10::kUInt64:
            return DType::U64;
        case c10::kChar:
            return DType::I8;
        case c10::kShort:
            return DType::I16;
        case c10::kInt:
            return DType::I32;
        case c10::kLong:
            return DType::I64;
        case c10::kFloat8_e4m3fn:
            return DType::F8E4M3;
        case c10::kFloat8_e5m2:
            return DType::F8E5M2;
        case c10::kHalf:
            return DType::F16;
        case c10::kBFloat16:
            return DType::BF16;
        case c10::kFloat:
            return DType::F32;
        case c10::kDouble:
            return DType::F64;
        case c10::kComplexFloat:
            return DType::C64;
        case c10::kComplexDouble:
            return DType::C128;
        default:
            throw NotSupported(std::string("element type ") + c10::toString(type));
    }
}

c10::ScalarType to_scalar_type(DType type) {
    switch (type) {
        case DType::Bool:
            return c10::kBool;
        case DType::U8:
            return c10::kByte;
        case DType::U16:
            return c10::kUInt16;
        case DType::U32:
            return c10::kUInt32;
        case DType::U64:
            return c10::kUInt64;
        case DType::I8:
            return c10::kChar;
        case DType::I16:
            return c10::kShort;
        case DType::I32:
            return c10::kInt;
        case DType::I64:
            return c10::kLong;
        case DType::F8E4M3:
            return c10::kFloat8_e4m3fn;
        case DType::F8E5M2:
            return c10::kFloat8_e5m2;
        case DType::F16:
            return c10::kHalf;
        case DType::BF16:
            return c10::kBFloat16;
        case DType::F32:
            return c10::kFloat;
        case DType::F64:
            return c10::kDouble;
        case DType::C64:
            return c10::kComplexFloat;
        case DType::C128:
            return c10::kComplexDouble;
    }
    throw InternalError("an element type without a PyTorch name");
}

Scalar to_scalar(const c10::Scalar& scalar) {
    if (scalar.isSymbolic()) throw NotSupported("a symbolic number");
    if (scalar.isBoolean()) return Scalar(scalar.to<bool>());
    if (scalar.isComplex()) {
        auto c = scalar.toComplexDouble();
        return Scalar(std::complex<double>(c.real(), c.imag()));
    }
    if (scalar.isFloatingPoint()) return Scalar(scalar.toDouble());
    if (scalar.isUnsigned()) return Scalar(static_cast<std::int64_t>(scalar.toUInt64()));
    return Scalar(scalar.toLong());
}

Scalar cast_scalar(const c10::Scalar& scalar, DType dtype) {
    Scalar s = to_scalar(scalar);
    if (is_complex(dtype)) return Scalar(s.to_complex());
    if (scalar.isComplex() && scalar.toComplexDouble().imag() != 0)
        throw UserError(
            "a complex number cannot become a real one without losing its imaginary part");
    if (is_float(dtype)) return Scalar(s.to_double());
    if (dtype == DType::Bool)
        return Scalar(scalar.isFloatingPoint() ? s.to_double() != 0 : s.to_int() != 0);
    return Scalar(s.to_int());
}

Ints to_ints(const Sizes& sizes) {
    Ints out;
    out.reserve(sizes.size());
    for (const Expr& e : sizes) {
        if (!e.is_constant()) throw NotSupported("a symbolic size where a number is needed");
        out.push_back(e.constant());
    }
    return out;
}

}  // namespace ingot::trace
