// See silent_changes.h.
#include "trace/silent_changes.h"

#include <ATen/MapAllocator.h>

#include <array>
#include <atomic>

namespace ingot::trace {
namespace {

/// Storages near each other have counts of their own. Pages that nobody asks for are no memory.
constexpr std::size_t kCounts = 1 << 20;
constexpr std::size_t kAlignment = 16;

std::atomic<std::uint32_t>& count_of(const c10::TensorImpl& tensor) {
    static std::array<std::atomic<std::uint32_t>, kCounts> counts;
    const auto address =
        reinterpret_cast<std::uintptr_t>(tensor.unsafe_storage().unsafeGetStorageImpl());
    return counts[address / kAlignment % kCounts];
}

}  // namespace

void note_silent_change(const c10::TensorImpl& tensor) {
    if (tensor.has_storage() && tensor.unsafe_storage())
        count_of(tensor).fetch_add(1, std::memory_order_relaxed);
}

std::uint32_t silent_changes(const c10::TensorImpl& tensor) {
    return count_of(tensor).load(std::memory_order_relaxed);
}

bool is_shared_with_processes(const c10::TensorImpl& tensor) {
    if (!tensor.has_storage() || !tensor.unsafe_storage()) return false;
    const at::DataPtr& data = tensor.unsafe_storage().data_ptr();
    const at::MapAllocator* mapped = at::MapAllocator::fromDataPtr(data);
    if (mapped == nullptr) mapped = at::RefcountedMapAllocator::fromDataPtr(data);
    // A file that is mapped for this process alone, as checkpoints are, is not.
    return mapped != nullptr &&
           (mapped->flags() & (at::ALLOCATOR_MAPPED_SHARED | at::ALLOCATOR_MAPPED_SHAREDMEM)) != 0;
}

}  // namespace ingot::trace
