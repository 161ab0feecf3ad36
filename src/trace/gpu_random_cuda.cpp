// Random numbers of GPUs through PyTorch's generator. See gpu_random.h. Built only where PyTorch
// has CUDA.
#include <ATen/ATen.h>
#include <ATen/Context.h>
#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/cuda/CUDAContext.h>
#include <ATen/cuda/CUDAGeneratorImpl.h>
#include <c10/core/impl/LocalDispatchKeySet.h>
#include <c10/cuda/CUDAGraphsC10Utils.h>
#include <c10/cuda/CUDAGuard.h>

#include <mutex>

#include "ir/philox.h"
#include "trace/gpu_random.h"

namespace ingot::trace {
namespace {

/// What dropout with keep probability 1/2 keeps of `n` numbers of 16 bits, and what each form of it
/// would.
class DropoutProbe {
  public:
    explicit DropoutProbe(c10::Device device) {
        const at::Tensor ones = at::ones({kCount}, at::dtype(at::kBFloat16).device(device));
        at::Generator generator = at::globalContext().defaultGenerator(device);
        {
            const std::lock_guard lock(generator.mutex());
            seed_ = generator.current_seed();
            offset_ = generator.get_offset();
        }
        kept_ = std::get<1>(at::native_dropout(ones, 0.5, true)).cpu();
        const std::lock_guard lock(generator.mutex());
        generator.set_offset(offset_);
    }

    bool explained_by(std::int64_t width) const {
        const PhiloxLayout layout{kCount, width, true};
        const bool* kept = kept_.const_data_ptr<bool>();
        for (std::int64_t i = 0; i < kCount; ++i) {
            const auto bits = philox_bits(static_cast<std::uint64_t>(i), seed_, offset_, layout);
            if (kept[i] != (bits < philox_threshold(0.5))) return false;
        }
        return true;
    }

  private:
    static constexpr std::int64_t kCount = 4096;  // as many threads are launched
    std::uint64_t seed_ = 0, offset_ = 0;
    at::Tensor kept_;
};

}  // namespace

std::optional<GpuDraws> how_eager_draws(c10::Device device) {
    const c10::cuda::CUDAGuard on(device);
    if (c10::cuda::currentStreamCaptureStatusMayInitCtx() != c10::cuda::CaptureStatus::None)
        return std::nullopt;
    const c10::impl::ExcludeDispatchKeyGuard unrecorded(
        c10::DispatchKeySet({c10::DispatchKey::Python, c10::DispatchKey::PythonTLSSnapshot}));
    const at::AutoDispatchBelowADInplaceOrView below_autograd;
    const cudaDeviceProp& gpu = *at::cuda::getDeviceProperties(device.index());
    const DropoutProbe probe(device);
    constexpr std::int64_t kBlock = 256;
    const std::int64_t blocks =
        std::int64_t{gpu.multiProcessorCount} * (gpu.maxThreadsPerMultiProcessor / kBlock);
    for (int width : {8, 4})
        if (probe.explained_by(width)) return GpuDraws{blocks * kBlock, width};
    return std::nullopt;
}

at::Tensor take_random_state(c10::Device device, std::int64_t increment) {
    at::Generator generator = at::globalContext().defaultGenerator(device);
    at::PhiloxCudaState drawn;
    {
        const std::lock_guard lock(generator.mutex());
        drawn = at::check_generator<at::CUDAGeneratorImpl>(generator)->philox_cuda_state(
            static_cast<std::uint64_t>(increment));
    }
    const at::TensorOptions on_gpu = at::dtype(at::kLong).device(device);
    if (!drawn.captured_) {
        at::Tensor state = at::empty({2}, at::dtype(at::kLong));
        auto* numbers = state.mutable_data_ptr<std::int64_t>();
        numbers[0] = static_cast<std::int64_t>(drawn.seed_.val);
        numbers[1] = static_cast<std::int64_t>(drawn.offset_.val);
        // From memory that is not pinned the numbers are read before the call returns.
        return state.to(on_gpu, /*non_blocking=*/true, /*copy=*/true);
    }
    at::Tensor state = at::empty({2}, on_gpu);
    state.narrow(0, 0, 1).copy_(at::from_blob(drawn.seed_.ptr, {1}, on_gpu));
    at::Tensor offset = state.narrow(0, 1, 1);
    at::add_out(offset, at::from_blob(drawn.offset_.ptr, {1}, on_gpu),
                at::scalar_tensor(static_cast<std::int64_t>(drawn.offset_intragraph_), at::kLong));
    return state;
}

}  // namespace ingot::trace
