// PyTorch's numbers on processors, in vectors. See cpu_draws.h.
//
// The loops are plain C++ and compiled once for each width of vectors that a processor may have;
// which of them run is asked of the processor.
#include "trace/cpu_draws.h"

#include <ATen/ATen.h>
#include <ATen/CPUGeneratorImpl.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <mutex>
#include <optional>

namespace ingot::trace {
namespace {

constexpr std::size_t kWords = at::MERSENNE_STATE_N, kFar = at::MERSENNE_STATE_M;

// ---- functions of words; inlined into each of the widths below ----

[[gnu::always_inline]] inline std::uint32_t twisted(std::uint32_t far, std::uint32_t here,
                                                    std::uint32_t next) {
    const std::uint32_t mixed = (here & 0x80000000u) | (next & 0x7fffffffu);
    return far ^ (mixed >> 1) ^ ((0u - (next & 1u)) & 0x9908b0dfu);
}

[[gnu::always_inline]] inline std::uint32_t tempered(std::uint32_t y) {
    y ^= y >> 11;
    y ^= (y << 7) & 0x9d2c5680u;
    y ^= (y << 15) & 0xefc60000u;
    return y ^ (y >> 18);
}

/// The next 624 words in place of these.
[[gnu::always_inline]] inline void twist(std::uint32_t* s) {
    for (std::size_t i = 0; i < kWords - kFar; ++i) s[i] = twisted(s[i + kFar], s[i], s[i + 1]);
    for (std::size_t i = kWords - kFar; i < kWords - 1; ++i)
        s[i] = twisted(s[i + kFar - kWords], s[i], s[i + 1]);
    s[kWords - 1] = twisted(s[kFar - 1], s[kWords - 1], s[0]);
}

// A number of 53 bits has 21 of its pair's first word and all 32 of its second.
constexpr std::uint32_t kHigh = (1u << 21) - 1;
[[gnu::always_inline]] inline std::uint64_t bits53(std::uint32_t first, std::uint32_t second) {
    return std::uint64_t{tempered(first) & kHigh} << 32 | tempered(second);
}

/// out[i] = number i < limit, for a block's numbers at most. The first words decide, but for one
/// number in two million. Ones become bytes in a loop of their own: the first then has words only.
[[gnu::always_inline]] inline void below(const std::uint32_t* words, std::size_t count,
                                         std::uint64_t limit, std::uint8_t* out) {
    const auto high = static_cast<std::uint32_t>(limit >> 32);
    std::uint32_t undecided = 0, ones[kWords / 2];
    for (std::size_t i = 0; i < count; ++i) {
        const std::uint32_t first = tempered(words[2 * i]) & kHigh;
        ones[i] = first < high;
        undecided |= first == high;
    }
    for (std::size_t i = 0; i < count; ++i) out[i] = static_cast<std::uint8_t>(ones[i]);
    if (undecided == 0) return;
    for (std::size_t i = 0; i < count; ++i) out[i] = bits53(words[2 * i], words[2 * i + 1]) < limit;
}

[[gnu::always_inline]] inline void unit(const std::uint32_t* words, std::size_t count, float* out) {
    for (std::size_t i = 0; i < count; ++i)
        out[i] = static_cast<float>(static_cast<std::int32_t>(tempered(words[i]) & 0xffffffu)) *
                 0x1p-24f;
}

/// The two words as numbers for themselves, since few processors convert 64 bits in vectors;
/// nothing is rounded.
[[gnu::always_inline]] inline void unit(const std::uint32_t* words, std::size_t count,
                                        double* out) {
    for (std::size_t i = 0; i < count; ++i) {
        const auto high = static_cast<std::int32_t>(tempered(words[2 * i]) & kHigh);
        const auto low = static_cast<std::int32_t>(tempered(words[2 * i + 1]) ^ 0x80000000u);
        out[i] = high * 0x1p-21 + (low + 0x1p31) * 0x1p-53;
    }
}

// ---- compiled for each width of vectors ----

#if defined(__x86_64__)
#define INGOT_EACH_WIDTH [[gnu::target_clones("avx512f", "avx2", "default")]]
#else
#define INGOT_EACH_WIDTH
#endif

INGOT_EACH_WIDTH void twist_block(std::uint32_t* state) { twist(state); }
INGOT_EACH_WIDTH void fill_below(const std::uint32_t* words, std::size_t count, std::uint64_t limit,
                                 std::uint8_t* out) {
    below(words, count, limit, out);
}
INGOT_EACH_WIDTH void fill_unit(const std::uint32_t* words, std::size_t count, float* out) {
    unit(words, count, out);
}
INGOT_EACH_WIDTH void fill_unit(const std::uint32_t* words, std::size_t count, double* out) {
    unit(words, count, out);
}

// ---- the generator ----

/// The words of a generator, in its order, until it is given back what is left. The engine counts
/// the words before its next block (and one more) and knows where the next one stands.
class Words {
  public:
    /// Nothing for a state that no seed leads to.
    static std::optional<Words> of(at::CPUGeneratorImpl& from) {
        Words words(from);
        const bool possible =
            words.data_.left_ >= 1 && words.next_ <= kWords && words.end_ <= kWords;
        return possible ? std::optional(std::move(words)) : std::nullopt;
    }

    struct Piece {
        const std::uint32_t* words;
        std::size_t numbers;
    };
    /// The words of at most `most` numbers of `width` (1 or 2) words each, and of one at least.
    Piece take(std::size_t most, std::size_t width) {
        if (next_ == end_) make_block();
        const std::uint32_t* at = &data_.state_[next_];
        if (const std::size_t whole = std::min(most, (end_ - next_) / width); whole > 0) {
            next_ += whole * width;
            return {at, whole};
        }
        parted_[0] = *at;
        make_block();
        parted_[1] = data_.state_[next_++];
        return {parted_.data(), 1};
    }

    void give_back() {
        data_.next_ = static_cast<std::uint32_t>(next_);
        data_.left_ = static_cast<int>(end_ - next_) + 1;
        engine_.set_data(data_);
        from_->set_engine(engine_);
    }

  private:
    explicit Words(at::CPUGeneratorImpl& from)
        : from_(&from), engine_(from.engine()), data_(engine_.data()) {
        next_ = data_.next_;
        end_ = next_ + static_cast<std::size_t>(std::max(data_.left_, 1)) - 1;
    }
    void make_block() {
        twist_block(data_.state_.data());
        next_ = 0;
        end_ = kWords;
    }

    at::CPUGeneratorImpl* from_;
    at::mt19937 engine_;
    at::mt19937_data_pod data_;
    std::size_t next_ = 0, end_ = 0;
    std::array<std::uint32_t, 2> parted_{};  // a pair that two blocks share
};

template <class T, class Fill>
bool draw(const at::Generator& from, std::size_t width, std::span<T> out, const Fill& fill) {
    if (out.empty()) return true;
    auto* generator = at::check_generator<at::CPUGeneratorImpl>(from);
    const std::lock_guard lock(generator->mutex_);
    std::optional<Words> words = Words::of(*generator);
    if (!words) return false;
    while (!out.empty()) {
        const Words::Piece piece = words->take(out.size(), width);
        fill(piece.words, piece.numbers, out.data());
        out = out.subspan(piece.numbers);
    }
    words->give_back();
    return true;
}

// ---- against eager ----

bool same_state(const at::Generator& a, const at::Generator& b) {
    return at::equal(a.get_state(), b.get_state());
}

/// Whether `ours`, given a generator and a tensor, does what `eagers` does, from a place in the
/// middle of a pair and over several blocks.
template <class Ours, class Eagers>
bool agree(at::ScalarType type, const Ours& ours, const Eagers& eagers) {
    const at::Generator a = at::detail::createCPUGenerator(7),
                        b = at::detail::createCPUGenerator(7);
    for (const std::int64_t n : {1, 1000, 3, 700}) {
        at::Tensor x = at::empty({n}, type), y = at::empty({n}, type);
        if (!ours(a, x)) return false;
        eagers(b, y);
        if (!at::equal(x, y) || !same_state(a, b)) return false;
        // Another word: the next numbers begin within a pair.
        at::empty({1}, at::kInt).random_(a);
        at::empty({1}, at::kInt).random_(b);
    }
    return true;
}

template <class T>
std::span<T> elements(at::Tensor& t) {
    return {t.mutable_data_ptr<T>(), static_cast<std::size_t>(t.numel())};
}

}  // namespace

bool draw_bernoulli(const at::Generator& from, double p, std::span<bool> out) {
    // A number is below p where its 53 bits are below p's; scaling by a power of two is exact.
    const auto limit = static_cast<std::uint64_t>(std::ceil(p * 0x1p53));
    return draw(from, 2, out, [&](const std::uint32_t* words, std::size_t count, bool* to) {
        fill_below(words, count, limit, reinterpret_cast<std::uint8_t*>(to));
    });
}

bool draw_uniform(const at::Generator& from, std::span<float> out) {
    return draw(from, 1, out, [](const std::uint32_t* words, std::size_t count, float* to) {
        fill_unit(words, count, to);
    });
}

bool draw_uniform(const at::Generator& from, std::span<double> out) {
    return draw(from, 2, out, [](const std::uint32_t* words, std::size_t count, double* to) {
        fill_unit(words, count, to);
    });
}

bool eager_draws_as_known() {
    static const bool known = [] {
        const auto below = [](double p) {
            return [p](const at::Generator& g, at::Tensor& t) {
                // What eager fills is of the type that dropout fills.
                at::Tensor kept = at::empty(t.sizes(), at::kBool);
                const bool drawn = draw_bernoulli(g, p, elements<bool>(kept));
                t.copy_(kept);
                return drawn;
            };
        };
        const auto bernoulli = [](double p) {
            return [p](const at::Generator& g, at::Tensor& t) { t.bernoulli_(p, g); };
        };
        const auto uniform = [](const at::Generator& g, at::Tensor& t) { t.uniform_(0, 1, g); };
        for (const at::ScalarType type :
             {at::kFloat, at::kDouble, at::kBFloat16, at::kHalf, at::kBool, at::kLong})
            for (const double p : {0.9, 0.3})
                if (!agree(type, below(p), bernoulli(p))) return false;
        return agree(
                   at::kFloat,
                   [](const at::Generator& g, at::Tensor& t) {
                       return draw_uniform(g, elements<float>(t));
                   },
                   uniform) &&
               agree(
                   at::kDouble,
                   [](const at::Generator& g, at::Tensor& t) {
                       return draw_uniform(g, elements<double>(t));
                   },
                   uniform);
    }();
    return known;
}

}  // namespace ingot::trace
