// Losses: pointwise distances and their means or sums.
#include <ATen/core/Reduction.h>

#include <numeric>

#include "trace/lower/promote.h"

namespace ingot::trace {

namespace {

std::size_t at(std::int64_t i) { return static_cast<std::size_t>(i); }

/// A pointwise loss of two operands (in f32 for reduced floats), then the reduction asked for.
void reduced(Call& call, const char* second,
             const std::function<ValueId(Emitter&, ValueId, ValueId)>& f) {
    std::vector<at::Tensor> tensors{call.tensor("self"), call.tensor(second)};
    lower_pointwise(call, tensors, {}, [&](Emitter& e, auto v) { return f(e, v[0], v[1]); });
    std::int64_t reduction = call.integer_or("reduction", at::Reduction::Mean);
    if (reduction == at::Reduction::None) return;
    // Eager reduces the rounded elementwise loss.
    Emitter& e = call.emit();
    Call::Result r = call.results().back();
    call.results().pop_back();
    DType type = e.dtype(r.fresh);
    const SymInts sizes = e.sizes(r.fresh);
    Ints dims(sizes.size());
    std::iota(dims.begin(), dims.end(), 0);
    ValueId sum = e.reduce(Prim::Sum, e.widen(r.fresh), dims, false);
    if (reduction == at::Reduction::Mean) sum = e.div(sum, numel(sizes));
    call.give(e.convert(sum, type), {}, r.device);
}
void lower_mse(Call& call) {
    reduced(call, "target", [](Emitter& e, ValueId a, ValueId b) {
        ValueId d = e.sub(a, b);
        return e.mul(d, d);
    });
}
void lower_smooth_l1(Call& call) {
    double beta = call.real_or("beta", 1);
    reduced(call, "target", [&](Emitter& e, ValueId a, ValueId b) {
        ValueId d = e.op(Prim::Abs, {e.sub(a, b)});
        if (beta == 0) return d;
        ValueId near = e.div(e.mul(e.mul(d, d), 0.5), beta);
        return e.select(e.compare(Prim::Lt, d, beta), near, e.sub(d, 0.5 * beta));
    });
}
void lower_huber(Call& call) {
    const double delta = call.real_or("delta", 1);
    if (!(delta > 0)) throw UserError("huber_loss: delta is positive");
    if (call.tensor("self").scalar_type() != call.tensor("target").scalar_type())
        throw UserError("huber_loss of two types");
    reduced(call, "target", [&](Emitter& e, ValueId a, ValueId b) {
        ValueId d = e.op(Prim::Abs, {e.sub(a, b)});
        ValueId near = e.mul(e.mul(d, d), 0.5);
        return e.select(e.compare(Prim::Le, d, delta), near, e.mul(e.sub(d, 0.5 * delta), delta));
    });
}
/// Eager's kernel for processors raises for what is no probability.
void check_probabilities(Call& call, const at::Tensor& self) {
    Emitter& e = call.emit();
    const ValueId x = call.read(self);
    const ValueId fits =
        e.op(Prim::LogicalAnd, {e.compare(Prim::Ge, x, 0), e.compare(Prim::Le, x, 1)});
    Ints dims(at(self.dim()));
    std::iota(dims.begin(), dims.end(), 0);
    e.op(Prim::Assert, {e.reduce(Prim::All, fits, dims, false)},
         {{"message", std::string("all elements of input should be between 0 and 1")}});
}
void lower_bce(Call& call) {
    at::Tensor weight = call.tensor_or_none("weight");
    if (weight.defined()) throw NotSupported("binary_cross_entropy with weights");
    const at::Tensor self = call.tensor("self"), target = call.tensor("target");
    if (self.scalar_type() != target.scalar_type())
        throw UserError("binary_cross_entropy of two types");
    if (self.is_cpu()) check_probabilities(call, self);
    reduced(call, "target", [](Emitter& e, ValueId a, ValueId b) {
        ValueId l1 = e.op(Prim::Maximum, {e.op(Prim::Log, {a}), e.number(a, -100)});
        ValueId l0 = e.op(Prim::Log1p, {e.op(Prim::Neg, {a})});
        l0 = e.op(Prim::Maximum, {l0, e.number(a, -100)});
        return e.sub(e.mul(e.sub(b, 1.0), l0), e.mul(b, l1));
    });
}

/// One target a row of scores. Throws UserError where eager raises.
void check_targets(const at::Tensor& self, const at::Tensor& target, bool spatial) {
    if (spatial && self.dim() != 4) throw UserError("nll_loss2d: scores of images");
    if (target.scalar_type() != c10::kLong && target.scalar_type() != c10::kByte)
        throw UserError("nll_loss: targets are integers");
    if (self.dim() == 1 && target.dim() <= 1 && target.sym_numel() == 1) return;
    SymInts rows = self.sym_sizes().vec();
    if (rows.size() < 2 || at(target.dim()) != rows.size() - 1)
        throw UserError("nll_loss: one target a row of scores");
    rows.erase(rows.begin() + 1);
    if (!same(rows, target.sym_sizes().vec())) throw UserError("nll_loss: one target a row");
}
/// Negative log likelihood of [n, c, d..] (or [c]) at the targets.
template <bool spatial>
void lower_nll(Call& call) {
    at::Tensor self = call.tensor("self"), target = call.tensor("target");
    at::Tensor weight = call.tensor_or_none("weight");
    std::int64_t reduction = call.integer_or("reduction", at::Reduction::Mean);
    std::int64_t ignored = call.integer_or("ignore_index", -100);
    check_targets(self, target, spatial);
    Emitter& e = call.emit();
    DType type = to_dtype(self.scalar_type());
    std::int64_t dim = self.dim() == 1 ? 0 : 1;
    ValueId t = e.convert(call.read(target), DType::I64);
    ValueId kept = e.compare(Prim::Ne, t, static_cast<double>(ignored));
    ValueId safe = e.select(kept, t, e.number(t, 0));
    ValueId x = e.widen(call.read(self));
    SymInts shape = e.sizes(safe);
    if (self.dim() == 1) {
        safe = e.reshape(safe, {1});
    } else {
        safe = e.unsqueeze(safe, dim);
    }
    ValueId picked = e.reshape(e.op(Prim::Gather, {x, safe}, {{"dim", dim}}), shape);
    DType wide = e.dtype(picked);
    ValueId w = e.convert(kept, wide);
    if (weight.defined()) {
        if (weight.scalar_type() != self.scalar_type())
            throw UserError("nll_loss: a weight of the type of the scores");
        // Repeated as wide as self, so that both are read at the same index.
        SymInts beside(at(self.dim()), 1);
        beside[at(dim)] = self.sym_size(dim);
        if (weight.sym_numel() != beside[at(dim)]) throw UserError("nll_loss: a weight a class");
        SymInts repeated = e.sizes(safe);
        repeated[at(dim)] = beside[at(dim)];
        ValueId each = e.reshape(e.convert(call.read(weight), wide), beside);
        ValueId all = e.op(Prim::Gather, {e.expand(each, repeated), safe}, {{"dim", dim}});
        w = e.select(kept, e.reshape(all, shape), e.number(picked, 0));
    }
    ValueId loss = e.select(kept, e.op(Prim::Neg, {e.mul(picked, w)}), e.number(picked, 0));
    Ints dims(shape.size());
    std::iota(dims.begin(), dims.end(), 0);
    ValueId total = e.reduce(Prim::Sum, w, dims, false);
    if (reduction == at::Reduction::None) {
        call.give(e.convert(loss, type), contiguous(shape), self.device());
        call.give(e.full(type, {}, 0.0), {}, self.device());
        return;
    }
    ValueId sum = e.reduce(Prim::Sum, loss, dims, false);
    if (reduction == at::Reduction::Mean) sum = e.div(sum, total);
    call.give(e.convert(sum, type), {}, self.device());
    call.give(e.convert(total, type), {}, self.device());
}

}  // namespace

std::span<const LoweringEntry> loss_lowerings() {
    static constexpr LoweringEntry table[] = {
        {"mse_loss", lower_mse},
        {"smooth_l1_loss", lower_smooth_l1},
        {"huber_loss", lower_huber},
        {"binary_cross_entropy", lower_bce},
        {"nll_loss_forward", lower_nll<false>},
        {"nll_loss2d_forward", lower_nll<true>},
    };
    return table;
}

}  // namespace ingot::trace
