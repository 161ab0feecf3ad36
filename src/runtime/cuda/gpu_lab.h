// A bench on which work of a GPU is measured beside what the process uses the GPU for: a stream and
// memory of its own, times by the GPU's clock.
//
// For one thread at a time, which may allocate and load while other threads record graphs (its own
// mode of recording is the relaxed one), and which waits for its own stream alone. Work is recorded
// as a graph first, so that what the processor takes to hand it over does not count, and rivals are
// measured by turns, the least of several rounds each, because other work shares the GPU. Below the
// programs; knows nothing of them.
#pragma once
#include <cstddef>
#include <functional>
#include <memory>
#include <span>
#include <vector>

#include "ir/dtype.h"
#include "runtime/cuda/driver_api.h"

namespace ingot::runtime::cuda {

class GpuLab {
  public:
    /// Throws NotSupported where the driver is too old.
    explicit GpuLab(std::shared_ptr<const Gpu> gpu);
    ~GpuLab();
    GpuLab(const GpuLab&) = delete;
    GpuLab& operator=(const GpuLab&) = delete;

    const Gpu& gpu() const { return *gpu_; }
    Handle stream() const { return stream_; }

    /// The most that memory() may be asked for: a part of what is free now.
    std::size_t room() const;
    /// At least so much, with contents of any value; the same as long as it is big enough. Null
    /// where there is not so much room.
    std::byte* memory(std::size_t bytes);
    /// Numbers of the type that are of no use but as something to compute with: floats of all
    /// signs below 1, zeros of other types.
    void fill(std::byte* at, DType type, std::size_t bytes);
    void copy(std::byte* to, const std::byte* from, std::size_t bytes);

    /// For all that stream() has been given.
    void wait() const;

    /// Hands work to stream(); `turn` counts its calls.
    using Work = std::function<void(int turn)>;
    /// Microseconds of one call of each work, of which `turns` are recorded at once. What is made
    /// only once has been made by a call before. Exceptions of the work, and the driver's, pass.
    std::vector<double> time(std::span<const Work> rivals, int turns);

  private:
    void require(int result, const char* what) const;

    std::shared_ptr<const Gpu> gpu_;
    int mode_before_ = 0;  // of the thread's recording
    Handle stream_ = nullptr, begin_ = nullptr, end_ = nullptr;
    std::uint64_t memory_ = 0;
    std::size_t memory_bytes_ = 0;
};

}  // namespace ingot::runtime::cuda
