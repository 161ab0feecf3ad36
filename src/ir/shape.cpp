// Result types of prims: the rules that follow from the table's columns, and the dispatch to the
// rules of their own (shape_movement.cpp, shape_contraction.cpp, shape_other.cpp). Called for every
// node that tracing and passes make; costs a few comparisons of expressions.
#include <algorithm>

#include "ir/assumed.h"
#include "ir/shape_rules.h"

namespace ingot {

using shape::Rule;

namespace {

DType complex_of(const Rule& r, DType t) {
    DType real = real_type(t);
    if (real == DType::F32) return DType::C64;
    if (real == DType::F64) return DType::C128;
    r.fail("no complex type over " + std::string(name(t)));
}

DType result_dtype(const Rule& r) {
    switch (info(r.prim).dtype_rule) {
        case DTypeRule::Same:
        case DTypeRule::SameAndIndex:
            return r.operand(0).dtype;
        case DTypeRule::Second:
            return r.operand(1).dtype;
        case DTypeRule::Bool:
            return DType::Bool;
        case DTypeRule::Index:
            return DType::I64;
        case DTypeRule::Real:
            return real_type(r.operand(0).dtype);
        case DTypeRule::ToComplex:
            return complex_of(r, r.operand(0).dtype);
        case DTypeRule::Attr:
            return r.attr<DType>("dtype");
        case DTypeRule::Custom:
            break;
    }
    r.fail("its types are given by the caller");
}

// What a pointwise prim accepts.
enum class Accepts { Any, Real, Floating, RealFloating, Integral };

Accepts accepted(Prim p) {
    switch (p) {
        case Prim::BitwiseNot:
        case Prim::BitwiseAnd:
        case Prim::BitwiseOr:
        case Prim::BitwiseXor:
        case Prim::ShiftLeft:
        case Prim::ShiftRight:
        case Prim::Gcd:
        case Prim::Lcm:
        case Prim::Popcount:
        case Prim::Philox:
            return Accepts::Integral;
        case Prim::Ceil:
        case Prim::Floor:
        case Prim::Round:
        case Prim::Round2:
        case Prim::Trunc:
        case Prim::Frac:
        case Prim::Relu:
        case Prim::Signbit:
        case Prim::TruncDiv:
        case Prim::FloorDiv:
        case Prim::Fmod:
        case Prim::Remainder:
        case Prim::Maximum:
        case Prim::Minimum:
        case Prim::Fmax:
        case Prim::Fmin:
        case Prim::Clamp:
        case Prim::Lt:
        case Prim::Le:
        case Prim::Gt:
        case Prim::Ge:
            return Accepts::Real;
        case Prim::Acos:
        case Prim::Acosh:
        case Prim::Asin:
        case Prim::Asinh:
        case Prim::Atan:
        case Prim::Atanh:
        case Prim::Cos:
        case Prim::Cosh:
        case Prim::Div:
        case Prim::Exp:
        case Prim::Exp2:
        case Prim::Expm1:
        case Prim::Lerp:
        case Prim::Log:
        case Prim::Log10:
        case Prim::Log1p:
        case Prim::Log2:
        case Prim::Reciprocal:
        case Prim::Rsqrt:
        case Prim::Sigmoid:
        case Prim::Sin:
        case Prim::Sinc:
        case Prim::Sinh:
        case Prim::Sqrt:
        case Prim::Tan:
        case Prim::Tanh:
            return Accepts::Floating;
        case Prim::BesselI0:
        case Prim::BesselI0e:
        case Prim::BesselI1:
        case Prim::BesselI1e:
        case Prim::BesselJ0:
        case Prim::BesselJ1:
        case Prim::BesselY0:
        case Prim::BesselY1:
        case Prim::ModifiedBesselK0:
        case Prim::ModifiedBesselK1:
        case Prim::SphericalBesselJ0:
        case Prim::Cbrt:
        case Prim::Digamma:
        case Prim::Erf:
        case Prim::Erfc:
        case Prim::Erfcx:
        case Prim::Erfinv:
        case Prim::Lgamma:
        case Prim::LogNdtr:
        case Prim::Ndtri:
        case Prim::Atan2:
        case Prim::Hypot:
        case Prim::Copysign:
        case Prim::Nextafter:
        case Prim::Igamma:
        case Prim::Igammac:
        case Prim::Zeta:
        case Prim::Polygamma:
        case Prim::Xlogy:
        case Prim::Xlog1py:
        case Prim::Complex:
        case Prim::ChebyshevT:
        case Prim::ChebyshevU:
        case Prim::HermiteH:
        case Prim::LaguerreL:
        case Prim::LegendreP:
            return Accepts::RealFloating;
        default:
            return Accepts::Any;
    }
}

bool accepts(Accepts what, DType t) {
    switch (what) {
        case Accepts::Any:
            return true;
        case Accepts::Real:
            return !is_complex(t);
        case Accepts::Floating:
            return is_float(t) || is_complex(t);
        case Accepts::RealFloating:
            return is_float(t);
        case Accepts::Integral:
            return is_integral(t);
    }
    return false;
}

std::vector<Type> pointwise(const Rule& r) {
    for (std::size_t i = 1; i < r.operands.size(); ++i)
        r.require_equal(r.sizes(i), r.sizes(0), "operands of different sizes");
    std::size_t first = 0;
    if (r.prim == Prim::Select) {
        r.require(r.operand(0).dtype == DType::Bool, "the condition must be a bool");
        first = 1;
    }
    for (std::size_t i = first + 1; i < r.operands.size(); ++i) r.require_same_dtype(first, i);
    if (!accepts(accepted(r.prim), r.operand(first).dtype))
        r.fail("not defined for " + std::string(name(r.operand(first).dtype)));
    if (r.prim == Prim::Bitcast)
        r.require(bytes(r.attr<DType>("dtype")) == bytes(r.operand(0).dtype),
                  "a bit cast keeps the width");
    return {r.make(result_dtype(r), r.sizes(0))};
}

// The operands the table does not describe for prims whose sizes follow from a column.
void check_operands(const Rule& r) {
    switch (r.prim) {
        case Prim::LinearScan:
            r.require_same_dtype(0, 1);
            r.require_equal(r.sizes(0), r.sizes(1), "operands of different sizes");
            return;
        case Prim::Iota:
            r.dim("dim", static_cast<int>(r.size_list("sizes").size()));
            return;
        case Prim::Flip:
        case Prim::FftC2C:
            r.dim_set("dims", r.rank(0));
            return;
        case Prim::Constant: {
            using Data = std::shared_ptr<const std::vector<std::uint8_t>>;
            Expr want = product(r.size_list("sizes")) * Expr(bytes(r.attr<DType>("dtype")));
            auto have = static_cast<std::int64_t>(r.attr<Data>("data")->size());
            r.require_equal(want, have, "the data has another size");
            return;
        }
        case Prim::Cholesky:
        case Prim::Inverse:
            r.require(r.rank(0) >= 2, "needs matrices");
            r.require_equal(r.sizes(0)[r.rank(0) - 1], r.sizes(0)[r.rank(0) - 2],
                            "needs square matrices");
            return;
        case Prim::Barrier:
            r.require(!r.operands.empty(), "needs an operand");
            return;
        default:
            break;
    }
    if (kind(r.prim) == PrimKind::Scan || r.prim == Prim::Sort)
        if (r.rank(0) > 0) r.dim("dim", r.rank(0));
}

Sizes reduced_sizes(const Rule& r) {
    std::vector<bool> gone = r.dim_set("dims", r.rank(0));
    Sizes sizes;
    for (std::size_t i = 0; i < gone.size(); ++i)
        if (!gone[i]) sizes.push_back(r.sizes(0)[i]);
    return sizes;
}

Sizes table_sizes(const Rule& r) {
    switch (info(r.prim).shape_rule) {
        case ShapeRule::Same:
            return r.sizes(0);
        case ShapeRule::Second:
            return r.sizes(1);
        case ShapeRule::Reduce:
            return reduced_sizes(r);
        case ShapeRule::Attr:
            if (r.prim == Prim::Nonzero) return {r.attr<Expr>("count"), r.rank(0)};
            if (r.prim == Prim::Bincount) return {r.attr<Expr>("count")};
            return r.size_list("sizes");
        case ShapeRule::Custom:
            break;
    }
    r.fail("its sizes are given by the caller");
}

std::vector<Type> infer(const Rule& r) {
    const Prim prim = r.prim;
    const PrimInfo& about = info(prim);
    const std::span<const Type> operands = r.operands;
    if (about.arity >= 0 && operands.size() != static_cast<std::size_t>(about.arity))
        r.fail("takes " + std::to_string(about.arity) + " operands, not " +
               std::to_string(operands.size()));
    if (about.dtype_rule == DTypeRule::Custom) r.fail("its types are given by the caller");
    switch (about.kind) {
        case PrimKind::Pointwise:
            return pointwise(r);
        case PrimKind::Movement:
            if (prim != Prim::Flip) return shape::movement(r);
            break;
        case PrimKind::Indexing:
            return shape::indexing(r);
        case PrimKind::Contraction:
            return shape::contraction(r);
        default:
            if (about.shape_rule == ShapeRule::Custom) return shape::other(r);
    }
    check_operands(r);
    std::vector<Type> results{r.make(result_dtype(r), table_sizes(r))};
    if (about.dtype_rule == DTypeRule::SameAndIndex)
        results.push_back(r.make(DType::I64, results[0].sizes));
    return results;
}

}  // namespace

std::vector<Type> infer_types(Prim prim, std::span<const Type> operands, const Attrs& attrs) {
    return infer({prim, operands, attrs});
}

std::vector<std::pair<Expr, Expr>> assumed_equalities(Prim prim, std::span<const Type> operands,
                                                      const Attrs& attrs) {
    std::vector<std::pair<Expr, Expr>> assumed;
    infer({prim, operands, attrs, &assumed});
    return assumed;
}

}  // namespace ingot
