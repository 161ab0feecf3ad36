// A generator's state, kept at a forward and set again where its recorded calls are made again.
#pragma once
#include <ATen/Context.h>
#include <ATen/core/Tensor.h>

#include <mutex>

namespace ingot::trace {

/// The state of the device's generator at a forward, for running its calls again.
inline at::Tensor random_state(c10::Device device) {
    auto generator = at::globalContext().defaultGenerator(device);
    std::lock_guard lock(generator.mutex());
    return generator.get_state();
}
class WithRandomState {
  public:
    WithRandomState(const at::Tensor& state, c10::Device device) : device_(device) {
        if (!state.defined()) return;
        now_ = random_state(device);
        set(state);
    }
    ~WithRandomState() {
        if (now_.defined()) set(now_);
    }
    WithRandomState(const WithRandomState&) = delete;
    WithRandomState& operator=(const WithRandomState&) = delete;

  private:
    void set(const at::Tensor& state) const {
        auto generator = at::globalContext().defaultGenerator(device_);
        std::lock_guard lock(generator.mutex());
        generator.set_state(state);
    }
    c10::Device device_;
    at::Tensor now_;
};

}  // namespace ingot::trace
