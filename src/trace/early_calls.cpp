// See early_calls.h.
#include "trace/early_calls.h"

#include <ATen/ATen.h>
#include <ATen/autocast_mode.h>
#include <c10/core/AutogradState.h>
#include <c10/core/DeviceGuard.h>
#include <c10/core/StreamGuard.h>
#include <c10/core/impl/VirtualGuardImpl.h>
#include <torch/csrc/autograd/engine.h>
#include <torch/csrc/autograd/function.h>

#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <mutex>
#include <thread>

#include "runtime/cuda/recorded_work.h"
#include "trace/torch_compat.h"
#include "trace/unrecorded.h"

namespace ingot::trace {
namespace {

/// Operators whose library compiles at its first call in a thread.
constexpr std::string_view kCompiledAtFirstUse[] = {
    "aten::_scaled_dot_product_cudnn_attention",
    "aten::_scaled_dot_product_cudnn_attention_backward",
};

/// More kinds of one call than this are not met in one program.
constexpr std::size_t kMostCalls = 8;

/// For so long a fork, or the end of the process, waits for a call that has begun.
constexpr std::chrono::seconds kMostWait{5};

/// A backward is given what its forward has drawn; others draw where they drop anything.
bool draws(const ExternCallee& callee) {
    const c10::FunctionSchema& schema = callee.op.schema();
    if (schema.name().ends_with("_backward")) return false;
    const std::optional<int> dropout = schema.argumentIndexWithName("dropout_p");
    if (!dropout) return callee.op.hasTag(at::Tag::nondeterministic_seeded);
    const c10::IValue& p = callee.arguments.at(static_cast<std::size_t>(*dropout));
    return !p.isDouble() || p.toDouble() != 0;
}

/// Runs `work` on the thread that autograd's engine has for the GPU, as a backward of one node
/// whose gradient comes from the current stream.
class EarlyNode final : public torch::autograd::Node {
  public:
    explicit EarlyNode(std::function<void()> work) : work_(std::move(work)) {}
    std::string name() const override { return "EarlyCalls"; }
    torch::autograd::variable_list apply(torch::autograd::variable_list&&) override {
        work_();
        return {};
    }

  private:
    std::function<void()> work_;
};

void run_on_backward_thread(c10::Stream stream, std::function<void()> work) {
    const c10::StreamGuard on(stream);
    const at::Tensor gradient = at::zeros({}, at::TensorOptions().device(stream.device()));
    const auto node = make_node<EarlyNode>(std::move(work));
    node->add_input_metadata(gradient);
    torch::autograd::Engine::get_default_engine().execute(
        {torch::autograd::Edge(node, 0)}, {gradient}, /*keep_graph=*/false,
        /*create_graph=*/false, /*accumulate_grad=*/true, {});
}

/// Whether a thread has ended that nobody may have to wait for.
class Ending {
  public:
    void set() {
        const std::lock_guard lock(mutex_);
        ended_ = true;
        changed_.notify_all();
    }
    bool wait_for(std::chrono::milliseconds time) {
        std::unique_lock lock(mutex_);
        return changed_.wait_for(lock, time, [this] { return ended_; });
    }

  private:
    std::mutex mutex_;
    std::condition_variable changed_;
    bool ended_ = false;
};

}  // namespace

/// One call, prepared as its program's step is.
class EarlyCalls::Call {
  public:
    Call(const ExternStep& step, std::string name, const TorchExterns& externs,
         std::vector<runtime::Layout> inputs, std::vector<runtime::Layout> outputs,
         c10::Device device)
        : name_(std::move(name)),
          inputs_(std::move(inputs)),
          outputs_(std::move(outputs)),
          device_(device),
          call_(externs.prepare(step, inputs_, outputs_)) {}

    bool is_like(const Call& other) const {
        return name_ == other.name_ && inputs_ == other.inputs_ && outputs_ == other.outputs_;
    }

    /// Whatever goes wrong stays here.
    void run() const {
        try {
            const c10::DeviceGuard on_device(device_);
            const Unrecorded quiet;
            const c10::impl::ExcludeDispatchKeyGuard autocast(c10::autocast_dispatch_keyset);
            std::int64_t bytes = 1;
            for (const runtime::Layout& l : inputs_) bytes = std::max(bytes, l.bytes);
            const at::Tensor zeros =
                at::zeros({bytes}, at::TensorOptions().dtype(at::kByte).device(device_));
            const std::vector<void*> operands(inputs_.size(), zeros.data_ptr());
            std::vector<void*> results(outputs_.size(), nullptr);
            std::vector<std::shared_ptr<void>> owners(outputs_.size());
            call_->run(operands, results, owners);
        } catch (const std::exception&) {
            // The step's own call will say it, if it is so.
        }
    }

  private:
    std::string name_;
    std::vector<runtime::Layout> inputs_, outputs_;
    c10::Device device_;
    std::unique_ptr<runtime::ExternCall> call_;
};

EarlyCalls::~EarlyCalls() {
    if (task_) task_->give_up();
}

EarlyCalls::Calls EarlyCalls::find(const Plan& plan, const TorchExterns& externs) const {
    Calls calls;
    const auto layouts = [&](const std::vector<std::int32_t>& buffers) {
        std::vector<runtime::Layout> list;
        for (std::int32_t b : buffers)
            list.push_back(runtime::layout_of(
                plan.buffers.at(static_cast<std::size_t>(b)),
                [](Expr) -> std::int64_t { throw NotSupported("a size that varies"); }));
        return list;
    };
    for (const Step& any : plan.steps) {
        const auto* const step = std::get_if<ExternStep>(&any);
        if (step == nullptr || calls.size() == kMostCalls) continue;
        const ExternCallee* const callee = externs.callee(*step);
        if (callee == nullptr || draws(*callee)) continue;
        const std::string& name = callee->op.schema().name();
        if (std::ranges::find(kCompiledAtFirstUse, name) == std::end(kCompiledAtFirstUse)) continue;
        try {
            auto call = std::make_shared<const Call>(*step, name, externs, layouts(step->inputs),
                                                     layouts(step->outputs), device_);
            if (std::ranges::none_of(calls, [&](const auto& c) { return c->is_like(*call); }))
                calls.push_back(std::move(call));
        } catch (const Error&) {
            // For other sizes another time.
        }
    }
    return calls;
}

bool EarlyCalls::may_call(const TorchExterns& externs) const {
    if (!c10::AutogradState::get_tls_state().get_multithreading_enabled()) return false;
    try {
        const auto gpu = runtime::cuda::Gpu::get(device_.index());
        return !runtime::cuda::is_recording(*gpu, externs.device()->stream());
    } catch (const Error&) {
        return false;
    }
}

std::function<void(const Plan&, const TorchExterns&)> EarlyCalls::forward_planned() {
    return
        [this](const Plan& plan, const TorchExterns& externs) { forward_ = find(plan, externs); };
}

MakingEvents EarlyCalls::backward_events(std::shared_ptr<const runtime::Compiler> compiler) {
    MakingEvents events;
    events.planned = [this, compiler = std::move(compiler)](const Plan& plan,
                                                            const TorchExterns& externs) {
        Calls calls = find(plan, externs);
        if (calls.empty() || !may_call(externs)) return forward_.clear();
        count_ = calls.size();
        start(std::move(calls), *compiler);
    };
    events.waiting = [this] {
        for (const auto& call : std::exchange(forward_, {})) call->run();
    };
    return events;
}

// The background's thread, which whoever forks or ends the process asks to stop, waits for one that
// waits for the engine: where it stands behind a backward that waits for the fork itself, that goes
// on without.
void EarlyCalls::start(Calls calls, const runtime::Compiler& compiler) {
    const c10::Stream stream = c10::impl::VirtualGuardImpl(device_.type()).getStream(device_);
    task_ = std::make_shared<runtime::Background::Task>(
        [calls = std::move(calls), stream](const runtime::Background::StopCheck& stop) {
            const auto ending = std::make_shared<Ending>();
            std::thread([calls, stream, ending] {
                try {
                    run_on_backward_thread(stream, [calls] {
                        for (const auto& call : calls) call->run();
                    });
                } catch (const std::exception&) {
                    // No engine to run on: the step's own calls come first.
                }
                ending->set();
            }).detach();
            using namespace std::chrono_literals;
            auto waited = 0ms;
            for (; !ending->wait_for(10ms) && waited < kMostWait;)
                if (stop()) waited += 10ms;
        });
    compiler.background().start(task_);
}

}  // namespace ingot::trace
