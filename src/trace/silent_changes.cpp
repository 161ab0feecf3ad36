// See silent_changes.h.
//
// A table that is read without a lock: entries are never freed, and one whose storage is gone is
// taken over by the next that is noted in its place. Each holds its storage weakly: another at the
// same address would inherit changes that are not its own.
#include "trace/silent_changes.h"

#include <ATen/MapAllocator.h>
#include <c10/util/intrusive_ptr.h>

#include <array>
#include <atomic>
#include <memory>
#include <mutex>

namespace ingot::trace {
namespace {

using WeakStorage = c10::weak_intrusive_ptr<c10::StorageImpl>;

struct Entry {
    Entry(WeakStorage weak, std::unique_ptr<Entry> next)
        : weak(std::move(weak)), storage(this->weak._unsafe_get_target()), next(std::move(next)) {}

    WeakStorage weak;  // for whoever writes to the table
    std::atomic<const c10::StorageImpl*> storage;
    std::atomic<std::uint32_t> count{1};    // never less, whichever storage it is of
    std::atomic<std::uint32_t> settled{0};  // the count when no alias was left
    const std::unique_ptr<Entry> next;
};

class Table {
  public:
    Entry* find(const c10::StorageImpl* storage) const {
        Entry* e = first_[place_of(storage)].load(std::memory_order_acquire);
        while (e != nullptr && e->storage.load(std::memory_order_acquire) != storage)
            e = e->next.get();
        return e;
    }

    void note(const c10::Storage& storage) {
        const c10::StorageImpl* const target = storage.unsafeGetStorageImpl();
        std::lock_guard lock(mutex_);
        if (Entry* known = find(target)) {
            known->count.fetch_add(1, std::memory_order_release);
            return;
        }
        std::atomic<Entry*>& first = first_[place_of(target)];
        for (Entry* e = first.load(); e != nullptr; e = e->next.get()) {
            if (!e->weak.expired()) continue;
            e->storage.store(nullptr);
            e->weak = storage.getWeakStorageImpl();
            e->count.fetch_add(1);
            e->storage.store(target, std::memory_order_release);
            return;
        }
        std::unique_ptr<Entry> before(first.load());
        first.store(new Entry(storage.getWeakStorageImpl(), std::move(before)),
                    std::memory_order_release);
    }

  private:
    /// So many storages that are gone are kept from being freed at most (some 100 bytes each).
    static constexpr int kPlacesLog2 = 14;

    static std::size_t place_of(const c10::StorageImpl* storage) {
        constexpr std::uint64_t kGolden = 0x9E3779B97F4A7C15;  // Knuth, TAOCP 3, 6.4
        return reinterpret_cast<std::uintptr_t>(storage) * kGolden >> (64 - kPlacesLog2);
    }

    std::array<std::atomic<Entry*>, std::size_t{1} << kPlacesLog2> first_{};
    std::mutex mutex_;  // of whoever writes
};

Table& table() {
    static Table& made = *new Table;  // threads may still ask when statics are destroyed
    return made;
}

/// Whether nobody but one tensor refers to the storage. Its Python object, once made, lives as long
/// as it does and counts as a user; in PyTorch 2.13 it can be told whether Python holds that.
template <class Storage>
bool has_one_user(const Storage& storage) {
    const auto users = storage.use_count();
    const auto* slot = storage.unsafeGetStorageImpl()->pyobj_slot();
    if constexpr (requires { slot->has_unique_reference(); })
        if (users == 2) return slot->has_unique_reference();
    return users == 1;
}

}  // namespace

void note_silent_change(const c10::TensorImpl& tensor) {
    if (tensor.has_storage() && tensor.unsafe_storage()) table().note(tensor.unsafe_storage());
}

std::optional<std::uint32_t> silent_changes(const c10::TensorImpl& tensor) {
    Entry* const entry = table().find(tensor.unsafe_storage().unsafeGetStorageImpl());
    if (entry == nullptr) return 0;
    // Before users are counted: an alias is noted when it is there.
    const std::uint32_t count = entry->count.load(std::memory_order_acquire);
    if (entry->settled.load(std::memory_order_relaxed) == count) return count;
    if (!has_one_user(tensor.unsafe_storage())) return std::nullopt;
    entry->settled.store(count, std::memory_order_relaxed);
    return count;
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
