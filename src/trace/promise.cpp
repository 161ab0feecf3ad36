// The TensorImpl of a promise; see promise.h.
#include "trace/promise.h"

#include <c10/core/DispatchKeySet.h>

namespace ingot::trace {

namespace {
c10::DispatchKeySet keys_for(c10::Device device) {
    switch (device.type()) {
        case c10::kCPU:
            return c10::DispatchKeySet(c10::DispatchKey::CPU);
        case c10::kCUDA:
            return c10::DispatchKeySet(c10::DispatchKey::CUDA);
        case c10::kMeta:
            return c10::DispatchKeySet(c10::DispatchKey::Meta);
        default:
            throw NotSupported("device " + device.str());
    }
}
}  // namespace

Promise::Promise(std::shared_ptr<Cell> cell, ViewPath view, c10::ScalarType dtype,
                 c10::Device device, c10::IntArrayRef sizes, c10::IntArrayRef strides,
                 std::int64_t offset)
    : TensorImpl(keys_for(device), c10::scalarTypeToTypeMeta(dtype), device),
      cell_(std::move(cell)),
      view_(std::move(view)) {
    set_sizes_and_strides(sizes, strides, offset);
    set_storage_access_should_throw();
}

void Promise::become(std::shared_ptr<Cell> cell, ViewPath view, c10::IntArrayRef sizes,
                     c10::IntArrayRef strides, std::int64_t offset) {
    cell_ = std::move(cell);
    view_ = std::move(view);
    set_sizes_and_strides(sizes, strides, offset);
}

template <class Version>
c10::intrusive_ptr<c10::TensorImpl> Promise::copy_detached(Version&& version, bool allow) const {
    auto copy = c10::make_intrusive<Promise>(cell_, view_, c10::typeMetaToScalarType(dtype()),
                                             device(), sizes(), strides(), storage_offset());
    copy_tensor_metadata(this, copy.get(), std::forward<Version>(version), allow);
    return copy;
}

c10::intrusive_ptr<c10::TensorImpl> Promise::shallow_copy_and_detach(
    const c10::VariableVersion& version_counter, bool allow_tensor_metadata_change) const {
    return copy_detached(version_counter, allow_tensor_metadata_change);
}
c10::intrusive_ptr<c10::TensorImpl> Promise::shallow_copy_and_detach(
    c10::VariableVersion&& version_counter, bool allow_tensor_metadata_change) const {
    return copy_detached(std::move(version_counter), allow_tensor_metadata_change);
}

void Promise::shallow_copy_from(const c10::intrusive_ptr<TensorImpl>& impl) {
    TensorImpl::shallow_copy_from(impl);
    if (auto* other = dynamic_cast<Promise*>(impl.get())) {
        cell_ = other->cell_;
        view_ = other->view_;
    } else {  // filled with a real tensor: from now on it is one
        cell_.reset();
        view_.reset();
    }
}

}  // namespace ingot::trace
