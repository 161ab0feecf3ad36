// What a segment computes: a compiled function, one with a compiled backward, a backend's program,
// or, where the compiler cannot serve it, the recorded calls one by one.
//
// Made by the recorder when a segment ends, called by replays. Where nothing needs a gradient it is
// the plain program and costs what that costs; where a result does, it is a DifferentiableFunction,
// whose results hang in eager's autograd graph as one node.
#pragma once
#include <ATen/core/Tensor.h>

#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <vector>

#include "bindings/settings.h"
#include "capture/backend.h"
#include "trace/differentiable.h"

namespace ingot::capture {

/// Whole training steps work in one arena by turns: the recordings of a function's first calls
/// would keep one each. It lives as long as one of its users.
class ArenaOfSteps {
  public:
    std::shared_ptr<runtime::SharedArena> get();

  private:
    std::mutex mutex_;
    std::weak_ptr<runtime::SharedArena> latest_;
};

class SegmentProgram {
  public:
    /// Ends the recording and compiles it: call without Python's lock, operators no longer being
    /// recorded. `examples` and `promises`: of the inputs that a call gives (Recorder::give).
    /// `arena`: of whole steps. nullptr: nothing is computed. Throws Error, of which
    /// runtime::Interrupted has a Python error set.
    static std::shared_ptr<SegmentProgram> compile(trace::Recorder& recorder,
                                                   std::span<const at::Tensor> examples,
                                                   std::span<const at::Tensor> promises,
                                                   std::span<const at::Tensor> outputs,
                                                   const bindings::Settings& settings,
                                                   ArenaOfSteps& arena);

    /// The same with a backend's program (backend.h); needs Python's lock. `grad_mode`: at the
    /// beginning.
    static std::shared_ptr<SegmentProgram> compile_by(PyObject* backend, const LogParts& parts,
                                                      bool grad_mode);

    /// The recorded calls, carried out as eager does at each call: for what cannot be compiled.
    static std::shared_ptr<SegmentProgram> of_log(std::vector<trace::LoggedCall> log,
                                                  std::vector<trace::InputSource> inputs,
                                                  std::span<const at::Tensor> promises,
                                                  std::span<const at::Tensor> outputs);

    /// What messages call its inputs, in order; empty texts: nothing in particular.
    void name_inputs(std::span<const std::string> names) {
        if (plain_) plain_->name_inputs(names);
    }
    /// Results whose history was freed while recording, by result: the name of their node.
    void set_spent(std::vector<std::string> names);
    /// Runs it. OtherInputs also when other inputs need a gradient than while recording, if that
    /// makes a difference. An operator of a compiled program that raises is a KernelFailure: inputs
    /// are unchanged, and eager raises in its own words if it is asked. A GPU's late errors are
    /// thrown.
    /// `numbers`: of the integers among its inputs; for a backend's program of all symbols.
    trace::CallStatus call(std::span<c10::TensorImpl* const> inputs,
                           std::vector<at::Tensor>& outputs,
                           std::span<const std::int64_t> numbers = {});
    /// Why the latest KernelFailure was none that the program's data decide; once.
    std::optional<trace::Failure> take_failure();
    /// What eager has computed of the recording, as a call gives it.
    std::vector<at::Tensor> settled(std::vector<at::Tensor> outputs) const {
        settle(outputs);
        return outputs;
    }
    /// Whether a call is too short to give up Python's lock for.
    bool is_short() const { return plain_ != nullptr && !gradients_ && plain_->is_short(); }
    /// Whether a call is given the numbers of all symbols, not only of those that are integers.
    bool takes_all_sizes() const { return backend_ != nullptr; }
    /// The names of sizes for which a backend's program has one number only.
    std::vector<std::string> fixes() const {
        return backend_ ? backend_->fixes() : std::vector<std::string>();
    }
    /// The same of floats, by their places among the inputs.
    std::vector<std::size_t> fixes_floats() const {
        return backend_ ? backend_->fixes_floats() : std::vector<std::size_t>();
    }
    /// What compiling it took and gave, forward and backward together; empty for a backend's.
    runtime::CompileReport report() const;
    /// Whether it has a backward.
    bool has_backward() const { return joint_ != nullptr; }
    /// Of what lives from the forward to the backward, beside inputs and results.
    std::int64_t saved_bytes() const { return joint_ != nullptr ? joint_->saved_bytes() : 0; }
    /// Whether a call checks its inputs' metadata.
    bool checks_inputs() const { return plain_ != nullptr || joint_ != nullptr; }
    /// Whether the compiler made it.
    bool is_compiled() const { return log_ == nullptr; }
    int traverse(visitproc visit, void* arg) const {
        return backend_ ? backend_->traverse(visit, arg) : 0;
    }

  private:
    struct Log;
    bool needs_as_recorded(std::span<c10::TensorImpl* const> inputs) const;
    /// Which of the recording's results need a gradient.
    void expect(std::span<const at::Tensor> outputs);
    void settle(std::vector<at::Tensor>& outputs) const;

    std::shared_ptr<trace::CompiledFunction> plain_;
    std::shared_ptr<trace::DifferentiableFunction> joint_;
    std::shared_ptr<Backend> backend_;
    std::shared_ptr<const Log> log_;
    bool checks_ = false;     // the need of gradients makes a difference
    bool gradients_ = false;  // some input needs one, and it makes a difference
    std::vector<std::uint8_t> inputs_need_, outputs_need_;
    std::vector<std::string> spent_;  // empty: none is
};

}  // namespace ingot::capture
