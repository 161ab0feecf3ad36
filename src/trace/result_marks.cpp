// See result_marks.h.
#include "trace/result_marks.h"

#include <ATen/ATen.h>
#include <torch/csrc/autograd/variable.h>

#include <optional>

namespace ingot::trace {
namespace {

using torch::autograd::CreationMeta;

torch::autograd::DifferentiableViewMeta* view_meta(const at::Tensor& t) {
    auto* meta = torch::autograd::impl::get_view_autograd_meta(t);
    return meta != nullptr && meta->has_bw_view() ? meta : nullptr;
}

}  // namespace

ResultMarks marks_of(const at::Tensor& promise) {
    ResultMarks marks{promise.is_conj(), promise.is_neg()};
    if (!promise.is_inference())
        marks.version = promise.unsafeGetTensorImpl()->version_counter().current_version();
    if (const auto* meta = view_meta(promise))
        marks.creation = static_cast<std::uint8_t>(meta->get_creation_meta());
    return marks;
}

void set_bits(c10::TensorImpl& tensor, bool conj, bool neg) {
    if (conj != tensor.is_conj()) tensor._set_conj(conj);
    if (neg != tensor.is_neg()) tensor._set_neg(neg);
}

at::Tensor with_bits(const at::Tensor& memory, const ResultMarks& marks) {
    at::Tensor result = memory;
    if (marks.conj) result = at::_conj(result);
    if (marks.neg) result = at::_neg_view(result);
    return result;
}

void set_creation(const at::Tensor& view, const ResultMarks& marks) {
    if (auto* meta = view_meta(view))
        meta->set_creation_meta(static_cast<CreationMeta>(marks.creation));
}

at::Tensor as_marked(const at::Tensor& memory, const ResultMarks& marks) {
    if (marks.version != 0 && !memory.is_inference()) {
        c10::VariableVersion shared = memory.unsafeGetTensorImpl()->version_counter();
        shared.set_version(marks.version);
    }
    if (!marks.bits() && marks.creation == 0) return memory;
    auto impl = memory.unsafeGetTensorImpl()->shallow_copy_and_detach(
        memory.unsafeGetTensorImpl()->version_counter(), true);
    set_bits(*impl, marks.conj, marks.neg);
    at::Tensor result(std::move(impl));
    if (marks.creation == 0 || memory.is_inference()) return result;
    return torch::autograd::make_variable_differentiable_view(
        result, torch::autograd::ViewInfo(memory, nullptr, {}), std::nullopt,
        /*shared_view_info=*/true, static_cast<CreationMeta>(marks.creation));
}

}  // namespace ingot::trace
