// See gpu.h.
#include "trace/gpu.h"

#include <ATen/ATen.h>
#include <ATen/Context.h>
#include <c10/core/Allocator.h>
#include <c10/core/CachingDeviceAllocator.h>
#include <c10/core/DeviceGuard.h>
#include <c10/core/impl/VirtualGuardImpl.h>

#include <bit>
#include <cstdint>

#include "ir/error.h"
#include "trace/gpu_graph.h"
#include "trace/unrecorded.h"

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

at::Tensor GpuNumber::get(double value) {
    const c10::Stream now = c10::impl::VirtualGuardImpl(device_.type()).getStream(device_);
    const auto bits = [](double v) { return std::bit_cast<std::uint64_t>(v); };
    if (tensor_.defined() && bits(value) == bits(value_) && stream_ == now) return tensor_;
    const Unrecorded quiet;
    const c10::DeviceGuard on_device(device_);
    tensor_ = at::full({}, value, at::TensorOptions().dtype(at::kDouble).device(device_));
    tensor_.unsafeGetTensorImpl()->set_wrapped_number(true);
    value_ = value;
    stream_ = now;
    return tensor_;
}

void* TorchGpu::stream() const { return guard_->getStreamNativeHandle(guard_->getStream(device_)); }

std::shared_ptr<runtime::RecordedMemory> TorchGpu::record(
    const std::function<void()>& work, const std::function<void(void*)>& read) const {
    return record_gpu_work(device_, work, read);
}

void TorchGpu::on_stream(void* stream, const std::function<void()>& work) const {
    const Unrecorded quiet;
    run_on_gpu_stream(device_, stream, work);
}

std::optional<std::int64_t> TorchGpu::allocations() const {
    auto* const allocator = dynamic_cast<c10::DeviceAllocator*>(c10::GetAllocator(device_.type()));
    if (allocator == nullptr) return std::nullopt;
    constexpr auto kAll = static_cast<std::size_t>(c10::CachingAllocator::StatType::AGGREGATE);
    return allocator->getDeviceStats(device_.index()).allocation[kAll].allocated;
}

std::uint64_t TorchGpu::settings() const {
    at::Context& c = at::globalContext();
    std::uint64_t all = 1;
    const auto add = [&all](auto value) { all = all * 31 + static_cast<std::uint64_t>(value) + 1; };
    try {
        add(c.userEnabledCuDNN());
        add(c.benchmarkCuDNN());
        add(c.deterministicCuDNN());
        add(c.deterministicAlgorithms());
        add(c.userEnabledFlashSDP());
        add(c.userEnabledMemEfficientSDP());
        add(c.userEnabledMathSDP());
        add(c.userEnabledCuDNNSDP());
        add(c.blasPreferredBackend());
        add(c.allowFP16ReductionCuBLAS());
        add(c.allowBF16ReductionCuBLAS());
        add(c.allowFP16AccumulationCuBLAS());
        add(c.allowTF32CuDNN());
        add(c.allowTF32CuBLAS());
    } catch (const c10::Error&) {
        // Two ways of asking for tf32 that contradict each other.
        add(-1);
    }
    return all;
}

}  // namespace ingot::trace
