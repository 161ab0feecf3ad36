// The floats of a segment that may be others at the next call: where they come from, what replays
// compute from them, and what must hold.
//
// Filled by the recorder, checked with the segment's other guards. Arithmetic on them is a list of
// steps over doubles, carried out as CPython does; operators of PyTorch are given the results as
// 0-dim tensors. Cost: a few nanoseconds a step and a relation.
#pragma once
#include <Python.h>
#include <c10/util/SmallVector.h>

#include <cstdint>
#include <initializer_list>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "capture/math_functions.h"

namespace ingot::capture {

class SizeGuards;
using FloatValues = c10::SmallVector<double, 6>;

class FloatGuards {
  public:
    using Index = std::int32_t;
    enum class Make : std::uint8_t {
        Given,     // the float that is node `first`
        Constant,  // `example`
        Integer,   // integer `first` of those that the sizes' guards compute
        Add,
        Subtract,
        Multiply,
        Divide,
        Power,
        Negate,
        Absolute,
        Root,
        Function,  // one of math_functions.h
    };

    /// `name`: in the history of numbers; `path`: for people.
    Index given(std::int32_t node, double example, std::string name, std::string path);
    Index constant(double value);
    Index integer(std::int32_t computed, double example);
    /// The result of an operation, with guards that it raises nothing and gives a float; nothing
    /// where it does not.
    std::optional<Index> compute(Make make, Index a, Index b = -1);
    /// The same for a function of one or two floats.
    std::optional<Index> compute(const MathFunction& function, Index a, Index b = -1);
    /// Whether `a sign b` (Python's signs), with a guard that it stays so.
    bool decide(int sign, Index a, Index b);
    /// A guard that it has this value, bit by bit.
    void fix(Index index);
    double example(Index index) const { return steps_[static_cast<std::size_t>(index)].example; }
    bool empty() const { return steps_.empty(); }

    /// Adds the values of the steps up to `last` that `values` does not have yet. `sizes`: nullptr
    /// if no integer is symbolic; `symbols`: the numbers of those that were there before `last`.
    void compute_to(Index last, std::span<PyObject* const> nodes, const SizeGuards* sizes,
                    std::span<const std::int64_t> symbols, FloatValues& values) const;
    /// Whether the segment is valid for the nodes' objects; adds the values of all steps.
    bool check(std::span<PyObject* const> nodes, const SizeGuards* sizes,
               std::span<const std::int64_t> symbols, FloatValues& values,
               std::string* failure) const;
    std::vector<std::string> sentences() const;
    /// The names of floats of which the recording has needed the value. `integers` gets the
    /// integers (as in `integer`) that have gone into such values.
    std::vector<std::string> specialised(std::vector<std::int32_t>& integers) const;

  private:
    struct Step {
        Make make = Make::Constant;
        Index first = -1, second = -1;
        double example = 0;
        std::string name, path;
        const MathFunction* function = nullptr;
    };
    struct Condition {
        enum class Kind : std::uint8_t { Relation, Finite, Bits } kind;
        int sign = 0;
        Index a = -1, b = -1;
        bool truth = true;
    };
    Index add(Step step);
    bool is_constant(Index index) const;
    /// Guards that they are; false where one is not.
    bool all_finite(std::initializer_list<Index> floats);
    bool holds(const Condition& condition, std::span<const double> values) const;
    static double carry_out(const Step& step, double a, double b);
    std::string text(Index index) const;
    std::string text(const Condition& condition) const;
    void collect(Index index, std::vector<std::string>& names,
                 std::vector<std::int32_t>& integers) const;

    std::vector<Step> steps_;
    std::vector<Condition> conditions_;
};

}  // namespace ingot::capture
