// What PyTorch keeps of a tensor beside its memory, and asks before it changes it: whether it shows
// the conjugate or the negative of what lies there, and how a view of it came about. A promise has
// these marks from PyTorch's own code; a program's results get them when they are made.
//
// `a, b = x.split(2)`: PyTorch refuses a change of `a` in place where a gradient would need it,
// because `split` gives several views. Costs nothing where there are no marks, else an alias (about
// 1 µs). Beside recorder.h, for those who make results.
#pragma once
#include <ATen/core/Tensor.h>

#include <cstdint>

namespace ingot::trace {

struct ResultMarks {
    bool conj = false, neg = false;
    std::uint8_t creation = 0;  // torch::autograd::CreationMeta of a view
    std::uint32_t version = 0;  // how often it was changed in place
    bool any() const { return conj || neg || creation != 0 || version != 0; }
    bool bits() const { return conj || neg; }
};

/// The marks of a promise.
ResultMarks marks_of(const at::Tensor& promise);
/// To PyTorch `tensor` shows the conjugate or the negative of what lies in its memory, or does not.
void set_bits(c10::TensorImpl& tensor, bool conj, bool neg);
/// A view of `memory` with these bits: the lazy conjugate or negative of it, made by PyTorch.
at::Tensor with_bits(const at::Tensor& memory, const ResultMarks& marks);
/// Says of a view how it came about.
void set_creation(const at::Tensor& view, const ResultMarks& marks);
/// A result that alone is left of its memory, as a part with these marks. It has no history yet.
at::Tensor as_marked(const at::Tensor& memory, const ResultMarks& marks);

}  // namespace ingot::trace
