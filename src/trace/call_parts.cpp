// See call_parts.h.
#include "trace/call_parts.h"

#include <algorithm>

namespace ingot::trace {

using Kind = OutputRecipe::Kind;

std::optional<CompiledFunction::Times> CompiledFunction::times() const {
    const std::shared_ptr<const Variant> variant = variant_.load();
    if (!device_.is_cpu() || !variant->fixed || !written_.empty()) return std::nullopt;
    const runtime::Instance& instance = *variant->fixed->instance;
    const std::vector<std::size_t> settled = instance.settled();
    Times times{variant, {}};
    for (const OutputRecipe& r : recipes_) {
        if (r.kind == Kind::Same) return std::nullopt;
        const bool own = r.kind == Kind::Graph || r.kind == Kind::ViewOfGraph;
        times.results.push_back(own                    ? settled[r.index]
                                : r.kind == Kind::None ? 0
                                                       : instance.step_count());
    }
    return times;
}

CompiledFunction::Parts::Parts(CompiledFunction& function, const Times& times,
                               std::vector<at::Tensor> given)
    : function_(function),
      given_(std::move(given)),
      inputs_([this] {
          std::vector<c10::TensorImpl*> raw;
          for (const at::Tensor& t : given_) raw.push_back(t.unsafeGetTensorImpl());
          return raw;
      }()),
      frame_([&, this] {
          auto variant = std::static_pointer_cast<const Variant>(times.form);
          const auto& sized = variant->fixed;
          check(function.accepts(*sized, inputs_), "the backward refuses its inputs");
          return CallFrame{inputs_, variant, sized, sized->instance->lease(function.arena_.get()),
                           nullptr, {},      {}};
      }()),
      memory_(function_, frame_, given_),
      takers_(frame_.sized->instance->outputs().size(), 0),
      collected_(takers_.size(), false) {
    frame_.context = &**frame_.lease;
    frame_.outputs.resize(takers_.size());
    for (const OutputRecipe& r : function.recipes_)
        if (r.kind == Kind::Graph || r.kind == Kind::ViewOfGraph) ++takers_[r.index];
    function.bind_inputs(frame_);
    if (frame_.sized->instance->has_frozen_steps()) function.freeze(frame_);
}

CallStatus CompiledFunction::Parts::run_to(std::size_t steps) {
    if (frame_.context->error() != kNoError) return CallStatus::KernelFailure;
    if (steps <= done_ && done_ > 0) return CallStatus::Done;
    const BelowAutograd guard;
    frame_.sized->instance->run_part(*frame_.context, function_.threads_, memory_, done_,
                                     std::max(steps, done_));
    done_ = std::max(steps, done_);
    return frame_.context->error() == kNoError ? CallStatus::Done : CallStatus::KernelFailure;
}

at::Tensor CompiledFunction::Parts::take(std::size_t i) {
    const OutputRecipe& r = function_.recipes_[i];
    if (r.kind != Kind::Graph && r.kind != Kind::ViewOfGraph)
        return function_.build_output(frame_, i, {});
    if (!collected_[r.index]) function_.collect(frame_, r.index);
    collected_[r.index] = true;
    at::Tensor result = function_.build_output(frame_, i, {});
    // Whoever takes it may want to be the only one who has it.
    if (--takers_[r.index] == 0) frame_.outputs[r.index].reset();
    return result;
}

}  // namespace ingot::trace
