// What a program needs from the world that calls it: threads, and hands for the steps that
// generated code does not carry out. The PyTorch layer implements both over ATen; tests implement
// them plainly.
//
// Stands at the border of the core: nothing here knows tensors of any framework.
#pragma once
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "schedule/plan.h"

namespace ingot::runtime {

/// Threads as the caller has them. Both functions may be called from many threads at once.
class Threads {
  public:
    virtual ~Threads() = default;
    /// The most tasks that can run at once here and now (1 inside another parallel region).
    virtual int count() const = 0;
    /// Calls body(context, t) for every t in [0, tasks), maybe at once, and returns when all are
    /// done.
    virtual void run(int tasks, void (*body)(void*, int), void* context) const = 0;
};

/// Everything on the calling thread, one after another.
class SerialThreads final : public Threads {
  public:
    int count() const override { return 1; }
    void run(int tasks, void (*body)(void*, int), void* context) const override {
        for (int t = 0; t < tasks; ++t) body(context, t);
    }
};

/// Memory that comes and goes while a program runs, for callers that want the least of it at once:
/// results are made when they are first written, inputs given back after their last use.
class RunMemory {
  public:
    virtual ~RunMemory() = default;
    /// Memory for graph output `output`, right before the first step that touches it.
    virtual void* make_output(std::size_t output) = 0;
    /// No step from here on reads graph input `input`.
    virtual void release_input(std::size_t input) = 0;
    /// Whether what lives only while the program runs gets its memory here as well, in pieces and
    /// each for as long as it lives, instead of one arena for all of it.
    virtual bool lends_pieces() const { return false; }
    /// Memory for piece `piece`, right before the first step that touches it.
    virtual void* make_piece(std::size_t piece, std::size_t bytes) {
        static_cast<void>(piece), static_cast<void>(bytes);
        return nullptr;
    }
    /// On a GPU: so many of the first steps are not carried out, only lent what they touch.
    virtual std::size_t first_step() const { return 0; }
    /// No step from here on touches it. Not called for what the caller reads after the run.
    virtual void free_piece(std::size_t piece) { static_cast<void>(piece); }
};

/// A buffer's element type and its sizes and strides as numbers.
struct Layout {
    DType dtype = DType::F32;
    Device device;
    std::vector<std::int64_t> sizes;
    std::vector<std::int64_t> strides;  // in elements
    std::int64_t bytes = 0;             // from the first to the last element
    friend bool operator==(const Layout&, const Layout&) = default;
};

/// An extern step, prepared for fixed layouts. `run` may be called from many threads at once.
class ExternCall {
  public:
    virtual ~ExternCall() = default;
    /// outputs[i] points at planned memory, or is null where the call makes the memory itself: it
    /// then stores the pointer there and what keeps it alive in owners[i]. Exceptions pass through
    /// the program to its caller.
    virtual void run(std::span<void* const> inputs, std::span<void*> outputs,
                     std::span<std::shared_ptr<void>> owners) const = 0;
    /// Whether what the call does follows from its layouts and the host's settings alone, so that
    /// the work it hands to a GPU may be recorded and carried out without it.
    virtual bool repeats() const { return false; }
    /// Memory for the null outputs, as run() makes it, without their values.
    virtual void make_outputs(std::span<void*>, std::span<std::shared_ptr<void>>) const {}
};

/// What recorded work uses beside the arguments of its calls, and the turns of those who carry it
/// out: from the first to the last operation of a call nobody else's may begin.
struct RecordedMemory {
    virtual ~RecordedMemory() = default;
    std::mutex turn;
};

/// Memory of a device, freed with its owner.
class DeviceMemory {
  public:
    DeviceMemory() = default;
    DeviceMemory(void* data, void* owner, void (*release)(void*))
        : data_(data), owner_(owner), release_(release) {}
    DeviceMemory(DeviceMemory&& other) noexcept
        : data_(std::exchange(other.data_, nullptr)),
          owner_(std::exchange(other.owner_, nullptr)),
          release_(std::exchange(other.release_, nullptr)) {}
    DeviceMemory& operator=(DeviceMemory&& other) noexcept {
        std::swap(data_, other.data_);
        std::swap(owner_, other.owner_);
        std::swap(release_, other.release_);
        return *this;
    }
    ~DeviceMemory() {
        if (release_ != nullptr) release_(owner_);
    }
    void* data() const { return data_; }

  private:
    void* data_ = nullptr;
    void* owner_ = nullptr;
    void (*release_)(void*) = nullptr;
};

/// A GPU as the caller uses it. The caller has made the device current.
class DeviceHost {
  public:
    virtual ~DeviceHost() = default;
    /// Memory for work on the current stream; what is freed may be handed out again to work that
    /// follows on that stream.
    virtual DeviceMemory allocate(std::size_t bytes) const = 0;
    /// The current stream, as the driver knows it.
    virtual void* stream() const = 0;
    /// Runs `work` with a stream of the host's own as the current one, on which what is handed to
    /// the GPU is recorded as a graph (the driver's) and not carried out, and then `read` with it.
    /// What `work` was lent and has given back, and what libraries keep for that stream, lies in
    /// memory that nobody else gets as long as the result lives; it serves work on the stream that
    /// was current before. Null, without a call of either, where that cannot be. Exceptions of
    /// `work`, and of what cannot be recorded, pass.
    virtual std::shared_ptr<RecordedMemory> record(const std::function<void()>& work,
                                                   const std::function<void(void*)>& read) const {
        static_cast<void>(work), static_cast<void>(read);
        return nullptr;
    }
    /// Runs `work` with `stream`, one of the driver's that nobody else uses, as the current one of
    /// this thread, which may be any. Exceptions of `work` pass.
    virtual void on_stream(void* stream, const std::function<void()>& work) const {
        static_cast<void>(stream), static_cast<void>(work);
        throw NotSupported("a host without streams");
    }
    /// How often anybody has taken memory from the allocator for this GPU; nothing where it does
    /// not say.
    virtual std::optional<std::int64_t> allocations() const { return std::nullopt; }
    /// A number that changes with the settings that libraries' calls look at.
    virtual std::uint64_t settings() const { return 0; }
};

/// Makes ExternCalls. Throws NotSupported for a step that it cannot carry out.
class ExternHost {
  public:
    virtual ~ExternHost() = default;
    virtual std::unique_ptr<ExternCall> prepare(const ExternStep& step,
                                                std::span<const Layout> inputs,
                                                std::span<const Layout> outputs) const = 0;
    /// Memory and streams for programs on a GPU; null where there are none.
    virtual const DeviceHost* device() const { return nullptr; }
};

/// For programs without extern steps: refuses every step.
class NoExterns final : public ExternHost {
  public:
    std::unique_ptr<ExternCall> prepare(const ExternStep& step, std::span<const Layout>,
                                        std::span<const Layout>) const override {
        throw NotSupported("no host for the extern step '" +
                           (step.callee.empty() ? std::string(name(step.prim)) : step.callee) +
                           "'");
    }
};

}  // namespace ingot::runtime
