// See convert.h. The bf16 rounding is c10::BFloat16's; AVX-512's vcvtneps2bf16 is not used, because
// it flushes subnormal numbers to zero. The f8 formulas are those of c10/util/Float8_*.h.
#include "codegen/llvm/convert.h"

#include <llvm/IR/InlineAsm.h>
#include <llvm/IR/IntrinsicsNVPTX.h>

#include <string>

#include "codegen/llvm/emit_types.h"
#include "ir/error.h"

namespace ingot::codegen {

namespace {

using Value = llvm::Value*;

/// `element` in the shape (scalar or vector) of `like`.
llvm::Type* shaped(llvm::Type* element, Value like) {
    if (const auto* v = llvm::dyn_cast<llvm::FixedVectorType>(like->getType()))
        return llvm::FixedVectorType::get(element, v->getNumElements());
    return element;
}

/// Integer and float shorthand at one shape.
struct Shape {
    Shape(MathContext& context, Value like)
        : b(context.b),
          f32(shaped(context.b.getFloatTy(), like)),
          f16(shaped(context.b.getHalfTy(), like)),
          i32(shaped(context.b.getInt32Ty(), like)),
          i16(shaped(context.b.getInt16Ty(), like)),
          i8(shaped(context.b.getInt8Ty(), like)),
          bf16(context.target.is_gpu() ? shaped(context.b.getBFloatTy(), like) : nullptr),
          pairs(context.target.is_gpu() && at_least(context.target.cpu, "sm_80")),
          eighths(context.target.is_gpu() && at_least(context.target.cpu, "sm_90")) {}
    static bool at_least(const std::string& cpu, const char* capability) {
        return cpu.starts_with("sm_") && (cpu.size() > 5 || cpu >= capability);
    }
    llvm::IRBuilder<>& b;
    llvm::Type *f32, *f16, *i32, *i16, *i8;
    llvm::Type* bf16;  // where the processor rounds to it: GPUs do
    bool pairs;        // two numbers at once
    bool eighths;      // the same for numbers of 8 bits

    Value i(std::int64_t value) const {
        return llvm::ConstantInt::get(i32, static_cast<std::uint64_t>(value), true);
    }
    Value f(double value) const { return llvm::ConstantFP::get(f32, value); }
    Value bits(Value x) const { return b.CreateBitCast(x, i32); }
    Value real(Value x) const { return b.CreateBitCast(x, f32); }
};

/// A vector's f32 bits rounded to bf16 by an instruction that takes two numbers, half as many as
/// one for each; the lower 16 bits are not cleared.
Value bf16_by_pairs(Shape& s, Value x) {
    const unsigned lanes = llvm::cast<llvm::FixedVectorType>(x->getType())->getNumElements();
    Value rounded = llvm::PoisonValue::get(s.i32);
    for (unsigned k = 0; k < lanes; k += 2) {
        Value low = s.b.CreateExtractElement(x, k);
        Value high = k + 1 < lanes ? s.b.CreateExtractElement(x, k + 1) : low;
        Value both = s.b.CreateIntrinsic(llvm::Intrinsic::nvvm_ff2bf16x2_rn, {}, {high, low});
        Value bits = s.b.CreateBitCast(both, s.b.getInt32Ty());
        rounded = s.b.CreateInsertElement(rounded, s.b.CreateShl(bits, 16), k);
        if (k + 1 < lanes) rounded = s.b.CreateInsertElement(rounded, bits, k + 1);
    }
    return rounded;
}

bool in_pairs(Value v) { return lanes_of(v) > 0 && lanes_of(v) % 2 == 0; }

/// bf16 numbers widened two at a time, of the word that both lie in: an instruction each, where a
/// half of a word first comes into a register of its own.
Value widened_by_words(Shape& s, Value value) {
    const unsigned lanes = lanes_of(value);
    Value words = s.b.CreateBitCast(value, llvm::FixedVectorType::get(s.b.getInt32Ty(), lanes / 2));
    Value wide = llvm::PoisonValue::get(s.i32);
    for (unsigned k = 0; k < lanes; k += 2) {
        Value word = s.b.CreateExtractElement(words, k / 2);
        wide = s.b.CreateInsertElement(wide, s.b.CreateShl(word, 16), k);
        wide = s.b.CreateInsertElement(wide, s.b.CreateAnd(word, 0xffff0000u), k + 1);
    }
    return s.real(wide);
}

/// The same the other way: pairs are rounded into words, which are stored as they are.
Value bf16_words(Shape& s, Value x, bool rounded) {
    const unsigned lanes = lanes_of(x);
    Value words = llvm::PoisonValue::get(llvm::FixedVectorType::get(s.b.getInt32Ty(), lanes / 2));
    for (unsigned k = 0; k < lanes; k += 2) {
        Value low = s.b.CreateExtractElement(x, k), high = s.b.CreateExtractElement(x, k + 1);
        Value both = nullptr;
        if (rounded) {
            low = s.b.CreateBitCast(low, s.b.getInt32Ty());
            high = s.b.CreateBitCast(high, s.b.getInt32Ty());
            both = s.b.CreateOr(s.b.CreateLShr(low, 16), s.b.CreateAnd(high, 0xffff0000u));
        } else {
            both = s.b.CreateIntrinsic(llvm::Intrinsic::nvvm_ff2bf16x2_rn, {}, {high, low});
            both = s.b.CreateBitCast(both, s.b.getInt32Ty());
        }
        words = s.b.CreateInsertElement(words, both, k / 2);
    }
    return s.b.CreateBitCast(words, s.i16);
}

/// The f32 bits of x rounded to bf16: the upper 16 count, the lower 16 are not cleared.
Value bf16_upper_bits(Shape& s, Value x) {
    if (s.pairs && x->getType()->isVectorTy()) return bf16_by_pairs(s, x);
    if (s.bf16 != nullptr) {
        Value low = s.b.CreateBitCast(s.b.CreateFPTrunc(x, s.bf16), s.i16);
        return s.b.CreateShl(s.b.CreateZExt(low, s.i32), s.i(16));
    }
    Value bits = s.bits(x);
    Value odd = s.b.CreateAnd(s.b.CreateLShr(bits, s.i(16)), s.i(1));
    Value rounded = s.b.CreateAdd(bits, s.b.CreateAdd(odd, s.i(0x7fff)));
    return s.b.CreateSelect(s.b.CreateFCmpUNO(x, x), s.i(0x7fc00000), rounded);
}

/// The byte of x in a format of 1 sign, 7 - mantissa exponent and `mantissa` fraction bits.
struct Float8 {
    const char* name;    // in PTX
    int mantissa;        // fraction bits
    int bias;            // of the exponent
    std::int64_t limit;  // f32 bits from which on the result is `over`
    std::int64_t last;   // and up to which it rounds to a finite number
    int over, nan;       // bytes for too large values and for NaN
};
constexpr Float8 kE4M3{"e4m3x2", 3, 7, 1087ll << 20, 0x43e80000, 0x7f, 0x7f};
constexpr Float8 kE5M2{"e5m2x2", 2, 15, 143ll << 23, 0x476fffff, 0x7c, 0x7f};

/// Element k of a vector, or a scalar.
Value lane(Shape& s, Value x, unsigned k) {
    return lanes_of(x) > 0 ? s.b.CreateExtractElement(x, k) : x;
}

/// Calls `assembly` with one result; the operands' types follow from `arguments`.
Value by_instruction(Shape& s, const std::string& assembly, const char* registers,
                     llvm::Type* result, llvm::ArrayRef<Value> arguments) {
    llvm::SmallVector<llvm::Type*> types;
    for (Value v : arguments) types.push_back(v->getType());
    llvm::FunctionType* type = llvm::FunctionType::get(result, types, false);
    return s.b.CreateCall(type, llvm::InlineAsm::get(type, assembly, registers, false), arguments);
}

/// Two numbers an instruction. It gives the largest finite number for all that are larger, which
/// here are infinite or NaN, as in `float8_byte`.
Value float8_bytes_by_pairs(Shape& s, Value x, const Float8& format) {
    llvm::IRBuilder<>& b = s.b;
    const unsigned lanes = lanes_of(x), count = lanes > 0 ? lanes : 1;
    const std::string assembly =
        std::string("cvt.rn.satfinite.") + format.name + ".f32 $0, $1, $2;";
    Value bytes = llvm::PoisonValue::get(s.i8);
    const auto put = [&](Value word, unsigned k) {
        Value byte = b.CreateTrunc(word, b.getInt8Ty());
        bytes = lanes > 0 ? b.CreateInsertElement(bytes, byte, k) : byte;
    };
    for (unsigned k = 0; k < count; k += 2) {
        Value low = lane(s, x, k), high = k + 1 < count ? lane(s, x, k + 1) : low;
        Value both = by_instruction(s, assembly, "=h,f,f", b.getInt16Ty(), {high, low});
        put(both, k);
        if (k + 1 < count) put(b.CreateLShr(both, 8), k + 1);
    }
    Value sign = b.CreateAnd(s.bits(x), s.i(INT32_MIN));
    Value magnitude = b.CreateXor(s.bits(x), sign);
    Value large = s.i(format.nan);
    if (format.over != format.nan)
        large =
            b.CreateSelect(b.CreateICmpUGT(magnitude, s.i(255ll << 23)), large, s.i(format.over));
    large = b.CreateTrunc(b.CreateOr(large, b.CreateLShr(sign, s.i(24))), s.i8);
    return b.CreateSelect(b.CreateICmpUGT(magnitude, s.i(format.last)), large, bytes);
}

/// Two numbers an instruction, exactly, by way of fp16.
Value float8_values_by_pairs(Shape& s, Value bytes, const Float8& format) {
    llvm::IRBuilder<>& b = s.b;
    const unsigned lanes = lanes_of(bytes), count = lanes > 0 ? lanes : 1;
    const std::string assembly = std::string("cvt.rn.f16x2.") + format.name + " $0, $1;";
    Value halves = llvm::PoisonValue::get(s.f16);
    const auto put = [&](Value word, unsigned k) {
        Value half = b.CreateBitCast(b.CreateTrunc(word, b.getInt16Ty()), b.getHalfTy());
        halves = lanes > 0 ? b.CreateInsertElement(halves, half, k) : half;
    };
    for (unsigned k = 0; k < count; k += 2) {
        Value both = b.CreateZExt(lane(s, bytes, k), b.getInt16Ty());
        if (k + 1 < count)
            both = b.CreateOr(both,
                              b.CreateShl(b.CreateZExt(lane(s, bytes, k + 1), b.getInt16Ty()), 8));
        Value words = by_instruction(s, assembly, "=r,h", b.getInt32Ty(), {both});
        put(words, k);
        if (k + 1 < count) put(b.CreateLShr(words, 16), k + 1);
    }
    return b.CreateFPExt(halves, s.f32);
}

Value float8_byte(Shape& s, Value x, const Float8& format) {
    if (s.eighths) return float8_bytes_by_pairs(s, x, format);
    llvm::IRBuilder<>& b = s.b;
    const int drop = 23 - format.mantissa;
    Value bits = s.bits(x);
    Value sign = b.CreateAnd(bits, s.i(INT32_MIN));
    Value magnitude = b.CreateXor(bits, sign);
    // Subnormal results: adding a number whose last bit is the smallest subnormal rounds there.
    const std::int64_t denorm = static_cast<std::int64_t>(127 - format.bias + drop + 1) << 23;
    Value small =
        b.CreateSub(s.bits(b.CreateFAdd(s.real(magnitude), s.real(s.i(denorm)))), s.i(denorm));
    Value odd = b.CreateAnd(b.CreateLShr(magnitude, s.i(drop)), s.i(1));
    const std::int64_t rebias =
        -(static_cast<std::int64_t>(127 - format.bias) << 23) + (1ll << (drop - 1)) - 1;
    Value normal = b.CreateLShr(b.CreateAdd(b.CreateAdd(magnitude, s.i(rebias)), odd), s.i(drop));
    const std::int64_t smallest_normal = static_cast<std::int64_t>(128 - format.bias) << 23;
    Value y = b.CreateSelect(b.CreateICmpULT(magnitude, s.i(smallest_normal)), small, normal);
    y = b.CreateSelect(b.CreateICmpUGE(magnitude, s.i(format.limit)), s.i(format.over), y);
    y = b.CreateSelect(b.CreateICmpUGT(magnitude, s.i(255ll << 23)), s.i(format.nan), y);
    return b.CreateTrunc(b.CreateOr(y, b.CreateLShr(sign, s.i(24))), s.i8);
}

Value float8_value(Shape& s, Value byte, const Float8& format) {
    if (s.eighths) return float8_values_by_pairs(s, byte, format);
    llvm::IRBuilder<>& b = s.b;
    Value wide = b.CreateZExt(byte, s.i32);
    Value magnitude = b.CreateAnd(wide, s.i(0x7f));
    Value sign = b.CreateShl(b.CreateXor(wide, magnitude), s.i(24));
    // Shifted into place the number is off by a power of two, subnormal or not.
    Value x = b.CreateFMul(s.real(b.CreateShl(magnitude, s.i(23 - format.mantissa))),
                           s.real(s.i(static_cast<std::int64_t>(254 - format.bias) << 23)));
    if (format.over != format.nan)
        x = b.CreateSelect(b.CreateICmpUGE(magnitude, s.i(format.over)), s.real(s.i(0x7f800000)),
                           x);
    const int first_nan = format.over == format.nan ? format.nan : format.over + 1;
    x = b.CreateSelect(b.CreateICmpUGE(magnitude, s.i(first_nan)), s.real(s.i(0x7fc00000)), x);
    return s.real(b.CreateOr(s.bits(x), sign));
}

/// Towards zero; out of range and NaN give the smallest integer, as x86's instruction does.
Value float_to_signed(MathContext& context, Value x, unsigned bits) {
    llvm::IRBuilder<>& b = context.b;
    const double limit = bits == 32 ? 0x1p31 : 0x1p63;
    Value low = b.CreateFCmpOGE(x, llvm::ConstantFP::get(x->getType(), -limit));
    Value high = b.CreateFCmpOLT(x, llvm::ConstantFP::get(x->getType(), limit));
    Value inside = b.CreateAnd(low, high);
    Value safe = b.CreateSelect(inside, x, llvm::ConstantFP::get(x->getType(), 0));
    llvm::Type* type = shaped(b.getIntNTy(bits), x);
    Value smallest = llvm::ConstantInt::get(type, llvm::APInt::getSignedMinValue(bits));
    return b.CreateSelect(inside, b.CreateFPToSI(safe, type), smallest);
}

Value float_to_int(MathContext& context, Value x, DType to) {
    llvm::IRBuilder<>& b = context.b;
    llvm::Type* type = shaped(register_type(b.getContext(), to), x);
    if (to == DType::U64) {
        // Values of 2^63 and more lose that bit on the way through a signed conversion.
        llvm::Type* real = x->getType();
        Value large = b.CreateFCmpOGE(x, llvm::ConstantFP::get(real, 0x1p63));
        Value moved = b.CreateFSub(x, llvm::ConstantFP::get(real, 0x1p63));
        Value y = float_to_signed(context, b.CreateSelect(large, moved, x), 64);
        Value top = llvm::ConstantInt::get(type, std::uint64_t{1} << 63);
        return b.CreateSelect(large, b.CreateXor(y, top), y);
    }
    // f32 values beyond 2^31 have no low bits that a narrow integer could keep.
    const bool narrow = bytes(to) < 4 && x->getType()->getScalarType()->isFloatTy();
    const unsigned bits =
        narrow || to == DType::I32 || to == DType::I16 || to == DType::I8 ? 32 : 64;
    return b.CreateTrunc(float_to_signed(context, x, bits), type);
}

}  // namespace

llvm::Type* memory_type(llvm::LLVMContext& context, DType dtype) {
    check(!is_complex(dtype), "a complex number is two elements");
    if (dtype == DType::F32) return llvm::Type::getFloatTy(context);
    if (dtype == DType::F64) return llvm::Type::getDoubleTy(context);
    return llvm::IntegerType::get(context, static_cast<unsigned>(bytes(dtype)) * 8);
}

llvm::Type* register_type(llvm::LLVMContext& context, DType dtype) {
    if (dtype == DType::Bool) return llvm::Type::getInt1Ty(context);
    return memory_type(context, compute_type(dtype));
}

Value from_memory(MathContext& context, Value value, DType dtype) {
    const llvm::IRBuilder<>::FastMathFlagGuard guard(context.b);
    context.b.clearFastMathFlags();
    Shape s(context, value);
    switch (dtype) {
        case DType::Bool:
            return s.b.CreateICmpNE(value, llvm::Constant::getNullValue(value->getType()));
        case DType::BF16:
            if (context.target.is_gpu() && in_pairs(value)) return widened_by_words(s, value);
            return s.real(s.b.CreateShl(s.b.CreateZExt(value, s.i32), s.i(16)));
        case DType::F16:
            return s.b.CreateFPExt(s.b.CreateBitCast(value, s.f16), s.f32);
        case DType::F8E4M3:
            return float8_value(s, value, kE4M3);
        case DType::F8E5M2:
            return float8_value(s, value, kE5M2);
        default:
            return value;
    }
}

Value to_memory(MathContext& context, Value value, DType dtype, bool rounded) {
    const llvm::IRBuilder<>::FastMathFlagGuard guard(context.b);
    context.b.clearFastMathFlags();
    Shape s(context, value);
    switch (dtype) {
        case DType::Bool:
            return s.b.CreateZExt(value, s.i8);
        case DType::BF16: {
            if (in_pairs(value) && (rounded ? s.bf16 != nullptr : s.pairs))
                return bf16_words(s, value, rounded);
            Value bits = rounded ? s.bits(value) : bf16_upper_bits(s, value);
            return s.b.CreateTrunc(s.b.CreateLShr(bits, s.i(16)), s.i16);
        }
        case DType::F16:
            return s.b.CreateBitCast(s.b.CreateFPTrunc(value, s.f16), s.i16);
        case DType::F8E4M3:
            return float8_byte(s, value, kE4M3);
        case DType::F8E5M2:
            return float8_byte(s, value, kE5M2);
        default:
            return value;
    }
}

Value round_to(MathContext& context, Value value, DType dtype) {
    if (!is_reduced_float(dtype)) return value;
    if (dtype == DType::BF16) {
        Shape s(context, value);
        return s.real(s.b.CreateAnd(bf16_upper_bits(s, value), s.i(-0x10000)));
    }
    return from_memory(context, to_memory(context, value, dtype), dtype);
}

Value convert(MathContext& context, Value value, DType from, DType to) {
    const llvm::IRBuilder<>::FastMathFlagGuard guard(context.b);
    context.b.clearFastMathFlags();
    llvm::IRBuilder<>& b = context.b;
    if (from == to) return value;
    check(!is_complex(from) && !is_complex(to), "complex conversions are the caller's");
    llvm::Type* type = shaped(register_type(b.getContext(), to), value);
    if (to == DType::Bool) {
        Value zero = llvm::Constant::getNullValue(value->getType());
        return is_float(from) ? b.CreateFCmpUNE(value, zero) : b.CreateICmpNE(value, zero);
    }
    if (is_float(from) && is_float(to)) return round_to(context, b.CreateFPCast(value, type), to);
    if (is_float(from)) return float_to_int(context, value, to);
    if (is_float(to)) {
        Value real =
            is_signed_int(from) ? b.CreateSIToFP(value, type) : b.CreateUIToFP(value, type);
        return round_to(context, real, to);
    }
    return b.CreateIntCast(value, type, is_signed_int(from));
}

}  // namespace ingot::codegen
