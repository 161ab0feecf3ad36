// The primitive operators as an enum and a table of their properties, both made from prims.def.
#pragma once
#include <array>
#include <cstdint>
#include <optional>
#include <span>
#include <string_view>

namespace ingot {

enum class Prim : std::uint16_t {
#define PRIM(Name, ...) Name,
#include "ir/prims.def"
#undef PRIM
};

enum class PrimKind : std::uint8_t {
    Pointwise,
    Reduction,
    Scan,
    Movement,
    Indexing,
    Contraction,
    Sorting,
    Random,
    Creation,
    Complex,
    Linalg,
    Stencil,
    Effect,
};

/// How the result's element type follows.
enum class DTypeRule : std::uint8_t {
    Same,    // of operand 0; pointwise operands all have this type (Select: operands 1 and 2)
    Second,  // of operand 1
    Bool,
    Index,         // i64
    Real,          // real_type of operand 0
    ToComplex,     // complex of operand 0's real type
    Attr,          // the attribute `dtype`
    SameAndIndex,  // two results: operand 0's type, i64
    Custom,        // given by the caller
};

/// How the result's sizes follow.
enum class ShapeRule : std::uint8_t {
    Same,    // of operand 0; pointwise operands all have these sizes
    Second,  // of operand 1
    Reduce,  // operand 0 without the attribute `dims`
    Attr,    // the attribute `sizes` (Nonzero, Bincount: from `count`)
    Custom,  // a rule of its own in shape.cpp, or given by the caller (extern calls)
};

enum class Derivative : std::uint8_t {
    None,     // not differentiable
    Zero,     // differentiable, gradient zero
    Formula,  // differentiable
};

struct PrimInfo {
    std::string_view name;  // of the enumerator
    std::string_view text;  // in printed IR
    PrimKind kind;
    int arity;  // -1: any
    DTypeRule dtype_rule;
    ShapeRule shape_rule;
    Derivative derivative;
    std::string_view attributes;  // "name:type name:type?"
    std::string_view doc;
};

inline constexpr PrimInfo kPrimTable[] = {
#define PRIM(Name, text, kind, arity, dtype, shape, derivative, attrs, doc) \
    {                                                                       \
        #Name,                                                              \
        text,                                                               \
        PrimKind::kind,                                                     \
        arity,                                                              \
        DTypeRule::dtype,                                                   \
        ShapeRule::shape,                                                   \
        Derivative::derivative,                                             \
        attrs,                                                              \
        doc},
#include "ir/prims.def"
#undef PRIM
};
inline constexpr int kPrimCount = static_cast<int>(std::size(kPrimTable));

constexpr const PrimInfo& info(Prim p) { return kPrimTable[static_cast<int>(p)]; }
constexpr PrimKind kind(Prim p) { return info(p).kind; }
constexpr std::string_view name(Prim p) { return info(p).text; }
constexpr bool is_pointwise(Prim p) { return kind(p) == PrimKind::Pointwise; }
constexpr bool is_movement(Prim p) { return kind(p) == PrimKind::Movement; }
constexpr bool is_reduction(Prim p) { return kind(p) == PrimKind::Reduction; }

/// The prim printed as `text`, or nothing.
std::optional<Prim> parse_prim(std::string_view text);

}  // namespace ingot
