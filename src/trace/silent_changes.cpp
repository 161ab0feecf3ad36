// See silent_changes.h.
//
// A table that is read without a lock: entries are never freed, and one whose storage is gone is
// taken over by the next that is noted in its place. Each holds its storage weakly: another at the
// same address would inherit changes that are not its own.
#include "trace/silent_changes.h"

#include <ATen/MapAllocator.h>
#include <c10/util/intrusive_ptr.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <iterator>
#include <memory>
#include <mutex>
#include <vector>

namespace ingot::trace {
namespace {

using WeakStorage = c10::weak_intrusive_ptr<c10::StorageImpl>;

struct Entry {
    Entry(WeakStorage weak, std::unique_ptr<Entry> next)
        : weak(std::move(weak)), storage(this->weak._unsafe_get_target()), next(std::move(next)) {}

    WeakStorage weak;  // for whoever writes to the table
    std::atomic<const c10::StorageImpl*> storage;
    std::atomic<std::uint32_t> count{1};        // never less, whichever storage it is of
    std::atomic<std::uint32_t> aliases{0};      // of the count, those that aliases made
    std::atomic<std::uint32_t> settled{0};      // `aliases` when none was left
    std::atomic<bool> under_way{false};         // whether `writes` has any
    std::vector<std::function<bool()>> writes;  // for whoever writes to the table
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

    /// The storage's entry, which has changed once more.
    Entry& note(const c10::Storage& storage, std::unique_lock<std::mutex>& lock) {
        const c10::StorageImpl* const target = storage.unsafeGetStorageImpl();
        lock = std::unique_lock(mutex_);
        if (Entry* known = find(target)) {
            known->count.fetch_add(1, std::memory_order_release);
            return *known;
        }
        std::atomic<Entry*>& first = first_[place_of(target)];
        for (Entry* e = first.load(); e != nullptr; e = e->next.get()) {
            if (!e->weak.expired()) continue;
            e->storage.store(nullptr);
            e->weak = storage.getWeakStorageImpl();
            e->count.fetch_add(1);
            e->settled.store(e->aliases.load());
            e->writes.clear();
            e->under_way.store(false);
            e->storage.store(target, std::memory_order_release);
            return *e;
        }
        std::unique_ptr<Entry> before(first.load());
        auto* const made = new Entry(storage.getWeakStorageImpl(), std::move(before));
        first.store(made, std::memory_order_release);
        return *made;
    }

    /// False while a write is under way. Asks without the lock: whoever answers may wait for one of
    /// his own.
    bool has_ended(Entry& entry) {
        std::unique_lock lock(mutex_);
        std::vector<std::function<bool()>> writes = std::move(entry.writes);
        entry.writes.clear();
        lock.unlock();
        std::erase_if(writes, [](const auto& done) { return done(); });
        lock.lock();
        entry.count.fetch_add(1, std::memory_order_release);
        std::ranges::move(writes, std::back_inserter(entry.writes));
        entry.under_way.store(!entry.writes.empty(), std::memory_order_release);
        return entry.writes.empty();
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

/// Of the process, as what they count is.
std::atomic<std::uint64_t> possible{0}, replays{0};

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
    if (!tensor.has_storage() || !tensor.unsafe_storage()) return;
    std::unique_lock<std::mutex> lock;
    table().note(tensor.unsafe_storage(), lock).aliases.fetch_add(1, std::memory_order_release);
}

void note_write(const c10::Storage& storage) {
    std::unique_lock<std::mutex> lock;
    if (storage) table().note(storage, lock);
}

void note_write_under_way(const c10::Storage& storage, std::function<bool()> done) {
    std::unique_lock<std::mutex> lock;
    if (!storage) return;
    Entry& entry = table().note(storage, lock);
    entry.writes.push_back(std::move(done));
    entry.under_way.store(true, std::memory_order_release);
}

std::optional<std::uint32_t> silent_changes(const c10::TensorImpl& tensor) {
    Entry* const entry = table().find(tensor.unsafe_storage().unsafeGetStorageImpl());
    if (entry == nullptr) return 0;
    if (entry->under_way.load(std::memory_order_acquire) && !table().has_ended(*entry))
        return std::nullopt;
    // Before users are counted: an alias is noted when it is there.
    const std::uint32_t aliases = entry->aliases.load(std::memory_order_acquire);
    const std::uint32_t count = entry->count.load(std::memory_order_acquire);
    if (entry->settled.load(std::memory_order_relaxed) == aliases) return count;
    if (!has_one_user(tensor.unsafe_storage())) return std::nullopt;
    entry->settled.store(aliases, std::memory_order_relaxed);
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

void note_possible_writes() { possible.fetch_add(1, std::memory_order_release); }
std::uint64_t possible_writes() { return possible.load(std::memory_order_acquire); }
void note_graph_replay() {
    replays.fetch_add(1, std::memory_order_release);
    note_possible_writes();
}
std::uint64_t graph_replays() { return replays.load(std::memory_order_acquire); }

}  // namespace ingot::trace
