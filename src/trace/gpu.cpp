// See gpu.h.
#include "trace/gpu.h"

#include <c10/core/Allocator.h>

#include "ir/error.h"

namespace ingot::trace {

TorchGpu::TorchGpu(c10::Device device)
    : device_(device),
      guard_(c10::impl::device_guard_impl_registry[static_cast<std::size_t>(device.type())]) {
    if (guard_ == nullptr) throw NotSupported("this PyTorch was built without CUDA");
}

runtime::DeviceMemory TorchGpu::allocate(std::size_t bytes) const {
    c10::DataPtr memory = c10::GetAllocator(device_.type())->allocate(bytes);
    void* data = memory.get();
    const c10::DeleterFnPtr release = memory.get_deleter();
    return {data, memory.release_context(), release};
}

void* TorchGpu::stream() const { return guard_->getStreamNativeHandle(guard_->getStream(device_)); }

}  // namespace ingot::trace
