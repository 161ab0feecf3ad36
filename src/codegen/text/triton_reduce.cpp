// See triton_reduce.h.
#include "codegen/text/triton_reduce.h"

#include <cstdint>

namespace ingot {
namespace {

std::string lowest(DType t) {
    if (!is_signed_int(t)) return "0";
    return t == DType::I64 ? "-9223372036854775808"
                           : std::to_string(-(std::int64_t{1} << (8 * bytes(t) - 1)));
}

std::string highest(DType t) {
    if (t == DType::Bool) return "1";
    if (t == DType::I64) return "9223372036854775807";
    if (t == DType::U64) return "18446744073709551615";
    return std::to_string((std::int64_t{1} << (8 * bytes(t) - (is_signed_int(t) ? 1 : 0))) - 1);
}

}  // namespace

std::string triton_initial(const Reduction& r) {
    bool real = is_float(r.dtype);
    switch (r.op) {
        case ReduceOp::Sum:
        case ReduceOp::Or:
        case ReduceOp::Xor:
            return "0";
        case ReduceOp::Prod:
            return "1";
        case ReduceOp::And:
            return r.dtype == DType::Bool ? "1" : "-1";
        case ReduceOp::Max:
        case ReduceOp::ArgMax:
            return real ? "float('-inf')" : lowest(r.dtype);
        case ReduceOp::Min:
        case ReduceOp::ArgMin:
            return real ? "float('inf')" : highest(r.dtype);
    }
    return {};
}

std::string triton_combiner(ReduceOp op) {
    switch (op) {
        case ReduceOp::Sum:
            return "combine_add";
        case ReduceOp::Prod:
            return "combine_mul";
        case ReduceOp::Max:
            return "p_maximum";
        case ReduceOp::Min:
            return "p_minimum";
        case ReduceOp::And:
            return "combine_and";
        case ReduceOp::Or:
            return "combine_or";
        case ReduceOp::Xor:
            return "combine_xor";
        case ReduceOp::ArgMax:
            return "combine_argmax";
        case ReduceOp::ArgMin:
            return "combine_argmin";
    }
    return {};
}

}  // namespace ingot
