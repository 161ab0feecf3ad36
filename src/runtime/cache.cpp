// See cache.h. An entry's file: Header, key, padding to 16 bytes, payload.
#include "runtime/cache.h"

#include <fcntl.h>
#include <llvm/Support/SHA256.h>
#include <llvm/Support/xxhash.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cerrno>
#include <cstring>
#include <ctime>
#include <filesystem>
#include <span>
#include <string>
#include <system_error>

namespace ingot {

namespace fs = std::filesystem;

namespace {

constexpr std::array<char, 8> kMagic = {'I', 'N', 'G', 'O', 'T', 'K', 'C', '1'};
constexpr std::string_view kSuffix = ".pack";
constexpr std::string_view kTemporary = ".tmp";
/// A temporary file of this age was left by a process that died.
constexpr std::time_t kStaleSeconds = 3600;
/// The file that says how many bytes the entries have, so that a process's first store, which is
/// part of a first call, does not walk over all of them.
constexpr std::string_view kTotalFile = "total";
/// Concurrent writers may lose each other's additions, so the entries are counted again at times.
constexpr std::int64_t kRecountSeconds = std::int64_t{7} * 24 * 3600;

struct Header {
    std::array<char, 8> magic;
    std::uint64_t key_bytes;
    std::uint64_t payload_bytes;
    std::uint64_t checksum_low, checksum_high;  // of the payload, seeded by nothing: xxh3 128
};
static_assert(sizeof(Header) == 40);

std::uint64_t aligned(std::uint64_t n) { return (n + 15) / 16 * 16; }

llvm::ArrayRef<std::uint8_t> as_array(std::span<const std::uint8_t> bytes) {
    return {bytes.data(), bytes.size()};
}

std::span<const std::uint8_t> as_bytes(std::string_view text) {
    return {reinterpret_cast<const std::uint8_t*>(text.data()), text.size()};
}

std::string to_hex(std::span<const std::uint8_t> bytes) {
    constexpr std::string_view digits = "0123456789abcdef";
    std::string text;
    for (const std::uint8_t byte : bytes) {
        text += digits[byte >> 4];
        text += digits[byte & 15];
    }
    return text;
}

/// A file descriptor that closes itself.
class File {
  public:
    explicit File(int fd) : fd_(fd) {}
    ~File() {
        if (fd_ >= 0) ::close(fd_);
    }
    File(const File&) = delete;
    File& operator=(const File&) = delete;
    explicit operator bool() const { return fd_ >= 0; }
    int fd() const { return fd_; }

    bool write(std::span<const std::uint8_t> bytes) const {
        while (!bytes.empty()) {
            const ssize_t n = ::write(fd_, bytes.data(), bytes.size());
            if (n < 0 && errno == EINTR) continue;
            if (n <= 0) return false;
            bytes = bytes.subspan(static_cast<std::size_t>(n));
        }
        return true;
    }

  private:
    int fd_;
};

/// Code is executed from these files: only the user's own or the administrator's are believed, and
/// only if nobody else may write them.
bool trusted(const struct stat& info) {
    return S_ISREG(info.st_mode) && (info.st_uid == ::geteuid() || info.st_uid == 0) &&
           (info.st_mode & (S_IWGRP | S_IWOTH)) == 0;
}

/// The payload's place in a file's bytes if the file is whole and holds this key.
std::optional<std::span<const std::uint8_t>> checked_payload(std::span<const std::uint8_t> file,
                                                             std::string_view key) {
    Header header;
    if (file.size() < sizeof header) return std::nullopt;
    std::memcpy(&header, file.data(), sizeof header);
    if (header.magic != kMagic || header.key_bytes != key.size()) return std::nullopt;
    const std::uint64_t start = aligned(sizeof header + key.size());
    if (file.size() < start || header.payload_bytes != file.size() - start) return std::nullopt;
    if (std::memcmp(file.data() + sizeof header, key.data(), key.size()) != 0) return std::nullopt;
    const auto payload = file.subspan(start);
    const llvm::XXH128_hash_t sum = llvm::xxh3_128bits(as_array(payload));
    if (sum.low64 != header.checksum_low || sum.high64 != header.checksum_high) return std::nullopt;
    return payload;
}

struct FoundEntry {
    std::string path;
    std::uint64_t bytes;
    timespec used;
};

constexpr unsigned kFolders = 256;
/// Counting and evicting look at about so many entries and estimate the rest, so that they cost
/// some ten milliseconds however big the cache is. Keys are hashed: every folder is like the
/// others.
constexpr std::size_t kSample = 4096;

struct Sample {
    std::vector<FoundEntry> entries;
    std::uint64_t bytes = 0;
    unsigned folders = 0;

    bool whole() const { return folders == kFolders; }
    std::uint64_t estimate() const { return bytes * kFolders / std::max(folders, 1u); }
};

/// The entries of whole folders, from `first` on, until there are enough; stale temporary files
/// are removed on the way.
Sample sample(const std::string& directory, unsigned first) {
    Sample found;
    const std::time_t now = std::time(nullptr);
    for (; found.folders < kFolders && found.entries.size() < kSample; ++found.folders) {
        const std::uint8_t folder = static_cast<std::uint8_t>(first + found.folders);
        std::error_code error;
        fs::directory_iterator it(directory + '/' + to_hex({&folder, 1}), error);
        for (const auto end = fs::end(it); !error && it != end; it.increment(error)) {
            const std::string& path = it->path().native();
            const bool temporary = path.ends_with(kTemporary);
            if (!temporary && !path.ends_with(kSuffix)) continue;
            struct stat info;
            if (::lstat(path.c_str(), &info) != 0) continue;  // others remove files meanwhile
            if (temporary) {
                if (now - info.st_mtim.tv_sec > kStaleSeconds) ::unlink(path.c_str());
                continue;
            }
            const auto bytes = static_cast<std::uint64_t>(info.st_size);
            found.entries.push_back({path, bytes, info.st_mtim});
            found.bytes += bytes;
        }
    }
    return found;
}

bool older(const timespec& a, const timespec& b) {
    return std::pair(a.tv_sec, a.tv_nsec) < std::pair(b.tv_sec, b.tv_nsec);
}

struct Removed {
    std::uint64_t bytes = 0, entries = 0;
};

/// Removes the oldest of the sample until the cache, of `total` bytes, has a tenth less than
/// `limit`, so that this is not done again at the next store. Of a sample that is not the whole at
/// most a quarter goes at once. `kept` stays.
Removed evict(Sample& from, const std::string& kept, std::uint64_t total, std::uint64_t limit) {
    Removed removed;
    if (total <= limit) return removed;
    std::ranges::sort(from.entries, older, &FoundEntry::used);
    const std::size_t most = from.whole() ? from.entries.size() : from.entries.size() / 4;
    for (const FoundEntry& entry : std::span(from.entries).first(most)) {
        if (total - removed.bytes <= limit - limit / 10) break;
        if (entry.path == kept) continue;
        if (::unlink(entry.path.c_str()) == 0) ++removed.entries;
        removed.bytes += std::min(entry.bytes, total - removed.bytes);
    }
    return removed;
}

/// What kTotalFile holds.
struct Total {
    std::array<char, 8> magic = kMagic;
    std::uint64_t bytes = 0;
    std::int64_t counted_at = 0;  // seconds since 1970
};

std::string total_path(const std::string& directory) {
    return directory + '/' + std::string(kTotalFile);
}

std::optional<Total> read_total(const std::string& directory) {
    const File file(::open(total_path(directory).c_str(), O_RDONLY | O_CLOEXEC | O_NOFOLLOW));
    Total total;
    if (!file || ::pread(file.fd(), &total, sizeof total, 0) != sizeof total) return std::nullopt;
    if (total.magic != kMagic) return std::nullopt;
    return total;
}

/// May fail, e.g. on a full disk: this process then goes by what it remembers.
void write_total(const std::string& directory, const Total& total) {
    const File file(
        ::open(total_path(directory).c_str(), O_WRONLY | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0600));
    if (file) (void)!::pwrite(file.fd(), &total, sizeof total, 0);
}

}  // namespace

// ---- CachedBytes
// -----------------------------------------------------------------------------------------------

CachedBytes::CachedBytes(CachedBytes&& other) noexcept
    : mapping_(std::exchange(other.mapping_, nullptr)),
      size_(std::exchange(other.size_, 0)),
      payload_(std::exchange(other.payload_, {})) {}

CachedBytes& CachedBytes::operator=(CachedBytes&& other) noexcept {
    std::swap(mapping_, other.mapping_);
    std::swap(size_, other.size_);
    std::swap(payload_, other.payload_);
    return *this;
}

CachedBytes::~CachedBytes() {
    if (mapping_) ::munmap(mapping_, size_);
}

// ---- DiskCache
// -------------------------------------------------------------------------------------------------

DiskCache::DiskCache(CacheOptions options) : options_(std::move(options)) {}

CacheStats DiskCache::stats() const {
    CacheStats s;
    s.hits = counters_.hits;
    s.misses = counters_.misses;
    s.damaged = counters_.damaged;
    s.stored = counters_.stored;
    s.failed_stores = counters_.failed_stores;
    s.evicted = counters_.evicted;
    return s;
}

std::string DiskCache::path_of(std::string_view key) const {
    const auto digest = llvm::SHA256::hash(as_array(as_bytes(key)));
    const std::string hex = to_hex({digest.data(), digest.size()}).substr(0, 40);
    return options_.directory + '/' + hex.substr(0, 2) + '/' + hex.substr(2) + std::string(kSuffix);
}

std::optional<CachedBytes> DiskCache::load(std::string_view key) {
    if (!enabled()) return std::nullopt;
    const std::string path = path_of(key);
    const auto miss = [&](bool damaged) -> std::optional<CachedBytes> {
        if (damaged) ::unlink(path.c_str());
        ++counters_.misses;
        counters_.damaged += damaged;
        return std::nullopt;
    };
    const File file(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NOFOLLOW));
    if (!file) return miss(false);
    struct stat info;
    if (::fstat(file.fd(), &info) != 0 || !trusted(info)) return miss(false);
    const auto size = static_cast<std::size_t>(info.st_size);
    if (size < sizeof(Header)) return miss(true);
    void* mapping = ::mmap(nullptr, size, PROT_READ, MAP_PRIVATE | MAP_POPULATE, file.fd(), 0);
    if (mapping == MAP_FAILED) return miss(false);
    CachedBytes entry(mapping, size, {static_cast<const std::uint8_t*>(mapping), size});
    const auto payload = checked_payload(entry.payload_, key);
    if (!payload) return miss(true);
    entry.payload_ = *payload;
    ::futimens(file.fd(), nullptr);  // used now; may fail on a read-only directory, then age counts
    ++counters_.hits;
    return entry;
}

bool DiskCache::write_file(const std::string& path, std::string_view key,
                           std::span<const std::uint8_t> payload) const {
    std::error_code error;
    const fs::path parent = fs::path(path).parent_path();
    if (!fs::exists(options_.directory, error)) {
        fs::create_directories(options_.directory, error);
        if (!error) fs::permissions(options_.directory, fs::perms::owner_all, error);
    }
    if (::mkdir(parent.c_str(), 0700) != 0 && errno != EEXIST) return false;
    // Unique among threads by the counter, among processes (and after a fork) by the pid.
    static std::atomic<std::uint64_t> counter{0};
    const std::string temporary = path + '.' + std::to_string(::getpid()) + '.' +
                                  std::to_string(counter++) + std::string(kTemporary);
    const llvm::XXH128_hash_t sum = llvm::xxh3_128bits(as_array(payload));
    const Header header{kMagic, key.size(), payload.size(), sum.low64, sum.high64};
    std::vector<std::uint8_t> head(aligned(sizeof header + key.size()));
    std::memcpy(head.data(), &header, sizeof header);
    std::memcpy(head.data() + sizeof header, key.data(), key.size());
    bool whole = false;
    {
        const File file(
            ::open(temporary.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC | O_NOFOLLOW, 0600));
        if (!file) return false;
        whole = file.write(head) && file.write(payload);
    }
    // No fsync: after a power cut the checksum finds what was lost.
    if (whole && ::rename(temporary.c_str(), path.c_str()) == 0) return true;
    ::unlink(temporary.c_str());
    return false;
}

bool DiskCache::store(std::string_view key, std::span<const std::uint8_t> payload) {
    if (!enabled() || payload.size() > options_.max_bytes) return false;
    bool written = false;
    std::string path;
    try {
        path = path_of(key);
        written = write_file(path, key, payload);
    } catch (const std::exception&) {  // e.g. no memory for a path
        written = false;
    }
    ++(written ? counters_.stored : counters_.failed_stores);
    if (written) account(path, payload.size() + sizeof(Header) + key.size());
    return written;
}

void DiskCache::remove(std::string_view key) {
    if (enabled()) ::unlink(path_of(key).c_str());
}

/// Keeps a running total, so that the entries are counted only when they may be too many.
/// `path`: of the entry just stored.
void DiskCache::account(const std::string& path, std::uint64_t stored_bytes) {
    const std::int64_t now = std::time(nullptr);
    std::optional<Total> total = read_total(options_.directory);
    if (!total && counted_) total = Total{kMagic, known_bytes_, now};
    if (total && (now - total->counted_at > kRecountSeconds || total->counted_at > now))
        total.reset();
    if (total) total->bytes += stored_bytes;
    if (!total || total->bytes > options_.max_bytes) {
        try {
            const std::string name = fs::path(path).parent_path().filename();
            Sample found =
                sample(options_.directory, static_cast<unsigned>(std::stoul(name, nullptr, 16)));
            if (!total || found.whole()) total = Total{kMagic, found.estimate(), now};
            const Removed removed = evict(found, path, total->bytes, options_.max_bytes);
            total->bytes -= removed.bytes;
            counters_.evicted += removed.entries;
        } catch (const std::exception&) {
            return;  // no memory, say: a later store tries again
        }
    }
    known_bytes_ = total->bytes;
    counted_ = true;
    write_total(options_.directory, *total);
}

// ---- keys and packs
// --------------------------------------------------------------------------------------------

std::string content_key(std::span<const std::string_view> parts) {
    llvm::SHA256 hash;
    for (const std::string_view part : parts) {
        const std::uint64_t size = part.size();
        std::array<std::uint8_t, 8> length;
        std::memcpy(length.data(), &size, sizeof size);
        hash.update(as_array(length));
        hash.update(as_array(as_bytes(part)));
    }
    const auto digest = hash.final();
    return to_hex({digest.data(), digest.size()});
}

// A pack: the number of entries, a table {name bytes, content bytes}, the names, then the contents,
// each aligned.
std::vector<std::uint8_t> pack(std::span<const PackEntry> entries) {
    std::uint64_t size = 8 + 16 * entries.size();
    for (const PackEntry& entry : entries) size += entry.name.size();
    for (const PackEntry& entry : entries) size = aligned(size) + entry.bytes.size();
    std::vector<std::uint8_t> out(size);
    std::uint64_t at = 0;
    const auto put = [&](const void* data, std::uint64_t bytes) {
        if (bytes) std::memcpy(out.data() + at, data, bytes);
        at += bytes;
    };
    const auto put_number = [&](std::uint64_t n) { put(&n, sizeof n); };
    put_number(entries.size());
    for (const PackEntry& entry : entries) {
        put_number(entry.name.size());
        put_number(entry.bytes.size());
    }
    for (const PackEntry& entry : entries) put(entry.name.data(), entry.name.size());
    for (const PackEntry& entry : entries) {
        at = aligned(at);
        put(entry.bytes.data(), entry.bytes.size());
    }
    return out;
}

std::optional<std::vector<PackEntry>> unpack(std::span<const std::uint8_t> packed) {
    const std::uint64_t size = packed.size();
    const auto number = [&](std::uint64_t at) {
        std::uint64_t n = 0;
        std::memcpy(&n, packed.data() + at, sizeof n);
        return n;
    };
    if (size < 8) return std::nullopt;
    const std::uint64_t count = number(0);
    if (count > (size - 8) / 16) return std::nullopt;
    std::vector<PackEntry> entries(count);
    std::uint64_t at = 8 + 16 * count;
    for (std::uint64_t k = 0; k < count; ++k) {
        const std::uint64_t bytes = number(8 + 16 * k);
        if (bytes > size - at) return std::nullopt;
        entries[k].name = {reinterpret_cast<const char*>(packed.data() + at), bytes};
        at += bytes;
    }
    for (std::uint64_t k = 0; k < count; ++k) {
        const std::uint64_t bytes = number(8 + 16 * k + 8);
        at = aligned(at);
        if (at > size || bytes > size - at) return std::nullopt;
        entries[k].bytes = packed.subspan(at, bytes);
        at += bytes;
    }
    return entries;
}

}  // namespace ingot
