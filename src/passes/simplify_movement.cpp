// Rules on movement and reduction prims: composed, dropped, or brought to the form that says least.
// Pure renamings of dims end as reshapes, so that chains of them meet and cancel.
#include <algorithm>

#include "passes/simplify_rules.h"

namespace ingot::simplify_rules {

namespace {

bool is_identity(const Ints& dims) {
    for (std::size_t i = 0; i < dims.size(); ++i)
        if (dims[i] != static_cast<std::int64_t>(i)) return false;
    return true;
}

ValueId reshape(const Site& s, ValueId x) {
    if (s.out.type(x).sizes == s.type.sizes) return x;
    return s.out.emit(Prim::Reshape, {x}, {{"sizes", s.type.sizes}});
}

// Movement of a constant of one value.
std::optional<ValueId> of_full(const Site& s) {
    std::optional<Scalar> value;
    for (ValueId v : s.x) {
        auto other = full_value(s.out.graph(), v);
        if (!other || (value && !(*value == *other))) return std::nullopt;
        value = other;
    }
    if (!value) return std::nullopt;
    if (s.prim == Prim::Pad) {
        Num border = to_num(s.attrs.get<Scalar>("value"), s.type.dtype);
        Num inside = to_num(*value, s.type.dtype);
        if (!(to_scalar(border, s.type.dtype) == to_scalar(inside, s.type.dtype)))
            return std::nullopt;
    }
    return s.out.full(s.type, *value);
}

std::optional<ValueId> permute(const Site& s) {
    const Ints& dims = s.attrs.get<Ints>("dims");
    if (is_identity(dims)) return s.x[0];
    if (const Node* inner = s.out.made_by(s.x[0], Prim::Permute)) {
        const Ints& first = inner->attrs.get<Ints>("dims");
        Ints both;
        for (std::int64_t d : dims) both.push_back(first[static_cast<std::size_t>(d)]);
        return s.out.emit(Prim::Permute, {inner->operands[0]}, {{"dims", both}});
    }
    // Dims of size 1 may stand anywhere: where the others keep their order, nothing moves.
    std::int64_t last = -1;
    for (std::int64_t d : dims) {
        if (s.out.type(s.x[0]).sizes[static_cast<std::size_t>(d)].is(1)) continue;
        if (d < last) return std::nullopt;
        last = d;
    }
    return reshape(s, s.x[0]);
}

// For a reshape that only puts in dims of size 1: the result dim of each operand dim.
std::optional<Ints> inserted_ones(const Sizes& from, const Sizes& to) {
    Ints dims;
    std::size_t i = 0;
    for (std::size_t d = 0; d < to.size(); ++d) {
        std::size_t left_from = from.size() - i, left_to = to.size() - d;
        if (left_from > left_to) return std::nullopt;
        bool must_take = left_from == left_to;
        if (i < from.size() && (must_take || !to[d].is(1)) && from[i] == to[d]) {
            dims.push_back(static_cast<std::int64_t>(d));
            ++i;
        } else if (!to[d].is(1)) {
            return std::nullopt;
        }
    }
    if (i != from.size()) return std::nullopt;
    return dims;
}

std::optional<ValueId> broadcast(const Site& s) {
    const Ints& dims = s.attrs.get<Ints>("dims");
    const Sizes& from = s.out.type(s.x[0]).sizes;
    if (is_identity(dims) && from == s.type.sizes) return s.x[0];
    if (const Node* inner = s.out.made_by(s.x[0], Prim::Broadcast)) {
        Ints both;
        for (std::int64_t d : inner->attrs.get<Ints>("dims"))
            both.push_back(dims[static_cast<std::size_t>(d)]);
        return s.out.emit(Prim::Broadcast, {inner->operands[0]},
                          {{"sizes", s.type.sizes}, {"dims", both}});
    }
    if (const Node* inner = s.out.made_by(s.x[0], Prim::Reshape)) {
        ValueId x = inner->operands[0];
        if (auto kept = inserted_ones(s.out.type(x).sizes, from)) {
            Ints both;
            for (std::int64_t d : *kept) both.push_back(dims[static_cast<std::size_t>(d)]);
            return s.out.emit(Prim::Broadcast, {x}, {{"sizes", s.type.sizes}, {"dims", both}});
        }
    }
    // Nothing repeated and no order changed: dims of size 1 put in.
    if (!std::is_sorted(dims.begin(), dims.end())) return std::nullopt;
    std::size_t i = 0;
    for (std::size_t d = 0; d < s.type.sizes.size(); ++d) {
        bool kept = i < dims.size() && dims[i] == static_cast<std::int64_t>(d);
        if (kept ? !(from[i] == s.type.sizes[d]) : !s.type.sizes[d].is(1)) return std::nullopt;
        i += kept;
    }
    return reshape(s, s.x[0]);
}

std::optional<ValueId> slice(const Site& s) {
    const Sizes &starts = s.attrs.get<Sizes>("starts"), &ends = s.attrs.get<Sizes>("ends");
    const Ints& steps = s.attrs.get<Ints>("steps");
    const Sizes& from = s.out.type(s.x[0]).sizes;
    bool whole = true;
    for (std::size_t d = 0; d < from.size(); ++d)
        whole = whole && starts[d].is(0) && steps[d] == 1 && ends[d] == from[d];
    if (whole) return s.x[0];
    const Node* inner = s.out.made_by(s.x[0], Prim::Slice);
    if (inner == nullptr) return std::nullopt;
    Sizes both_starts = inner->attrs.get<Sizes>("starts"), both_ends;
    Ints both_steps = inner->attrs.get<Ints>("steps");
    for (std::size_t d = 0; d < from.size(); ++d) {
        Expr begin = both_starts[d];
        if (ends[d] == starts[d]) {  // nothing, wherever it begins: not past the operand
            both_ends.push_back(begin);
            both_steps[d] *= steps[d];
            continue;
        }
        both_starts[d] = begin + starts[d] * Expr(both_steps[d]);
        // The last element, exactly: an end past it would be past the operand.
        Expr last = begin + (ends[d] - Expr(1)) * Expr(both_steps[d]);
        both_ends.push_back(last + Expr(1));
        both_steps[d] *= steps[d];
    }
    return s.out.emit(Prim::Slice, {inner->operands[0]},
                      {{"starts", both_starts}, {"ends", both_ends}, {"steps", both_steps}});
}

std::optional<ValueId> pad(const Site& s) {
    for (const char* side : {"low", "high"})
        for (Expr e : s.attrs.get<Sizes>(side))
            if (!e.is(0)) return std::nullopt;
    return s.x[0];
}

// A slice of one dim that lies inside one operand of a concat along it.
std::optional<ValueId> slice_of_concat(const Site& s) {
    const Node* inner = s.out.made_by(s.x[0], Prim::Concat);
    if (inner == nullptr) return std::nullopt;
    auto dim = static_cast<std::size_t>(inner->attrs.get<std::int64_t>("dim"));
    Sizes starts = s.attrs.get<Sizes>("starts"), ends = s.attrs.get<Sizes>("ends");
    Expr begin = 0;
    for (ValueId part : inner->operands) {
        Expr end = begin + s.out.type(part).sizes[dim];
        if (known_le(begin, starts[dim]) == true && known_le(ends[dim], end) == true) {
            starts[dim] = starts[dim] - begin;
            ends[dim] = ends[dim] - begin;
            return s.out.emit(
                Prim::Slice, {part},
                {{"starts", starts}, {"ends", ends}, {"steps", s.attrs.get<Ints>("steps")}});
        }
        begin = end;
    }
    return std::nullopt;
}

}  // namespace

std::optional<ValueId> movement(const Site& s) {
    if (s.prim != Prim::Update && s.prim != Prim::UpdateDiagonal && s.prim != Prim::UpdateStrided)
        if (auto v = of_full(s)) return v;
    switch (s.prim) {
        case Prim::Permute:
            return permute(s);
        case Prim::Broadcast:
            return broadcast(s);
        case Prim::Reshape:
            if (s.out.type(s.x[0]).sizes == s.type.sizes) return s.x[0];
            if (const Node* inner = s.out.made_by(s.x[0], Prim::Reshape))
                return reshape(s, inner->operands[0]);
            return std::nullopt;
        case Prim::Slice:
            if (auto v = slice(s)) return v;
            return slice_of_concat(s);
        case Prim::Pad:
            return pad(s);
        case Prim::Flip:
            if (s.attrs.get<Ints>("dims").empty()) return s.x[0];
            return std::nullopt;
        case Prim::Concat:
            if (s.x.size() == 1) return s.x[0];
            return std::nullopt;
        default:
            return std::nullopt;
    }
}

std::optional<ValueId> reduction(const Site& s) {
    switch (s.prim) {
        case Prim::Sum:
        case Prim::Prod:
        case Prim::Amax:
        case Prim::Amin:
            break;
        default:
            return std::nullopt;
    }
    const Type& from = s.out.type(s.x[0]);
    for (std::int64_t d : s.attrs.get<Ints>("dims"))
        if (!from.sizes[static_cast<std::size_t>(d)].is(1)) return std::nullopt;
    return reshape(s, s.x[0]);
}

}  // namespace ingot::simplify_rules
