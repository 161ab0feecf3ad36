// See histories.h.
#include "capture/histories.h"

#include <torch/csrc/autograd/function.h>
#include <torch/csrc/autograd/function_hook.h>
#include <torch/csrc/autograd/variable.h>

#include "trace/tensors.h"

namespace ingot::capture {
namespace {

using Meta = std::unique_ptr<c10::AutogradMetaInterface>;

/// PyTorch has no way to take the metadata out of a tensor; an explicit instantiation may name the
/// private member.
Meta& private_meta_of(c10::TensorImpl& tensor);
template <Meta c10::TensorImpl::* kMember>
struct Opened {
    friend Meta& private_meta_of(c10::TensorImpl& tensor) { return tensor.*kMember; }
};
template struct Opened<&c10::TensorImpl::autograd_meta_>;

at::Tensor& grad_of(c10::AutogradMetaInterface& meta) {
    return static_cast<torch::autograd::AutogradMeta&>(meta).grad_;
}

bool is_hooked(const c10::AutogradMetaInterface& meta) {
    const auto& m = static_cast<const torch::autograd::AutogradMeta&>(meta);
    return !m.hooks_.empty() || m.post_acc_grad_hooks_ != nullptr || m.retains_grad_;
}

}  // namespace

std::unique_ptr<c10::AutogradMetaInterface>& autograd_meta_of(c10::TensorImpl& tensor) {
    return private_meta_of(tensor);
}

bool is_leaf(const c10::TensorImpl& tensor) {
    if (!tensor.requires_grad()) return true;
    return trace::borrow(const_cast<c10::TensorImpl*>(&tensor)).is_leaf();
}

bool has_hooks(const at::Tensor& tensor) {
    const Meta& meta = autograd_meta_of(*tensor.unsafeGetTensorImpl());
    if (meta == nullptr) return false;
    if (is_hooked(*meta)) return true;
    const auto node = torch::autograd::impl::try_get_grad_accumulator(tensor);
    return node && (!node->pre_hooks().empty() || !node->post_hooks().empty());
}

void Histories::cut(const at::Tensor& tensor) {
    if (!tensor.requires_grad()) return;
    const bool leaf = tensor.is_leaf();
    if (leaf && torch::autograd::impl::hooks(tensor).empty()) return;
    c10::TensorImpl* impl = tensor.unsafeGetTensorImpl();
    auto fresh = std::make_unique<torch::autograd::AutogradMeta>(impl, /*requires_grad=*/true);
    fresh->grad_ = tensor.unsafeGetTensorImpl()->grad();
    auto& meta = autograd_meta_of(*impl);
    cuts_.push_back({tensor, std::move(meta), leaf});
    meta = std::move(fresh);
}

void Histories::restore() {
    for (Cut& c : cuts_) {
        auto& meta = autograd_meta_of(*c.tensor.unsafeGetTensorImpl());
        grad_of(*c.meta) = grad_of(*meta);  // which the program may have set
        meta = std::move(c.meta);
    }
    cuts_.clear();
}

bool Histories::had_hooks(const at::Tensor& tensor) const {
    for (const Cut& c : cuts_)
        if (c.tensor.is_same(tensor)) return is_hooked(*c.meta);
    return false;
}

std::optional<bool> Histories::true_leaf(const at::Tensor& tensor) const {
    for (const Cut& c : cuts_)
        if (c.tensor.is_same(tensor)) return c.leaf;
    return std::nullopt;
}

}  // namespace ingot::capture
