// Memory for programs: aligned blocks, and a bounded pool that hands freed blocks out again.
//
// A fresh mapping of a big block costs a page fault every 4 KiB, which at 1024 x 1024 floats is
// more than the kernel that fills it; the pool keeps the pages of what callers have freed and makes
// blocks of other sizes of them (page_heap.h). Below everything else here.
#pragma once
#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <utility>
#include <vector>

namespace ingot::runtime {

/// Memory aligned to 64 bytes (big blocks to pages, on huge pages where the system grants them).
class Block {
  public:
    Block() = default;
    /// Throws std::bad_alloc. A size of 0 gives a null block.
    explicit Block(std::size_t bytes);
    Block(Block&& other) noexcept
        : data_(std::exchange(other.data_, nullptr)), bytes_(std::exchange(other.bytes_, 0)) {}
    Block& operator=(Block&& other) noexcept {
        std::swap(data_, other.data_);
        std::swap(bytes_, other.bytes_);
        return *this;
    }
    ~Block();
    std::byte* data() const { return static_cast<std::byte*>(data_); }
    std::size_t bytes() const { return bytes_; }

  private:
    void* data_ = nullptr;
    std::size_t bytes_ = 0;
};

/// Blocks that go back to the pool when their last user is done. Safe from many threads. The pool
/// may be destroyed before its blocks: they then free themselves.
class BlockPool {
  public:
    /// Keeps at most `limit_bytes` of unused memory.
    explicit BlockPool(std::size_t limit_bytes);
    ~BlockPool();
    BlockPool(const BlockPool&) = delete;
    BlockPool& operator=(const BlockPool&) = delete;

    /// A block of at least `bytes`, of unused pages as far as there are any at hand. Its contents
    /// are arbitrary. Hand it back with `release`.
    struct Lent;
    /// Fresh pages take the place of as much unused memory, so that a caller whose sizes change
    /// all the time needs no more than what it has in use, and a little.
    Lent* take(std::size_t bytes);
    static void* data(const Lent* lent);
    static void release(Lent* lent) noexcept;
    /// Frees what is unused, the oldest first, up to `keep_bytes` of it.
    void trim(std::size_t keep_bytes = 0);
    std::size_t unused_bytes() const;

  private:
    struct Shared;
    std::shared_ptr<Shared> shared_;
};

}  // namespace ingot::runtime
