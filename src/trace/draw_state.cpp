// See draw_state.h.
#include "trace/draw_state.h"

#include <mutex>

namespace ingot::trace {
namespace {

at::CPUGeneratorImpl& generator() {
    return *at::check_generator<at::CPUGeneratorImpl>(at::detail::getDefaultCPUGenerator());
}

}  // namespace

DrawState DrawState::now() {
    at::CPUGeneratorImpl& from = generator();
    const std::lock_guard lock(from.mutex_);
    return {from.engine(), from.next_float_normal_sample(), from.next_double_normal_sample()};
}

void DrawState::restore() const {
    at::CPUGeneratorImpl& to = generator();
    const std::lock_guard lock(to.mutex_);
    to.set_engine(engine);
    to.set_next_float_normal_sample(next_float);
    to.set_next_double_normal_sample(next_double);
}

}  // namespace ingot::trace
