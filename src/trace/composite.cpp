// See composite.h.
#include "trace/composite.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <cmath>
#include <optional>

#include "passes/mask_facts.h"
#include "trace/mode.h"
#include "trace/recorder_state.h"
#include "trace/sym_node.h"

namespace ingot::trace {
namespace {

bool symbolic(const at::Tensor& t) {
    return t.defined() && t.unsafeGetTensorImpl()->has_symbolic_sizes_strides();
}

SymInts lead(const at::Tensor& t) {
    const auto s = t.sym_sizes();
    return SymInts(s.begin(), s.end() - std::min<std::ptrdiff_t>(2, t.dim()));
}

c10::SymInt count(const SymInts& sizes) {
    c10::SymInt n = 1;
    for (const c10::SymInt& s : sizes) n *= s;
    return n;
}

/// A batch of matrices times one matrix (or vector): one product of all rows.
at::Tensor folded(const at::Tensor& a, const at::Tensor& b) {
    const auto s = a.sym_sizes();
    SymInts out(s.begin(), s.end() - 1);
    const at::Tensor rows = a.reshape_symint({count(out), s.back()});
    if (b.dim() == 1) return at::mv(rows, b).view_symint(out);
    out.push_back(b.sym_size(1));
    return at::_unsafe_view_symint(at::mm(rows, b), out);
}

/// Two batches, broadcast against each other.
at::Tensor batched(const at::Tensor& a, const at::Tensor& b) {
    const at::Tensor x = a.dim() == 1 ? a.unsqueeze(0) : a, y = b.dim() == 1 ? b.unsqueeze(1) : b;
    SymInts p = lead(x), q = lead(y), both;
    const std::size_t rank = std::max(p.size(), q.size());
    p.insert(p.begin(), rank - p.size(), 1);
    q.insert(q.begin(), rank - q.size(), 1);
    for (std::size_t i = 0; i < rank; ++i) {
        TORCH_CHECK(p[i] == q[i] || p[i] == 1 || q[i] == 1,
                    "the batch sizes of a matrix product do not match");
        both.push_back(p[i] == 1 ? q[i] : p[i]);
    }
    const c10::SymInt n = x.sym_size(-2), k = x.sym_size(-1), m = y.sym_size(-1);
    auto spread = [&](const at::Tensor& t, const c10::SymInt& rows, const c10::SymInt& columns) {
        SymInts sizes = both;
        sizes.push_back(rows);
        sizes.push_back(columns);
        return t.expand_symint(sizes).reshape_symint({count(both), rows, columns});
    };
    const at::Tensor z = at::bmm(spread(x, n, k), spread(y, y.sym_size(-2), m));
    SymInts out = both;
    if (a.dim() > 1) out.push_back(n);
    if (b.dim() > 1) out.push_back(m);
    return at::_unsafe_view_symint(z, out);
}

at::Tensor product(const at::Tensor& a, const at::Tensor& b) {
    return b.dim() <= 2 ? folded(a, b) : batched(a, b);
}

}  // namespace

namespace {

/// Attention with a mask that masks nothing, or the columns behind each row, or one whose rows the
/// fused kernels cannot read: what PyTorch's choice would take the unfused form for, or kernels
/// that read the mask and compute what it hides.
bool attention_with_mask(torch::jit::Stack& stack) {
    const std::size_t first = stack.size() - 8;
    const c10::IValue& given = stack[first + 3];
    if (!given.isTensor() || !given.toTensor().defined()) return false;
    at::Tensor mask = given.toTensor();
    RecorderState* const recorder = topmost_recorder();
    if (recorder == nullptr || !mask.is_cuda() || !is_promise(mask) || mask.requires_grad())
        return false;
    const auto at = [&](std::size_t i) -> const c10::IValue& { return stack[first + i]; };
    std::optional<at::Tensor> used;
    bool causal = at(5).toBool();
    const MaskKind kind = causal || mask.scalar_type() != at::kBool
                              ? MaskKind::Unknown
                              : kind_of_mask(recorder->graph, recorder->read(mask));
    if (kind == MaskKind::Unknown) {
        if (mask.dim() == 0 || symbolic(mask) || mask.stride(-1) == 1) return false;
        used = mask.contiguous();
    } else {
        causal = kind == MaskKind::Causal;
    }
    at::Tensor result = at::scaled_dot_product_attention(
        at(0).toTensor(), at(1).toTensor(), at(2).toTensor(), used, at(4).toDouble(), causal,
        at(6).toOptional<double>(), at(7).toBool());
    torch::jit::drop(stack, 8);
    stack.emplace_back(std::move(result));
    return true;
}

}  // namespace

namespace {

/// `floor(size * scale)`, as eager computes it; nothing where the scale is no simple fraction.
std::optional<c10::SymInt> scaled(const c10::SymInt& size, double scale) {
    for (const std::int64_t by : {1, 2, 4, 8})
        if (const double times = scale * static_cast<double>(by);
            times == std::floor(times) && times >= 1 && times <= 64)
            return size * static_cast<std::int64_t>(times) / by;
    return std::nullopt;
}

/// Resizing of images: PyTorch's form for Python computes the result's sizes from numbers.
bool resized(const c10::OperatorHandle& op, torch::jit::Stack& stack) {
    const c10::FunctionSchema& schema = op.schema();
    const auto count = static_cast<std::ptrdiff_t>(schema.arguments().size());
    const std::vector<c10::IValue> given(stack.end() - count, stack.end());
    const at::Tensor& image = given[0].toTensor();
    if (!symbolic(image) || image.dim() < 3) return false;
    const auto dims = static_cast<std::size_t>(image.dim() - 2);
    const c10::IValue &sizes = given[1], &factors = given.back();
    SymInts out;
    std::vector<std::optional<double>> scales(dims);
    if (!sizes.isNone()) {
        for (const c10::IValue& v : sizes.toListRef()) out.push_back(v.toSymInt());
    } else if (!factors.isNone()) {
        for (std::size_t d = 0; d < factors.toDoubleVector().size() && d < dims; ++d) {
            scales[d] = factors.toDoubleVector()[d];
            const auto size = scaled(image.sym_size(static_cast<std::int64_t>(d) + 2), *scales[d]);
            if (!size) return false;
            out.push_back(*size);
        }
    }
    if (out.size() != dims) return false;
    const auto other = c10::Dispatcher::singleton().findSchema({schema.name(), ""});
    if (!other || other->schema().arguments().size() != static_cast<std::size_t>(count) - 1 + dims)
        return false;
    torch::jit::Stack call{image, c10::IValue(c10::SymIntArrayRef(out))};
    if (count == 4) call.push_back(given[2]);  // align_corners
    for (const auto& scale : scales) call.emplace_back(scale);
    other->callBoxed(call);
    torch::jit::drop(stack, static_cast<std::size_t>(count));
    stack.push_back(std::move(call.back()));
    return true;
}

}  // namespace

bool run_composite(const c10::OperatorHandle& op, torch::jit::Stack& stack) {
    if (op.schema().overload_name() == "vec" && op.schema().name().starts_with("aten::upsample_"))
        return resized(op, stack);
    if (op.schema().name() == "aten::scaled_dot_product_attention")
        return attention_with_mask(stack);
    if (op.schema().name() != "aten::matmul" || !op.schema().overload_name().empty()) return false;
    const at::Tensor &a = stack[stack.size() - 2].toTensor(), &b = stack.back().toTensor();
    if ((!symbolic(a) && !symbolic(b)) || a.dim() == 0 || b.dim() == 0) return false;
    if (a.dim() <= 2 && b.dim() <= 2) return false;  // asks for no sizes
    at::Tensor result = product(a, b);
    torch::jit::drop(stack, 2);
    stack.emplace_back(std::move(result));
    return true;
}

}  // namespace ingot::trace
