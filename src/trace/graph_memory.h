// Memory that CUDA graphs work in by turns. A graph's addresses are fixed, so that each would keep
// for good what it needs while it works, of which all but one lies idle.
//
// Graphs of an inference function share an arena. A forward's graph and its backward's share
// everything, a room: what is alive at no time of a step together lies in one place, as it does
// without graphs. Saved values go from the room when the backward has read them for the last time,
// and the backward's other values and its results come to lie there; docs/gpu.md says why nobody
// finds anything overwritten.
#pragma once
#include <ATen/core/Tensor.h>

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <vector>

#include "runtime/host.h"
#include "trace/gpu_graph.h"

namespace ingot::trace {

/// A graph of a forward and one of its backward in one pool of memory.
class GraphRoom {
  public:
    /// Of the forward. Set before anything else.
    std::shared_ptr<GpuGraph> forward;
    /// That of the backward which works in the room; there are others that only read what is saved.
    std::shared_ptr<GpuGraph> backward;
    /// The backward has, or had, such a graph: saved values may be gone from the room.
    std::atomic<bool> entered = false;
    /// The backward's graph no longer fits, and there can be no other one in this room.
    std::atomic<bool> stale = false;
    /// Held by the backward's results that lie here: the forward must not run while there are any.
    std::shared_ptr<int> results = std::make_shared<int>(0);

    /// Takes a value that the backward may overwrite when it has read it for the last time.
    void save(at::Tensor value);
    bool saved_at(const void* at) const { return saved_.contains(at); }
    void release(const void* at);
    bool has_results() const { return results.use_count() > 1; }

  private:
    std::map<const void*, at::Tensor> saved_;  // by where they begin; undefined: gone
};

class GraphMemory {
  public:
    explicit GraphMemory(c10::Device device)
        : device_(device), turns_(make_gpu_graph_turns(device)) {}

    /// Arenas are this big from now on.
    void expect(std::int64_t bytes) { expected_ = std::max(expected_, bytes); }

    /// A graph that takes turns with the others; null where PyTorch has no CUDA.
    std::shared_ptr<GpuGraph> make_graph(const GpuGraph* beside = nullptr) const {
        return turns_ ? turns_->make_graph(beside) : nullptr;
    }

    /// The calls before the first that graphs serve in both directions have left much.
    void empty_caches() const { turns_->empty_caches(); }

    /// At least `bytes`, the same for all graphs while it is big enough; undefined for none. It
    /// lives as long as a graph holds it.
    std::shared_ptr<const at::Tensor> arena(std::int64_t bytes);

    /// What a room needs: with the backward's results, and without.
    void expect_room(std::int64_t bytes, std::int64_t bytes_apart) {
        room_bytes_ = bytes;
        room_bytes_apart_ = bytes_apart;
    }
    std::int64_t room_bytes() const { return results_apart() ? room_bytes_apart_ : room_bytes_; }
    /// A forward's, with all that it has saved.
    void add(const std::shared_ptr<GraphRoom>& room);
    /// The one in whose forward `at` was saved, if it is there still.
    std::shared_ptr<GraphRoom> room_of(const void* at) const;

    /// Whether the backward's results get memory of their own, as somebody keeps them until the
    /// next forward.
    bool results_apart() const {
        const std::lock_guard lock(mutex_);
        return apart_;
    }
    void keep_results_apart() {
        const std::lock_guard lock(mutex_);
        apart_ = true;
    }

  private:
    c10::Device device_;
    std::shared_ptr<GpuGraphTurns> turns_;
    mutable std::mutex mutex_;
    std::int64_t expected_ = 0, room_bytes_ = 0, room_bytes_apart_ = 0;
    std::weak_ptr<const at::Tensor> arena_;
    std::vector<std::weak_ptr<GraphRoom>> rooms_;
    bool apart_ = false;
};

/// Memory for work that is being recorded, from the recording's pool.
class RecordingMemory final : public runtime::RunMemory {
  public:
    /// make(o): memory for output o. done(i): nothing reads input i from here on. ahead: how many
    /// steps are not recorded.
    RecordingMemory(c10::Device device, std::function<void*(std::size_t)> make,
                    std::function<void(std::size_t)> done, std::size_t ahead)
        : device_(device), make_(std::move(make)), done_(std::move(done)), ahead_(ahead) {}

    void* make_output(std::size_t output) override { return make_(output); }
    void release_input(std::size_t input) override { done_(input); }
    bool lends_pieces() const override { return true; }
    std::size_t first_step() const override { return ahead_; }
    void* make_piece(std::size_t piece, std::size_t bytes) override;
    void free_piece(std::size_t piece) override { pieces_.erase(piece); }
    /// What is lent from here on is cut out of one block of so many bytes, as long as it is enough.
    /// The allocator would take a block of its own for each size, and fill none of them up.
    void take_at_once(std::int64_t bytes) const;

  private:
    c10::Device device_;
    std::function<void*(std::size_t)> make_;
    std::function<void(std::size_t)> done_;
    std::size_t ahead_;
    std::map<std::size_t, c10::DataPtr> pieces_;
};

}  // namespace ingot::trace
