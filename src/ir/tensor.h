// Dense tensors and single numbers of any element type: what the reference evaluator computes with.
// Plain and slow on purpose; nothing here runs in compiled programs except the folding of small
// constants.
#pragma once
#include <cstdint>
#include <functional>
#include <span>
#include <vector>

#include "ir/graph.h"

namespace ingot {

/// One number of a known element type: integers and bools in `i` (u64 as two's complement), floats
/// in `re`, complex numbers in `re` and `im`.
struct Num {
    double re = 0;
    double im = 0;
    std::int64_t i = 0;
};

/// Row-major elements, little-endian, without gaps.
struct Tensor {
    DType dtype = DType::F32;
    Ints sizes;
    std::vector<std::uint8_t> data;

    Tensor() = default;
    /// All zeros.
    Tensor(DType dtype, Ints sizes);
    std::int64_t numel() const;
    int rank() const { return static_cast<int>(sizes.size()); }
    Num get(std::int64_t index) const;
    void set(std::int64_t index, Num value);
    friend bool operator==(const Tensor&, const Tensor&) = default;
};

/// Reads and writes an element at `at` in memory.
Num load_num(DType dtype, const std::uint8_t* at);
void store_num(DType dtype, std::uint8_t* at, Num value);

/// `v` wrapped to the integer type (bool: whether it is not zero).
std::int64_t wrap_int(std::int64_t v, DType dtype);
/// `v` rounded to the float type, through the compute type as eager does.
double round_float(double v, DType dtype);
/// The components rounded or wrapped to the type.
Num round_num(Num v, DType dtype);
/// PyTorch's conversion between element types.
Num convert_num(Num v, DType from, DType to);
Num to_num(const Scalar& s, DType dtype);
bool is_nonzero(Num v, DType dtype);
/// The number as a double (integers exactly as far as a double can).
double to_double(Num v, DType dtype);

/// The bits of reduced floats and back.
std::uint16_t to_bits(float v, DType dtype);
float from_bits(std::uint16_t bits, DType dtype);

/// Row-major strides of numbers.
Ints dense_strides(std::span<const std::int64_t> sizes);
std::int64_t count_of(std::span<const std::int64_t> sizes);
/// Calls `visit` with every index vector of the box `sizes`, the last dim fastest.
void for_each_index(std::span<const std::int64_t> sizes,
                    const std::function<void(const Ints& index)>& visit);

}  // namespace ingot
