// Movement, creation and complex views in the reference evaluator: index arithmetic written out.
#include "ir/reference_call.h"

namespace ingot::reference {

namespace {

// out[index] = x[source(index)], or left as it is where source gives a negative offset.
template <class Source>
void copy_elements(Tensor& out, const Tensor& x, const Source& source) {
    std::int64_t at = 0;
    for_each_index(out.sizes, [&](const Ints& index) {
        std::int64_t from = source(index);
        if (from >= 0) {
            check(from < x.numel(), "a view reaches past its operand");
            out.set(at, x.get(from));
        }
        ++at;
    });
}

void concat(const Call& c) {
    auto dim = static_cast<std::size_t>(c.integer("dim"));
    const Ints strides = dense_strides(c.out[0].sizes);
    std::int64_t begin = 0;
    for (const Tensor& x : c.x) {
        std::int64_t from = 0;
        for_each_index(x.sizes, [&](const Ints& index) {
            c.out[0].set(dot(index, strides) + begin * strides[dim], x.get(from++));
        });
        begin += x.sizes[dim];
    }
}

void window(const Call& c, const Ints& strides) {
    const Ints &dims = c.ints("dims"), &steps = c.ints("steps"), &dilations = c.ints("dilations");
    const std::size_t rank = c.x[0].sizes.size();
    copy_elements(c.out[0], c.x[0], [&](const Ints& index) {
        Ints from(index.begin(), index.begin() + static_cast<std::ptrdiff_t>(rank));
        for (std::size_t i = 0; i < dims.size(); ++i) {
            auto d = static_cast<std::size_t>(dims[i]);
            from[d] = from[d] * steps[i] + index[rank + i] * dilations[i];
        }
        return dot(from, strides);
    });
}

// The offset in an operand of these strides of element `index` of its diagonal.
std::int64_t diagonal_offset(const Call& c, const Ints& index, const Ints& strides) {
    auto d1 = static_cast<std::size_t>(c.integer("dim1"));
    auto d2 = static_cast<std::size_t>(c.integer("dim2"));
    std::int64_t offset = c.integer("offset"), at = 0;
    std::size_t next = 0;
    for (std::size_t d = 0; d < strides.size(); ++d) {
        if (d == d1)
            at += (index.back() + (offset < 0 ? -offset : 0)) * strides[d];
        else if (d == d2)
            at += (index.back() + (offset > 0 ? offset : 0)) * strides[d];
        else
            at += index[next++] * strides[d];
    }
    return at;
}

void update(const Call& c, const Ints& strides) {
    c.out[0] = c.x[0];
    std::int64_t from = 0;
    Ints starts, steps;
    if (c.prim == Prim::Update) {
        starts = c.sizes("starts");
        steps = c.ints("steps");
    } else if (c.prim == Prim::UpdateStrided) {
        steps = c.sizes("strides");
    }
    for_each_index(c.x[1].sizes, [&](const Ints& index) {
        std::int64_t to = 0;
        if (c.prim == Prim::UpdateDiagonal)
            to = diagonal_offset(c, index, strides);
        else if (c.prim == Prim::UpdateStrided)
            to = dot(index, steps) + c.value(c.attr<Expr>("offset"));
        else
            for (std::size_t d = 0; d < index.size(); ++d)
                to += (starts[d] + index[d] * steps[d]) * strides[d];
        check(to >= 0 && to < c.out[0].numel(), "an update reaches past its operand");
        c.out[0].set(to, c.x[1].get(from++));
    });
}

void pad(const Call& c, const Ints& strides) {
    Num border = to_num(c.attr<Scalar>("value"), c.out[0].dtype);
    for (std::int64_t i = 0; i < c.out[0].numel(); ++i) c.out[0].set(i, border);
    Ints low = c.sizes("low");
    const Ints& sizes = c.x[0].sizes;
    copy_elements(c.out[0], c.x[0], [&](const Ints& index) -> std::int64_t {
        std::int64_t at = 0;
        for (std::size_t d = 0; d < index.size(); ++d) {
            std::int64_t i = index[d] - low[d];
            if (i < 0 || i >= sizes[d]) return -1;
            at += i * strides[d];
        }
        return at;
    });
}

}  // namespace

void movement(const Call& c) {
    const Ints strides = dense_strides(c.x[0].sizes);
    Tensor& out = c.out[0];
    switch (c.prim) {
        case Prim::Permute: {
            Ints moved;
            for (std::int64_t d : c.ints("dims")) moved.push_back(strides[static_cast<size_t>(d)]);
            return copy_elements(out, c.x[0], [&](const Ints& i) { return dot(i, moved); });
        }
        case Prim::Broadcast: {
            Ints spread(out.sizes.size(), 0);
            const Ints& dims = c.ints("dims");
            for (std::size_t i = 0; i < dims.size(); ++i)
                if (c.x[0].sizes[i] != 1) spread[static_cast<std::size_t>(dims[i])] = strides[i];
            return copy_elements(out, c.x[0], [&](const Ints& i) { return dot(i, spread); });
        }
        case Prim::Reshape:
            check(out.numel() == c.x[0].numel(), "a reshape changes the number of elements");
            out.data = c.x[0].data;
            return;
        case Prim::Slice: {
            Ints starts = c.sizes("starts"), stepped = strides;
            for (std::size_t d = 0; d < stepped.size(); ++d) stepped[d] *= c.ints("steps")[d];
            std::int64_t begin = dot(starts, strides);
            return copy_elements(out, c.x[0],
                                 [&](const Ints& i) { return begin + dot(i, stepped); });
        }
        case Prim::Flip: {
            Ints back = strides;
            std::int64_t begin = 0;
            for (std::int64_t d : c.ints("dims")) {
                auto k = static_cast<std::size_t>(d);
                begin += (c.x[0].sizes[k] - 1) * strides[k];
                back[k] = -strides[k];
            }
            return copy_elements(out, c.x[0], [&](const Ints& i) { return begin + dot(i, back); });
        }
        case Prim::Pad:
            return pad(c, strides);
        case Prim::Concat:
            return concat(c);
        case Prim::Window:
            return window(c, strides);
        case Prim::Diagonal:
            return copy_elements(out, c.x[0],
                                 [&](const Ints& i) { return diagonal_offset(c, i, strides); });
        case Prim::AsStrided: {
            Ints steps = c.sizes("strides");
            std::int64_t begin = c.value(c.attr<Expr>("offset"));
            return copy_elements(out, c.x[0], [&](const Ints& i) { return begin + dot(i, steps); });
        }
        default:
            return update(c, strides);
    }
}

void creation(const Call& c) {
    Tensor& out = c.out[0];
    auto fill = [&](Num v) {
        for (std::int64_t i = 0; i < out.numel(); ++i) out.set(i, v);
    };
    switch (c.prim) {
        case Prim::Full:
            return fill(to_num(c.attr<Scalar>("value"), out.dtype));
        case Prim::SizeValue:
            return fill(convert_num({0, 0, c.value(c.attr<Expr>("size"))}, DType::I64, out.dtype));
        case Prim::Iota: {
            auto dim = static_cast<std::size_t>(c.integer("dim"));
            const auto &start = c.attr<Scalar>("start"), &step = c.attr<Scalar>("step");
            std::int64_t at = 0;
            for_each_index(out.sizes, [&](const Ints& index) {
                Num v;
                if (is_integral(out.dtype))
                    v.i = wrap_int(start.to_int() + step.to_int() * index[dim], out.dtype);
                else
                    v.re = start.to_double() + step.to_double() * static_cast<double>(index[dim]);
                out.set(at++, round_num(v, out.dtype));
            });
            return;
        }
        case Prim::Constant:
            out.data = *c.attr<std::shared_ptr<const std::vector<std::uint8_t>>>("data");
            check(static_cast<std::int64_t>(out.data.size()) == out.numel() * bytes(out.dtype),
                  "a constant's data has another size");
            return;
        default:  // Empty: any value will do
            return;
    }
}

void complex_view(const Call& c) {
    // All of them keep the bytes.
    check(c.out[0].data.size() == c.x[0].data.size(), "a view of other types changes the bytes");
    c.out[0].data = c.x[0].data;
}

}  // namespace ingot::reference
