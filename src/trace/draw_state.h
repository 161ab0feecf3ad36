// Where a device's random numbers stand, to be put back if a call fails: eager then draws the same
// numbers again. Costs a copy of the generator's state (2.5 KB on the processor, 16 bytes on a GPU)
// a call that draws.
#pragma once
#include <ATen/CPUGeneratorImpl.h>

#include <optional>

namespace ingot::trace {

class DrawState {
  public:
    /// Nothing while a GPU's generator is recorded by somebody.
    static std::optional<DrawState> now(c10::Device device);
    void restore() const;

  private:
    struct OnProcessor {
        at::mt19937 engine;
        std::optional<float> next_float;
        std::optional<double> next_double;
    };
    c10::Device device_{c10::kCPU};
    std::optional<OnProcessor> processor_;
    at::Tensor gpu_;
};

}  // namespace ingot::trace
