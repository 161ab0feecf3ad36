// See triton_prims.h.
#include "codegen/text/triton_prims.h"

#include <cmath>
#include <cstdio>
#include <cstring>
#include <utility>

#include "codegen/text/triton_prelude.h"
#include "ir/error.h"
#include "ir/philox.h"

namespace ingot {

namespace {

const char* operator_of(Prim p) {
    switch (p) {
        case Prim::Add:
            return "+";
        case Prim::Sub:
            return "-";
        case Prim::Mul:
            return "*";
        case Prim::Eq:
            return "==";
        case Prim::Ne:
            return "!=";
        case Prim::Lt:
            return "<";
        case Prim::Le:
            return "<=";
        case Prim::Gt:
            return ">";
        case Prim::Ge:
            return ">=";
        case Prim::BitwiseAnd:
            return "&";
        case Prim::BitwiseOr:
            return "|";
        case Prim::BitwiseXor:
            return "^";
        case Prim::ShiftLeft:
            return "<<";
        case Prim::ShiftRight:
            return ">>";
        default:
            return nullptr;
    }
}

// Functions of libdevice that keep the prim's name.
bool in_libdevice(Prim p) {
    switch (p) {
        case Prim::Acos:
        case Prim::Acosh:
        case Prim::Asin:
        case Prim::Asinh:
        case Prim::Atan:
        case Prim::Atan2:
        case Prim::Atanh:
        case Prim::Cbrt:
        case Prim::Ceil:
        case Prim::Copysign:
        case Prim::Cos:
        case Prim::Cosh:
        case Prim::Erf:
        case Prim::Erfc:
        case Prim::Erfcx:
        case Prim::Erfinv:
        case Prim::Exp:
        case Prim::Exp2:
        case Prim::Expm1:
        case Prim::Floor:
        case Prim::Fma:
        case Prim::Hypot:
        case Prim::Lgamma:
        case Prim::Log:
        case Prim::Log10:
        case Prim::Log1p:
        case Prim::Log2:
        case Prim::Nextafter:
        case Prim::Pow:
        case Prim::Rsqrt:
        case Prim::Sin:
        case Prim::Sinh:
        case Prim::Sqrt:
        case Prim::Tan:
        case Prim::Tanh:
        case Prim::Trunc:
            return true;
        default:
            return false;
    }
}

std::string convert(const std::string& v, DType from, DType to) {
    if (to == DType::Bool) return "(" + v + " != 0)";
    if (is_reduced_float(to)) return triton_rounded(v, to);
    if (is_float(from) && is_int(to) && bytes(to) < 8)
        return v + ".to(tl.int64).to(" + triton_type(to) + ")";
    return v + ".to(" + triton_type(to) + ")";
}

}  // namespace

std::string triton_type(DType t) {
    switch (t) {
        case DType::Bool:
            return "tl.int1";
        case DType::U8:
            return "tl.uint8";
        case DType::U16:
            return "tl.uint16";
        case DType::U32:
            return "tl.uint32";
        case DType::U64:
            return "tl.uint64";
        case DType::I8:
            return "tl.int8";
        case DType::I16:
            return "tl.int16";
        case DType::I32:
            return "tl.int32";
        case DType::I64:
            return "tl.int64";
        case DType::F8E4M3:
            return "tl.float8e4nv";
        case DType::F8E5M2:
            return "tl.float8e5";
        case DType::F16:
            return "tl.float16";
        case DType::BF16:
            return "tl.bfloat16";
        case DType::F32:
            return "tl.float32";
        case DType::F64:
            return "tl.float64";
        default:
            throw NotSupported("Triton has no complex numbers");
    }
}

std::string triton_value_type(DType t) { return triton_type(compute_type(t)); }

std::string triton_pointer(DType t) {
    std::string type = triton_type(t).substr(3);
    for (const auto& [from, to] : {std::pair{"bfloat", "bf"}, {"uint", "u"}, {"int", "i"}})
        if (type.starts_with(from)) return "*" + std::string(to) + type.substr(std::strlen(from));
    // float32 is fp32, and float8e5 fp8e5.
    return "*fp" + type.substr(std::strlen("float"));
}

std::string triton_literal(const Scalar& s, DType t) {
    if (t == DType::Bool) return s.to_double() != 0 ? "True" : "False";
    if (is_int(t)) return std::to_string(s.to_int());
    double v = s.to_double();
    if (std::isnan(v)) return "float('nan')";
    if (std::isinf(v)) return v < 0 ? "float('-inf')" : "float('inf')";
    char text[64];
    std::snprintf(text, sizeof text, "%.17g", v);
    std::string out = text;
    return out.find_first_of(".e") == std::string::npos ? out + ".0" : out;
}

std::string triton_rounded(const std::string& v, DType t) {
    return "(" + v + ").to(" + triton_type(t) + ").to(tl.float32)";
}

std::string triton_prim(const Inst& inst, DType from, std::span<const std::string> operands) {
    const std::string a = operands[0], b = operands.size() > 1 ? operands[1] : "";
    bool real = is_float(from);
    std::string kind = real ? "p_float_" : "p_int_";
    switch (inst.prim) {
        case Prim::Convert:
            return convert(a, from, inst.dtype);
        case Prim::Bitcast:
            return a + ".to(" + triton_type(inst.dtype) + ", bitcast=True)";
        case Prim::Select:
            return "tl.where(" + a + ", " + b + ", " + operands[2] + ")";
        // Triton's own division and square root of f32 are approximate.
        case Prim::Div:
            return "libdevice.div_rn(" + a + ", " + b + ")";
        case Prim::Sqrt:
            return "libdevice.sqrt_rn(" + a + ")";
        case Prim::Neg:
            return "-" + a;
        case Prim::Abs:
            return is_unsigned_int(from) || from == DType::Bool ? a : "tl.abs(" + a + ")";
        case Prim::Reciprocal:
            return "libdevice.div_rn(tl.full(" + a + ".shape, 1.0, " + a + ".dtype), " + a + ")";
        case Prim::LogicalNot:
            return "(" + a + " == 0)";
        case Prim::LogicalAnd:
            return "(" + a + " != 0) & (" + b + " != 0)";
        case Prim::LogicalOr:
            return "(" + a + " != 0) | (" + b + " != 0)";
        case Prim::LogicalXor:
            return "(" + a + " != 0) ^ (" + b + " != 0)";
        case Prim::BitwiseNot:
            return from == DType::Bool ? "(" + a + " == 0)" : "~" + a;
        case Prim::IsNan:
            return "(" + a + " != " + a + ")";
        case Prim::IsInf:
            return real ? "(tl.abs(" + a + ") == float('inf'))" : "(" + a + " != " + a + ")";
        case Prim::IsFinite:
            return real ? "(tl.abs(" + a + ") < float('inf'))" : "(" + a + " == " + a + ")";
        case Prim::Round:
            return real ? "libdevice.nearbyint(" + a + ")" : a;
        case Prim::Frac:
            return a + " - libdevice.trunc(" + a + ")";
        case Prim::Remainder:
            return kind + "remainder(" + a + ", " + b + ")";
        case Prim::FloorDiv:
            return kind + "floor_div(" + a + ", " + b + ")";
        case Prim::TruncDiv:
            return real ? "libdevice.trunc(" + a + " / " + b + ")"
                        : "p_int_trunc_div(" + a + ", " + b + ")";
        case Prim::Fmod:
            return real ? "libdevice.fmod(" + a + ", " + b + ")"
                        : "p_int_fmod(" + a + ", " + b + ")";
        case Prim::Philox: {
            const PhiloxLayout layout = PhiloxLayout::unpacked(inst.imm);
            return "p_philox(" + a + ", " + b + ", " + operands[2] + ", " +
                   std::to_string(layout.threads) + ", " + std::to_string(layout.width) + ")";
        }
        case Prim::Signbit:
            return real ? "(libdevice.copysign(" + a + " * 0 + 1.0, " + a + ") < 0)"
                        : "(" + a + " < 0)";
        default:
            break;
    }
    if (!real && (inst.prim == Prim::Floor || inst.prim == Prim::Ceil || inst.prim == Prim::Trunc))
        return a;
    if (from == DType::Bool && inst.prim == Prim::Add) return a + " | " + b;
    if (from == DType::Bool && inst.prim == Prim::Mul) return a + " & " + b;
    if (const char* op = operator_of(inst.prim)) return "(" + a + " " + op + " " + b + ")";
    std::string callee = "p_" + std::string(name(inst.prim));
    if (in_libdevice(inst.prim))
        callee = "libdevice." + std::string(name(inst.prim));
    else if (kTritonPrelude.find("def " + callee + "(") == std::string_view::npos)
        throw NotSupported("no Triton text for the prim '" + std::string(name(inst.prim)) + "'");
    std::string arguments;
    for (std::size_t i = 0; i < operands.size(); ++i) arguments += (i ? ", " : "") + operands[i];
    return callee + "(" + arguments + ")";
}

}  // namespace ingot
