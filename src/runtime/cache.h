// Disk cache of machine code: a content key to bytes, one file an entry. Entries are packs: all
// kernels of a graph in one file, because a warm start reads one file of megabytes faster than a
// hundred small ones (about 1 ms for BERT-base). Used by the compiler's driver before code
// generation; nothing else depends on it.
//
// Safe against everything a shared directory does: files appear whole or not at all (written beside
// and renamed), are checked when read (key, length, checksum) and removed when damaged, so a miss
// is the worst that can happen. No call throws for a file system's failure, and none holds a lock
// between processes.
#pragma once
#include <atomic>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace ingot {

struct CacheOptions {
    std::string directory;  ///< made when missing, with access for its owner only; empty: no cache
    std::uint64_t max_bytes = 1ull << 30;  ///< beyond it entries go that were read long ago
};

struct CacheStats {
    std::uint64_t hits = 0;
    std::uint64_t misses = 0;
    std::uint64_t damaged = 0;  ///< of the misses: entries that failed their check and were removed
    std::uint64_t stored = 0;
    std::uint64_t failed_stores = 0;  ///< no space, no permission, ...
    std::uint64_t evicted = 0;
};

/// The bytes of an entry: a read-only mapping of its file, which stays whole whatever happens to
/// the file's name.
class CachedBytes {
  public:
    CachedBytes(CachedBytes&& other) noexcept;
    CachedBytes& operator=(CachedBytes&& other) noexcept;
    ~CachedBytes();
    std::span<const std::uint8_t> bytes() const { return payload_; }

  private:
    friend class DiskCache;
    CachedBytes(void* mapping, std::size_t size, std::span<const std::uint8_t> payload)
        : mapping_(mapping), size_(size), payload_(payload) {}
    void* mapping_ = nullptr;
    std::size_t size_ = 0;
    std::span<const std::uint8_t> payload_;
};

class DiskCache {
  public:
    explicit DiskCache(CacheOptions options);

    bool enabled() const { return !options_.directory.empty(); }
    /// The entry stored under exactly this key, or nothing. Keys are any text, best a
    /// `content_key`.
    std::optional<CachedBytes> load(std::string_view key);
    /// Stores an entry, replacing an older one; false when the file system does not let it
    /// (counted, otherwise silent).
    bool store(std::string_view key, std::span<const std::uint8_t> payload);
    /// Removes an entry, e.g. one whose code would not link.
    void remove(std::string_view key);
    CacheStats stats() const;

  private:
    std::string path_of(std::string_view key) const;
    bool write_file(const std::string& path, std::string_view key,
                    std::span<const std::uint8_t> payload) const;
    void account(const std::string& path, std::uint64_t stored_bytes);

    struct Counters {
        std::atomic<std::uint64_t> hits{0}, misses{0}, damaged{0}, stored{0}, failed_stores{0},
            evicted{0};
    };

    CacheOptions options_;
    // Atomics and no mutex: a fork at any moment leaves the child with a cache that works.
    Counters counters_;
    std::atomic<std::uint64_t> known_bytes_{0};
    std::atomic<bool> counted_{false};
};

/// A fixed-length name (64 hexadecimal digits, SHA-256) of the parts, which are delimited: {"ab",
/// "c"} is not {"a", "bc"}.
std::string content_key(std::span<const std::string_view> parts);

/// Several named byte strings as one, e.g. a graph's kernels; `unpack` returns views into `pack`,
/// or nothing when its structure is not sound. Contents are aligned to 16 bytes.
struct PackEntry {
    std::string_view name;
    std::span<const std::uint8_t> bytes;
};
std::vector<std::uint8_t> pack(std::span<const PackEntry> entries);
std::optional<std::vector<PackEntry>> unpack(std::span<const std::uint8_t> packed);

}  // namespace ingot
