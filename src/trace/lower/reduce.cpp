// Reductions. Sizes and strides of results: contiguous, except where TensorIterator keeps the
// operand's order of dims (keepdim on permuted operands).
#include <numeric>

#include "trace/lower/promote.h"

namespace ingot::trace {

namespace {

/// What a reduction works on: the operand's value, the dims (wrapped; all when none are named).
struct Reduction {
    Call& call;
    at::Tensor self;
    Ints dims;
    bool keep;
    Emitter& e;

    Reduction(Call& c, const char* dim_name)
        : call(c), self(c.tensor("self")), keep(c.flag("keepdim")), e(c.emit()) {
        bool named = c.given(dim_name);
        if (named) dims = wrap_dims(c.ints(dim_name), self.dim());
        if (dims.empty()) {
            dims.resize(static_cast<std::size_t>(self.dim()));
            std::iota(dims.begin(), dims.end(), 0);
        }
        if (self.dim() == 0) dims.clear();
        if (self.dim() > 64) throw UserError("a reduction of more than 64 dims");
        std::sort(dims.begin(), dims.end());
        if (std::adjacent_find(dims.begin(), dims.end()) != dims.end())
            throw UserError("a dim appears twice in a reduction");
    }
    c10::SymInt count() const {
        c10::SymInt n = 1;
        for (std::int64_t d : dims) n *= self.sym_size(d);
        return n;
    }
    bool reduced(std::int64_t d) const { return std::binary_search(dims.begin(), dims.end(), d); }

    /// Strides of the result: the output is allocated in the operand's order of dims, with reduced
    /// dims as size 1.
    SymInts strides() const {
        SymInts sizes = self.sym_sizes().vec();
        for (std::int64_t d : dims) sizes[static_cast<std::size_t>(d)] = 1;
        SymInts kept_sizes;
        for (std::int64_t d = 0; d < self.dim(); ++d)
            if (!reduced(d)) kept_sizes.push_back(self.sym_size(d));
        return contiguous(keep ? sizes : kept_sizes);
    }
    void give(ValueId v) { call.give(v, strides(), self.device()); }
    ValueId run(Prim prim, ValueId v, Attrs attrs = {}) {
        return e.reduce(prim, v, dims, keep, attrs);
    }
};

DType sum_type(Call& call, const at::Tensor& self) {
    if (auto t = call.scalar_type("dtype")) return to_dtype(*t);
    if (call.target.defined()) return to_dtype(call.target.scalar_type());
    return is_integral(to_dtype(self.scalar_type())) ? DType::I64 : to_dtype(self.scalar_type());
}

void lower_sum(Call& call) {
    Reduction r(call, "dim");
    DType type = sum_type(call, r.self);
    ValueId v = r.e.convert(call.read(r.self), type);
    // Reduced floats accumulate in f32 and are rounded once: the prim says so.
    r.give(r.run(Prim::Sum, v));
}
void lower_nansum(Call& call) {
    Reduction r(call, "dim");
    DType type = sum_type(call, r.self);
    ValueId v = r.e.convert(call.read(r.self), type);
    if (is_float(type)) v = r.e.select(r.e.op(Prim::IsNan, {v}), r.e.number(v, 0), v);
    r.give(r.run(Prim::Sum, v));
}
void lower_mean(Call& call) {
    Reduction r(call, "dim");
    DType type = to_dtype(call.scalar_type("dtype").value_or(r.self.scalar_type()));
    if (is_integral(type)) throw UserError("mean needs a float or complex type");
    // Reduced floats: eager sums and divides in f32 and rounds once.
    ValueId sum = r.run(Prim::Sum, r.e.widen(r.e.convert(call.read(r.self), type)));
    r.give(r.e.convert(r.e.div(sum, r.count()), type));
}
void lower_prod(Call& call) {
    Reduction r(call, "dim");
    r.give(r.run(Prim::Prod, r.e.convert(call.read(r.self), sum_type(call, r.self))));
}
template <Prim prim>
void lower_extremum(Call& call) {  // amax, amin
    Reduction r(call, "dim");
    if (r.count() == 0) throw UserError("a maximum over no elements");
    r.give(r.run(prim, call.read(r.self)));
}
template <Prim prim>
void lower_logical(Call& call) {  // all, any
    Reduction r(call, "dim");
    ValueId v = r.run(prim, r.e.convert(call.read(r.self), DType::Bool));
    bool byte = r.self.scalar_type() == c10::kByte && !call.target.defined();
    r.give(byte ? r.e.convert(v, DType::U8) : v);
}
template <Prim prim>
void lower_arg(Call& call) {  // argmax, argmin
    Reduction r(call, "dim");
    if (r.count() == 0) throw UserError("argmax over no elements");
    r.give(r.run(prim, call.read(r.self)));
}
/// max.dim and min.dim: value and index along one dim; max and min of everything; binary forms.
template <Prim value, Prim index, Prim pair>
void lower_max(Call& call) {
    if (call.given("other")) {
        lower_pointwise(call, {call.tensor("self"), call.tensor("other")}, {},
                        [](Emitter& e, auto v) { return e.op(pair, {v[0], v[1]}); });
        return;
    }
    Reduction r(call, "dim");
    if (r.count() == 0) throw UserError("a maximum over no elements");
    ValueId x = call.read(r.self);
    if (!call.given("dim")) return r.give(r.run(value, x));
    r.give(r.run(value, x));
    r.give(r.run(index, x));
}
void lower_aminmax(Call& call) {
    Reduction r(call, "dim");
    if (r.count() == 0) throw UserError("a maximum over no elements");
    ValueId x = call.read(r.self);
    r.give(r.run(Prim::Amin, x));
    r.give(r.run(Prim::Amax, x));
}

double correction_of(Call& call) {
    if (call.find("correction") != nullptr) return call.real_or("correction", 1);
    return call.flag("unbiased", true) ? 1 : 0;
}
/// In f32 for reduced floats, rounded at the end; in f64 for f32 on the CPU, as eager's
/// accumulators are there: squares of many elements lose too much otherwise.
ValueId widened_for_moments(Reduction& r) {
    if (!is_float(to_dtype(r.self.scalar_type())))
        throw NotSupported("the variance of a type that is no float");
    ValueId x = r.e.widen(r.call.read(r.self));
    const bool doubled = r.self.scalar_type() == at::kFloat && r.self.device().is_cpu();
    return doubled ? r.e.convert(x, DType::F64) : x;
}
ValueId variance(Reduction& r, ValueId x, bool root) {
    ValueId v = r.run(Prim::Var, x, {{"correction", correction_of(r.call)}});
    if (root) v = r.e.op(Prim::Sqrt, {v});
    return r.e.convert(v, to_dtype(r.self.scalar_type()));
}
template <bool root>
void lower_var(Call& call) {
    Reduction r(call, "dim");
    r.give(variance(r, widened_for_moments(r), root));
}
template <bool root>
void lower_var_mean(Call& call) {
    Reduction r(call, "dim");
    ValueId x = widened_for_moments(r);
    r.give(variance(r, x, root));
    ValueId mean = r.e.div(r.run(Prim::Sum, x), r.count());
    r.give(r.e.convert(mean, to_dtype(r.self.scalar_type())));
}

/// The p-norm of `v` (real, wide) over the reduction's dims.
ValueId norm_of(Reduction& r, ValueId v, double p) {
    Emitter& e = r.e;
    // As eager's kernel: no scaling against overflow.
    if (p == 2) return e.op(Prim::Sqrt, {r.run(Prim::Sum, e.mul(v, v))});
    v = e.op(Prim::Abs, {v});
    if (p != 0 && r.count() == 1) return r.run(Prim::Sum, v);  // no power that overflows
    if (p == std::numeric_limits<double>::infinity()) return r.run(Prim::Amax, v);
    if (p == -std::numeric_limits<double>::infinity()) return r.run(Prim::Amin, v);
    if (p == 0) return r.run(Prim::Sum, e.convert(e.compare(Prim::Ne, v, 0), e.dtype(v)));
    if (p == 1) return r.run(Prim::Sum, v);
    ValueId sum = r.run(Prim::Sum, e.op(Prim::Pow, {v, e.number(v, p)}));
    return e.op(Prim::Pow, {sum, e.number(sum, 1 / p)});
}
void norm(Call& call, const char* order) {
    Reduction r(call, "dim");
    double p = call.real_or(order, 2);
    DType type = to_dtype(call.scalar_type("dtype").value_or(r.self.scalar_type()));
    if (is_integral(type)) throw UserError("norm needs a float or complex type");
    if (r.count() == 0 && (p < 0 || p > 1e300)) throw UserError("the norm of nothing");
    ValueId v = r.e.convert(call.read(r.self), type);
    if (is_complex(type)) v = r.e.op(Prim::Abs, {v});
    DType real = real_type(type);
    r.give(r.e.convert(norm_of(r, r.e.widen(v), p), real));
}
void lower_norm(Call& call) { norm(call, "p"); }
void lower_vector_norm(Call& call) { norm(call, "ord"); }

void lower_logsumexp(Call& call) {
    Reduction r(call, "dim");
    DType type = to_dtype(float_type(r.self.scalar_type()));
    if (!is_float(type)) throw NotSupported("logsumexp of complex numbers");
    Emitter& e = r.e;
    ValueId x = e.convert(call.read(r.self), type);
    if (r.count() == 0) throw NotSupported("logsumexp of nothing");
    // Eager composes it from operators of the operand's own type.
    ValueId m = e.reduce(Prim::Amax, x, r.dims, false);
    ValueId finite = e.select(e.op(Prim::IsInf, {m}), e.number(m, 0), m);
    ValueId shifted = e.sub(x, e.spread(finite, r.dims, r.self.sym_sizes().vec()));
    ValueId sum = e.reduce(Prim::Sum, e.op(Prim::Exp, {shifted}), r.dims, false);
    ValueId out = e.add(e.op(Prim::Log, {sum}), finite);
    SymInts kept = r.self.sym_sizes().vec();
    for (std::int64_t d : r.dims) kept[static_cast<std::size_t>(d)] = 1;
    r.give(r.keep ? e.reshape(out, kept) : out);
}
void lower_count_nonzero(Call& call) {
    Reduction r(call, "dim");
    ValueId v = r.e.convert(call.read(r.self), DType::Bool);
    r.give(r.run(Prim::Sum, r.e.convert(v, DType::I64)));
}
/// median along one dim. (kthvalue, mode and topk stay calls: which of equal elements they name is
/// eager's secret.)
void lower_median(Call& call) {
    at::Tensor self = call.tensor("self");
    if (!call.given("dim") || self.dim() == 0) throw NotSupported("median of everything");
    std::int64_t dim = wrap_dim(call.integer("dim"), self.dim());
    Emitter& e = call.emit();
    std::vector<ValueId> both =
        e.ops(Prim::Median, {call.read(self)}, {{"dim", dim}, {"ignore_nan", false}});
    for (ValueId v : both) {
        if (call.flag("keepdim")) v = e.unsqueeze(v, dim);
        call.give(v, contiguous(e.sizes(v)), self.device());
    }
}

}  // namespace

std::span<const LoweringEntry> reduce_lowerings() {
    static constexpr LoweringEntry table[] = {
        {"sum", lower_sum},
        {"nansum", lower_nansum},
        {"mean", lower_mean},
        {"prod", lower_prod},
        {"amax", lower_extremum<Prim::Amax>},
        {"amin", lower_extremum<Prim::Amin>},
        {"aminmax", lower_aminmax},
        {"all", lower_logical<Prim::All>},
        {"any", lower_logical<Prim::Any>},
        {"argmax", lower_arg<Prim::Argmax>},
        {"argmin", lower_arg<Prim::Argmin>},
        {"max", lower_max<Prim::Amax, Prim::Argmax, Prim::Maximum>},
        {"min", lower_max<Prim::Amin, Prim::Argmin, Prim::Minimum>},
        {"var", lower_var<false>},
        {"std", lower_var<true>},
        {"var_mean", lower_var_mean<false>},
        {"std_mean", lower_var_mean<true>},
        {"norm", lower_norm},
        {"linalg_vector_norm", lower_vector_norm},
        {"logsumexp", lower_logsumexp},
        {"count_nonzero", lower_count_nonzero},
        {"median", lower_median},
    };
    return table;
}

}  // namespace ingot::trace
