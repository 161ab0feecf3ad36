// Arithmetic on symbolic numbers while recording, and the functions of numbers that are followed:
// what an operator of Python or a function of `math` gives for integers is an expression of the
// sizes, for floats a step of FloatGuards. An integer that is rounded from a float (`int(n * 0.7)`)
// is a symbol of its own, whose number a replay finds by the step. A part of recording.h.
//
// Costs a few comparisons an operation while something is symbolic.
#include <opcode.h>

#include <algorithm>
#include <array>
#include <cmath>

#include "capture/objects.h"
#include "capture/recording.h"

namespace ingot::capture {
namespace {

using Sign = SizeGuard::Relation;

bool is_sequence(PyObject* o) { return PyTuple_Check(o) || PyList_Check(o); }

/// x & mask of a mask with k ones: x modulo 2 ** k, also of what is negative.
std::optional<Expr> masked(Expr a, Expr b) {
    if (a.is_constant()) std::swap(a, b);
    if (!b.is_constant() || b.constant() < 0 || (b.constant() & (b.constant() + 1)) != 0)
        return std::nullopt;
    return mod(a, b + Expr(1));
}

std::optional<Expr> power(Expr a, Expr b) {
    constexpr std::int64_t kMost = 8;
    if (!b.is_constant() || b.constant() < 0 || b.constant() > kMost) return std::nullopt;
    Expr product = 1;
    for (std::int64_t i = 0; i < b.constant(); ++i) product *= a;
    return product;
}

std::optional<Expr> arithmetic(trace::SymbolicSizes& sizes, int detail, Expr a, Expr b) {
    constexpr std::int64_t kMostBits = 32;
    const bool shifts = b.is_constant() && b.constant() >= 0 && b.constant() <= kMostBits;
    switch (operator_of(detail)) {
        case NB_ADD:
            return a + b;
        case NB_SUBTRACT:
            return a - b;
        case NB_MULTIPLY:
            return a * b;
        case NB_FLOOR_DIVIDE:
        case NB_REMAINDER:
            // A divisor of another sign would be another relation of the parts.
            if (!sizes.decide(Sign::Lt, 0, b)) return std::nullopt;
            return operator_of(detail) == NB_FLOOR_DIVIDE ? floor_div(a, b) : mod(a, b);
        case NB_POWER:
            return power(a, b);
        case NB_AND:
            return masked(a, b);
        case NB_LSHIFT:
            return shifts ? std::optional(a * Expr(std::int64_t{1} << b.constant())) : std::nullopt;
        case NB_RSHIFT:
            return shifts ? std::optional(floor_div(a, Expr(std::int64_t{1} << b.constant())))
                          : std::nullopt;
        default:
            return std::nullopt;
    }
}

}  // namespace

int operator_of(int detail) {
    return detail >= NB_INPLACE_ADD ? detail - NB_INPLACE_ADD + NB_ADD : detail;
}

bool Recording::follow_binary(const Event& event, PyObject** result) {
    PyObject *left = event.operands[0], *right = event.operands[1];
    if (is_tensor(left) || is_tensor(right)) {
        // How a power is computed turns on its exponent.
        if (operator_of(event.detail) == NB_POWER && numbers_->find_float(right))
            numbers_->specialise(right);
        return false;
    }
    if (is_sequence(left) && is_sequence(right) && operator_of(event.detail) == NB_ADD)
        return false;
    const auto a = numbers_->value_of(left), b = numbers_->value_of(right);
    if (a && b && (a->is_heap_allocated() || b->is_heap_allocated())) {
        const auto value =
            arithmetic(*recorder_->symbols(), event.detail, trace::unwrap(*a), trace::unwrap(*b));
        if (value) {
            *result = numbers_->add_number(recorder_->symbols()->wrap(*value)).release();
            return true;
        }
    }
    if (follow_float_binary(event, result)) return true;
    numbers_->specialise(event.operands);
    return false;
}

bool Recording::follow_float_binary(const Event& event, PyObject** result) {
    PyObject *left = event.operands[0], *right = event.operands[1];
    if (!numbers_->is_symbolic(left) && !numbers_->is_symbolic(right)) return false;
    const bool integers = PyLong_CheckExact(left) && PyLong_CheckExact(right);
    using Make = FloatGuards::Make;
    std::optional<Make> make;
    const MathFunction* function = nullptr;
    switch (operator_of(event.detail)) {
        case NB_ADD:
            make = Make::Add;
            break;
        case NB_SUBTRACT:
            make = Make::Subtract;
            break;
        case NB_MULTIPLY:
            make = Make::Multiply;
            break;
        case NB_TRUE_DIVIDE:
            make = Make::Divide;
            break;
        case NB_POWER:
            make = Make::Power;
            break;
        case NB_FLOOR_DIVIDE:
            function = find_math_function("//", 2);
            break;
        case NB_REMAINDER:
            function = find_math_function("%", 2);
            break;
        default:
            return false;
    }
    if (integers && make != Make::Divide) return false;
    FloatGuards& floats = segment_->guards.floats;
    const auto a = numbers_->float_of(left), b = numbers_->float_of(right);
    if (!a || !b) return false;
    return give_float(
        function != nullptr ? floats.compute(*function, *a, *b) : floats.compute(*make, *a, *b),
        result);
}

bool Recording::give_float(std::optional<FloatGuards::Index> value, PyObject** result) {
    if (value) *result = numbers_->add_float(*value).release();
    return value.has_value();
}

bool Recording::give_rounded(std::string_view function, PyObject* number, PyObject** result) {
    FloatGuards& floats = segment_->guards.floats;
    const auto value = numbers_->float_of(number);
    const auto whole = value ? floats.compute(*find_math_function(function, 1), *value)
                             : std::optional<FloatGuards::Index>();
    constexpr double kMost = 0x1p40;
    if (!whole || std::fabs(floats.example(*whole)) >= kMost) return false;
    const auto n = static_cast<std::int64_t>(floats.example(*whole));
    if (n < 2) {  // small ones are no symbols, as sizes are not
        (void)floats.decide(Py_EQ, *whole, floats.constant(static_cast<double>(n)));
        *result = PyLong_FromLongLong(n);
        return true;
    }
    if (context_.backend != nullptr) return false;  // it computes with what it is given
    const trace::SymbolicSize size{"r" + std::to_string(rounded_++), SizeHistory::range_for(n)};
    const c10::SymInt symbol = recorder_->add_number(n, size);
    segment_->guards.sizes().add_rounded(*whole, trace::unwrap(symbol));
    *result = numbers_->add_number(symbol).release();
    if (scope_) scope_->take_composites_apart();
    return true;
}

bool Recording::follow_function_of_integer(const std::string& name,
                                           std::span<PyObject* const> given, PyObject** result) {
    const auto number = numbers_->value_of(given[0]);
    if (!number) return false;
    trace::SymbolicSizes& sizes = *recorder_->symbols();
    const Expr value = trace::unwrap(*number);
    if (given.size() == 1) {
        const bool same = name == "round" || name == "math.floor" || name == "math.ceil" ||
                          name == "math.trunc" || name == "_operator.index";
        if (!same && name != "abs") return false;
        if (same || sizes.decide(Sign::Le, 0, value))
            *result = Py_NewRef(given[0]);
        else
            *result = numbers_->add_number(sizes.wrap(-value)).release();
        return true;
    }
    const auto other = given.size() == 2 ? numbers_->value_of(given[1]) : std::nullopt;
    if (!other || name != "divmod") return false;
    const Expr divisor = trace::unwrap(*other);
    const auto quotient = arithmetic(sizes, NB_FLOOR_DIVIDE, value, divisor);
    const auto rest = arithmetic(sizes, NB_REMAINDER, value, divisor);
    if (!quotient || !rest) return false;
    const Ref a = numbers_->add_number(sizes.wrap(*quotient)),
              b = numbers_->add_number(sizes.wrap(*rest));
    *result = PyTuple_Pack(2, a.get(), b.get());
    return true;
}

bool Recording::follow_function(const std::string& name, std::span<PyObject* const> given,
                                PyObject** result) {
    const auto is_symbolic = [&](PyObject* o) { return numbers_->is_symbolic(o); };
    if (given.empty() || given.size() > 2 || std::ranges::none_of(given, is_symbolic)) return false;
    if (name == "pow" && given.size() == 2) {
        const Event power{Operation::binary, NB_POWER, given};
        return follow_binary(power, result);
    }
    if (follow_function_of_integer(name, given, result)) return true;
    FloatGuards& floats = segment_->guards.floats;
    const bool one = given.size() == 1, is_float = PyFloat_CheckExact(given[0]);
    if (one &&
        (name == "math.ceil" || name == "math.floor" || name == "math.trunc" || name == "round"))
        return give_rounded(name, given[0], result);
    std::optional<FloatGuards::Make> make;
    if (name == "math.sqrt") make = FloatGuards::Make::Root;
    if (name == "math.fabs" || (name == "abs" && is_float)) make = FloatGuards::Make::Absolute;
    const MathFunction* function = make ? nullptr : find_math_function(name, given.size());
    if (!make && function == nullptr) return false;
    const auto a = numbers_->float_of(given[0]);
    const auto b = one ? a : numbers_->float_of(given[1]);
    if (!a || !b) return false;
    if (make) return give_float(floats.compute(*make, *a), result);
    return give_float(floats.compute(*function, *a, one ? -1 : *b), result);
}

bool Recording::follow_extreme(std::span<PyObject* const> arguments, bool most, PyObject** result) {
    if (arguments.size() < 2) return false;
    if (std::ranges::any_of(arguments, [](PyObject* o) { return PyFloat_CheckExact(o); })) {
        if (std::ranges::none_of(arguments, [&](PyObject* o) { return numbers_->is_symbolic(o); }))
            return false;
        PyObject* best = nullptr;
        std::optional<FloatGuards::Index> most_so_far;
        for (PyObject* o : arguments) {
            const auto number = numbers_->float_of(o);
            if (!number) return false;
            if (best != nullptr &&
                !segment_->guards.floats.decide(most ? Py_GT : Py_LT, *number, *most_so_far))
                continue;
            best = o;
            most_so_far = number;
        }
        *result = Py_NewRef(best);
        return true;
    }
    std::optional<Expr> value;
    for (PyObject* o : arguments) {
        const auto number = numbers_->value_of(o);
        if (!number) return false;
        const Expr e = trace::unwrap(*number);
        value = !value ? e : most ? max(*value, e) : min(*value, e);
    }
    *result = numbers_->add_number(recorder_->symbols()->wrap(*value)).release();
    return true;
}

}  // namespace ingot::capture
