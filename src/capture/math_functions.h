// Functions of Python's `math` (and of its floats) that replays carry out on floats that change.
//
// Each is what CPython calls for finite arguments and a finite result, to the last bit: the C
// library's function, or CPython's few lines around it. Functions that CPython computes in a way of
// its own (`math.hypot`, `math.gamma`) are not here; their numbers are fixed.
//
// Flow: named by the recorder (number_functions.cpp), carried out by FloatGuards.
#pragma once
#include <cstddef>
#include <string_view>

namespace ingot::capture {

struct MathFunction {
    std::string_view name;  // as `classify` names it
    double (*of_one)(double) = nullptr;
    double (*of_two)(double, double) = nullptr;
};

/// The function of so many arguments; nullptr if there is none.
const MathFunction* find_math_function(std::string_view name, std::size_t arguments);

}  // namespace ingot::capture
