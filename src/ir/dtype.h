// Element types. One table gives the enum, the printed name, the size and the class of each type.
#pragma once
#include <cstdint>
#include <optional>
#include <string_view>

namespace ingot {

enum class DType : std::uint8_t {
    Bool,
    U8,
    U16,
    U32,
    U64,
    I8,
    I16,
    I32,
    I64,
    F8E4M3,
    F8E5M2,
    F16,
    BF16,
    F32,
    F64,
    C64,
    C128,
};
inline constexpr int kDTypeCount = 17;

enum class DTypeClass : std::uint8_t { Bool, Unsigned, Signed, Float, Complex };

struct DTypeInfo {
    std::string_view name;
    std::uint8_t bytes;
    DTypeClass cls;
};

inline constexpr DTypeInfo kDTypeTable[kDTypeCount] = {
    {"b8", 1, DTypeClass::Bool},       {"u8", 1, DTypeClass::Unsigned},
    {"u16", 2, DTypeClass::Unsigned},  {"u32", 4, DTypeClass::Unsigned},
    {"u64", 8, DTypeClass::Unsigned},  {"i8", 1, DTypeClass::Signed},
    {"i16", 2, DTypeClass::Signed},    {"i32", 4, DTypeClass::Signed},
    {"i64", 8, DTypeClass::Signed},    {"f8e4m3", 1, DTypeClass::Float},
    {"f8e5m2", 1, DTypeClass::Float},  {"f16", 2, DTypeClass::Float},
    {"bf16", 2, DTypeClass::Float},    {"f32", 4, DTypeClass::Float},
    {"f64", 8, DTypeClass::Float},     {"c64", 8, DTypeClass::Complex},
    {"c128", 16, DTypeClass::Complex},
};

constexpr const DTypeInfo& info(DType t) { return kDTypeTable[static_cast<int>(t)]; }
constexpr std::string_view name(DType t) { return info(t).name; }
constexpr int bytes(DType t) { return info(t).bytes; }
constexpr bool is_float(DType t) { return info(t).cls == DTypeClass::Float; }
constexpr bool is_complex(DType t) { return info(t).cls == DTypeClass::Complex; }
constexpr bool is_signed_int(DType t) { return info(t).cls == DTypeClass::Signed; }
constexpr bool is_unsigned_int(DType t) { return info(t).cls == DTypeClass::Unsigned; }
/// Integers without bool.
constexpr bool is_int(DType t) { return is_signed_int(t) || is_unsigned_int(t); }
/// Integers and bool.
constexpr bool is_integral(DType t) { return is_int(t) || t == DType::Bool; }
/// f8, f16 and bf16: computed in f32 and rounded after every operator, as eager does.
constexpr bool is_reduced_float(DType t) { return is_float(t) && bytes(t) < 4; }
/// The type arithmetic on `t` is carried out in (PyTorch's opmath type).
constexpr DType compute_type(DType t) { return is_reduced_float(t) ? DType::F32 : t; }
/// The real type of a complex type's parts; other types unchanged.
constexpr DType real_type(DType t) {
    return t == DType::C64 ? DType::F32 : t == DType::C128 ? DType::F64 : t;
}

/// The type printed as `text`, or nothing.
constexpr std::optional<DType> parse_dtype(std::string_view text) {
    for (int i = 0; i < kDTypeCount; ++i)
        if (kDTypeTable[i].name == text) return static_cast<DType>(i);
    return std::nullopt;
}

}  // namespace ingot
