// What the files of CompiledFunction share about a call; internal to them.
#pragma once
#include <ATen/autocast_mode.h>
#include <ATen/core/LegacyTypeDispatch.h>
#include <c10/util/SmallVector.h>

#include "trace/compiled_function.h"
#include "trace/output_tensor.h"
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

/// Frees what a caller gave away, and makes results, while the program runs.
class CompiledFunction::GivenMemory final : public runtime::RunMemory {
  public:
    GivenMemory(const CompiledFunction& function, CallFrame& frame, std::vector<at::Tensor>& given)
        : function_(function), frame_(frame), given_(given) {}

    void* make_output(std::size_t output) override {
        at::Tensor& made = frame_.outputs[output];
        made =
            trace::make_output(frame_.sized->instance->outputs()[output].layout, function_.device_);
        return made.mutable_data_ptr();
    }
    void release_input(std::size_t input) override {
        const std::int32_t given = function_.from_caller_[input];
        if (given < 0) return;
        using Kind = OutputRecipe::Kind;
        for (const OutputRecipe& r : function_.recipes_)
            if ((r.kind == Kind::Input || r.kind == Kind::ViewOfInput) &&
                r.index == static_cast<std::int32_t>(input))
                return;
        given_[given].reset();
    }

  private:
    const CompiledFunction& function_;
    CallFrame& frame_;
    std::vector<at::Tensor>& given_;
};

}  // namespace ingot::trace
