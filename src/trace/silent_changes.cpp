// See silent_changes.h.
#include "trace/silent_changes.h"

#include <array>
#include <atomic>

namespace ingot::trace {
namespace {

constexpr std::size_t kCounts = 1 << 13;

std::atomic<std::uint32_t>& count_of(const c10::TensorImpl& tensor) {
    static std::array<std::atomic<std::uint32_t>, kCounts> counts;
    auto address = reinterpret_cast<std::uintptr_t>(tensor.unsafe_storage().unsafeGetStorageImpl());
    return counts[(address * 0x9E3779B97F4A7C15u) >> 51];
}
static_assert(kCounts == std::size_t{1} << (64 - 51));

}  // namespace

void note_silent_change(const c10::TensorImpl& tensor) {
    if (tensor.has_storage() && tensor.unsafe_storage())
        count_of(tensor).fetch_add(1, std::memory_order_relaxed);
}

std::uint32_t silent_changes(const c10::TensorImpl& tensor) {
    return count_of(tensor).load(std::memory_order_relaxed);
}

}  // namespace ingot::trace
