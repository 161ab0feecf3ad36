// Aligned blocks and the pool; see memory.h.
#include "runtime/memory.h"

#include <sys/mman.h>

#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <new>

#include "runtime/page_heap.h"

namespace ingot::runtime {
namespace {
/// A pool with more unused memory than this pays for fresh blocks with it.
constexpr std::size_t kSpare = std::size_t{16} << 20;

bool is_big(std::size_t bytes) { return bytes >= 2 * kHugePage; }

/// A mapping of its own, so that freeing it gives it back at once: the C library would keep it, in
/// pieces.
void* map(std::size_t bytes) {
    const std::uintptr_t begin = map_pages(bytes, Reserve::Yes);
    if (begin == 0) throw std::bad_alloc();
    return reinterpret_cast<void*>(begin);
}

void* allocate(std::size_t bytes) {
    if (is_big(bytes)) return map(bytes);
    void* data = nullptr;
    if (posix_memalign(&data, 64, bytes) != 0) throw std::bad_alloc();
    return data;
}

void free_memory(void* data, std::size_t bytes) {
    if (data == nullptr) return;
    if (is_big(bytes))
        (void)munmap(data, whole_pages(bytes));
    else
        std::free(data);
}
}  // namespace

Block::Block(std::size_t bytes) : data_(bytes == 0 ? nullptr : allocate(bytes)), bytes_(bytes) {}
Block::~Block() { free_memory(data_, bytes_); }

/// The pool's state outlives the pool while blocks are out.
struct BlockPool::Shared {
    mutable std::mutex mutex;
    PageHeap heap;
    std::size_t limit = 0;
};
struct BlockPool::Lent {
    void* data;
    std::size_t bytes;
    std::shared_ptr<Shared> home;
};

BlockPool::BlockPool(std::size_t limit_bytes) : shared_(std::make_shared<Shared>()) {
    shared_->limit = limit_bytes;
}
BlockPool::~BlockPool() {
    std::lock_guard lock(shared_->mutex);
    shared_->limit = 0;
    shared_->heap.trim(0);
}

BlockPool::Lent* BlockPool::take(std::size_t bytes) {
    auto lent = std::make_unique<Lent>(Lent{nullptr, bytes, shared_});
    std::lock_guard lock(shared_->mutex);
    PageHeap& heap = shared_->heap;
    std::size_t fresh = 0;
    lent->data = heap.take(bytes, fresh);
    const std::size_t unused = heap.unused_bytes();
    if (fresh > 0 && unused > kSpare) heap.trim(std::max(kSpare, unused - std::min(unused, fresh)));
    return lent.release();
}

void* BlockPool::data(const Lent* lent) { return lent->data; }

void BlockPool::release(Lent* lent) noexcept {
    const std::unique_ptr<Lent> owned(lent);
    std::lock_guard lock(owned->home->mutex);
    owned->home->heap.give_back(owned->data, owned->bytes);
    owned->home->heap.trim(owned->home->limit);
}

void BlockPool::trim(std::size_t keep_bytes) {
    std::lock_guard lock(shared_->mutex);
    shared_->heap.trim(keep_bytes);
}

std::size_t BlockPool::unused_bytes() const {
    std::lock_guard lock(shared_->mutex);
    return shared_->heap.unused_bytes();
}

}  // namespace ingot::runtime
