// See segment_program.h.
#include "capture/segment_program.h"

#include <ATen/core/grad_mode.h>

#include <algorithm>
#include <unordered_map>
#include <unordered_set>

#include "bindings/errors.h"
#include "capture/backwards.h"
#include "capture/custom_function.h"
#include "capture/histories.h"
#include "passes/facts.h"
#include "runtime/free_memory.h"
#include "trace/autograd.h"
#include "trace/promise.h"
#include "trace/replay.h"
#include "trace/tensors.h"

namespace ingot::capture {
namespace {

/// Frees a log of what must not live as long as the program: the promises that Python holds, which
/// are going to be real tensors, are replaced by others, and the autograd graph goes.
class LogCleaner {
  public:
    LogCleaner(std::span<const at::Tensor> promises, std::span<const at::Tensor> outputs) {
        for (const at::Tensor& t : promises) inputs_.insert(t.unsafeGetTensorImpl());
        for (const at::Tensor& t : outputs) {
            c10::TensorImpl* impl = t.unsafeGetTensorImpl();
            at::Tensor other(impl->shallow_copy_and_detach(impl->version_counter(), true));
            replaced_.emplace(impl, other);
            outputs_.push_back(std::move(other));
        }
    }
    void clean(std::vector<trace::LoggedCall>& log) {
        for (trace::LoggedCall& call : log) {
            for (c10::IValue& v : call.arguments) v = cleaned(v);
            for (c10::IValue& v : call.results) v = cleaned(v);
            if (call.function != nullptr)
                call.function =
                    call.function->mapped([this](const at::Tensor& t) { return cleaned(t); });
        }
    }
    std::vector<at::Tensor> take_outputs() { return std::move(outputs_); }

  private:
    c10::IValue cleaned(const c10::IValue& v) {
        return trace::map_tensors(v, [this](const at::Tensor& t) { return cleaned(t); });
    }
    at::Tensor cleaned(const at::Tensor& t) {
        if (!t.defined()) return t;
        const auto found = replaced_.find(t.unsafeGetTensorImpl());
        if (found != replaced_.end()) return found->second;
        if (trace::is_promise(t) && !inputs_.contains(t.unsafeGetTensorImpl()))
            autograd_meta_of(*t.unsafeGetTensorImpl()).reset();
        return t;
    }
    std::unordered_map<c10::TensorImpl*, at::Tensor> replaced_;
    std::unordered_set<c10::TensorImpl*> inputs_;
    std::vector<at::Tensor> outputs_;
};

void refuse_own_writes(const trace::Recording& recording) {
    for (const Output& o : recording.graph.outputs())
        if (o.writes_input >= 0 &&
            recording.inputs[static_cast<std::size_t>(o.writes_input)].captured.defined())
            throw NotSupported("a write to a tensor that the program found by itself");
}

void refuse_new_leaves(std::span<const at::Tensor> outputs) {
    for (const at::Tensor& t : outputs)
        if (t.requires_grad() && t.is_leaf())
            throw NotSupported("a leaf that needs a gradient is made");
}

/// What the program's own functions have saved is theirs: their backward refuses a change of it in
/// place, though here it may be computed from other values.
void find_saved(trace::JointRecording& joint, std::span<const at::Tensor> outputs) {
    const auto cell_of = [](const at::Tensor& t) -> const trace::Cell* {
        trace::Promise* p = t.defined() ? trace::as_promise(t.unsafeGetTensorImpl()) : nullptr;
        return p == nullptr ? nullptr : p->cell().get();
    };
    joint.saved_inputs.assign(joint.recording.inputs.size(), false);
    for (std::size_t c = 0; c < joint.forward_calls; ++c) {
        const auto* f =
            dynamic_cast<const RecordedFunction*>(joint.recording.log[c].function.get());
        if (f == nullptr) continue;
        for (const at::Tensor& t : f->saved()) {
            const trace::Cell* cell = cell_of(t);
            if (cell == nullptr) continue;
            if (cell->input >= 0) joint.saved_inputs[static_cast<std::size_t>(cell->input)] = true;
            for (std::size_t i = 0; i < outputs.size(); ++i)
                if (cell_of(outputs[i]) == cell) joint.results[i].saved = true;
        }
    }
}

}  // namespace

std::shared_ptr<runtime::SharedArena> ArenaOfSteps::get() {
    std::lock_guard lock(mutex_);
    std::shared_ptr<runtime::SharedArena> arena = latest_.lock();
    if (arena == nullptr) latest_ = arena = std::make_shared<runtime::SharedArena>();
    return arena;
}

std::shared_ptr<SegmentProgram> SegmentProgram::compile(trace::Recorder& recorder,
                                                        std::span<const at::Tensor> examples,
                                                        std::span<const at::Tensor> promises,
                                                        std::span<const at::Tensor> outputs,
                                                        const bindings::Settings& settings,
                                                        ArenaOfSteps& arena) {
    auto made = std::make_shared<SegmentProgram>();
    for (const trace::LoggedCall& call : recorder.log())
        made->checks_ = made->checks_ || call.grad_mode;
    for (const at::Tensor& t : examples) {
        made->inputs_need_.push_back(t.requires_grad());
        made->gradients_ = made->gradients_ || (made->checks_ && t.requires_grad());
    }
    made->expect(outputs);
    refuse_new_leaves(outputs);
    auto compiler = bindings::Compilers::instance().get(settings.compiler);
    if (recorder.needs_backward(outputs)) {
        trace::JointRecording joint = recorder.finish_joint(outputs);
        std::vector<at::Tensor> all(outputs.begin(), outputs.end());
        all.insert(all.end(), joint.hidden.begin(), joint.hidden.end());
        LogCleaner cleaner(promises, all);
        joint.recording.graph.round_intermediates =
            settings.rounds(joint.recording.device.is_cuda());
        refuse_own_writes(joint.recording);
        find_saved(joint, outputs);
        cleaner.clean(joint.recording.log);
        runtime::CompileOptions options = settings.compile;
        options.memory_budget = -1;  // another backward than those that it holds is parted from it
        made->joint_ = std::make_shared<trace::DifferentiableFunction>(
            std::move(joint), examples, promises, cleaner.take_outputs(), std::move(compiler),
            std::move(options), settings.memory_budget, bindings::interrupted);
        runtime::return_free_memory();
        return made;
    }
    LogCleaner cleaner(promises, outputs);
    trace::Recording recording = recorder.finish(outputs);
    recording.graph.round_intermediates = settings.rounds(recording.device.is_cuda());
    refuse_own_writes(recording);
    // Numbers that nobody reads are drawn all the same: the next ones depend on it.
    if (recording.graph.outputs().empty() &&
        std::ranges::none_of(recording.graph.nodes(), has_effect)) {
        if (!outputs.empty()) throw NotSupported("outputs without a graph");
        return nullptr;
    }
    cleaner.clean(recording.log);
    made->plain_ = std::make_shared<trace::CompiledFunction>(
        std::move(recording), examples, promises, cleaner.take_outputs(), std::move(compiler),
        settings.compile, bindings::interrupted);
    if (settings.compile.memory_budget >= 0) {
        made->plain_->share_arena(arena.get());
        runtime::return_free_memory();
    }
    return made;
}

runtime::CompileReport SegmentProgram::report() const {
    if (joint_ == nullptr) return plain_ != nullptr ? plain_->report() : runtime::CompileReport();
    runtime::CompileReport sum = joint_->forward().report();
    const runtime::CompileReport& backward = joint_->backward().report();
    sum.kernels += backward.kernels;
    sum.externs += backward.externs;
    sum.stages.insert(sum.stages.end(), backward.stages.begin(), backward.stages.end());
    return sum;
}

struct SegmentProgram::Log {
    std::vector<trace::LoggedCall> calls;
    std::vector<trace::InputSource> found;  // by the program itself
    std::vector<at::Tensor> promises, outputs;

    std::vector<at::Tensor> run(std::span<c10::TensorImpl* const> inputs) const {
        at::AutoGradMode grad(true);  // each recorded call knows whether it was on
        trace::Replay replay;
        for (const trace::InputSource& s : found) replay.bind(s.promise, s.captured);
        for (std::size_t i = 0; i < inputs.size(); ++i)
            replay.bind(promises[i], trace::borrow(inputs[i]));
        return replay.run(calls, outputs);
    }
};

std::shared_ptr<SegmentProgram> SegmentProgram::of_log(std::vector<trace::LoggedCall> calls,
                                                       std::vector<trace::InputSource> inputs,
                                                       std::span<const at::Tensor> promises,
                                                       std::span<const at::Tensor> outputs) {
    auto made = std::make_shared<SegmentProgram>();
    made->expect(outputs);
    refuse_new_leaves(outputs);
    auto log = std::make_shared<Log>();
    LogCleaner cleaner(promises, outputs);
    log->calls = std::move(calls);
    cleaner.clean(log->calls);
    log->outputs = cleaner.take_outputs();
    log->promises.assign(promises.begin(), promises.end());
    for (trace::InputSource& s : inputs) {
        const auto is_promise = [&](const at::Tensor& t) { return t.is_same(s.promise); };
        if (s.captured.defined() && std::none_of(promises.begin(), promises.end(), is_promise))
            log->found.push_back(std::move(s));
    }
    made->log_ = std::move(log);
    return made;
}

std::shared_ptr<SegmentProgram> SegmentProgram::compile_by(PyObject* backend, const LogParts& parts,
                                                           bool grad_mode) {
    if (parts.log.empty()) return nullptr;
    auto made = std::make_shared<SegmentProgram>();
    made->expect(parts.outputs);
    made->backend_ = Backend::make(backend, parts, grad_mode);
    return made;
}

bool SegmentProgram::needs_as_recorded(std::span<c10::TensorImpl* const> inputs) const {
    if (!checks_) return true;
    for (std::size_t i = 0; i < inputs.size(); ++i)
        if (inputs[i]->requires_grad() != (inputs_need_[i] != 0)) return false;
    return true;
}

void SegmentProgram::expect(std::span<const at::Tensor> outputs) {
    for (const at::Tensor& t : outputs) outputs_need_.push_back(t.requires_grad());
}

/// Views of inputs that need a gradient need one as well, unless the program detached them.
void SegmentProgram::settle(std::vector<at::Tensor>& outputs) const {
    for (std::size_t i = 0; i < outputs.size(); ++i)
        if (outputs[i].defined() && outputs_need_[i] == 0 && outputs[i].requires_grad())
            outputs[i] = outputs[i].detach();
    for (std::size_t i = 0; i < spent_.size(); ++i)
        if (!spent_[i].empty()) Backwards::mark_spent(outputs[i], spent_[i]);
}

void SegmentProgram::set_spent(std::vector<std::string> names) {
    if (std::ranges::any_of(names, [](const std::string& n) { return !n.empty(); }))
        spent_ = std::move(names);
}

trace::CallStatus SegmentProgram::call(std::span<c10::TensorImpl* const> inputs,
                                       std::vector<at::Tensor>& outputs,
                                       std::span<const std::int64_t> numbers) {
    if (backend_ || log_) {
        if (backend_) {
            auto given = backend_->call(inputs, numbers);
            if (!given) return trace::CallStatus::OtherInputs;
            outputs = std::move(*given);
        } else {
            outputs = log_->run(inputs);
        }
        settle(outputs);
        return trace::CallStatus::Done;
    }
    if (!needs_as_recorded(inputs)) return trace::CallStatus::OtherInputs;
    if (!gradients_ && plain_ && spent_.empty()) return plain_->call(inputs, outputs, numbers);
    at::AutoGradMode grad(true);
    const trace::CallStatus status =
        joint_ ? joint_->call(inputs, outputs, numbers) : plain_->call(inputs, outputs, numbers);
    if (status == trace::CallStatus::Done) settle(outputs);
    return status;
}

std::optional<trace::Failure> SegmentProgram::take_failure() {
    if (joint_) return joint_->take_failure();
    return plain_ ? plain_->take_failure() : std::nullopt;
}

}  // namespace ingot::capture
