// See draw_state.h.
#include "trace/draw_state.h"

#include <ATen/Context.h>

#include <mutex>

namespace ingot::trace {
namespace {

at::CPUGeneratorImpl& generator() {
    return *at::check_generator<at::CPUGeneratorImpl>(at::detail::getDefaultCPUGenerator());
}

}  // namespace

std::optional<DrawState> DrawState::now(c10::Device device) {
    DrawState state;
    state.device_ = device;
    if (device.is_cpu()) {
        at::CPUGeneratorImpl& from = generator();
        const std::lock_guard lock(from.mutex_);
        state.processor_ = OnProcessor{from.engine(), from.next_float_normal_sample(),
                                       from.next_double_normal_sample()};
        return state;
    }
    at::Generator from = at::globalContext().defaultGenerator(device);
    const std::lock_guard lock(from.mutex());
    try {
        state.gpu_ = from.get_state();
    } catch (const c10::Error&) {
        return std::nullopt;
    }
    return state;
}

void DrawState::restore() const {
    if (processor_) {
        at::CPUGeneratorImpl& to = generator();
        const std::lock_guard lock(to.mutex_);
        to.set_engine(processor_->engine);
        to.set_next_float_normal_sample(processor_->next_float);
        to.set_next_double_normal_sample(processor_->next_double);
        return;
    }
    at::Generator to = at::globalContext().defaultGenerator(device_);
    const std::lock_guard lock(to.mutex());
    to.set_state(gpu_);
}

}  // namespace ingot::trace
