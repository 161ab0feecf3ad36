// Memory in whole pages that is handed out again in other sizes: the pages behind a pool of blocks.
//
// A training step frees its gradients, asks for what the backward needs, frees that and asks for
// gradients again: much the same pages in blocks of other sizes. A mapping for each block would
// have the system clear most of that memory anew at every step. Here freed blocks grow together
// with their neighbours, and a new one takes the place where most of its pages are there already.
// What is free with pages behind it counts as unused, and can be given back to the system.
//
// Cost: a walk over the free ranges (some hundred in a training step) at every call, far below what
// the pages cost. Not safe from several threads by itself. Below BlockPool.
#pragma once
#include <cstddef>
#include <cstdint>
#include <map>

namespace ingot::runtime {

constexpr std::size_t kPage = std::size_t{4} << 10, kHugePage = std::size_t{2} << 20;

constexpr std::size_t whole_pages(std::size_t bytes) { return (bytes + kPage - 1) / kPage * kPage; }

/// Whether the system counts a mapping against its memory before it is used.
enum class Reserve : std::uint8_t { Yes, No };

/// A mapping of whole pages that begins at a huge page and has none yet. 0: there is none to be
/// had.
std::uintptr_t map_pages(std::size_t bytes, Reserve reserve);

class PageHeap {
  public:
    PageHeap() = default;
    ~PageHeap();
    PageHeap(const PageHeap&) = delete;
    PageHeap& operator=(const PageHeap&) = delete;

    /// Whole pages, of any contents; `fresh`: how much of it had no pages yet. Throws
    /// std::bad_alloc.
    void* take(std::size_t bytes, std::size_t& fresh);
    void give_back(void* data, std::size_t bytes);
    /// Gives pages of unused memory back to the system, longest unused first, until at most
    /// `keep_bytes` are left; with 0 also the addresses of what is free as a whole.
    void trim(std::size_t keep_bytes);
    std::size_t unused_bytes() const { return unused_; }

  private:
    struct Free {
        std::uintptr_t end;
        bool backed;        // has pages
        std::uint64_t age;  // when it was freed
    };
    using Ranges = std::map<std::uintptr_t, Free>;  // by begin, apart or of different kinds
    struct Window {
        std::uintptr_t at = 0;
        std::size_t backed = 0;
    };

    bool find(std::size_t bytes, Window& best) const;
    std::size_t backed_in(std::uintptr_t begin, std::uintptr_t end) const;
    void cut(std::uintptr_t at);
    void insert(std::uintptr_t begin, Free range);
    void grow(std::size_t bytes);
    void unmap_free_regions();

    Ranges free_;
    std::map<std::uintptr_t, std::uintptr_t> regions_;  // mapped: begin and end
    std::size_t unused_ = 0;
    std::uint64_t clock_ = 0;
};

}  // namespace ingot::runtime
