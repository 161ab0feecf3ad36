// Recorded work of a GPU: CUDA graphs, which a program hands over once and which are then replayed
// at once, and recordings that are only read. In a PyTorch without CUDA there are none
// (gpu_graph_none.cpp).
#pragma once
#include <c10/core/Device.h>

#include <functional>
#include <memory>

#include "runtime/host.h"

namespace ingot::trace {

class GpuGraph {
  public:
    virtual ~GpuGraph() = default;
    /// Runs `work` on a stream of its own: once as it is, so that libraries make what they make
    /// only once, and once recorded, with memory from a pool that lives as long as the graph. What
    /// is freed goes back to that pool, no matter when it was taken from it. The
    /// device's generator is left where it was; what `work` writes is written once. Exceptions of
    /// `work`, and of what may not be recorded, pass; nothing is being recorded then.
    virtual void record(const std::function<void()>& work) = 0;
    /// Has the current stream wait for what graphs that take turns with it do on another one.
    virtual void take_turn() = 0;
    /// Takes its turn and hands the recorded work to the current stream. Random
    /// numbers are drawn from where the generator is now, as eager calls would.
    virtual void replay() = 0;
};

/// Graphs that never work at the same time, on whatever streams, so that they can share memory for
/// what lives only while one of them works.
class GpuGraphTurns {
  public:
    virtual ~GpuGraphTurns() = default;
    /// `beside`: a recorded graph from whose pool it takes memory; else it has one of its own.
    virtual std::shared_ptr<GpuGraph> make_graph(const GpuGraph* beside) = 0;
    /// Gives back what the allocator keeps for calls like those that graphs take the place of.
    virtual void empty_caches() const = 0;
};

/// For graphs of this GPU; null where PyTorch has no CUDA.
std::shared_ptr<GpuGraphTurns> make_gpu_graph_turns(c10::Device device);

/// See runtime::DeviceHost::record. Null also where streams that are not PyTorch's are current: one
/// that ends may leave its handle to another.
std::shared_ptr<runtime::RecordedMemory> record_gpu_work(c10::Device device,
                                                         const std::function<void()>& work,
                                                         const std::function<void(void*)>& read);

/// See runtime::DeviceHost::on_stream.
void run_on_gpu_stream(c10::Device device, void* stream, const std::function<void()>& work);

}  // namespace ingot::trace
