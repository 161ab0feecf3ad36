// Autograd histories cut for a recording, and metadata moved between tensors.
//
// A segment is one node of eager's graph, so its backward is recorded from its results to the
// tensors that came in, no further. While it is recorded, a tensor that came in with a history (or
// with hooks) is therefore a plain leaf; afterwards it is again what it was, with the `grad` that
// it has then. Other threads that look at such a tensor meanwhile see the leaf. Costs an allocation
// for each such tensor.
#pragma once
#include <ATen/core/Tensor.h>
#include <c10/core/TensorImpl.h>

#include <memory>
#include <optional>
#include <utility>
#include <vector>

namespace ingot::capture {

/// The owner of a tensor's autograd metadata.
std::unique_ptr<c10::AutogradMetaInterface>& autograd_meta_of(c10::TensorImpl& tensor);
/// Whether the tensor is a leaf to autograd.
bool is_leaf(const c10::TensorImpl& tensor);
/// Whether something of somebody's is done when the tensor gets a gradient.
bool has_hooks(const at::Tensor& tensor);

class Histories {
  public:
    Histories() = default;
    Histories(const Histories&) = delete;
    Histories& operator=(const Histories&) = delete;
    ~Histories() { restore(); }

    /// Makes `tensor` a leaf without hooks, if it needs a gradient and is none.
    void cut(const at::Tensor& tensor);
    /// Undoes all cuts.
    void restore();
    /// Whether a tensor that was cut is a leaf in truth; nothing if it was not cut.
    std::optional<bool> true_leaf(const at::Tensor& tensor) const;
    /// Whether a tensor had hooks before it was cut.
    bool had_hooks(const at::Tensor& tensor) const;

  private:
    struct Cut {
        at::Tensor tensor;
        std::unique_ptr<c10::AutogradMetaInterface> meta;
        bool leaf = false;
    };
    std::vector<Cut> cuts_;
};

}  // namespace ingot::capture
