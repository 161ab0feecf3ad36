// GPUs as PyTorch has them: its allocator and its streams, for programs that run there. Uses the
// parts of PyTorch that know no particular device, so that one build serves with CUDA and without.
#pragma once
#include <ATen/core/Tensor.h>
#include <c10/core/Device.h>
#include <c10/core/DispatchKey.h>
#include <c10/core/impl/DeviceGuardImplInterface.h>

#include <optional>

#include "runtime/host.h"

namespace ingot::trace {

/// The backend's key of ordinary tensors there.
inline c10::DispatchKey key_of(c10::Device device) {
    return device.is_cuda() ? c10::DispatchKey::CUDA : c10::DispatchKey::CPU;
}

/// PyTorch's caching allocator and current stream of one GPU.
class TorchGpu final : public runtime::DeviceHost {
  public:
    explicit TorchGpu(c10::Device device);
    runtime::DeviceMemory allocate(std::size_t bytes) const override;
    void* stream() const override;
    std::shared_ptr<runtime::RecordedMemory> record(
        const std::function<void()>& work, const std::function<void(void*)>& read) const override;
    void on_stream(void* stream, const std::function<void()>& work) const override;
    std::optional<std::int64_t> allocations() const override;
    std::uint64_t settings() const override;

  private:
    c10::Device device_;
    const c10::impl::DeviceGuardImplInterface* guard_;
};

/// A float that changes rarely, as a 0-dim tensor of doubles on a GPU that PyTorch takes for a
/// number. A new value is a small kernel on the current stream; nothing is waited for.
class GpuNumber {
  public:
    explicit GpuNumber(c10::Device device) : device_(device) {}
    at::Tensor get(double value);

  private:
    c10::Device device_;
    double value_ = 0;
    std::optional<c10::Stream> stream_;  // where tensor_ was made: another may be ahead of it
    at::Tensor tensor_;
};

}  // namespace ingot::trace
