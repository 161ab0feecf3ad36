// Extern calls of a GPU's program that are carried out without their library.
//
// In the third call of an instance its extern calls are recorded (DeviceHost::record), each a few
// times over arguments at made-up addresses, which recording does not touch; what they hand to the
// GPU is kept with the places where the addresses are (cuda/recorded_work.h). From then on a call
// is what its kernels' launches cost. Memory comes and goes as before: results are lent by the
// allocator at each call, in inference as one block, and only what libraries use inside of one call
// stays.
//
// A call is left to its library where it may do something else another time (random numbers,
// operators that are not PyTorch's own), where so much memory is touched that the GPU is the
// slower one anyway, where the recordings differ in more than addresses, and where several kernels
// work in memory that may become the call's result before it ends.
//
// Costs 5 to 10 ms once an instance. Beside Instance; see program.h.
#pragma once
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "runtime/cuda/recorded_work.h"
#include "runtime/host.h"

namespace ingot::runtime {

/// What one instance has learned on one stream, under the settings of then.
class DirectCalls {
  public:
    void* stream = nullptr;
    std::uint64_t settings = 0;
    std::shared_ptr<RecordedMemory> memory;
    std::vector<std::optional<cuda::DirectCall>> calls;  // by extern call
    // Results of direct calls that die within the run lie in one block, if it is small.
    std::vector<std::pair<std::int32_t, std::int64_t>> places;  // buffer, offset
    std::vector<bool> placed;                                   // by buffer
    std::int64_t place_bytes = 0;
    std::map<std::string, int> left;  // to the libraries: how many, by one-line reason

    int count() const {
        int n = 0;
        for (const auto& c : calls) n += c.has_value() ? 1 : 0;
        return n;
    }
};

}  // namespace ingot::runtime
