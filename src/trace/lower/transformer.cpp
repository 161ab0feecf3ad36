// The operators that nn.MultiheadAttention and nn.TransformerEncoderLayer call where no gradient is
// needed, taken apart into products, attention and norms, so that weights are packed and what
// stands between products is fused. With masks, weights of attention to give back or nested tensors
// they stay calls.
#include "trace/lower/formulas.h"
#include "trace/lower/promote.h"

namespace ingot::trace {

namespace {

std::size_t at(std::int64_t i) { return static_cast<std::size_t>(i); }

/// rows [n, k] times weight [m, k], with the bias added.
ValueId linear(Emitter& e, ValueId rows, ValueId weight, ValueId bias) {
    const ValueId p = e.op(Prim::Matmul, {rows, e.transpose(weight, 0, 1)});
    return e.add(p, e.expand(bias, e.sizes(p)));
}

/// Operands and arguments that all have one floating type and lie on one device.
void require_alike(Call& call, const at::Tensor& like, std::initializer_list<const char*> names) {
    for (const char* name : names) {
        const at::Tensor t = call.tensor(name);
        if (t.is_nested() || t.scalar_type() != like.scalar_type() || t.device() != like.device())
            throw NotSupported("attention of operands that differ in type or device");
    }
    if (!is_float(to_dtype(like.scalar_type())))
        throw NotSupported("attention of a type that is no float");
    if (call.given("mask")) throw NotSupported("multi-head attention with a mask");
}

struct HeadsAndWidth {
    c10::SymInt heads, width;
};

HeadsAndWidth heads_of(const at::Tensor& query, std::int64_t embedding, std::int64_t heads) {
    if (query.dim() != 3 || heads <= 0 || embedding % heads != 0 ||
        query.sym_size(2) != embedding || query.sym_numel() == 0)
        throw NotSupported("multi-head attention of another form");
    return {heads, embedding / heads};
}

/// Self attention of `rows` [batch * length, embedding] as three thirds of `weight` and `bias`, and
/// the projection.
struct Projections {
    ValueId qkv_weight, qkv_bias, out_weight, out_bias;
};

Projections projections(Call& call) {
    const auto read = [&](const char* name) { return call.read(call.tensor(name)); };
    return {read("qkv_weight"), read("qkv_bias"), read("proj_weight"), read("proj_bias")};
}

/// The rows of the projected attention; `sources` are the rows of query, key and value.
ValueId attend(Emitter& e, const std::array<ValueId, 3>& sources,
               const std::array<c10::SymInt, 3>& lengths, const c10::SymInt& batch,
               const HeadsAndWidth& form, const Projections& p) {
    const c10::SymInt embedding = form.heads * form.width;
    const bool together = sources[0] == sources[1] && sources[0] == sources[2];
    const ValueId all = together ? linear(e, sources[0], p.qkv_weight, p.qkv_bias) : kNone;
    std::vector<ValueId> operands;
    for (std::int64_t i = 0; i < 3; ++i) {
        const c10::SymInt from = embedding * i, to = from + embedding;
        const ValueId rows = together
                                 ? e.slice(all, 1, from, to)
                                 : linear(e, sources[at(i)], e.slice(p.qkv_weight, 0, from, to),
                                          e.slice(p.qkv_bias, 0, from, to));
        operands.push_back(e.permute(
            e.reshape(rows, {batch, lengths[at(i)], form.heads, form.width}), {0, 2, 1, 3}));
    }
    const double width = static_cast<double>(form.width.guard_int(__FILE__, __LINE__));
    const ValueId heads =
        e.op(Prim::Attention, operands,
             {{"scale", 1 / std::sqrt(width)}, {"causal", false}, {"logsumexp", false}});
    const ValueId rows = e.reshape(e.permute(heads, {0, 2, 1, 3}), {batch * lengths[0], embedding});
    return linear(e, rows, p.out_weight, p.out_bias);
}

ValueId rows_of(Emitter& e, ValueId v) {
    const SymInts s = e.sizes(v);
    return e.reshape(v, {s[0] * s[1], s[2]});
}

void lower_multi_head_attention(Call& call) {
    const at::Tensor q = call.tensor("query"), k = call.tensor("key"), v = call.tensor("value");
    if (call.flag("need_weights")) throw NotSupported("attention that gives its weights");
    require_alike(call, q,
                  {"query", "key", "value", "qkv_weight", "qkv_bias", "proj_weight", "proj_bias"});
    const HeadsAndWidth form = heads_of(q, call.integer("embed_dim"), call.integer("num_head"));
    if (k.dim() != 3 || v.dim() != 3 || k.sym_sizes() != v.sym_sizes() ||
        k.sym_size(0) != q.sym_size(0) || k.sym_size(2) != q.sym_size(2))
        throw NotSupported("multi-head attention of another form");
    Emitter& e = call.emit();
    // One tensor gives one value, so that its rows are the same value too.
    std::array<ValueId, 3> sources{rows_of(e, call.read(q)), kNone, kNone};
    sources[1] = k.is_same(q) ? sources[0] : rows_of(e, call.read(k));
    sources[2] = v.is_same(q) ? sources[0] : rows_of(e, call.read(v));
    const SymInts sizes = q.sym_sizes().vec();
    const ValueId rows = attend(e, sources, {q.sym_size(1), k.sym_size(1), v.sym_size(1)},
                                q.sym_size(0), form, projections(call));
    call.give(e.reshape(rows, sizes), contiguous(sizes), q.device());
    call.give(at::Tensor());  // the weights of attention
}

void lower_encoder_layer(Call& call) {
    const at::Tensor src = call.tensor("src");
    require_alike(call, src,
                  {"src", "qkv_weight", "qkv_bias", "proj_weight", "proj_bias", "norm_weight_1",
                   "norm_bias_1", "norm_weight_2", "norm_bias_2", "ffn_weight_1", "ffn_bias_1",
                   "ffn_weight_2", "ffn_bias_2"});
    const HeadsAndWidth form = heads_of(src, call.integer("embed_dim"), call.integer("num_heads"));
    Emitter& e = call.emit();
    const DType type = to_dtype(src.scalar_type());
    const double eps = call.real("eps");
    const auto read = [&](const char* name) { return call.read(call.tensor(name)); };
    const auto norm = [&](ValueId x, const char* weight, const char* bias) {
        return e.convert(
            layer_norm(e, x, 1, read(weight), read(bias), eps, src.device().is_cpu()).result, type);
    };
    const auto attention = [&](ValueId x) {
        return attend(e, {x, x, x}, {src.sym_size(1), src.sym_size(1), src.sym_size(1)},
                      src.sym_size(0), form, projections(call));
    };
    const auto feed_forward = [&](ValueId x) {
        const ValueId hidden = e.widen(linear(e, x, read("ffn_weight_1"), read("ffn_bias_1")));
        const ValueId active = call.flag("use_gelu") ? gelu(e, hidden) : e.op(Prim::Relu, {hidden});
        return linear(e, e.convert(active, type), read("ffn_weight_2"), read("ffn_bias_2"));
    };
    ValueId x = rows_of(e, call.read(src));
    if (call.flag("norm_first")) {
        x = e.add(x, attention(norm(x, "norm_weight_1", "norm_bias_1")));
        x = e.add(x, feed_forward(norm(x, "norm_weight_2", "norm_bias_2")));
    } else {
        x = norm(e.add(x, attention(x)), "norm_weight_1", "norm_bias_1");
        x = norm(e.add(x, feed_forward(x)), "norm_weight_2", "norm_bias_2");
    }
    const SymInts sizes = src.sym_sizes().vec();
    call.give(e.reshape(x, sizes), contiguous(sizes), src.device());
}

}  // namespace

std::span<const LoweringEntry> transformer_lowerings() {
    static constexpr LoweringEntry table[] = {
        {"_native_multi_head_attention", lower_multi_head_attention},
        {"_transformer_encoder_layer_fwd", lower_encoder_layer},
    };
    return table;
}

}  // namespace ingot::trace
