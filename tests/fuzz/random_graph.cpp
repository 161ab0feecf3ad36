// Growth by steps: each step picks values from a pool and adds one operation. A value remembers
// whether it is exact (made from inputs by operations that IEEE arithmetic defines to the bit) and
// how large it can be. Operations that would turn a rounding difference into a different answer
// (comparison, rounding to integer, index of a maximum) are given exact operands only, and
// operations that magnify errors only moderate ones; so any disagreement is a bug.
#include "fuzz/random_graph.h"

#include <algorithm>
#include <cmath>
#include <cstring>

namespace ingot::fuzz {

namespace {

struct Known {
    ValueId value;
    bool exact;
    double magnitude;  // finite elements stay below this
};

class Grower {
  public:
    Grower(std::uint64_t seed, const Limits& limits) : random_(seed), limits_(limits) {}

    RandomGraph run() {
        pick_type();
        int inputs = 1 + below(limits_.inputs);
        for (int i = 0; i < inputs; ++i) add_input();
        for (int i = 0; i < limits_.nodes; ++i) step();
        add_outputs();
        return std::move(result_);
    }

  private:
    Graph& g() { return result_.graph; }
    int below(int n) {
        return n <= 1 ? 0 : static_cast<int>(random_() % static_cast<std::uint64_t>(n));
    }
    bool chance(int percent) { return below(100) < percent; }
    template <class T>
    T one_of(std::initializer_list<T> list) {
        return *(list.begin() + below(static_cast<int>(list.size())));
    }

    void pick_type() {
        int roll = below(100);
        main_ = roll < 70 ? DType::F32 : roll < 80 ? DType::F64 : DType::F32;
        if (limits_.low_precision && roll >= 80) main_ = roll < 92 ? DType::BF16 : DType::F16;
    }
    double unit() const {
        switch (main_) {
            case DType::BF16:
                return 1.0 / 128;
            case DType::F16:
                return 1.0 / 1024;
            case DType::F64:
                return 1e-15;
            default:
                return 1e-7;
        }
    }

    std::int64_t random_size() {
        static constexpr std::int64_t kSizes[] = {1,  2,  3,  4,  5,  7,  8,  9,   15, 16,
                                                  17, 31, 32, 33, 48, 64, 65, 100, 128};
        return kSizes[below(static_cast<int>(std::size(kSizes)))];
    }
    Sizes random_shape() {
        Sizes shape;
        std::int64_t total = 1;
        int rank = 1 + below(4);
        for (int i = 0; i < rank; ++i) {
            std::int64_t n = random_size();
            if (total * n > limits_.elements) n = 1 + below(3);
            if (total * n > limits_.elements) n = 1;
            total *= n;
            shape.push_back(n);
        }
        return shape;
    }

    void add_input() {
        Sizes shape = result_.inputs.empty() || chance(60) ? random_shape() : sizes(any().value);
        DType t = chance(15) ? one_of({DType::I64, DType::I32, DType::Bool}) : main_;
        // Some inputs are transposed or padded in memory: strides are not always the row-major
        // ones.
        Sizes strides = contiguous_strides(shape);
        if (shape.size() == 2 && chance(25)) strides = {Expr(1), shape[0]};
        bool frozen = chance(20);
        ValueId v = g().add_input({t, shape, {}}, "x" + std::to_string(result_.inputs.size()),
                                  strides, frozen);
        result_.inputs.push_back(random_bytes(t, product(shape).constant()));
        pool_.push_back({v, true, is_integral(t) ? 1e3 : 4});
    }

    std::vector<std::uint8_t> random_bytes(DType t, std::int64_t count) {
        std::vector<std::uint8_t> data(static_cast<std::size_t>(count * bytes(t)));
        auto put = [&](std::int64_t i, auto v) {
            std::memcpy(data.data() + i * static_cast<int>(sizeof v), &v, sizeof v);
        };
        std::normal_distribution<float> normal;
        for (std::int64_t i = 0; i < count; ++i) {
            float x = std::clamp(normal(random_), -3.9f, 3.9f);
            if (chance(2)) x = 0.0f;
            std::uint32_t bits;
            std::memcpy(&bits, &x, 4);
            switch (t) {
                case DType::Bool:
                    put(i, static_cast<std::uint8_t>(below(2)));
                    break;
                case DType::I32:
                    put(i, static_cast<std::int32_t>(below(200) - 100));
                    break;
                case DType::I64:
                    put(i, static_cast<std::int64_t>(below(200) - 100));
                    break;
                case DType::BF16:
                    put(i, static_cast<std::uint16_t>(bits >> 16));
                    break;
                case DType::F16: {
                    _Float16 h = static_cast<_Float16>(x);
                    put(i, h);
                    break;
                }
                case DType::F64:
                    put(i, static_cast<double>(x));
                    break;
                default:
                    put(i, x);
                    break;
            }
        }
        return data;
    }

    const Sizes& sizes(ValueId v) { return g().type(v).sizes; }
    DType dtype(ValueId v) { return g().type(v).dtype; }
    const Known& any() {
        return pool_[static_cast<std::size_t>(below(static_cast<int>(pool_.size())))];
    }
    // A value of the main float type; recent values are preferred so that chains grow.
    Known any_float() {
        for (int tries = 0; tries < 20; ++tries) {
            std::size_t n = pool_.size();
            std::size_t window = chance(70) ? std::min<std::size_t>(n, 5) : n;
            const Known& k =
                pool_[n - 1 - static_cast<std::size_t>(below(static_cast<int>(window)))];
            if (dtype(k.value) == main_) return k;
        }
        Known k{emit(Prim::Full, {},
                     {{"dtype", main_}, {"sizes", random_shape()}, {"value", Scalar(0.5)}}),
                true, 1};
        pool_.push_back(k);
        return k;
    }
    ValueId emit(Prim p, std::vector<ValueId> operands, Attrs attrs = {}) {
        return g().emit(p, std::move(operands), std::move(attrs));
    }
    void keep(ValueId v, bool exact, double magnitude) { pool_.push_back({v, exact, magnitude}); }

    // `k` with the given shape: by broadcasting when its shape allows, else a fresh value of that
    // shape.
    Known with_shape(Known k, const Sizes& shape) {
        if (sizes(k.value) == shape) return k;
        Ints dims;
        const Sizes& from = sizes(k.value);
        if (from.size() <= shape.size()) {
            std::size_t shift = shape.size() - from.size();
            bool fits = true;
            for (std::size_t i = 0; i < from.size(); ++i) {
                dims.push_back(static_cast<std::int64_t>(i + shift));
                fits &= from[i] == shape[i + shift] || from[i].is(1);
            }
            if (fits)
                return {emit(Prim::Broadcast, {k.value}, {{"sizes", shape}, {"dims", dims}}),
                        k.exact, k.magnitude};
        }
        double c = (below(17) - 8) * 0.25;
        return {emit(Prim::Full, {}, {{"dtype", main_}, {"sizes", shape}, {"value", Scalar(c)}}),
                true, 2};
    }

    void step() {
        switch (below(limits_.contractions ? 12 : 11)) {
            case 0:
            case 1:
                unary();
                break;
            case 2:
            case 3:
                binary();
                break;
            case 4:
                ternary();
                break;
            case 5:
            case 6:
                movement();
                break;
            case 7:
                reduction();
                break;
            case 8:
                composite();
                break;
            case 9:
                indexing();
                break;
            case 10:
                convert();
                break;
            default:
                contraction();
                break;
        }
    }

    void unary() {
        Known a = any_float();
        if (chance(40)) {
            Prim p = one_of({Prim::Neg, Prim::Abs, Prim::Relu});
            keep(emit(p, {a.value}), a.exact, a.magnitude);
        } else if (chance(30) && a.exact) {
            Prim p = one_of({Prim::Floor, Prim::Ceil, Prim::Trunc, Prim::Round, Prim::Sign});
            keep(emit(p, {a.value}), true, a.magnitude + 1);
        } else {
            Prim p = one_of({Prim::Tanh, Prim::Sigmoid, Prim::Sin, Prim::Cos, Prim::Erf, Prim::Atan,
                             Prim::Asinh});
            keep(emit(p, {a.value}), false, std::min(a.magnitude, 2.0) + 1);
        }
    }

    void binary() {
        Known a = any_float();
        Known b = with_shape(any_float(), sizes(a.value));
        bool exact = a.exact && b.exact;
        switch (below(7)) {
            case 0:
                keep(emit(Prim::Add, {a.value, b.value}), exact, a.magnitude + b.magnitude);
                break;
            case 1:
                keep(emit(Prim::Sub, {a.value, b.value}), exact, a.magnitude + b.magnitude);
                break;
            case 2:
            case 3:
                if (a.magnitude * b.magnitude < 1e3)
                    keep(emit(Prim::Mul, {a.value, b.value}), exact, a.magnitude * b.magnitude);
                break;
            case 4:
                keep(emit(Prim::Maximum, {a.value, b.value}), exact,
                     std::max(a.magnitude, b.magnitude));
                break;
            case 5:
                keep(emit(Prim::Minimum, {a.value, b.value}), exact,
                     std::max(a.magnitude, b.magnitude));
                break;
            default: {  // a / (|b| + 1): no division by small numbers
                ValueId one =
                    emit(Prim::Full, {},
                         {{"dtype", main_}, {"sizes", sizes(a.value)}, {"value", Scalar(1.0)}});
                ValueId d = emit(Prim::Add, {emit(Prim::Abs, {b.value}), one});
                keep(emit(Prim::Div, {a.value, d}), exact, a.magnitude);
            }
        }
    }

    void ternary() {
        Known a = any_float(), b = any_float();
        Known c = with_shape(b, sizes(a.value));
        Known condition = a;
        if (!condition.exact)
            condition = with_shape(c.exact ? c : Known{pool_[0].value, false, 0}, sizes(a.value));
        if (!condition.exact || dtype(condition.value) != main_) return;
        ValueId zero = emit(Prim::Full, {},
                            {{"dtype", main_}, {"sizes", sizes(a.value)}, {"value", Scalar(0.0)}});
        Prim compare = one_of({Prim::Lt, Prim::Le, Prim::Gt, Prim::Ge, Prim::Eq, Prim::Ne});
        ValueId mask = emit(compare, {condition.value, zero});
        if (chance(20)) pool_.push_back({mask, true, 1});
        keep(emit(Prim::Select, {mask, a.value, c.value}), a.exact && c.exact,
             std::max(a.magnitude, c.magnitude));
    }

    void movement() {
        Known a = any();
        Sizes s = sizes(a.value);
        int rank = static_cast<int>(s.size());
        if (rank == 0) return;
        int d = below(rank);
        switch (below(8)) {
            case 0: {
                Ints dims;
                for (int i = 0; i < rank; ++i) dims.push_back(i);
                std::shuffle(dims.begin(), dims.end(), random_);
                keep(emit(Prim::Permute, {a.value}, {{"dims", dims}}), a.exact, a.magnitude);
                break;
            }
            case 1:
                reshape(a);
                break;
            case 2: {
                Sizes starts(s.size(), 0), ends = s;
                Ints steps(s.size(), 1);
                std::size_t i = static_cast<std::size_t>(d);
                std::int64_t n = s[i].constant();
                std::int64_t start = below(static_cast<int>(n));
                starts[i] = start;
                ends[i] = start + 1 + below(static_cast<int>(n - start));
                steps[i] = 1 + below(3);
                keep(emit(Prim::Slice, {a.value},
                          {{"starts", starts}, {"ends", ends}, {"steps", steps}}),
                     a.exact, a.magnitude);
                break;
            }
            case 3:
                keep(emit(Prim::Flip, {a.value}, {{"dims", Ints{d}}}), a.exact, a.magnitude);
                break;
            case 4: {
                Sizes low(s.size(), 0), high(s.size(), 0);
                low[static_cast<std::size_t>(d)] = below(4);
                high[static_cast<std::size_t>(d)] = below(4);
                if (product(s).constant() * 4 > limits_.elements) return;
                Scalar value = is_float(dtype(a.value))        ? Scalar(0.25)
                               : dtype(a.value) == DType::Bool ? Scalar(true)
                                                               : Scalar(7);
                keep(emit(Prim::Pad, {a.value}, {{"low", low}, {"high", high}, {"value", value}}),
                     a.exact, std::max(a.magnitude, 7.0));
                break;
            }
            case 5: {
                Known b = any();
                Sizes t = sizes(b.value);
                if (dtype(a.value) != dtype(b.value) || t.size() != s.size()) return;
                for (int i = 0; i < rank; ++i)
                    if (i != d &&
                        !(t[static_cast<std::size_t>(i)] == s[static_cast<std::size_t>(i)]))
                        return;
                if ((product(s) + product(t)).constant() > limits_.elements) return;
                keep(emit(Prim::Concat, {a.value, b.value}, {{"dim", std::int64_t{d}}}),
                     a.exact && b.exact, std::max(a.magnitude, b.magnitude));
                break;
            }
            case 6: {
                std::int64_t n = s[static_cast<std::size_t>(d)].constant();
                std::int64_t size = 1 + below(static_cast<int>(std::min<std::int64_t>(n, 5)));
                if (product(s).constant() * size > limits_.elements) return;
                ValueId w = emit(Prim::Window, {a.value},
                                 {{"dims", Ints{d}},
                                  {"sizes", Sizes{size}},
                                  {"steps", Ints{1 + below(2)}},
                                  {"dilations", Ints{1}}});
                keep(w, a.exact, a.magnitude);
                break;
            }
            default: {
                Known b = any();
                if (dtype(a.value) != dtype(b.value) || sizes(b.value).size() != s.size()) return;
                Sizes starts(s.size(), 0);
                for (int i = 0; i < rank; ++i) {
                    std::int64_t room = s[static_cast<std::size_t>(i)].constant() -
                                        sizes(b.value)[static_cast<std::size_t>(i)].constant();
                    if (room < 0) return;
                    starts[static_cast<std::size_t>(i)] = below(static_cast<int>(room) + 1);
                }
                keep(emit(Prim::Update, {a.value, b.value},
                          {{"starts", starts}, {"steps", Ints(s.size(), 1)}}),
                     a.exact && b.exact, std::max(a.magnitude, b.magnitude));
            }
        }
    }

    void reshape(Known a) {
        Sizes s = sizes(a.value), t;
        if (chance(50) && s.size() > 1) {  // join two neighbours
            std::size_t i = static_cast<std::size_t>(below(static_cast<int>(s.size()) - 1));
            t = s;
            t[i] = s[i] * s[i + 1];
            t.erase(t.begin() + static_cast<std::ptrdiff_t>(i) + 1);
        } else {  // split by a divisor
            std::size_t i = static_cast<std::size_t>(below(static_cast<int>(s.size())));
            std::int64_t n = s[i].constant(),
                         f = 1 + below(static_cast<int>(std::min<std::int64_t>(n, 12)));
            if (n % f != 0 || s.size() > 4) return;
            t = s;
            t[i] = f;
            t.insert(t.begin() + static_cast<std::ptrdiff_t>(i) + 1, n / f);
        }
        keep(emit(Prim::Reshape, {a.value}, {{"sizes", t}}), a.exact, a.magnitude);
    }

    Ints some_dims(int rank) {
        Ints dims;
        for (int i = 0; i < rank; ++i)
            if (chance(50)) dims.push_back(i);
        if (dims.empty()) dims.push_back(below(rank));
        return dims;
    }

    void reduction() {
        Known a = any_float();
        const Sizes& s = sizes(a.value);
        if (s.empty()) return;
        Ints dims = some_dims(static_cast<int>(s.size()));
        std::int64_t count = 1;
        for (std::int64_t d : dims) count *= s[static_cast<std::size_t>(d)].constant();
        switch (below(6)) {
            case 0:
            case 1:
                keep(emit(Prim::Amax, {a.value}, {{"dims", dims}}), a.exact, a.magnitude);
                break;
            case 2:
                keep(emit(Prim::Amin, {a.value}, {{"dims", dims}}), a.exact, a.magnitude);
                break;
            case 3:
                if (a.exact)
                    keep(emit(Prim::Argmax, {a.value}, {{"dims", Ints{dims[0]}}}), true, 1e3);
                break;
            default: {  // the mean, so that magnitudes stay
                ValueId sum = emit(Prim::Sum, {a.value}, {{"dims", dims}});
                ValueId n = emit(Prim::Full, {},
                                 {{"dtype", main_},
                                  {"sizes", sizes(sum)},
                                  {"value", Scalar(static_cast<double>(count))}});
                // f16 and bf16 cannot hold long sums.
                if (is_reduced_float(main_) && count > 256) return;
                keep(emit(Prim::Div, {sum, n}), false, a.magnitude);
            }
        }
    }

    ValueId spread(ValueId reduced, const Sizes& shape) {
        Ints dims;
        for (std::size_t i = 0; i + 1 < shape.size(); ++i)
            dims.push_back(static_cast<std::int64_t>(i));
        return emit(Prim::Broadcast, {reduced}, {{"sizes", shape}, {"dims", dims}});
    }

    // Softmax or normalisation along the last dim: the row kernels of real models.
    void composite() {
        Known a = any_float();
        Sizes s = sizes(a.value);
        if (s.empty() || is_reduced_float(main_)) return;
        Ints last{static_cast<std::int64_t>(s.size()) - 1};
        double count = static_cast<double>(s.back().constant());
        if (chance(50)) {
            ValueId e =
                emit(Prim::Exp,
                     {emit(Prim::Sub,
                           {a.value, spread(emit(Prim::Amax, {a.value}, {{"dims", last}}), s)})});
            keep(emit(Prim::Div, {e, spread(emit(Prim::Sum, {e}, {{"dims", last}}), s)}), false, 1);
        } else {
            auto full = [&](const Sizes& shape, double v) {
                return emit(Prim::Full, {},
                            {{"dtype", main_}, {"sizes", shape}, {"value", Scalar(v)}});
            };
            ValueId total = emit(Prim::Sum, {a.value}, {{"dims", last}});
            ValueId mean = emit(Prim::Div, {total, full(sizes(total), count)});
            ValueId centred = emit(Prim::Sub, {a.value, spread(mean, s)});
            ValueId square =
                emit(Prim::Sum, {emit(Prim::Mul, {centred, centred})}, {{"dims", last}});
            ValueId variance = emit(Prim::Div, {square, full(sizes(square), count)});
            ValueId scale =
                emit(Prim::Rsqrt, {emit(Prim::Add, {variance, full(sizes(variance), 0.25)})});
            keep(emit(Prim::Mul, {centred, spread(scale, s)}), false, 4 * a.magnitude);
        }
    }

    void indexing() {
        Known a = any();
        const Sizes s = sizes(a.value);
        if (s.empty()) return;
        std::int64_t d = below(static_cast<int>(s.size()));
        std::int64_t n = s[static_cast<std::size_t>(d)].constant(), count = 1 + below(40);
        if (product(s).constant() / n * count > limits_.elements) return;
        // An iota folded into [-n, n): every index is valid, half of them negative.
        ValueId iota = emit(Prim::Iota, {},
                            {{"dtype", DType::I64},
                             {"sizes", Sizes{count}},
                             {"dim", std::int64_t{0}},
                             {"start", Scalar(below(9))},
                             {"step", Scalar(1 + below(5))}});
        ValueId m = emit(Prim::Full, {},
                         {{"dtype", DType::I64}, {"sizes", Sizes{count}}, {"value", Scalar(n)}});
        ValueId index = emit(Prim::Remainder, {iota, m});
        if (chance(50)) index = emit(Prim::Sub, {index, m});
        keep(emit(Prim::Take, {a.value, index}, {{"dims", Ints{d}}}), a.exact, a.magnitude);
    }

    void convert() {
        Known a = any();
        DType from = dtype(a.value);
        if (from == main_) {
            if (main_ == DType::F32 && chance(50)) {
                ValueId wide = emit(Prim::Convert, {a.value}, {{"dtype", DType::F64}});
                keep(emit(Prim::Convert, {wide}, {{"dtype", main_}}), a.exact, a.magnitude);
            } else if (a.exact && a.magnitude < 1e6) {
                keep(emit(Prim::Convert, {a.value}, {{"dtype", DType::I32}}), true, a.magnitude);
            }
        } else if (is_integral(from) && a.magnitude < (main_ == DType::F16 ? 1e4 : 1e6)) {
            keep(emit(Prim::Convert, {a.value}, {{"dtype", main_}}), a.exact, a.magnitude);
        }
    }

    void contraction() {
        Known a = any_float();
        Sizes s = sizes(a.value);
        if (s.size() < 2 || s.size() > 3 || a.magnitude > 8) return;
        std::int64_t k = s.back().constant(), n = random_size();
        Sizes t = s;
        t[t.size() - 2] = k;
        t[t.size() - 1] = n;
        if (product(t).constant() > limits_.elements ||
            product(s).constant() / k * n > limits_.elements)
            return;
        ValueId w = g().add_input({main_, t, {}}, "w" + std::to_string(result_.inputs.size()),
                                  contiguous_strides(t), chance(50));
        result_.inputs.push_back(random_bytes(main_, product(t).constant()));
        ValueId y = emit(Prim::Matmul, {a.value, w});
        ValueId scale = emit(Prim::Full, {},
                             {{"dtype", main_},
                              {"sizes", sizes(y)},
                              {"value", Scalar(1.0 / static_cast<double>(k))}});
        keep(emit(Prim::Mul, {y, scale}), false, a.magnitude * 4);
    }

    void add_outputs() {
        int count = 1 + below(3);
        for (int i = 0; i < count; ++i) {
            const Known k = i == 0 ? pool_.back() : any();
            Sizes strides = contiguous_strides(sizes(k.value));
            if (strides.size() == 2 && chance(20)) strides = {Expr(1), sizes(k.value)[0]};
            g().add_output(k.value, strides);
            double steps = 4 + limits_.nodes;
            result_.tolerance.push_back(k.exact ? 0 : unit() * 16 * steps);
        }
    }

    std::mt19937_64 random_;
    Limits limits_;
    RandomGraph result_;
    std::vector<Known> pool_;
    DType main_ = DType::F32;
};

}  // namespace

RandomGraph make_random_graph(std::uint64_t seed, const Limits& limits) {
    return Grower(seed, limits).run();
}

}  // namespace ingot::fuzz
