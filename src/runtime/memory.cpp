// Aligned blocks and the pool; see memory.h.
#include "runtime/memory.h"

#include <sys/mman.h>

#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <new>

namespace ingot::runtime {
namespace {
constexpr std::size_t kHuge = std::size_t{2} << 20, kPage = std::size_t{4} << 10;
/// A pool with more unused memory than this pays for fresh blocks with it.
constexpr std::size_t kSpare = std::size_t{16} << 20;

bool is_big(std::size_t bytes) { return bytes >= 2 * kHuge; }
std::size_t whole_pages(std::size_t bytes) { return (bytes + kPage - 1) / kPage * kPage; }

/// A mapping of its own, so that freeing it gives it back at once: the C library would keep it, in
/// pieces.
void* map(std::size_t bytes) {
    const std::size_t wanted = whole_pages(bytes);
    void* all =
        mmap(nullptr, wanted + kHuge, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (all == MAP_FAILED) throw std::bad_alloc();
    const auto first = reinterpret_cast<std::uintptr_t>(all);
    const std::uintptr_t begin = (first + kHuge - 1) / kHuge * kHuge;
    if (begin != first) (void)munmap(all, begin - first);
    const std::uintptr_t end = begin + wanted, last = first + wanted + kHuge;
    if (end != last) (void)munmap(reinterpret_cast<void*>(end), last - end);
    // Advice only: without huge pages everything works, with more misses of the TLB.
    (void)madvise(reinterpret_cast<void*>(begin), bytes / kHuge * kHuge, MADV_HUGEPAGE);
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
    std::mutex mutex;
    std::vector<Lent*> unused;  // oldest first
    std::size_t unused_bytes = 0;
    std::size_t limit = 0;
    bool closed = false;
};
struct BlockPool::Lent {
    Block block;
    std::shared_ptr<Shared> home;
};

BlockPool::BlockPool(std::size_t limit_bytes) : shared_(std::make_shared<Shared>()) {
    shared_->limit = limit_bytes;
}
BlockPool::~BlockPool() {
    {
        std::lock_guard lock(shared_->mutex);
        shared_->closed = true;
    }
    trim();
}

BlockPool::Lent* BlockPool::take(std::size_t bytes) {
    {
        std::lock_guard lock(shared_->mutex);
        auto& unused = shared_->unused;
        for (std::size_t i = unused.size(); i-- > 0;) {
            const std::size_t size = unused[i]->block.bytes();
            // Not much bigger: a small tensor must not hold a big block.
            if (size < bytes || size > bytes + bytes / 8) continue;
            Lent* lent = unused[i];
            unused.erase(unused.begin() + static_cast<std::ptrdiff_t>(i));
            shared_->unused_bytes -= size;
            return lent;
        }
    }
    const std::size_t unused = unused_bytes();
    if (unused > kSpare) trim(std::max(kSpare, unused - std::min(unused, bytes)));
    return new Lent{Block(bytes), shared_};
}

void* BlockPool::data(const Lent* lent) { return lent->block.data(); }

void BlockPool::release(Lent* lent) noexcept {
    std::vector<Lent*> dead;
    {
        std::shared_ptr<Shared> home = lent->home;
        std::lock_guard lock(home->mutex);
        if (home->closed || lent->block.bytes() > home->limit) {
            dead.push_back(lent);
        } else {
            home->unused.push_back(lent);
            home->unused_bytes += lent->block.bytes();
            while (home->unused_bytes > home->limit) {
                dead.push_back(home->unused.front());
                home->unused_bytes -= home->unused.front()->block.bytes();
                home->unused.erase(home->unused.begin());
            }
        }
    }
    for (Lent* d : dead) delete d;
}

void BlockPool::trim(std::size_t keep_bytes) {
    std::vector<Lent*> dead;
    {
        std::lock_guard lock(shared_->mutex);
        auto& unused = shared_->unused;
        std::size_t first = 0;
        for (; first < unused.size() && shared_->unused_bytes > keep_bytes; ++first) {
            shared_->unused_bytes -= unused[first]->block.bytes();
            dead.push_back(unused[first]);
        }
        unused.erase(unused.begin(), unused.begin() + static_cast<std::ptrdiff_t>(first));
    }
    for (Lent* d : dead) delete d;
}

std::size_t BlockPool::unused_bytes() const {
    std::lock_guard lock(shared_->mutex);
    return shared_->unused_bytes;
}

}  // namespace ingot::runtime
