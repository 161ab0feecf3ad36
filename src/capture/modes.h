// The thread's PyTorch modes: what an operator means depends on them, so each segment is for one
// set, and leaves the set behind that it left while it was recorded. Reading them costs some 20 ns.
#pragma once
#include <c10/core/Device.h>
#include <c10/core/ScalarType.h>

#include <cstdint>
#include <string>

namespace ingot::capture {

struct Modes {
    bool grad = true;
    bool inference = false;
    bool autocast_cpu = false;
    bool autocast_cuda = false;
    bool autocast_cache = true;
    bool deterministic = false;
    c10::ScalarType autocast_cpu_type = c10::kBFloat16;
    c10::ScalarType autocast_cuda_type = c10::kHalf;
    c10::ScalarType default_type = c10::kFloat;
    bool saved_hooks =
        false;               // saved-tensor hooks: what is kept for the backward goes through them
    bool anomaly = false;    // anomaly detection, which is eager's
    bool transform = false;  // within one of torch.func: tensors are wrappers of its level
    bool forward_level = false;       // forward-mode differentiation: tensors carry tangents
    std::int32_t function_modes = 0;  // torch function modes and whether they are on
    std::int32_t dispatch_modes = 0;
    std::int32_t gpu = -1;  // the current one, where there are several: `cuda` means it

    static Modes now();
    /// Why nothing can be recorded under these modes; nullptr: it can.
    const char* obstacle() const;
    bool operator==(const Modes&) const = default;
    /// Whether a replay can bring this set about, coming from `from`.
    bool reachable_from(const Modes& from) const;
    /// Brings it about; `from` is the set now.
    void establish(const Modes& from) const;
    /// What differs, for messages.
    std::string difference(const Modes& other) const;
};

}  // namespace ingot::capture
