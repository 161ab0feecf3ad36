// See float_guards.h.
#include "capture/float_guards.h"

#include <bit>
#include <cmath>
#include <cstdio>

#include "capture/size_guards.h"

namespace ingot::capture {
namespace {

bool compare(int sign, double a, double b) {
    switch (sign) {
        case Py_EQ:
            return a == b;
        case Py_NE:
            return a != b;
        case Py_LT:
            return a < b;
        case Py_LE:
            return a <= b;
        case Py_GT:
            return a > b;
        default:
            return a >= b;
    }
}

double carry_out(FloatGuards::Make make, double a, double b) {
    using Make = FloatGuards::Make;
    switch (make) {
        case Make::Add:
            return a + b;
        case Make::Subtract:
            return a - b;
        case Make::Multiply:
            return a * b;
        case Make::Divide:
            return a / b;
        case Make::Power:
            return std::pow(a, b);
        case Make::Negate:
            return -a;
        case Make::Absolute:
            return std::fabs(a);
        case Make::Root:
            return std::sqrt(a);
        case Make::Given:
        case Make::Constant:
        case Make::Integer:
            break;
    }
    return a;
}

bool same_bits(double a, double b) {
    return std::bit_cast<std::uint64_t>(a) == std::bit_cast<std::uint64_t>(b);
}

std::string text_of(double value) {
    char text[40];
    std::snprintf(text, sizeof text, "%.17g", value);
    return text;
}

}  // namespace

FloatGuards::Index FloatGuards::add(Step step) {
    steps_.push_back(std::move(step));
    return static_cast<Index>(steps_.size()) - 1;
}
FloatGuards::Index FloatGuards::given(std::int32_t node, double example, std::string name,
                                      std::string path) {
    return add({Make::Given, node, -1, example, std::move(name), std::move(path)});
}
FloatGuards::Index FloatGuards::constant(double value) {
    return add({Make::Constant, -1, -1, value, {}, {}});
}
FloatGuards::Index FloatGuards::integer(std::int32_t computed, double example) {
    return add({Make::Integer, computed, -1, example, {}, {}});
}

bool FloatGuards::is_constant(Index index) const {
    return steps_[static_cast<std::size_t>(index)].make == Make::Constant;
}

std::optional<FloatGuards::Index> FloatGuards::compute(Make make, Index a, Index b) {
    const double x = example(a), y = b < 0 ? 0 : example(b);
    const double result = carry_out(make, x, y);
    // CPython raises for a division by zero, and where powers and roots leave the numbers or give
    // complex ones.
    if (make == Make::Divide && !decide(Py_NE, b, constant(0))) return std::nullopt;
    if (make == Make::Root && !decide(Py_GE, a, constant(0))) return std::nullopt;
    const Index made = add({make, a, b, result, {}, {}});
    if (make == Make::Power) {
        if (!decide(Py_GT, a, constant(0))) return std::nullopt;
        for (const Index i : {a, b, made}) {
            if (!std::isfinite(example(i))) return std::nullopt;
            conditions_.push_back({Condition::Kind::Finite, 0, i, -1, true});
        }
    }
    return made;
}

bool FloatGuards::decide(int sign, Index a, Index b) {
    const bool truth = compare(sign, example(a), example(b));
    if (!is_constant(a) || !is_constant(b))
        conditions_.push_back({Condition::Kind::Relation, sign, a, b, truth});
    return truth;
}

void FloatGuards::fix(Index index) {
    if (!is_constant(index)) conditions_.push_back({Condition::Kind::Bits, Py_EQ, index, -1, true});
}

bool FloatGuards::holds(const Condition& c, std::span<const double> values) const {
    const double a = values[static_cast<std::size_t>(c.a)];
    switch (c.kind) {
        case Condition::Kind::Relation:
            return compare(c.sign, a, values[static_cast<std::size_t>(c.b)]) == c.truth;
        case Condition::Kind::Finite:
            return std::isfinite(a);
        case Condition::Kind::Bits:
            return same_bits(a, example(c.a));
    }
    return false;
}

bool FloatGuards::check(std::span<PyObject* const> nodes, const SizeGuards* sizes,
                        std::span<const std::int64_t> symbols, FloatValues& values,
                        std::string* failure) const {
    values.clear();
    for (const Step& s : steps_) {
        double value = s.example;
        if (s.make == Make::Given) {
            value = PyFloat_AS_DOUBLE(nodes[static_cast<std::size_t>(s.first)]);
        } else if (s.make == Make::Integer) {
            if (sizes == nullptr) return false;
            value = static_cast<double>(sizes->computed(s.first, symbols));
        } else if (s.make != Make::Constant) {
            value = carry_out(s.make, values[static_cast<std::size_t>(s.first)],
                              s.second < 0 ? 0 : values[static_cast<std::size_t>(s.second)]);
        }
        values.push_back(value);
    }
    for (const Condition& c : conditions_) {
        if (holds(c, values)) continue;
        if (failure != nullptr)
            *failure = "floats: " + text(c) + " no longer holds (it is " +
                       text_of(values[static_cast<std::size_t>(c.a)]) + ")";
        return false;
    }
    return true;
}

std::string FloatGuards::text(Index index) const {
    const Step& s = steps_[static_cast<std::size_t>(index)];
    const auto both = [&](const char* sign) {
        return "(" + text(s.first) + sign + text(s.second) + ")";
    };
    switch (s.make) {
        case Make::Given:
            return s.path;
        case Make::Constant:
            return text_of(s.example);
        case Make::Integer:
            return "an integer";
        case Make::Add:
            return both(" + ");
        case Make::Subtract:
            return both(" - ");
        case Make::Multiply:
            return both(" * ");
        case Make::Divide:
            return both(" / ");
        case Make::Power:
            return both(" ** ");
        case Make::Negate:
            return "-" + text(s.first);
        case Make::Absolute:
            return "abs(" + text(s.first) + ")";
        case Make::Root:
            return "sqrt(" + text(s.first) + ")";
    }
    return {};
}

std::string FloatGuards::text(const Condition& c) const {
    static constexpr const char* kSigns[] = {" < ", " <= ", " == ", " != ", " > ", " >= "};
    switch (c.kind) {
        case Condition::Kind::Relation:
            return std::string(c.truth ? "" : "not ") + text(c.a) + kSigns[c.sign] + text(c.b);
        case Condition::Kind::Finite:
            return text(c.a) + " is finite";
        case Condition::Kind::Bits:
            return text(c.a) + " == " + text_of(example(c.a));
    }
    return {};
}

std::vector<std::string> FloatGuards::sentences() const {
    std::vector<std::string> out;
    for (const Condition& c : conditions_) out.push_back("floats: " + text(c));
    return out;
}

void FloatGuards::collect(Index index, std::vector<std::string>& names) const {
    const Step& s = steps_[static_cast<std::size_t>(index)];
    if (s.make == Make::Given) names.push_back(s.name);
    if (s.make <= Make::Integer) return;
    collect(s.first, names);
    if (s.second >= 0) collect(s.second, names);
}

std::vector<std::string> FloatGuards::specialised() const {
    std::vector<std::string> names;
    for (const Condition& c : conditions_)
        if (c.kind == Condition::Kind::Bits) collect(c.a, names);
    return names;
}

}  // namespace ingot::capture
