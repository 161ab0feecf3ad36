// Aligned blocks and the pool; see memory.h.
#include "runtime/memory.h"

#include <sys/mman.h>

#include <cstdlib>
#include <new>

namespace ingot::runtime {
namespace {
constexpr std::size_t kHuge = std::size_t{2} << 20;

void* allocate(std::size_t bytes) {
    const bool huge = bytes >= 2 * kHuge;
    void* data = nullptr;
    if (posix_memalign(&data, huge ? kHuge : 64, bytes) != 0) throw std::bad_alloc();
    // Advice only: without huge pages everything works, with more misses of the TLB.
    if (huge) (void)madvise(data, bytes / kHuge * kHuge, MADV_HUGEPAGE);
    return data;
}
}  // namespace

Block::Block(std::size_t bytes) : data_(bytes == 0 ? nullptr : allocate(bytes)), bytes_(bytes) {}
Block::~Block() { std::free(data_); }

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

void BlockPool::trim() {
    std::vector<Lent*> dead;
    {
        std::lock_guard lock(shared_->mutex);
        dead.swap(shared_->unused);
        shared_->unused_bytes = 0;
    }
    for (Lent* d : dead) delete d;
}

std::size_t BlockPool::unused_bytes() const {
    std::lock_guard lock(shared_->mutex);
    return shared_->unused_bytes;
}

}  // namespace ingot::runtime
