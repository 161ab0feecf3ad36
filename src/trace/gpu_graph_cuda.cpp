// CUDA graphs through PyTorch's own, which knows its allocator and its libraries' workspaces. See
// gpu_graph.h. Built only where PyTorch has CUDA.
#include <ATen/cuda/CUDAGraph.h>
#include <c10/cuda/CUDAGuard.h>
#include <c10/cuda/CUDAStream.h>

#include "trace/gpu_graph.h"

namespace ingot::trace {
namespace {

class TorchGraph final : public GpuGraph {
  public:
    explicit TorchGraph(c10::Device device) : device_(device) {}

    void record(const std::function<void()>& work) override {
        const c10::cuda::CUDAStream before = c10::cuda::getCurrentCUDAStream(device_.index());
        const c10::cuda::CUDAStream own = c10::cuda::getStreamFromPool(false, device_.index());
        before.synchronize();
        {
            const c10::cuda::CUDAStreamGuard on(own);
            work();
            own.synchronize();
            graph_.capture_begin({0, 0}, cudaStreamCaptureModeThreadLocal);
            try {
                work();
            } catch (...) {
                abandon();
                throw;
            }
            graph_.capture_end();
        }
        own.synchronize();
    }

    void replay() override { graph_.replay(); }

  private:
    void abandon() {
        try {
            graph_.capture_end();
        } catch (const std::exception&) {
            // What went wrong is reported by the exception under way.
        }
        graph_.reset();
        static_cast<void>(cudaGetLastError());
    }

    c10::Device device_;
    at::cuda::CUDAGraph graph_;
};

}  // namespace

std::unique_ptr<GpuGraph> make_gpu_graph(c10::Device device) {
    return std::make_unique<TorchGraph>(device);
}

}  // namespace ingot::trace
