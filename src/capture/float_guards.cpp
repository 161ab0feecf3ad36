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

bool same_bits(double a, double b) {
    return std::bit_cast<std::uint64_t>(a) == std::bit_cast<std::uint64_t>(b);
}

std::string text_of(double value) {
    char text[40];
    std::snprintf(text, sizeof text, "%.17g", value);
    return text;
}

}  // namespace

double FloatGuards::carry_out(const Step& step, double a, double b) {
    switch (step.make) {
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
        case Make::Function:
            return step.second < 0 ? step.function->of_one(a) : step.function->of_two(a, b);
        case Make::Given:
        case Make::Constant:
        case Make::Integer:
            break;
    }
    return a;
}

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
    Step step{make, a, b, 0, {}, {}};
    step.example = carry_out(step, example(a), b < 0 ? 0 : example(b));
    // CPython raises for a division by zero, and where powers and roots leave the numbers or give
    // complex ones.
    if (make == Make::Divide && !decide(Py_NE, b, constant(0))) return std::nullopt;
    if (make == Make::Root && !decide(Py_GE, a, constant(0))) return std::nullopt;
    const Index made = add(std::move(step));
    if (make == Make::Power)
        if (!decide(Py_GT, a, constant(0)) || !all_finite({a, b, made})) return std::nullopt;
    return made;
}

/// Of finite numbers these raise nothing where the result is finite.
std::optional<FloatGuards::Index> FloatGuards::compute(const MathFunction& function, Index a,
                                                       Index b) {
    Step step{Make::Function, a, b, 0, {}, {}, &function};
    step.example = carry_out(step, example(a), b < 0 ? 0 : example(b));
    const Index made = add(std::move(step));
    const bool finite = b < 0 ? all_finite({a, made}) : all_finite({a, b, made});
    return finite ? std::optional(made) : std::nullopt;
}

bool FloatGuards::all_finite(std::initializer_list<Index> floats) {
    for (const Index i : floats) {
        if (!std::isfinite(example(i))) return false;
        if (!is_constant(i)) conditions_.push_back({Condition::Kind::Finite, 0, i, -1, true});
    }
    return true;
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

void FloatGuards::compute_to(Index last, std::span<PyObject* const> nodes, const SizeGuards* sizes,
                             std::span<const std::int64_t> symbols, FloatValues& values) const {
    while (static_cast<Index>(values.size()) <= last) {
        const Step& s = steps_[values.size()];
        double value = s.example;
        if (s.make == Make::Given) {
            value = PyFloat_AS_DOUBLE(nodes[static_cast<std::size_t>(s.first)]);
        } else if (s.make == Make::Integer) {
            value = static_cast<double>(sizes->computed(s.first, symbols));
        } else if (s.make != Make::Constant) {
            value = carry_out(s, values[static_cast<std::size_t>(s.first)],
                              s.second < 0 ? 0 : values[static_cast<std::size_t>(s.second)]);
        }
        values.push_back(value);
    }
}

bool FloatGuards::check(std::span<PyObject* const> nodes, const SizeGuards* sizes,
                        std::span<const std::int64_t> symbols, FloatValues& values,
                        std::string* failure) const {
    compute_to(static_cast<Index>(steps_.size()) - 1, nodes, sizes, symbols, values);
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
        case Make::Function:
            return std::string(s.function->name) + "(" + text(s.first) +
                   (s.second < 0 ? std::string() : ", " + text(s.second)) + ")";
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

void FloatGuards::collect(Index index, std::vector<std::string>& names,
                          std::vector<std::int32_t>& integers) const {
    const Step& s = steps_[static_cast<std::size_t>(index)];
    if (s.make == Make::Given) names.push_back(s.name);
    if (s.make == Make::Integer) integers.push_back(s.first);
    if (s.make <= Make::Integer) return;
    collect(s.first, names, integers);
    if (s.second >= 0) collect(s.second, names, integers);
}

std::vector<std::string> FloatGuards::specialised(std::vector<std::int32_t>& integers) const {
    std::vector<std::string> names;
    for (const Condition& c : conditions_)
        if (c.kind == Condition::Kind::Bits) collect(c.a, names, integers);
    return names;
}

}  // namespace ingot::capture
