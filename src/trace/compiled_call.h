// What the two files of CompiledFunction share about a call; internal to them.
#pragma once
#include <ATen/autocast_mode.h>
#include <ATen/core/LegacyTypeDispatch.h>
#include <c10/util/SmallVector.h>

#include "trace/compiled_function.h"
#include "trace/tensors.h"

namespace ingot::trace {

/// Where the elements begin. Does not make lazily cloned storages real, as writing must.
inline void* data_of(const c10::TensorImpl& t, bool write) {
    const c10::Storage& storage = t.unsafe_storage();
    const void* base = write ? storage.mutable_data() : storage.data();
    return static_cast<std::byte*>(const_cast<void*>(base)) +
           static_cast<std::size_t>(t.storage_offset()) * t.itemsize();
}

/// Operators run as they were recorded: below autograd and autocast.
struct BelowAutograd {
    at::AutoDispatchBelowADInplaceOrView autograd;
    c10::impl::ExcludeDispatchKeyGuard autocast{c10::autocast_dispatch_keyset};
};

/// One call under way.
struct CompiledFunction::CallFrame {
    std::span<c10::TensorImpl* const> inputs;
    std::shared_ptr<const Variant> variant;
    std::shared_ptr<const Sized> sized;
    std::optional<runtime::Instance::Lease> lease;  // of `context`, if it is this call's alone
    runtime::Context* context;
    c10::SmallVector<at::Tensor, 4> outputs;  // by graph output
    std::vector<at::Tensor> saved;  // of written inputs, if the program may fail; aligned copies
};

}  // namespace ingot::trace
