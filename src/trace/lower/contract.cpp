// Matrix products, convolutions, attention.
#include <ATen/Context.h>
#include <ATen/ops/_fused_sdp_choice.h>
#include <c10/core/GradMode.h>

#include <limits>
#include <numeric>

#include "trace/lower/conv.h"
#include "trace/lower/promote.h"

namespace ingot::trace {

namespace {

std::size_t at(std::int64_t i) { return static_cast<std::size_t>(i); }

void require_same(const at::Tensor& a, const at::Tensor& b) {
    if (a.scalar_type() != b.scalar_type()) throw UserError("a product of different types");
}
/// The product of values of one type; bool has none.
ValueId product(Emitter& e, ValueId a, ValueId b) {
    if (e.dtype(a) == DType::Bool) throw UserError("a matrix product of bools");
    return e.op(Prim::Matmul, {a, b});
}
/// beta * self + alpha * product, broadcast to the product's sizes.
ValueId combined(Call& call, ValueId p) {
    Emitter& e = call.emit();
    DType t = e.dtype(p);
    SymInts sizes = e.sizes(p);
    at::Tensor self = call.tensor("self");
    c10::Scalar beta = call.number_or("beta", 1), alpha = call.number_or("alpha", 1);
    auto is = [](const c10::Scalar& s, double v) { return !s.isComplex() && s.toDouble() == v; };
    bool plain = is(beta, 1) && is(alpha, 1);
    auto scale = [&](ValueId v, const c10::Scalar& s) {
        return is(s, 1) ? v : e.mul(v, e.full(e.dtype(v), sizes, cast_scalar(s, e.dtype(v))));
    };
    DType wide = plain ? t : compute_type(t);
    ValueId out = scale(e.convert(p, wide), alpha);
    if (!is(beta, 0)) {
        ValueId bias = e.expand(e.convert(call.read(self), wide), sizes);
        out = e.add(out, scale(bias, beta));
    }
    return e.convert(out, t);
}
void give_contiguous(Call& call, ValueId v, const at::Tensor& like) {
    call.give(v, contiguous(call.emit().sizes(v)), like.device());
}

void lower_mm(Call& call) {
    at::Tensor a = call.tensor("self"), b = call.tensor("mat2");
    require_same(a, b);
    give_contiguous(call, product(call.emit(), call.read(a), call.read(b)), a);
}
void lower_addmm(Call& call) {
    at::Tensor a = call.tensor("mat1"), b = call.tensor("mat2");
    require_same(a, b);
    require_same(a, call.tensor("self"));
    give_contiguous(call, combined(call, product(call.emit(), call.read(a), call.read(b))), a);
}
void lower_baddbmm(Call& call) {
    at::Tensor a = call.tensor("batch1"), b = call.tensor("batch2");
    require_same(a, b);
    give_contiguous(call, combined(call, product(call.emit(), call.read(a), call.read(b))), a);
}
void lower_addbmm(Call& call) {
    at::Tensor a = call.tensor("batch1"), b = call.tensor("batch2");
    require_same(a, b);
    Emitter& e = call.emit();
    ValueId p = e.reduce(Prim::Sum, product(e, call.read(a), call.read(b)), {0}, false);
    give_contiguous(call, combined(call, p), a);
}
/// Matrix times vector as a product with a matrix of one column.
ValueId matrix_vector(Call& call, const at::Tensor& m, const at::Tensor& v) {
    require_same(m, v);
    Emitter& e = call.emit();
    ValueId p = product(e, call.read(m), e.unsqueeze(call.read(v), 1));
    return e.reshape(p, {m.sym_size(0)});
}
void lower_mv(Call& call) {
    at::Tensor m = call.tensor("self");
    give_contiguous(call, matrix_vector(call, m, call.tensor("vec")), m);
}
void lower_addmv(Call& call) {
    at::Tensor m = call.tensor("mat");
    give_contiguous(call, combined(call, matrix_vector(call, m, call.tensor("vec"))), m);
}
void lower_dot(Call& call) {
    bool conjugate = call.find("tensor") == nullptr;  // vdot(self, other) conjugates self
    at::Tensor a = call.tensor("self"), b = call.tensor(conjugate ? "other" : "tensor");
    require_same(a, b);
    Emitter& e = call.emit();
    ValueId x = e.unsqueeze(call.read(a), 0), y = e.unsqueeze(call.read(b), 1);
    if (conjugate && is_complex(e.dtype(x))) x = e.op(Prim::Conj, {x});
    give_contiguous(call, e.reshape(product(e, x, y), {}), a);
}
void lower_addr(Call& call) {
    at::Tensor a = call.tensor("vec1"), b = call.tensor("vec2");
    if (!is_contiguous(layout_of(call.tensor("self"))))
        throw NotSupported("addr that lies as its operand does");
    Emitter& e = call.emit();
    SymInts sizes{a.sym_size(0), b.sym_size(0)};
    ValueId p = e.mul(e.expand(e.unsqueeze(call.read(a), 1), sizes), e.expand(call.read(b), sizes));
    give_contiguous(call, combined(call, p), a);
}
void lower_linear(Call& call) {
    at::Tensor x = call.tensor("input"), w = call.tensor("weight"), b = call.tensor_or_none("bias");
    require_same(x, w);
    Emitter& e = call.emit();
    if (b.defined() && x.is_cpu() && x.scalar_type() == c10::kHalf)
        throw NotSupported("a bias that the library adds before it rounds: addmm");
    if (w.dim() != 2 || x.dim() < 1) throw NotSupported("linear with a weight that is no matrix");
    SymInts sizes = x.sym_sizes().vec();
    const c10::SymInt k = sizes.back();
    c10::SymInt rows = k == 0 ? 0 : 1;
    for (std::size_t i = 0; i + 1 < sizes.size(); ++i) rows *= sizes[i];
    ValueId p = product(e, e.reshape(call.read(x), {rows, k}), e.transpose(call.read(w), 0, 1));
    if (b.defined()) p = e.add(p, e.expand(call.read(b), e.sizes(p)));
    sizes.back() = w.sym_size(0);
    give_contiguous(call, e.reshape(p, sizes), x);
}

void lower_convolution(Call& call) {
    at::Tensor x = call.tensor("input"), w = call.tensor("weight"), b = call.tensor_or_none("bias");
    require_same(x, w);
    if (!is_float(to_dtype(x.scalar_type())))
        throw NotSupported("convolution of a type that is no float");
    std::size_t n = at(w.dim() - 2);
    if (x.dim() != w.dim()) throw UserError("convolution: ranks differ");
    Emitter& e = call.emit();
    ValueId y = e.op(Prim::Conv, {call.read(x), call.read(w)}, conv_attrs(call, n));
    SymInts sizes = e.sizes(y);
    if (b.defined()) {
        SymInts column(n + 1, 1);
        column[0] = sizes[1];
        y = e.add(y, e.expand(e.reshape(call.read(b), column), sizes));
    }
    call.give(y, conv_strides(call, x, w, sizes), x.device());
}

bool needs_gradient(Call& call) {
    return c10::GradMode::is_enabled() &&
           (call.tensor("query").requires_grad() || call.tensor("key").requires_grad() ||
            call.tensor("value").requires_grad());
}
/// An attention operator's arguments as the prim takes them. `mask_name`: the mask's, where the
/// operator has one.
struct AttentionForm {
    at::Tensor query;
    std::vector<ValueId> operands;
    Attrs attrs;

    AttentionForm(Call& call, const char* mask_name) : query(call.tensor("query")) {
        if (call.real_or("dropout_p", 0) != 0) throw NotSupported("attention with dropout");
        const double width = static_cast<double>(query.size(3));
        attrs = {{"scale", call.real_or("scale", 1 / std::sqrt(width))},
                 {"causal", call.flag("is_causal")},
                 {"logsumexp", false}};
        operands = {call.read(query), call.read(call.tensor("key")),
                    call.read(call.tensor("value"))};
        const at::Tensor given = call.tensor_or_none(mask_name);
        if (given.defined()) operands.push_back(mask(call, given));
    }
    /// Gives `out`, the operator's first result.
    void give(Call& call, ValueId out) const {
        if (call.emit().sizes(out) != query.sym_sizes().vec())
            throw NotSupported("attention with values of another width");
        call.give(out, strides(call), query.device());
    }

  private:
    /// As the kernel that eager takes lays its result out: flash attention as the query, and on
    /// GPUs in wider types the memory-efficient one with the heads beside each other, or plain
    /// products.
    SymInts strides(Call& call) const {
        if (!query.is_cuda() || bytes(to_dtype(query.scalar_type())) < 4)
            return preserved_strides(layout_of(query));
        const at::Tensor key = call.tensor("key"), value = call.tensor("value");
        const auto fits = [](const at::Tensor& t) {
            return t.size(3) % 4 == 0 && t.sym_stride(3) == 1;
        };
        const SymInts s = query.sym_sizes().vec();
        const bool efficient = query.scalar_type() == at::kFloat &&
                               at::globalContext().userEnabledMemEfficientSDP() && fits(query) &&
                               fits(key) && fits(value) && key.sym_size(1) == s[1];
        if (!efficient) return contiguous(s);
        return {s[2] * s[1] * s[3], s[3], s[1] * s[3], 1};
    }
    /// Of four dims; bool, or numbers of the query's type that are added.
    ValueId mask(Call& call, const at::Tensor& given) const {
        Emitter& e = call.emit();
        const DType type = to_dtype(query.scalar_type());
        SymInts sizes = given.sym_sizes().vec();
        sizes.insert(sizes.begin(), 4 - sizes.size(), 1);
        ValueId m = e.reshape(call.read(given), sizes);
        if (e.dtype(m) != DType::Bool) return e.convert(m, type);
        if (!query.is_cuda()) return m;
        // What the vendor would make of it at every call.
        const double never = -std::numeric_limits<double>::infinity();
        return e.select(m, e.full(type, sizes, cast_scalar(0, type)),
                        e.full(type, sizes, cast_scalar(never, type)));
    }
};

void lower_flash_attention(Call& call) {
    AttentionForm form(call, "attn_mask");
    Emitter& e = call.emit();
    // Only a backward reads the sums. Without one they are a node of their own, which nobody uses.
    Attrs with_sums = form.attrs;
    with_sums.set("logsumexp", true);
    std::vector<ValueId> both = e.ops(Prim::Attention, form.operands, with_sums);
    ValueId lse = both[1];
    form.give(call,
              needs_gradient(call) ? both[0] : e.op(Prim::Attention, form.operands, form.attrs));
    SymInts s = form.query.sym_sizes().vec();
    if (form.query.scalar_type() == c10::kDouble) lse = e.convert(lse, DType::F64);
    call.give(lse, {s[1] * s[2], 1, s[1]}, form.query.device());
}
/// An attention operator of GPUs; its other results are its caller's matter.
void gpu_attention(Call& call, const char* mask_name) {
    // A backward reads what the operator gives beside its result: it stays a call then.
    if (needs_gradient(call)) throw NotSupported("attention with gradients on a GPU");
    AttentionForm form(call, mask_name);
    form.give(call, call.emit().op(Prim::Attention, form.operands, form.attrs));
}
/// The operators that SDPA calls on GPUs. What only a backward pass reads is empty.
void give_empty(Call& call, DType type) {
    call.give(call.emit().full(type, {0}, cast_scalar(0, type)), {1},
              call.tensor("query").device());
}
/// What flash attention and cuDNN's give beside the result.
void give_unread(Call& call) {
    give_empty(call, DType::F32);                                    // logsumexp
    call.give(at::Tensor());                                         // cum_seq_q
    call.give(at::Tensor());                                         // cum_seq_k
    call.give_value(call.tensor("query").size(2));                   // max_q
    call.give_value(call.tensor("key").size(2));                     // max_k
    for (int i = 0; i < 2; ++i) give_empty(call, DType::I64);        // seed and offset
    give_empty(call, to_dtype(call.tensor("query").scalar_type()));  // debug_attn_mask
}
void lower_gpu_flash_attention(Call& call) {
    if (call.flag("return_debug_mask")) throw NotSupported("attention with a debug mask");
    gpu_attention(call, "attn_mask");
    give_unread(call);
}
void lower_cudnn_attention(Call& call) {
    if (call.flag("compute_log_sumexp") || call.flag("return_debug_mask"))
        throw NotSupported("attention with a logsumexp");
    gpu_attention(call, "attn_bias");
    give_unread(call);
}
void lower_efficient_attention(Call& call) {
    if (call.flag("compute_log_sumexp")) throw NotSupported("attention with a logsumexp");
    gpu_attention(call, "attn_bias");
    give_empty(call, DType::F32);
    for (int i = 0; i < 2; ++i) give_empty(call, DType::I64);  // philox seed and offset
}
/// SDPA itself, which reaches the recorder where autograd is left out (on GPUs). Anything but four
/// dims is decomposed.
void lower_sdpa(Call& call) {
    at::Tensor q = call.tensor("query"), k = call.tensor("key"), v = call.tensor("value");
    if (!q.is_cuda() || q.dim() != 4 || k.dim() != 4 || q.numel() == 0 || k.numel() == 0)
        throw NotSupported("attention of another form");
    gpu_attention(call, "attn_mask");
}
/// The kernel PyTorch would choose: its own function asks for metadata only. On a GPU the choice
/// decides nothing but the road to our prim; the vendor's kernel is chosen when it runs.
void lower_fused_choice(Call& call) {
    constexpr std::int64_t kMath = 0, kFlash = 1, kEfficient = 2;
    at::Tensor q = call.tensor("query"), k = call.tensor("key"), v = call.tensor("value");
    std::optional<at::Tensor> mask;
    if (call.given("attn_mask")) mask = call.tensor("attn_mask");
    if (q.is_cuda() && needs_gradient(call)) {
        // The kernels' own gradients follow; none of them are for all masks and types.
        const bool half = q.scalar_type() == at::kBFloat16 || q.scalar_type() == at::kHalf;
        const bool fits = half && q.dim() == 4 && q.size(3) == v.size(3) && q.size(3) <= 256 &&
                          q.numel() != 0 && k.numel() != 0;
        if (!fits || (mask && call.real_or("dropout_p", 0) != 0)) return call.give_value(kMath);
        if (!mask) return call.give_value(kFlash);
        return call.give_value(q.size(1) == k.size(1) && q.size(3) % 8 == 0 ? kEfficient : kMath);
    }
    if (q.is_cuda()) {
        const bool plain = q.dim() == 4 && call.real_or("dropout_p", 0) == 0 &&
                           q.size(3) == v.size(3) && q.numel() != 0 && k.numel() != 0;
        return call.give_value(!plain ? kMath : mask ? kEfficient : kFlash);
    }
    std::optional<double> scale;
    if (call.given("scale")) scale = call.real("scale");
    call.give_value(at::_fused_sdp_choice(q, k, v, mask, call.real_or("dropout_p", 0),
                                          call.flag("is_causal"), scale, call.flag("enable_gqa")));
}
void lower_cdist(Call& call) {
    at::Tensor a = call.tensor("x1"), b = call.tensor("x2");
    require_same(a, b);
    if (a.dim() != b.dim()) throw NotSupported("cdist of operands of different rank");
    for (std::int64_t d = 0; d + 2 < a.dim(); ++d)
        if (a.sym_size(d) != b.sym_size(d)) throw NotSupported("cdist with broadcast batches");
    ValueId v = call.emit().op(Prim::Cdist, {call.read(a), call.read(b)}, {{"p", call.real("p")}});
    give_contiguous(call, v, a);
}

}  // namespace

std::span<const LoweringEntry> contract_lowerings() {
    static constexpr LoweringEntry table[] = {
        {"mm", lower_mm},
        {"bmm", lower_mm},
        {"addmm", lower_addmm},
        {"baddbmm", lower_baddbmm},
        {"addbmm", lower_addbmm},
        {"mv", lower_mv},
        {"addmv", lower_addmv},
        {"dot", lower_dot},
        {"vdot", lower_dot},
        {"addr", lower_addr},
        {"linear", lower_linear},
        {"convolution", lower_convolution},
        {"_convolution", lower_convolution},
        {"convolution_overrideable", lower_convolution},
        {"_scaled_dot_product_flash_attention_for_cpu", lower_flash_attention},
        {"_scaled_dot_product_flash_attention", lower_gpu_flash_attention},
        {"_scaled_dot_product_efficient_attention", lower_efficient_attention},
        {"_scaled_dot_product_cudnn_attention", lower_cudnn_attention},
        {"scaled_dot_product_attention", lower_sdpa},
        {"_fused_sdp_choice", lower_fused_choice},
        {"_cdist_forward", lower_cdist},
    };
    return table;
}

}  // namespace ingot::trace
