// The disk cache: round trips, damage, failing file systems, many writers, eviction; and machine
// code through it.
#include "runtime/cache.h"

#include <gtest/gtest.h>
#include <llvm/IR/IRBuilder.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <chrono>
#include <csignal>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <thread>

#include "codegen/llvm/jit.h"

namespace ingot {
namespace {

namespace fs = std::filesystem;

std::vector<std::uint8_t> blob(std::size_t size, unsigned seed) {
    std::vector<std::uint8_t> bytes(size);
    for (std::size_t k = 0; k < size; ++k)
        bytes[k] = static_cast<std::uint8_t>((k * 2654435761u + seed * 40503u) >> 7);
    return bytes;
}

class Cache : public testing::Test {
  protected:
    void SetUp() override {
        directory_ = fs::temp_directory_path() /
                     ("ingot-cache-test-" + std::to_string(::getpid()) + "-" +
                      testing::UnitTest::GetInstance()->current_test_info()->name());
        fs::remove_all(directory_);
    }
    void TearDown() override { fs::remove_all(directory_); }

    CacheOptions options() const { return {directory_.string()}; }
    /// Entries and temporary files, not the file with their total.
    std::vector<fs::path> files() const {
        std::vector<fs::path> found;
        if (fs::exists(directory_))
            for (const auto& entry : fs::recursive_directory_iterator(directory_))
                if (entry.is_regular_file() && entry.path() != total())
                    found.push_back(entry.path());
        return found;
    }
    static bool holds(DiskCache& cache, std::string_view key,
                      const std::vector<std::uint8_t>& want) {
        const auto entry = cache.load(key);
        return entry &&
               std::equal(want.begin(), want.end(), entry->bytes().begin(), entry->bytes().end());
    }
    fs::path total() const { return directory_ / "total"; }
    fs::path directory_;
};

TEST_F(Cache, StoresAndLoads) {
    DiskCache cache(options());
    EXPECT_FALSE(cache.load("a"));
    EXPECT_TRUE(cache.store("a", blob(100000, 1)));
    EXPECT_TRUE(cache.store("b", {}));
    EXPECT_TRUE(holds(cache, "a", blob(100000, 1)));
    EXPECT_TRUE(holds(cache, "b", {}));
    EXPECT_TRUE(cache.store("a", blob(10, 2)));
    DiskCache later(options());
    EXPECT_TRUE(holds(later, "a", blob(10, 2)));
    later.remove("a");
    EXPECT_FALSE(later.load("a"));
    EXPECT_EQ(cache.stats().stored, 3u);
    EXPECT_EQ(later.stats().hits, 1u);
    EXPECT_EQ(files().size(), 1u);
}

TEST_F(Cache, AnEntryOutlivesItsFile) {
    DiskCache cache(options());
    cache.store("a", blob(50000, 1));
    auto entry = cache.load("a");
    cache.remove("a");
    const CachedBytes moved = std::move(*entry);
    const auto want = blob(50000, 1);
    EXPECT_TRUE(std::equal(want.begin(), want.end(), moved.bytes().begin()));
}

TEST_F(Cache, DamagedEntriesAreRemoved) {
    DiskCache cache(options());
    const auto want = blob(3000, 1);
    for (const std::size_t position : {0u, 9u, 20u, 30u, 41u, 100u, 2000u}) {
        cache.store("key", want);
        ASSERT_EQ(files().size(), 1u);
        std::fstream file(files()[0], std::ios::in | std::ios::out | std::ios::binary);
        file.seekg(static_cast<std::streamoff>(position));
        const int byte = file.get();
        file.seekp(static_cast<std::streamoff>(position));
        file.put(static_cast<char>(byte ^ 0x10));
        file.close();
        EXPECT_FALSE(cache.load("key")) << position;
        EXPECT_TRUE(files().empty()) << position;
    }
    for (const std::size_t length : {0u, 10u, 40u, 60u, 2999u}) {
        cache.store("key", want);
        fs::resize_file(files()[0], length);
        EXPECT_FALSE(cache.load("key")) << length;
        EXPECT_TRUE(files().empty()) << length;
    }
    EXPECT_EQ(cache.stats().damaged, 12u);
    EXPECT_TRUE(cache.store("key", want));
    EXPECT_TRUE(holds(cache, "key", want));
}

TEST_F(Cache, AnotherKeysFileIsRefused) {
    DiskCache cache(options());
    cache.store("one", blob(100, 1));
    const fs::path one = files()[0];
    cache.store("two", blob(100, 2));
    for (const fs::path& path : files())
        if (path != one) fs::copy_file(one, path, fs::copy_options::overwrite_existing);
    EXPECT_FALSE(cache.load("two"));
    EXPECT_TRUE(holds(cache, "one", blob(100, 1)));
}

TEST_F(Cache, FilesThatOthersMayWriteAreNotBelieved) {
    DiskCache cache(options());
    cache.store("key", blob(100, 1));
    fs::permissions(files()[0], fs::perms::others_write, fs::perm_options::add);
    EXPECT_FALSE(cache.load("key"));
}

TEST_F(Cache, UnusableDirectoriesOnlyMiss) {
    DiskCache off(CacheOptions{});
    EXPECT_FALSE(off.store("a", blob(10, 1)));
    EXPECT_FALSE(off.load("a"));
    std::ofstream(directory_) << "a file";
    DiskCache below(CacheOptions{(directory_ / "cache").string()});
    EXPECT_FALSE(below.store("a", blob(10, 1)));
    EXPECT_FALSE(below.load("a"));
    EXPECT_EQ(below.stats().failed_stores, 1u);
    DiskCache forbidden(CacheOptions{"/proc/ingot-cache"});
    EXPECT_FALSE(forbidden.store("a", blob(10, 1)));
}

TEST_F(Cache, AFullDiskLeavesNothingBehind) {
    // A limit on file sizes fails a write midway, as a full disk does.
    const pid_t child = ::fork();
    if (child == 0) {
        std::signal(SIGXFSZ, SIG_IGN);
        const struct rlimit limit{5000, 5000};
        ::setrlimit(RLIMIT_FSIZE, &limit);
        DiskCache cache(options());
        const bool large = cache.store("large", blob(20000, 1));
        const bool small = cache.store("small", blob(100, 1));
        ::_exit(!large && small && cache.stats().failed_stores == 1 ? 0 : 1);
    }
    int status = 0;
    ::waitpid(child, &status, 0);
    EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0);
    EXPECT_EQ(files().size(), 1u);
}

TEST_F(Cache, ManyThreadsAndProcesses) {
    const auto work = [&](unsigned seed) {
        DiskCache cache(options());
        for (unsigned k = 0; k < 60; ++k) {
            const std::string key = "key" + std::to_string((k + seed) % 7);
            const auto want = blob(5000, (k + seed) % 7);
            const auto entry = cache.load(key);
            if (entry &&
                !std::equal(want.begin(), want.end(), entry->bytes().begin(), entry->bytes().end()))
                return false;
            if (!cache.store(key, want)) return false;
        }
        return cache.stats().damaged == 0;
    };
    std::vector<pid_t> children;
    for (unsigned p = 0; p < 3; ++p) {
        const pid_t child = ::fork();
        if (child == 0) ::_exit(work(p) ? 0 : 1);
        children.push_back(child);
    }
    std::vector<std::thread> threads;
    std::vector<char> good(3, 0);
    for (unsigned t = 0; t < 3; ++t) threads.emplace_back([&, t] { good[t] = work(t + 3); });
    for (std::thread& thread : threads) thread.join();
    EXPECT_EQ(good, std::vector<char>(3, 1));
    for (const pid_t child : children) {
        int status = 0;
        ::waitpid(child, &status, 0);
        EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0);
    }
    EXPECT_EQ(files().size(), 7u);
}

TEST_F(Cache, EvictsWhatWasReadLongestAgo) {
    CacheOptions limited = options();
    limited.max_bytes = 100000;
    DiskCache cache(limited);
    const auto name = [](int k) { return "entry" + std::to_string(k); };
    for (int k = 0; k < 9; ++k) {
        ASSERT_TRUE(cache.store(name(k), blob(10000, 1)));
        for (const fs::path& path :
             files())  // everything so far is an hour older than what follows
            fs::last_write_time(path, fs::last_write_time(path) - std::chrono::hours(1));
    }
    EXPECT_TRUE(cache.load(name(0)));  // used now
    ASSERT_TRUE(cache.store(name(9), blob(10000, 1)));
    EXPECT_GT(cache.stats().evicted, 0u);
    EXPECT_TRUE(cache.load(name(0)));
    EXPECT_TRUE(cache.load(name(9)));
    EXPECT_FALSE(cache.load(name(1)));
    EXPECT_FALSE(cache.store("huge", blob(200000, 1)));
}

TEST_F(Cache, TheLimitHoldsForAllProcessesTogether) {
    CacheOptions limited = options();
    limited.max_bytes = 100000;
    const auto bytes = [&] {
        std::uintmax_t sum = 0;
        for (const fs::path& path : files()) sum += fs::file_size(path);
        return sum;
    };
    for (int k = 0; k < 25; ++k)  // each as a fresh process that stores once
        ASSERT_TRUE(DiskCache(limited).store("entry" + std::to_string(k), blob(10000, 1)));
    EXPECT_LE(bytes(), limited.max_bytes);
    EXPECT_GE(bytes(), limited.max_bytes / 2);
    // A total that is damaged or lost must not let the cache grow for ever.
    std::ofstream(total()) << "nonsense";
    ASSERT_TRUE(DiskCache(limited).store("a", blob(10000, 1)));
    EXPECT_EQ(fs::file_size(total()), 24u);
    fs::remove(total());
    for (int k = 0; k < 25; ++k)
        ASSERT_TRUE(DiskCache(limited).store("further" + std::to_string(k), blob(10000, 1)));
    EXPECT_LE(bytes(), limited.max_bytes);
}

TEST_F(Cache, EvictsFromBigCachesAPartAtATime) {
    CacheOptions limited = options();
    limited.max_bytes = 1 << 20;
    constexpr int kEntries = 12000;  // more than are looked at, 1.2 MB
    for (int folder = 0; folder < 256; ++folder) {
        std::array<char, 3> name{};
        std::snprintf(name.data(), name.size(), "%02x", folder);
        fs::create_directories(directory_ / name.data());
        for (int k = 0; k < kEntries / 256 + 1; ++k)
            std::ofstream(directory_ / name.data() / (std::to_string(k) + ".pack"))
                << std::string(100, 'x');
    }
    const std::size_t before = files().size();
    DiskCache cache(limited);
    ASSERT_TRUE(cache.store("a", blob(10, 1)));
    const std::size_t first = cache.stats().evicted;
    EXPECT_GT(first, 0u);
    EXPECT_LT(first, before / 4);  // not all that are too many
    EXPECT_TRUE(holds(cache, "a", blob(10, 1)));
    for (int k = 0; k < 10; ++k) ASSERT_TRUE(cache.store(std::to_string(k), blob(10, 1)));
    std::uintmax_t bytes = 0;
    for (const fs::path& path : files()) bytes += fs::file_size(path);
    EXPECT_LE(bytes, limited.max_bytes);
    EXPECT_GE(bytes, limited.max_bytes / 2);
}

TEST_F(Cache, AFirstStoreDoesNotWalkOverAllEntries) {
    ASSERT_TRUE(DiskCache(options()).store("a", blob(10, 1)));
    // A walk would remove this.
    fs::create_directories(directory_ / "ab");
    const fs::path stale = directory_ / "ab" / "x.pack.1.1.tmp";
    std::ofstream(stale) << "left behind";
    fs::last_write_time(stale, fs::file_time_type::clock::now() - std::chrono::hours(2));
    ASSERT_TRUE(DiskCache(options()).store("b", blob(10, 1)));
    EXPECT_TRUE(fs::exists(stale));
}

TEST_F(Cache, StaleTemporaryFilesGo) {
    fs::create_directories(directory_ / "ab");
    std::ofstream(directory_ / "ab" / "x.pack.1.1.tmp") << "left behind";
    std::ofstream(directory_ / "ab" / "y.pack.1.1.tmp") << "being written";
    fs::last_write_time(directory_ / "ab" / "x.pack.1.1.tmp",
                        fs::file_time_type::clock::now() - std::chrono::hours(2));
    DiskCache cache(options());
    cache.store("a", blob(10, 1));
    EXPECT_FALSE(fs::exists(directory_ / "ab" / "x.pack.1.1.tmp"));
    EXPECT_TRUE(fs::exists(directory_ / "ab" / "y.pack.1.1.tmp"));
}

TEST(CacheKeys, DependOnEveryPart) {
    const auto key = [](std::vector<std::string_view> parts) { return content_key(parts); };
    EXPECT_EQ(key({"kernel", "znver4"}).size(), 64u);
    EXPECT_EQ(key({"kernel", "znver4"}), key({"kernel", "znver4"}));
    EXPECT_NE(key({"kernel", "znver4"}), key({"kernel", "znver5"}));
    EXPECT_NE(key({"ab", "c"}), key({"a", "bc"}));
    EXPECT_NE(key({"a"}), key({"a", ""}));
}

TEST(Packs, RoundTripAndRefuseNonsense) {
    const auto one = blob(1000, 1), two = blob(3, 2);
    const PackEntry entries[] = {{"one", one}, {"", {}}, {"two", two}};
    const std::vector<std::uint8_t> packed = pack(entries);
    const auto back = unpack(packed);
    ASSERT_TRUE(back && back->size() == 3);
    EXPECT_EQ((*back)[0].name, "one");
    EXPECT_TRUE(std::equal(one.begin(), one.end(), (*back)[0].bytes.begin()));
    EXPECT_EQ((*back)[2].name, "two");
    EXPECT_TRUE(std::equal(two.begin(), two.end(), (*back)[2].bytes.begin()));
    EXPECT_TRUE(unpack(pack({}))->empty());
    for (std::size_t cut = 0; cut < packed.size(); ++cut)
        EXPECT_FALSE(unpack(std::span(packed).first(cut))) << cut;
    for (std::size_t k = 0; k < 56;
         ++k) {  // any table: never out of bounds (the sanitizer watches)
        std::vector<std::uint8_t> bad = packed;
        bad[k] = 0xff;
        (void)unpack(bad);
    }
}

TEST_F(Cache, HoldsMachineCode) {
    const codegen::Jit jit(codegen::host());
    codegen::IrModule ir = jit.make_module("m");
    llvm::IRBuilder<> b(*ir.context);
    auto* f = llvm::Function::Create(llvm::FunctionType::get(b.getInt32Ty(), false),
                                     llvm::GlobalValue::ExternalLinkage, "answer", *ir.module);
    b.SetInsertPoint(llvm::BasicBlock::Create(*ir.context, "entry", f));
    b.CreateRet(b.getInt32(42));
    const codegen::CompiledObject object = jit.compile(std::move(ir));
    const PackEntry entries[] = {{"answer", object.bytes}};
    DiskCache(options()).store("graph", pack(entries));
    DiskCache cache(options());
    const auto entry = cache.load("graph");
    ASSERT_TRUE(entry);
    const auto loaded = unpack(entry->bytes());
    ASSERT_TRUE(loaded);
    const auto code = jit.load((*loaded)[0].bytes);
    EXPECT_EQ(code->function<int()>("answer")(), 42);
}

}  // namespace
}  // namespace ingot
