// CUDA graphs through PyTorch's own, which knows its allocator and its libraries' workspaces. See
// gpu_graph.h. Built only where PyTorch has CUDA.
#include <ATen/Context.h>
#include <ATen/cuda/CUDAEvent.h>
#include <ATen/cuda/CUDAGraph.h>
#include <c10/cuda/CUDACachingAllocator.h>
#include <c10/cuda/CUDAGuard.h>
#include <c10/cuda/CUDAStream.h>

#include <mutex>
#include <optional>

#include "trace/gpu_graph.h"

namespace ingot::trace {
namespace {

/// Puts the device's generator back where it was.
class KeptGenerator {
  public:
    explicit KeptGenerator(c10::Device device)
        : generator_(at::globalContext().defaultGenerator(device)) {
        const std::lock_guard lock(generator_.mutex());
        state_ = generator_.get_state();
    }
    ~KeptGenerator() {
        const std::lock_guard lock(generator_.mutex());
        generator_.set_state(state_);
    }
    KeptGenerator(const KeptGenerator&) = delete;
    KeptGenerator& operator=(const KeptGenerator&) = delete;

  private:
    at::Generator generator_;
    at::Tensor state_;
};

/// One graph at a time is recorded or handed to the GPU.
struct Turns {
    std::mutex mutex;
    std::optional<c10::cuda::CUDAStream> last;  // where a graph was replayed
    // On which all of them are recorded: libraries keep a workspace for each stream they see.
    std::optional<c10::cuda::CUDAStream> own;
};

/// What memory a graph's work takes comes from; its type moves between versions of PyTorch.
using Pool = decltype(std::declval<at::cuda::CUDAGraph&>().pool());

class TorchGraph final : public GpuGraph {
  public:
    TorchGraph(c10::Device device, std::shared_ptr<Turns> turns, Pool pool)
        : device_(device), turns_(std::move(turns)), pool_(pool) {}
    Pool pool() const { return graph_.pool(); }

    void record(const std::function<void()>& work) override {
        const c10::cuda::CUDAStream before = c10::cuda::getCurrentCUDAStream(device_.index());
        const std::lock_guard lock(turns_->mutex);
        if (!turns_->own) turns_->own = c10::cuda::getStreamFromPool(false, device_.index());
        const c10::cuda::CUDAStream own = *turns_->own;
        before.synchronize();
        if (turns_->last) turns_->last->synchronize();
        {
            const c10::cuda::CUDAStreamGuard on(own);
            {
                const KeptGenerator kept(device_);
                work();
            }
            own.synchronize();
            // What calls have used so far, and this run, would stay beside the graph's own memory.
            c10::cuda::CUDACachingAllocator::emptyCache();
            graph_.capture_begin(pool_, cudaStreamCaptureModeThreadLocal);
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

    void take_turn() override {
        const std::lock_guard lock(turns_->mutex);
        wait_for_last();
    }

    void replay() override {
        const std::lock_guard lock(turns_->mutex);
        wait_for_last();
        graph_.replay();
    }

  private:
    void wait_for_last() {
        const c10::cuda::CUDAStream now = c10::cuda::getCurrentCUDAStream(device_.index());
        if (turns_->last && *turns_->last != now) {
            at::cuda::CUDAEvent done;
            done.record(*turns_->last);
            done.block(now);
        }
        turns_->last = now;
    }
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
    std::shared_ptr<Turns> turns_;
    Pool pool_;  // to take memory from; {0, 0} stands for a fresh one
    mutable at::cuda::CUDAGraph graph_;
};

class TorchTurns final : public GpuGraphTurns {
  public:
    explicit TorchTurns(c10::Device device) : device_(device) {}
    std::shared_ptr<GpuGraph> make_graph(const GpuGraph* beside) override {
        // What a graph keeps for good shall not be cut out of bigger pieces that calls have left:
        // their rests could not be given back.
        empty_caches();
        const auto* other = static_cast<const TorchGraph*>(beside);
        return std::make_shared<TorchGraph>(device_, turns_,
                                            other != nullptr ? other->pool() : Pool{0, 0});
    }

    void empty_caches() const override {
        const c10::cuda::CUDAGuard on(device_.index());
        c10::cuda::CUDACachingAllocator::emptyCache();
    }

  private:
    c10::Device device_;
    std::shared_ptr<Turns> turns_ = std::make_shared<Turns>();
};

}  // namespace

std::shared_ptr<GpuGraphTurns> make_gpu_graph_turns(c10::Device device) {
    return std::make_shared<TorchTurns>(device);
}

}  // namespace ingot::trace
