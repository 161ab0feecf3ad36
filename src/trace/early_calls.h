// The first calls of libraries that compile at first use, made ahead of a training step's own.
//
// cuDNN compiles its attention when it is first called with some sizes, half a second in each
// direction, and PyTorch keeps what it has compiled for each thread by itself. The forward runs on
// the caller's thread, the backward on the one that autograd's engine has for the GPU. So as soon
// as the backward is planned its attention is called on that thread, and the forward's on the
// caller's while that waits for kernels: both are compiled at once, and beside Ingot's own kernels,
// where a step would have one after the other. Exactly the calls that the two programs hold are
// made, with the layouts of their plans, since what is compiled is found again by less than it
// hangs on; over zeros, on the stream that is current, so that all memory comes from where the step
// takes its own and goes back there. A call's operands share one block of memory.
//
// No call is made that draws random numbers, while the stream is being recorded, or where autograd
// has no thread of its own. Whatever goes wrong ends the early call alone: the step's own makes up
// for it. Costs the GPU's time for one call of each kind, some milliseconds. Between compiling and
// differentiable.h, which makes it.
#pragma once
#include <memory>
#include <vector>

#include "runtime/background.h"
#include "trace/compiled_function.h"

namespace ingot::trace {

class EarlyCalls {
  public:
    explicit EarlyCalls(c10::Device device) : device_(device) {}
    /// Gives up what has not begun.
    ~EarlyCalls();
    EarlyCalls(const EarlyCalls&) = delete;
    EarlyCalls& operator=(const EarlyCalls&) = delete;

    /// What the forward's compilation is to tell, and then the backward's. This must outlive both.
    std::function<void(const Plan&, const TorchExterns&)> forward_planned();
    MakingEvents backward_events(std::shared_ptr<const runtime::Compiler> compiler);

    /// Calls of the backward that are made ahead.
    std::size_t count() const { return count_; }

  private:
    class Call;
    using Calls = std::vector<std::shared_ptr<const Call>>;
    Calls find(const Plan& plan, const TorchExterns& externs) const;
    bool may_call(const TorchExterns& externs) const;
    void start(Calls calls, const runtime::Compiler& compiler);

    c10::Device device_;
    Calls forward_;
    std::shared_ptr<runtime::Background::Task> task_;
    std::size_t count_ = 0;
};

}  // namespace ingot::trace
