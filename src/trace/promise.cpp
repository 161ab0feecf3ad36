// The TensorImpl of a promise; see promise.h.
#include "trace/promise.h"

#include <c10/core/DispatchKeySet.h>

#include "trace/mode.h"
#include "trace/recorder_state.h"
#include "trace/tensors.h"

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
                 c10::Device device, const SymInts& sizes, const SymInts& strides,
                 const c10::SymInt& offset)
    : TensorImpl(keys_for(device), c10::scalarTypeToTypeMeta(dtype), device),
      cell_(std::move(cell)),
      view_(std::move(view)) {
    set_metadata(sizes, strides, offset);
    set_storage_access_should_throw();
}

void Promise::set_metadata(const SymInts& sizes, const SymInts& strides,
                           const c10::SymInt& offset) {
    // Symbolic integers that turned out to be numbers count as numbers.
    auto plain = [](const c10::SymInt& n) {
        auto number = n.maybe_as_int();
        return number ? c10::SymInt(*number) : n;
    };
    SymInts s, t;
    for (const c10::SymInt& n : sizes) s.push_back(plain(n));
    for (const c10::SymInt& n : strides) t.push_back(plain(n));
    set_sizes_and_strides(c10::SymIntArrayRef(s), c10::SymIntArrayRef(t), plain(offset));
}

void Promise::become(std::shared_ptr<Cell> cell, ViewPath view, const SymInts& sizes,
                     const SymInts& strides, const c10::SymInt& offset) {
    cell_ = std::move(cell);
    view_ = std::move(view);
    set_metadata(sizes, strides, offset);
}

c10::IntArrayRef Promise::sizes_custom() const {
    if (!has_symbolic_sizes_strides()) return TensorImpl::sizes_custom();
    return numbers_ = concrete(sym_sizes());
}
c10::IntArrayRef Promise::strides_custom() const {
    if (!has_symbolic_sizes_strides()) return TensorImpl::strides_custom();
    return stride_numbers_ = concrete(sym_strides());
}
std::int64_t Promise::size_custom(std::int64_t d) const { return concrete(sym_size(d)); }
std::int64_t Promise::numel_custom() const {
    return has_symbolic_sizes_strides() ? concrete(sym_numel()) : TensorImpl::numel_custom();
}
std::int64_t Promise::storage_offset_custom() const {
    return has_symbolic_sizes_strides() ? concrete(sym_storage_offset())
                                        : TensorImpl::storage_offset_custom();
}

template <class Version>
c10::intrusive_ptr<c10::TensorImpl> Promise::copy_detached(Version&& version, bool allow) const {
    auto copy =
        c10::make_intrusive<Promise>(cell_, view_, c10::typeMetaToScalarType(dtype()), device(),
                                     sym_sizes().vec(), sym_strides().vec(), sym_storage_offset());
    copy->apart_ = apart_;
    copy_tensor_metadata(this, copy.get(), std::forward<Version>(version), allow);
    if (RecorderState* recorder = topmost_recorder();
        recorder != nullptr && cell_ != nullptr && recorder == cell_->owner) {
        auto* self = const_cast<Promise*>(this);  // the log keeps it as it keeps any argument
        recorder->log_copy(borrow(self), borrow(copy.get()));
    }
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
