// Softmax and its relatives: in f32 for reduced floats, rounded once, as eager's kernels do.
#include "trace/lower/promote.h"

namespace ingot::trace {

namespace {

struct Parts {
    ValueId shifted;  // x - max
    ValueId exp;      // its exponential
    ValueId sum;      // of exp along dim, spread
    DType out;        // of the result
    SymInts strides;
};

Parts softmax_parts(Call& call) {
    at::Tensor self = call.tensor("self");
    Emitter& e = call.emit();
    std::int64_t dim = wrap_dim(call.integer("dim"), self.dim());
    DType type = to_dtype(self.scalar_type());
    if (call.flag("half_to_float")) throw NotSupported("softmax from half to float");
    if (auto t = call.scalar_type("dtype")) type = to_dtype(*t);
    if (!is_float(type)) throw UserError("softmax needs a float type");
    ValueId x = e.widen(e.convert(call.read(self), type));
    SymInts sizes = self.sym_sizes().vec();
    Ints dims = self.dim() == 0 ? Ints{} : Ints{dim};
    Parts p;
    p.out = type;
    ValueId m = dims.empty() ? x : e.spread(e.reduce(Prim::Amax, x, dims, false), dims, sizes);
    p.shifted = e.sub(x, m);
    p.exp = e.op(Prim::Exp, {p.shifted});
    p.sum = dims.empty() ? p.exp : e.spread(e.reduce(Prim::Sum, p.exp, dims, false), dims, sizes);
    p.strides = contiguous(sizes);
    return p;
}
SymInts result_strides(Call& call) { return contiguous(call.tensor("self").sym_sizes().vec()); }
void lower_softmax(Call& call) {
    Parts p = softmax_parts(call);
    ValueId y = call.emit().div(p.exp, p.sum);
    call.give(call.emit().convert(y, p.out), result_strides(call), call.tensor("self").device());
}
void lower_log_softmax(Call& call) {
    Parts p = softmax_parts(call);
    ValueId y = call.emit().sub(p.shifted, call.emit().op(Prim::Log, {p.sum}));
    call.give(call.emit().convert(y, p.out), result_strides(call), call.tensor("self").device());
}
/// Rows that are all -inf give zeros instead of NaN.
void lower_safe_softmax(Call& call) {
    Parts p = softmax_parts(call);
    Emitter& e = call.emit();
    at::Tensor self = call.tensor("self");
    std::int64_t dim = wrap_dim(call.integer("dim"), self.dim());
    ValueId x = call.read(self);
    ValueId masked = e.compare(Prim::Eq, x, -std::numeric_limits<double>::infinity());
    ValueId all =
        e.spread(e.reduce(Prim::All, masked, {dim}, false), {dim}, self.sym_sizes().vec());
    ValueId y = e.convert(e.div(p.exp, p.sum), p.out);
    call.give(e.select(all, e.number(y, 0), y), result_strides(call), self.device());
}
/// What eager's kernels raise about is eager's to say.
void check_same_type(const at::Tensor& grad, const at::Tensor& out) {
    if (grad.scalar_type() != out.scalar_type())
        throw NotSupported("a softmax and its gradient of two types");
}
void lower_softmax_backward(Call& call) {
    at::Tensor grad = call.tensor("grad_output"), out = call.tensor("output");
    check_same_type(grad, out);
    Emitter& e = call.emit();
    SymInts sizes = out.sym_sizes().vec();
    Ints dims{wrap_dim(call.integer("dim"), out.dim())};
    if (out.dim() == 0) dims.clear();
    ValueId g = e.widen(call.read(grad)), y = e.widen(call.read(out));
    ValueId gy = e.mul(g, y);
    ValueId sum = e.spread(e.reduce(Prim::Sum, gy, dims, false), dims, sizes);
    ValueId r = e.mul(e.sub(g, sum), y);
    call.give(e.convert(r, to_dtype(*call.scalar_type("input_dtype"))), contiguous(sizes),
              out.device());
}
void lower_log_softmax_backward(Call& call) {
    at::Tensor grad = call.tensor("grad_output"), out = call.tensor("output");
    check_same_type(grad, out);
    Emitter& e = call.emit();
    SymInts sizes = out.sym_sizes().vec();
    Ints dims{wrap_dim(call.integer("dim"), out.dim())};
    if (out.dim() == 0) dims.clear();
    ValueId g = e.widen(call.read(grad)), y = e.widen(call.read(out));
    ValueId sum = e.spread(e.reduce(Prim::Sum, g, dims, false), dims, sizes);
    ValueId r = e.sub(g, e.mul(e.op(Prim::Exp, {y}), sum));
    call.give(e.convert(r, to_dtype(*call.scalar_type("input_dtype"))), contiguous(sizes),
              out.device());
}

}  // namespace

std::span<const LoweringEntry> softmax_lowerings() {
    static constexpr LoweringEntry table[] = {
        {"_softmax", lower_softmax},
        {"_log_softmax", lower_log_softmax},
        {"_safe_softmax", lower_safe_softmax},
        {"_softmax_backward_data", lower_softmax_backward},
        {"_log_softmax_backward_data", lower_log_softmax_backward},
    };
    return table;
}

}  // namespace ingot::trace
